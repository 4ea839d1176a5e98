// SPDX-License-Identifier: AGPL-3.0-or-later
//! The board: every device at its address, and the wires between them.
//!
//! Interrupts take one way: a device drives its line, [`Board::wire`] carries it to the PIC and the I/O APIC,
//! [`Board::settle`] carries messages to the local APIC and ends back, and [`Board::pending`] and [`Board::acknowledge`] are
//! what the run loop injects from.

use serde::{Deserialize, Serialize};

use crate::chips::ioapic::{Delivery, Message};
use crate::chips::ioapic::{IoApic, IoApicState};
use crate::chips::keyboard::Keyboard;
use crate::chips::lapic::{CpuRequest, Ipi, Lapic, LapicState};
use crate::chips::pic::{Pic, PicState};
use crate::chips::pit::{Pit, PitState};
use crate::chips::power::{GPE_GENERATION_ID, Power, PowerState, RESET_PORT};
use crate::chips::rtc::{Rtc, RtcState};
use crate::chips::serial::{Serial, SerialState};
use crate::config::VmConfig;
use crate::device::{Context, Device, Line, Request, StateError};
use crate::layout::{
    APIC_BYTES, IOAPIC_ADDRESS, IOAPIC_INPUT_PIT, IRQ_PIT, IRQ_RTC, IRQ_SCI, IRQ_SERIAL, LAPIC_ADDRESS, SDK_ADDRESS,
    SERIAL_PORT, SLOT_CONSOLE, SLOT_DISK, SLOT_NET, SLOT_RNG, VIRTIO_ADDRESS, VIRTIO_IRQS, VIRTIO_SLOT_BYTES,
};
use crate::memory::GuestMemory;
use crate::pages::PageMap;
use crate::sdk_window::{SdkState, SdkWindow};
use crate::time::GuestNs;
use crate::virtio::VirtioMmio;
use crate::virtio::block::{Block, BlockConfig, BlockState};
use crate::virtio::console::{Console, ConsoleState};
use crate::virtio::mmio::MmioState;
use crate::virtio::net::{Net, NetState};
use crate::virtio::rng::{Rng, RngState};
use chaoscontrol_protocol::DOORBELL_BYTES;

/// Interrupt lines.
const LINES: usize = 16;
/// The doorbell and what interrupts nobody drive this line, which is not connected.
const UNCONNECTED: usize = 15;

/// The saved state of every device on the board; disks' pages are beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoardState {
    /// Interrupt controllers.
    pub pic: PicState,
    /// I/O APIC.
    pub ioapic: IoApicState,
    /// Local APIC of the first CPU.
    pub lapic: LapicState,
    /// Interval timer.
    pub pit: PitState,
    /// Real-time clock.
    pub rtc: RtcState,
    /// ACPI fixed hardware.
    pub power: PowerState,
    /// COM1.
    pub serial: SerialState,
    /// SDK doorbell.
    pub sdk: SdkState,
    /// Entropy.
    pub rng: MmioState<RngState>,
    /// Console.
    pub console: MmioState<ConsoleState>,
    /// Network card.
    pub net: Option<MmioState<NetState>>,
    /// Disks.
    pub disks: Vec<MmioState<BlockState>>,
    /// Level of each interrupt line.
    pub lines: Vec<bool>,
    /// VM Generation ID.
    pub generation_id: [u8; 16],
}

/// What the CPU is to be interrupted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The PIC, through LINT0 or an ExtINT message.
    ExtInt,
    /// A vector of the local APIC.
    Vector,
}

/// What a call into the board works with.
pub struct Bus<'a> {
    /// Guest memory.
    pub memory: &'a GuestMemory,
    /// Guest time.
    pub now: GuestNs,
}

/// Every device.
pub struct Board {
    pub(crate) pic: Pic,
    pub(crate) ioapic: IoApic,
    /// One a CPU.
    pub(crate) lapics: Vec<Lapic>,
    /// The CPU that runs: whose local APIC it reaches.
    pub(crate) cpu: usize,
    /// What CPUs asked of others since the last boundary.
    pub(crate) cpu_requests: Vec<(usize, CpuRequest)>,
    pub(crate) pit: Pit,
    pub(crate) rtc: Rtc,
    pub(crate) power: Power,
    pub(crate) serial: Serial,
    pub(crate) keyboard: Keyboard,
    pub(crate) sdk: SdkWindow,
    pub(crate) rng: VirtioMmio<Rng>,
    pub(crate) console: VirtioMmio<Console>,
    pub(crate) net: Option<VirtioMmio<Net>>,
    pub(crate) disks: Vec<VirtioMmio<Block>>,
    pub(crate) generation_id: [u8; 16],
    lines: [Line; LINES],
    /// Levels that the interrupt controllers know.
    carried: [bool; LINES],
    /// What a device asked for and nobody has acted on; the run loop takes it within the instruction.
    pub(crate) request: Option<Request>,
}

/// Calls into one device with its line, and carries the line on.
macro_rules! call {
    ($board:ident, $bus:expr, $device:expr, $irq:expr, $method:ident $(, $argument:expr)*) => {{
        let irq = usize::from($irq);
        let mut context = Context {
            memory: $bus.memory,
            now: $bus.now,
            line: &mut $board.lines[irq],
            request: &mut $board.request,
        };
        let result = $device.$method($($argument,)* &mut context);
        $board.wire(irq);
        result
    }};
}

/// Picks the device of a virtio slot and does `$action` with it and its interrupt.
macro_rules! in_slot {
    ($board:ident, $slot:expr, $none:expr, |$device:ident, $irq:ident| $action:expr) => {{
        let slot: usize = $slot;
        match slot {
            SLOT_RNG => {
                let ($device, $irq) = (&mut $board.rng, VIRTIO_IRQS[slot]);
                $action
            }
            SLOT_CONSOLE => {
                let ($device, $irq) = (&mut $board.console, VIRTIO_IRQS[slot]);
                $action
            }
            SLOT_NET if $board.net.is_some() => match &mut $board.net {
                Some($device) => {
                    let $irq = VIRTIO_IRQS[slot];
                    $action
                }
                None => $none,
            },
            _ => match slot.checked_sub(SLOT_DISK).and_then(|index| $board.disks.get_mut(index)) {
                Some($device) => {
                    let $irq = VIRTIO_IRQS[slot];
                    $action
                }
                None => $none,
            },
        }
    }};
}

impl Board {
    /// The board of a configuration at power-on.
    pub fn new(config: &VmConfig) -> Self {
        let disks = config.disks.iter().enumerate().map(|(index, disk)| {
            let block = BlockConfig {
                flush: disk.flush,
                read_only: disk.read_only,
                ..BlockConfig::new((*disk.image).clone(), disk.size_bytes, index as u32)
            };
            VirtioMmio::new(Block::new(block, &config.rng_seed))
        });
        Self {
            pic: Pic::default(),
            ioapic: IoApic::default(),
            lapics: (0..config.smp.cpus).map(|cpu| Lapic::of_cpu(cpu, config.smp.cpus)).collect(),
            cpu: 0,
            cpu_requests: Vec::new(),
            pit: Pit::default(),
            rtc: Rtc::new(config.wall_clock_start_ns),
            power: Power::default(),
            serial: Serial::default(),
            keyboard: Keyboard,
            sdk: SdkWindow::new(&config.rng_seed),
            rng: VirtioMmio::new(Rng::new(&config.rng_seed)),
            console: VirtioMmio::new(Console::new()),
            net: config.net.map(|net| VirtioMmio::new(Net::new(net.mac))),
            disks: disks.collect(),
            generation_id: [0; 16],
            lines: [Line::default(); LINES],
            carried: [false; LINES],
            request: None,
        }
    }

    /// Carries a line's edge and level to both interrupt controllers.
    fn wire(&mut self, irq: usize) {
        if irq == UNCONNECTED {
            return;
        }
        let line = &mut self.lines[irq];
        let edge = line.take_edge();
        if !edge && line.level() == self.carried[irq] {
            return;
        }
        let line = *line;
        self.carried[irq] = line.level();
        self.pic.set_input(irq as u8, line, edge);
        let input = if irq == usize::from(IRQ_PIT) { usize::from(IOAPIC_INPUT_PIT) } else { irq };
        self.ioapic.set_input(input, line, edge);
        self.settle();
    }

    /// Moves messages and ends of interrupts between the APICs until nothing moves.
    fn settle(&mut self) {
        let mut rejected = Vec::new();
        loop {
            if let Some(vector) = self.lapics.iter_mut().find_map(Lapic::take_ended) {
                self.ioapic.end_of_interrupt(vector);
            } else if let Some(ipi) = self.lapics[self.cpu].take_outgoing() {
                self.send(ipi);
            } else if let Some(message) = self.ioapic.next_message() {
                if !self.deliver(message) && message.level {
                    rejected.push(message.vector);
                }
            } else {
                break;
            }
        }
        // A level that nobody took asks again at the next change.
        rejected.into_iter().for_each(|vector| self.ioapic.reject(vector));
    }

    /// Carries a message of the I/O APIC; false where no CPU took it.
    fn deliver(&mut self, message: Message) -> bool {
        if message.delivery == Delivery::LowestPriority && self.lapics.len() > 1 {
            return self.deliver_to_lowest(message);
        }
        // Each of them is asked, also behind one that took it.
        let takers = self.lapics.iter_mut().filter_map(|lapic| lapic.accept(message).then_some(()));
        takers.count() > 0
    }

    /// Of the CPUs of the destination the one with the lowest priority takes the message; of equal ones the first.
    fn deliver_to_lowest(&mut self, message: Message) -> bool {
        let addressed = self.lapics.iter_mut().filter(|lapic| lapic.is_addressed(&message));
        addressed.min_by_key(|lapic| lapic.priority()).is_some_and(|lapic| lapic.take_message(message))
    }

    /// Carries what the running CPU sends to others. INIT and start-up messages to itself have no effect.
    fn send(&mut self, ipi: Ipi) {
        let Ipi { message, all_others } = ipi;
        if message.delivery == Delivery::LowestPriority && !all_others {
            self.deliver_to_lowest(message);
            return;
        }
        for cpu in (0..self.lapics.len()).filter(|cpu| *cpu != self.cpu) {
            let lapic = &mut self.lapics[cpu];
            if !all_others && !lapic.is_addressed(&message) {
                continue;
            }
            match message.delivery {
                Delivery::Init => {
                    lapic.init();
                    self.cpu_requests.push((cpu, CpuRequest::Init));
                }
                Delivery::StartUp => self.cpu_requests.push((cpu, CpuRequest::StartUp(message.vector))),
                _ => {
                    lapic.take_message(message);
                }
            }
        }
    }

    /// What a CPU should be interrupted with, if anything. The PIC reaches the first CPU alone.
    pub fn pending_for(&self, cpu: usize) -> Option<Pending> {
        let lapic = &self.lapics[cpu];
        // Both may wait; the PIC's request has no priority of its own and goes first, as on the INTR pin.
        if lapic.extint() || cpu == 0 && lapic.passes_pic() && self.pic.interrupts() {
            Some(Pending::ExtInt)
        } else {
            lapic.pending().map(|_| Pending::Vector)
        }
    }

    /// What the running CPU should be interrupted with, if anything.
    pub fn pending(&self) -> Option<Pending> {
        self.pending_for(self.cpu)
    }

    /// The local APIC of the running CPU.
    pub(crate) fn lapic(&self) -> &Lapic {
        &self.lapics[self.cpu]
    }

    /// The local APIC of the running CPU.
    pub(crate) fn lapic_mut(&mut self) -> &mut Lapic {
        &mut self.lapics[self.cpu]
    }

    /// The interrupt acknowledge cycle: which vector the CPU takes now.
    pub fn acknowledge(&mut self) -> Option<u8> {
        match self.pending()? {
            Pending::ExtInt => {
                self.lapic_mut().extint_taken();
                Some(self.pic.acknowledge())
            }
            Pending::Vector => self.lapic_mut().acknowledge(),
        }
    }

    /// IN: fills `data` from consecutive byte ports, or from one device register.
    pub fn port_read(&mut self, port: u16, data: &mut [u8], bus: &Bus<'_>) {
        if matches!(port, 0x600..=0x6ff) {
            return call!(self, bus, self.power, IRQ_SCI, read, u64::from(port), data);
        }
        for (index, byte) in data.iter_mut().enumerate() {
            let port = port.wrapping_add(index as u16);
            self.port_read_byte(port, std::slice::from_mut(byte), bus);
        }
    }

    fn port_read_byte(&mut self, port: u16, data: &mut [u8], bus: &Bus<'_>) {
        let offset = u64::from(port);
        match port {
            0x20 | 0x21 | 0xa0 | 0xa1 | 0x4d0 | 0x4d1 => {
                call!(self, bus, self.pic, UNCONNECTED as u8, read, offset, data)
            }
            0x40..=0x43 | 0x61 => call!(self, bus, self.pit, IRQ_PIT, read, offset, data),
            0x60 | 0x64 => call!(self, bus, self.keyboard, UNCONNECTED as u8, read, offset, data),
            0x70..=0x71 => call!(self, bus, self.rtc, IRQ_RTC, read, offset, data),
            0x3f8..=0x3ff => {
                call!(self, bus, self.serial, IRQ_SERIAL, read, offset - u64::from(SERIAL_PORT), data)
            }
            // A bus that nobody drives reads as ones.
            _ => data.fill(0xff),
        }
    }

    /// OUT.
    pub fn port_write(&mut self, port: u16, data: &[u8], bus: &Bus<'_>) {
        if matches!(port, 0x600..=0x6ff | RESET_PORT) {
            return call!(self, bus, self.power, IRQ_SCI, write, u64::from(port), data);
        }
        for (index, byte) in data.iter().enumerate() {
            let port = port.wrapping_add(index as u16);
            self.port_write_byte(port, std::slice::from_ref(byte), bus);
        }
    }

    fn port_write_byte(&mut self, port: u16, data: &[u8], bus: &Bus<'_>) {
        let offset = u64::from(port);
        match port {
            0x20 | 0x21 | 0xa0 | 0xa1 | 0x4d0 | 0x4d1 => {
                call!(self, bus, self.pic, UNCONNECTED as u8, write, offset, data)
            }
            0x40..=0x43 | 0x61 => call!(self, bus, self.pit, IRQ_PIT, write, offset, data),
            0x60 | 0x64 => call!(self, bus, self.keyboard, UNCONNECTED as u8, write, offset, data),
            0x70..=0x71 => call!(self, bus, self.rtc, IRQ_RTC, write, offset, data),
            0x3f8..=0x3ff => {
                call!(self, bus, self.serial, IRQ_SERIAL, write, offset - u64::from(SERIAL_PORT), data)
            }
            _ => {}
        }
    }

    /// A load from an address that is not RAM.
    pub fn mmio_read(&mut self, address: u64, data: &mut [u8], bus: &Bus<'_>) {
        if let Some(offset) = within(address, LAPIC_ADDRESS, APIC_BYTES) {
            call!(self, bus, self.lapics[self.cpu], UNCONNECTED as u8, read, offset, data);
            self.settle();
        } else if let Some(offset) = within(address, IOAPIC_ADDRESS, APIC_BYTES) {
            call!(self, bus, self.ioapic, UNCONNECTED as u8, read, offset, data);
        } else if let Some((slot, offset)) = slot_of(address) {
            in_slot!(self, slot, data.fill(0xff), |device, irq| call!(self, bus, device, irq, read, offset, data));
        } else if let Some(offset) = within(address, SDK_ADDRESS, DOORBELL_BYTES) {
            call!(self, bus, self.sdk, UNCONNECTED as u8, read, offset, data);
        } else {
            data.fill(0xff);
        }
    }

    /// A store to an address that is not RAM.
    pub fn mmio_write(&mut self, address: u64, data: &[u8], bus: &Bus<'_>) {
        if let Some(offset) = within(address, LAPIC_ADDRESS, APIC_BYTES) {
            call!(self, bus, self.lapics[self.cpu], UNCONNECTED as u8, write, offset, data);
            self.settle();
        } else if let Some(offset) = within(address, IOAPIC_ADDRESS, APIC_BYTES) {
            call!(self, bus, self.ioapic, UNCONNECTED as u8, write, offset, data);
            self.settle();
        } else if let Some((slot, offset)) = slot_of(address) {
            in_slot!(self, slot, (), |device, irq| call!(self, bus, device, irq, write, offset, data));
        } else if let Some(offset) = within(address, SDK_ADDRESS, DOORBELL_BYTES) {
            call!(self, bus, self.sdk, UNCONNECTED as u8, write, offset, data);
        }
    }

    /// When [`Board::advance`] must be called next, if ever.
    pub fn next_event(&self) -> Option<GuestNs> {
        let platform = [self.pit.next_event(), self.rtc.next_event(), self.power.next_event()];
        let lapics = self.lapics.iter().map(Device::next_event);
        let virtio = [self.rng.next_event(), self.console.next_event(), self.net.as_ref().and_then(Device::next_event)];
        let disks = self.disks.iter().map(Device::next_event);
        platform.into_iter().chain(virtio).chain(lapics).chain(disks).flatten().min()
    }

    /// Lets every device whose event is due do it. Devices with nothing due are not touched, so that a stop at this boundary
    /// leaves no mark.
    pub fn advance(&mut self, bus: &Bus<'_>) {
        let due = |event: Option<GuestNs>| event.is_some_and(|event| event <= bus.now);
        if due(self.pit.next_event()) {
            call!(self, bus, self.pit, IRQ_PIT, advance);
        }
        if due(self.rtc.next_event()) {
            call!(self, bus, self.rtc, IRQ_RTC, advance);
        }
        if due(self.power.next_event()) {
            call!(self, bus, self.power, IRQ_SCI, advance);
        }
        for slot in 0..VIRTIO_IRQS.len() {
            in_slot!(self, slot, (), |device, irq| if due(device.next_event()) {
                call!(self, bus, device, irq, advance);
            });
        }
        for cpu in 0..self.lapics.len() {
            if due(self.lapics[cpu].next_event()) {
                call!(self, bus, self.lapics[cpu], UNCONNECTED as u8, advance);
                self.settle();
            }
        }
    }

    /// Hands a frame to the network card.
    pub fn deliver_frame(&mut self, frame: &[u8], bus: &Bus<'_>) -> bool {
        match &mut self.net {
            Some(net) => call!(self, bus, net, VIRTIO_IRQS[SLOT_NET], deliver, frame),
            None => false,
        }
    }

    /// Types into the serial port; returns how many bytes were accepted.
    pub fn type_serial(&mut self, input: &[u8], bus: &Bus<'_>) -> usize {
        call!(self, bus, self.serial, IRQ_SERIAL, type_input, input)
    }

    /// Tells the guest that its generation ID changed.
    pub fn notify_generation_id(&mut self, bus: &Bus<'_>) {
        call!(self, bus, self.power, IRQ_SCI, raise_gpe, GPE_GENERATION_ID);
    }

    /// A line rises and falls without its device.
    pub fn pulse(&mut self, irq: u8) {
        let irq = usize::from(irq);
        if irq < LINES && !self.lines[irq].level() {
            self.lines[irq].set(true);
            self.wire(irq);
            self.lines[irq].set(false);
            self.wire(irq);
        }
    }

    /// The saved state.
    pub fn save(&self) -> BoardState {
        BoardState {
            pic: self.pic.save(),
            ioapic: self.ioapic.save(),
            lapic: self.lapics[0].save(),
            pit: self.pit.save(),
            rtc: self.rtc.save(),
            power: self.power.save(),
            serial: self.serial.save(),
            sdk: self.sdk.save(),
            rng: self.rng.save(),
            console: self.console.save(),
            net: self.net.as_ref().map(Device::save),
            disks: self.disks.iter().map(Device::save).collect(),
            lines: self.lines.iter().map(Line::level).collect(),
            generation_id: self.generation_id,
        }
    }

    /// Each disk's durable pages, to be saved beside the state.
    pub fn media(&self) -> Vec<PageMap> {
        self.disks.iter().map(|disk| disk.medium().clone()).collect()
    }

    /// Replaces the whole state. After an error the board is not usable.
    pub fn restore(&mut self, state: &BoardState, media: &[PageMap]) -> Result<(), StateError> {
        if state.lines.len() != LINES {
            return Err(StateError::new("board", format!("{} interrupt lines instead of {LINES}", state.lines.len())));
        }
        if state.disks.len() != self.disks.len() || media.len() != self.disks.len() {
            return Err(StateError::new("board", format!("{} disks instead of {}", media.len(), self.disks.len())));
        }
        self.pic.restore(&state.pic)?;
        self.ioapic.restore(&state.ioapic)?;
        self.lapics[0].restore(&state.lapic)?;
        self.pit.restore(&state.pit)?;
        self.rtc.restore(&state.rtc)?;
        self.power.restore(&state.power)?;
        self.serial.restore(&state.serial)?;
        self.sdk.restore(&state.sdk)?;
        self.rng.restore(&state.rng)?;
        self.console.restore(&state.console)?;
        match (&mut self.net, &state.net) {
            (Some(net), Some(state)) => net.restore(state)?,
            (None, None) => {}
            _ => return Err(StateError::new("board", "a network card on one side only")),
        }
        for ((disk, state), medium) in self.disks.iter_mut().zip(&state.disks).zip(media) {
            disk.restore_with_medium(state, medium.clone())?;
        }
        for (irq, level) in state.lines.iter().enumerate() {
            self.lines[irq] = Line::default();
            self.lines[irq].set_quietly(*level);
            self.carried[irq] = *level;
        }
        self.generation_id = state.generation_id;
        self.request = None;
        Ok(())
    }
}

fn within(address: u64, start: u64, bytes: u64) -> Option<u64> {
    address.checked_sub(start).filter(|offset| *offset < bytes)
}

fn slot_of(address: u64) -> Option<(usize, u64)> {
    let offset = within(address, VIRTIO_ADDRESS, VIRTIO_IRQS.len() as u64 * VIRTIO_SLOT_BYTES)?;
    Some(((offset / VIRTIO_SLOT_BYTES) as usize, offset % VIRTIO_SLOT_BYTES))
}
