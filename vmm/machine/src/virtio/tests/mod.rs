// SPDX-License-Identifier: AGPL-3.0-or-later
//! Tests of the virtio devices by a driver that writes its rings by hand.

mod block;
mod block_faults;
mod contract;
mod hostile;
mod power_cut;
mod simple;
mod transport;

use super::mmio::{register, status};
use super::{VirtioDevice, VirtioMmio};
use crate::device::{Context, Device};
use crate::memory::GuestMemory;
use crate::testing::Bench;
use crate::time::GuestNs;

const ROOT: [u8; 32] = [5; 32];
const VERSION_1: u64 = 1 << 32;

/// Where the driver keeps things: 64 KiB a ring from here, then buffers.
const RINGS: u64 = 0x1_0000;
const BUFFERS: u64 = 0x10_0000;
const BUFFERS_END: u64 = 0x3f_0000;

/// A buffer to submit.
pub enum Buffer<'a> {
    /// The device reads it.
    Out(&'a [u8]),
    /// The device writes it; this long.
    In(u32),
}

#[derive(Clone)]
struct Ring {
    size: u16,
    base: u64,
    next_descriptor: u16,
    available: u16,
    used: u16,
}

impl Ring {
    fn descriptor(&self, index: u16) -> u64 {
        self.base + 16 * u64::from(index)
    }

    fn driver_area(&self) -> u64 {
        self.base + 0x8000
    }

    fn device_area(&self) -> u64 {
        self.base + 0xa000
    }
}

/// A driver of one device.
pub struct Driver<D> {
    pub bench: Bench<VirtioMmio<D>>,
    rings: Vec<Ring>,
    next_buffer: u64,
}

impl<D: VirtioDevice> Driver<D> {
    /// Resets the device, agrees on `features` and the transport's, and sets the queues up.
    pub fn start(device: D, features: u64) -> Self {
        let mut driver = Self::without_setup(device);
        driver.set_up(features);
        assert_ne!(driver.bench.read32(register::STATUS) & status::DRIVER_OK, 0, "the device accepts the features");
        driver
    }

    pub fn without_setup(device: D) -> Self {
        Driver { bench: Bench::new(VirtioMmio::new(device)), rings: Vec::new(), next_buffer: BUFFERS }
    }

    pub fn set_up(&mut self, features: u64) {
        let bench = &mut self.bench;
        bench.write32(register::STATUS, 0);
        bench.write32(register::STATUS, 1);
        bench.write32(register::STATUS, 3);
        for (selector, half) in [(0, features as u32), (1, ((features | VERSION_1) >> 32) as u32)] {
            bench.write32(register::DRIVER_FEATURES_SEL, selector);
            bench.write32(register::DRIVER_FEATURES, half);
        }
        bench.write32(register::STATUS, 3 | status::FEATURES_OK);
        self.rings.clear();
        for (index, &size) in D::QUEUE_SIZES.iter().enumerate() {
            let base = RINGS + 0x1_0000 * index as u64;
            let ring = Ring { size, base, next_descriptor: 0, available: 0, used: 0 };
            self.bench.memory.write(base, &[0; 0x1_0000]).unwrap();
            self.enable_queue(index as u32, &ring);
            self.rings.push(ring);
        }
        self.bench.write32(register::STATUS, 3 | status::FEATURES_OK | status::DRIVER_OK);
    }

    fn enable_queue(&mut self, index: u32, ring: &Ring) {
        let bench = &mut self.bench;
        bench.write32(register::QUEUE_SEL, index);
        bench.write32(register::QUEUE_SIZE, ring.size.into());
        for (at, address) in [
            (register::QUEUE_DESC, ring.base),
            (register::QUEUE_DRIVER, ring.driver_area()),
            (register::QUEUE_DEVICE, ring.device_area()),
        ] {
            bench.write32(at, address as u32);
            bench.write32(at + 4, (address >> 32) as u32);
        }
        bench.write32(register::QUEUE_READY, 1);
    }

    fn allocate(&mut self, bytes: u64) -> u64 {
        if self.next_buffer + bytes > BUFFERS_END {
            self.next_buffer = BUFFERS;
        }
        let address = self.next_buffer;
        self.next_buffer += bytes.next_multiple_of(16);
        address
    }

    /// Makes a chain of `buffers` available; returns its head and the address of each buffer.
    pub fn submit(&mut self, queue: usize, buffers: &[Buffer<'_>]) -> (u16, Vec<u64>) {
        let mut addresses = Vec::new();
        let mut ring = self.rings[queue].clone();
        let head = ring.next_descriptor % ring.size;
        for (position, buffer) in buffers.iter().enumerate() {
            let (bytes, mut flags) = match buffer {
                Buffer::Out(data) => (data.len() as u32, 0u16),
                Buffer::In(bytes) => (*bytes, 2),
            };
            let address = self.allocate(bytes.into());
            if let Buffer::Out(data) = buffer {
                self.bench.memory.write(address, data).unwrap();
            }
            let index = ring.next_descriptor % ring.size;
            ring.next_descriptor = ring.next_descriptor.wrapping_add(1);
            flags |= u16::from(position + 1 < buffers.len());
            let next = ring.next_descriptor % ring.size;
            write_descriptor(&self.bench.memory, ring.descriptor(index), address, bytes, flags, next);
            addresses.push(address);
        }
        let slot = ring.driver_area() + 4 + 2 * u64::from(ring.available % ring.size);
        self.bench.memory.write(slot, &head.to_le_bytes()).unwrap();
        ring.available = ring.available.wrapping_add(1);
        self.bench.memory.write(ring.driver_area() + 2, &ring.available.to_le_bytes()).unwrap();
        self.rings[queue] = ring;
        (head, addresses)
    }

    pub fn notify(&mut self, queue: u32) {
        self.bench.write32(register::QUEUE_NOTIFY, queue);
    }

    /// The used elements since the last call: head and written bytes.
    pub fn used(&mut self, queue: usize) -> Vec<(u16, u32)> {
        let memory = &self.bench.memory;
        let ring = &mut self.rings[queue];
        let mut index = [0; 2];
        memory.read(ring.device_area() + 2, &mut index).unwrap();
        let mut elements = Vec::new();
        while ring.used != u16::from_le_bytes(index) {
            let mut element = [0; 8];
            memory.read(ring.device_area() + 4 + 8 * u64::from(ring.used % ring.size), &mut element).unwrap();
            let word = u64::from_le_bytes(element);
            elements.push((word as u16, (word >> 32) as u32));
            ring.used = ring.used.wrapping_add(1);
        }
        elements
    }

    pub fn bytes(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.bench.memory.read(address, &mut data).unwrap();
        data
    }

    pub fn device(&mut self) -> &mut D {
        self.bench.device.device_mut()
    }

    /// A host-side call that needs the device's context.
    pub fn host<R>(&mut self, action: impl FnOnce(&mut VirtioMmio<D>, &mut Context<'_>) -> R) -> R {
        let Bench { device, memory, now, line, request, .. } = &mut self.bench;
        action(device, &mut Context { memory, now: *now, line, request })
    }

    pub fn status(&mut self) -> u32 {
        self.bench.read32(register::STATUS)
    }

    pub fn acknowledge(&mut self) -> u32 {
        let pending = self.bench.read32(register::INTERRUPT_STATUS);
        self.bench.write32(register::INTERRUPT_ACK, pending);
        pending
    }

    /// Another driver at the same place: a fresh `device` that took over this one's saved state, with a copy of memory.
    pub fn restored(&self, device: D, medium: impl FnOnce(&mut D)) -> Self {
        let state = self.bench.device.save();
        let mut bench = Bench::new(VirtioMmio::new(device));
        let mut image = vec![0; self.bench.memory.ram_bytes() as usize];
        self.bench.memory.read(0, &mut image).unwrap();
        bench.memory.write(0, &image).unwrap();
        bench.device.restore(&state).expect("its own state is valid");
        medium(bench.device.device_mut());
        assert_eq!(bench.device.save(), state, "restoring is exact");
        bench.now = self.bench.now;
        bench.line = self.bench.line;
        Driver { bench, rings: self.rings.clone(), next_buffer: self.next_buffer }
    }

    /// Everything that the guest or a snapshot can see of both is equal.
    pub fn assert_same(&self, other: &Self) {
        assert_eq!(self.bench.device.save(), other.bench.device.save(), "saved state");
        assert_eq!(self.bench.line, other.bench.line, "interrupt line");
        assert_eq!(self.bench.now, other.bench.now);
        let bytes = self.bench.memory.ram_bytes() as usize;
        assert!(self.bytes(0, bytes) == other.bytes(0, bytes), "guest memory differs");
    }
}

pub fn write_descriptor(memory: &GuestMemory, at: u64, address: u64, bytes: u32, flags: u16, next: u16) {
    let mut raw = [0; 16];
    raw[..8].copy_from_slice(&address.to_le_bytes());
    raw[8..12].copy_from_slice(&bytes.to_le_bytes());
    raw[12..14].copy_from_slice(&flags.to_le_bytes());
    raw[14..].copy_from_slice(&next.to_le_bytes());
    memory.write(at, &raw).unwrap();
}

/// Guest time of a driver.
pub fn now<D>(driver: &Driver<D>) -> GuestNs {
    driver.bench.now
}
