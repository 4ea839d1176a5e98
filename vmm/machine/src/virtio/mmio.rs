// SPDX-License-Identifier: AGPL-3.0-or-later
//! The memory-mapped transport, version 2 (virtio 1.2, section 4.2): one 4 KiB register block a device.
//!
//! Registers are 32 bits wide and taken only as aligned 4-byte accesses; the configuration space from 0x100 on takes every
//! width. Accesses that the specification forbids read as zero, change nothing and are counted.
//!
//! ```text
//!  status:  0 --ACKNOWLEDGE|DRIVER--> probing --FEATURES_OK--> agreed --DRIVER_OK--> running
//!           ^                            (refused bit reads 0)                       |
//!           +------------------- write 0: reset <---- NEEDS_RESET <-- broken ring ---+
//! ```

use serde::{Deserialize, Serialize};

use super::{Io, Queue, QueueError, VirtioDevice};
use crate::device::{Context, Device, StateError};
use crate::memory::GuestMemory;
use crate::time::GuestNs;

/// Bytes of the register block.
pub const REGION_BYTES: u64 = 0x1000;
const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// "CHAO" in ASCII.
const VENDOR: u32 = 0x4f41_4843;
const CONFIG_OFFSET: u64 = 0x100;

/// Feature bits of the transport (section 6).
const FEATURE_INDIRECT_DESC: u64 = 1 << 28;
const FEATURE_VERSION_1: u64 = 1 << 32;
const FEATURE_RING_RESET: u64 = 1 << 40;
const TRANSPORT_FEATURES: u64 = FEATURE_INDIRECT_DESC | FEATURE_VERSION_1 | FEATURE_RING_RESET;

/// Device status bits (section 2.1).
pub mod status {
    /// The driver is set up.
    pub const DRIVER_OK: u32 = 4;
    /// Features are agreed.
    pub const FEATURES_OK: u32 = 8;
    /// The device met an error that only a reset clears.
    pub const NEEDS_RESET: u32 = 64;
    /// The driver gave up.
    pub const FAILED: u32 = 128;
}

/// Register offsets (table 4.1).
pub mod register {
    /// "virt".
    pub const MAGIC_VALUE: u64 = 0x000;
    /// 2.
    pub const VERSION: u64 = 0x004;
    /// Device type.
    pub const DEVICE_ID: u64 = 0x008;
    /// Vendor.
    pub const VENDOR_ID: u64 = 0x00c;
    /// Offered features, the half that `DEVICE_FEATURES_SEL` selects.
    pub const DEVICE_FEATURES: u64 = 0x010;
    /// Which half of the offered features.
    pub const DEVICE_FEATURES_SEL: u64 = 0x014;
    /// Accepted features, the half that `DRIVER_FEATURES_SEL` selects.
    pub const DRIVER_FEATURES: u64 = 0x020;
    /// Which half of the accepted features.
    pub const DRIVER_FEATURES_SEL: u64 = 0x024;
    /// Which queue the queue registers mean.
    pub const QUEUE_SEL: u64 = 0x030;
    /// Largest size of the queue; zero for a queue that does not exist.
    pub const QUEUE_SIZE_MAX: u64 = 0x034;
    /// Chosen size.
    pub const QUEUE_SIZE: u64 = 0x038;
    /// Enables the queue.
    pub const QUEUE_READY: u64 = 0x044;
    /// Buffers were made available on the queue with this number.
    pub const QUEUE_NOTIFY: u64 = 0x050;
    /// Bit 0: used buffers; bit 1: configuration change.
    pub const INTERRUPT_STATUS: u64 = 0x060;
    /// Clears bits of `INTERRUPT_STATUS`.
    pub const INTERRUPT_ACK: u64 = 0x064;
    /// Device status.
    pub const STATUS: u64 = 0x070;
    /// Descriptor table, low half; the high half is 4 further on, also below.
    pub const QUEUE_DESC: u64 = 0x080;
    /// Driver area.
    pub const QUEUE_DRIVER: u64 = 0x090;
    /// Device area.
    pub const QUEUE_DEVICE: u64 = 0x0a0;
    /// Length of the selected shared memory region: all ones, for there is none.
    pub const SHM_LEN: u64 = 0x0b0;
    /// Base of the selected shared memory region: all ones.
    pub const SHM_BASE: u64 = 0x0b8;
    /// Resets the selected queue.
    pub const QUEUE_RESET: u64 = 0x0c0;
    /// Changes whenever the configuration space does.
    pub const CONFIG_GENERATION: u64 = 0x0fc;
}

const INTERRUPT_USED: u32 = 1;
const INTERRUPT_CONFIG: u32 = 2;

/// What the transport keeps for a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    device_features_sel: u32,
    driver_features_sel: u32,
    driver_features: u64,
    queue_sel: u32,
    status: u32,
    interrupt_status: u32,
    config_generation: u32,
    queues: Vec<Queue>,
    /// What went through the registers, for reports.
    pub counters: Counters,
}

/// What went through a device's registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Notifications that reached the device.
    pub notifications: u64,
    /// Accesses that the specification forbids; they changed nothing.
    pub refused_accesses: u64,
    /// Rings that broke the rules; each stopped the device until its next reset.
    pub broken_rings: u64,
}

/// Saved state of a device on this transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MmioState<S> {
    /// The registers and queues.
    pub transport: Transport,
    /// The device behind them.
    pub device: S,
}

/// A device on the memory-mapped transport.
#[derive(Debug)]
pub struct VirtioMmio<D> {
    device: D,
    transport: Transport,
}

impl<D: VirtioDevice> VirtioMmio<D> {
    /// A device after power-on.
    pub fn new(device: D) -> Self {
        VirtioMmio { device, transport: Self::power_on(Counters::default(), 0) }
    }

    /// The transport after power-on or a reset; counters and the configuration's generation outlive a reset.
    fn power_on(counters: Counters, config_generation: u32) -> Transport {
        Transport {
            device_features_sel: 0,
            driver_features_sel: 0,
            driver_features: 0,
            queue_sel: 0,
            status: 0,
            interrupt_status: 0,
            config_generation,
            queues: D::QUEUE_SIZES.iter().map(|&size| Queue::new(size)).collect(),
            counters,
        }
    }

    /// The device behind the registers.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device behind the registers, for injecting faults and taking output.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// What went through the registers.
    pub fn counters(&self) -> Counters {
        self.transport.counters
    }

    /// Whether the driver runs the device.
    pub fn running(&self) -> bool {
        self.transport.status & (status::DRIVER_OK | status::NEEDS_RESET | status::FAILED) == status::DRIVER_OK
    }

    /// Runs `action` on the device with its queues, as a host-side event (a frame that arrives) needs.
    /// Returns `None` when the driver does not run the device or its ring turns out broken.
    pub fn run<R>(
        &mut self,
        context: &mut Context<'_>,
        action: impl FnOnce(&mut D, &mut Io<'_>) -> Result<R, QueueError>,
    ) -> Option<R> {
        let result = self.run_inner(context.memory, context.now, action);
        self.drive_line(context);
        result
    }

    /// Tells the driver that the configuration space changed.
    pub fn configuration_changed(&mut self, context: &mut Context<'_>) {
        self.transport.config_generation = self.transport.config_generation.wrapping_add(1);
        if self.transport.status & status::DRIVER_OK != 0 {
            self.transport.interrupt_status |= INTERRUPT_CONFIG;
        }
        self.drive_line(context);
    }

    fn run_inner<R>(
        &mut self,
        memory: &GuestMemory,
        now: GuestNs,
        action: impl FnOnce(&mut D, &mut Io<'_>) -> Result<R, QueueError>,
    ) -> Option<R> {
        if !self.running() {
            return None;
        }
        let mut used_interrupt = false;
        let mut io = Io { queues: &mut self.transport.queues, memory, now, used_interrupt: &mut used_interrupt };
        let result = action(&mut self.device, &mut io);
        if used_interrupt {
            self.transport.interrupt_status |= INTERRUPT_USED;
        }
        result.map_err(|_| self.break_ring()).ok()
    }

    fn drive_line(&self, context: &mut Context<'_>) {
        context.line.set(self.transport.interrupt_status != 0);
    }

    fn offered(&self) -> u64 {
        self.device.features() | TRANSPORT_FEATURES
    }

    fn read_register(&mut self, offset: u64) -> u32 {
        let transport = &self.transport;
        let queue = transport.queues.get(transport.queue_sel as usize);
        match offset {
            register::MAGIC_VALUE => MAGIC,
            register::VERSION => VERSION,
            register::DEVICE_ID => D::DEVICE_ID,
            register::VENDOR_ID => VENDOR,
            register::DEVICE_FEATURES => half(self.offered(), transport.device_features_sel),
            register::QUEUE_SIZE_MAX => queue.map_or(0, |queue| queue.max_size.into()),
            register::QUEUE_READY => queue.is_some_and(|queue| queue.ready).into(),
            register::INTERRUPT_STATUS => transport.interrupt_status,
            register::STATUS => transport.status,
            // A queue reset is over by the time the write returns.
            register::QUEUE_RESET => 0,
            register::CONFIG_GENERATION => transport.config_generation,
            _ if is_shared_memory(offset) => u32::MAX,
            _ => {
                self.transport.counters.refused_accesses += 1;
                0
            }
        }
    }

    fn write_register(&mut self, memory: &GuestMemory, now: GuestNs, offset: u64, value: u32) {
        let transport = &mut self.transport;
        match offset {
            register::DEVICE_FEATURES_SEL => transport.device_features_sel = value,
            register::DRIVER_FEATURES_SEL => transport.driver_features_sel = value,
            register::DRIVER_FEATURES if transport.status & status::FEATURES_OK == 0 => {
                set_half(&mut transport.driver_features, transport.driver_features_sel, value);
            }
            register::QUEUE_SEL => transport.queue_sel = value,
            register::QUEUE_READY => self.write_queue_ready(memory, value),
            register::QUEUE_NOTIFY => self.notify(memory, now, value),
            register::INTERRUPT_ACK => transport.interrupt_status &= !value,
            register::STATUS => self.write_status(value),
            register::QUEUE_RESET if transport.driver_features & FEATURE_RING_RESET != 0 => {
                if value == 1 {
                    self.stop_selected_queue();
                }
            }
            // There is no shared memory to select.
            0x0ac => {}
            _ => self.write_queue_layout(offset, value),
        }
    }

    /// Size and addresses of the selected queue; fixed while it is enabled.
    fn write_queue_layout(&mut self, offset: u64, value: u32) {
        let selected = self.transport.queue_sel as usize;
        let Some(queue) = self.transport.queues.get_mut(selected).filter(|queue| !queue.ready) else {
            self.transport.counters.refused_accesses += 1;
            return;
        };
        match offset {
            register::QUEUE_SIZE => queue.size = u16::try_from(value).unwrap_or(0),
            0x080 | 0x084 => set_half(&mut queue.descriptors, (offset >> 2) as u32 & 1, value),
            0x090 | 0x094 => set_half(&mut queue.driver, (offset >> 2) as u32 & 1, value),
            0x0a0 | 0x0a4 => set_half(&mut queue.device, (offset >> 2) as u32 & 1, value),
            _ => self.transport.counters.refused_accesses += 1,
        }
    }

    fn write_queue_ready(&mut self, memory: &GuestMemory, value: u32) {
        let selected = self.transport.queue_sel as usize;
        let Some(queue) = self.transport.queues.get_mut(selected) else {
            self.transport.counters.refused_accesses += 1;
            return;
        };
        match value {
            0 => self.stop_selected_queue(),
            1 if !queue.ready => {
                if queue.enable(memory).is_err() {
                    self.break_ring();
                }
            }
            _ => self.transport.counters.refused_accesses += 1,
        }
    }

    fn stop_selected_queue(&mut self) {
        let selected = self.transport.queue_sel as usize;
        if let Some(queue) = self.transport.queues.get_mut(selected) {
            queue.reset();
            self.device.queue_stopped(selected);
        }
    }

    fn notify(&mut self, memory: &GuestMemory, now: GuestNs, value: u32) {
        let queue = value as usize;
        if !self.transport.queues.get(queue).is_some_and(|queue| queue.ready) || !self.running() {
            self.transport.counters.refused_accesses += 1;
            return;
        }
        self.transport.counters.notifications += 1;
        self.run_inner(memory, now, |device, io| device.notify(queue, io));
    }

    fn write_status(&mut self, value: u32) {
        if value == 0 {
            self.reset();
            return;
        }
        // The driver adds bits; it clears none but by a reset (section 2.1.1).
        let transport = &mut self.transport;
        let added = value & 0xff & !transport.status & !status::NEEDS_RESET;
        let mut next = transport.status | added;
        if added & status::FEATURES_OK != 0 {
            let accepted = transport.driver_features;
            let offered = self.device.features() | TRANSPORT_FEATURES;
            if accepted & !offered != 0 || accepted & FEATURE_VERSION_1 == 0 {
                next &= !status::FEATURES_OK;
            }
        }
        if added & status::DRIVER_OK != 0 && next & status::FEATURES_OK == 0 {
            next &= !status::DRIVER_OK;
            transport.counters.refused_accesses += 1;
        }
        let started = next & !transport.status & status::DRIVER_OK != 0;
        transport.status = next;
        if started {
            self.device.activate(transport.driver_features);
        }
    }

    fn reset(&mut self) {
        self.device.reset();
        let counters = self.transport.counters;
        let config_generation = self.transport.config_generation;
        self.transport = VirtioMmio::<D>::power_on(counters, config_generation);
    }

    /// The guest broke a ring: the device stops and asks for a reset (section 2.1.2).
    fn break_ring(&mut self) {
        self.transport.counters.broken_rings += 1;
        self.transport.status |= status::NEEDS_RESET;
        if self.transport.status & status::DRIVER_OK != 0 {
            self.transport.interrupt_status |= INTERRUPT_CONFIG;
        }
    }
}

impl<D: VirtioDevice> Device for VirtioMmio<D> {
    type State = MmioState<D::State>;

    fn read(&mut self, offset: u64, data: &mut [u8], _context: &mut Context<'_>) {
        data.fill(0);
        if offset >= CONFIG_OFFSET {
            self.device.read_config(offset - CONFIG_OFFSET, data);
        } else if data.len() == 4 && offset.is_multiple_of(4) {
            data.copy_from_slice(&self.read_register(offset).to_le_bytes());
        } else {
            self.transport.counters.refused_accesses += 1;
        }
    }

    fn write(&mut self, offset: u64, data: &[u8], context: &mut Context<'_>) {
        if offset >= CONFIG_OFFSET {
            self.device.write_config(offset - CONFIG_OFFSET, data);
        } else if let Ok(bytes) = <[u8; 4]>::try_from(data)
            && offset.is_multiple_of(4)
        {
            self.write_register(context.memory, context.now, offset, u32::from_le_bytes(bytes));
        } else {
            self.transport.counters.refused_accesses += 1;
        }
        self.drive_line(context);
    }

    fn next_event(&self) -> Option<GuestNs> {
        if self.running() { self.device.next_event() } else { None }
    }

    fn advance(&mut self, context: &mut Context<'_>) {
        self.run(context, |device, io| device.advance(io));
    }

    fn save(&self) -> Self::State {
        MmioState { transport: self.transport.clone(), device: self.device.save() }
    }

    fn restore(&mut self, state: &Self::State) -> Result<(), StateError> {
        let queues = &state.transport.queues;
        let same = queues.len() == D::QUEUE_SIZES.len()
            && queues.iter().zip(D::QUEUE_SIZES).all(|(queue, &max)| queue.is_consistent(max));
        if !same {
            return Err(StateError::new(D::NAME, "the queues are not this device's"));
        }
        self.device.restore(&state.device)?;
        self.transport = state.transport.clone();
        Ok(())
    }
}

fn is_shared_memory(offset: u64) -> bool {
    matches!(offset.wrapping_sub(register::SHM_LEN), 0 | 4 | 8 | 12)
}

fn half(value: u64, selector: u32) -> u32 {
    match selector {
        0 => value as u32,
        1 => (value >> 32) as u32,
        _ => 0,
    }
}

fn set_half(target: &mut u64, selector: u32, value: u32) {
    match selector {
        0 => *target = (*target & !0xffff_ffff) | u64::from(value),
        1 => *target = (*target & 0xffff_ffff) | (u64::from(value) << 32),
        _ => {}
    }
}
