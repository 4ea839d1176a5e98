// SPDX-License-Identifier: AGPL-3.0-or-later
//! What device tests share: a bench that drives one device, and the contract every device keeps.

use crate::device::{Context, Device, Line, Request, fill, value_of};
use crate::memory::{GuestMemory, MEMORY_BYTES_MIN};
use crate::time::GuestNs;

/// One device with memory, time and a line of its own.
pub(crate) struct Bench<D> {
    pub device: D,
    pub memory: GuestMemory,
    pub now: GuestNs,
    pub line: Line,
    pub request: Option<Request>,
    /// Every value read and every edge seen, for comparing two runs.
    pub log: Vec<u64>,
}

impl<D: Device> Bench<D> {
    pub fn new(device: D) -> Self {
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).expect("the smallest memory maps");
        Self { device, memory, now: GuestNs(0), line: Line::default(), request: None, log: Vec::new() }
    }

    fn call<T>(&mut self, body: impl FnOnce(&mut D, &mut Context<'_>) -> T) -> T {
        let Self { device, memory, now, line, request, .. } = self;
        let result = body(device, &mut Context { memory, now: *now, line, request });
        let edge = self.line.take_edge();
        self.log.push(u64::from(edge) << 1 | u64::from(self.line.level()));
        result
    }

    pub fn read(&mut self, offset: u64, bytes: usize) -> u64 {
        let value = self.call(|device, context| {
            let mut data = [0; 8];
            device.read(offset, &mut data[..bytes], context);
            value_of(&data[..bytes])
        });
        self.log.push(value);
        value
    }

    pub fn write(&mut self, offset: u64, bytes: usize, value: u64) {
        self.call(|device, context| {
            let mut data = [0; 8];
            fill(&mut data, value);
            device.write(offset, &data[..bytes], context);
        });
    }

    pub fn read8(&mut self, offset: u64) -> u8 {
        self.read(offset, 1) as u8
    }

    pub fn write8(&mut self, offset: u64, value: u8) {
        self.write(offset, 1, u64::from(value));
    }

    pub fn read32(&mut self, offset: u64) -> u32 {
        self.read(offset, 4) as u32
    }

    pub fn write32(&mut self, offset: u64, value: u32) {
        self.write(offset, 4, u64::from(value));
    }

    /// Lets time pass to `to`, stopping at every event; returns the edges seen.
    pub fn run_to(&mut self, to: u64) -> u32 {
        let mut edges = 0;
        for _ in 0..1_000_000 {
            let next = self.device.next_event().filter(|event| event.0 <= to);
            self.now = GuestNs(next.map_or(to, |event| event.0.max(self.now.0)));
            self.log.push(self.now.0);
            self.call(|device, context| device.advance(context));
            let seen = *self.log.last().expect("call logs") >> 1 & 1;
            edges += seen as u32;
            if next.is_none() {
                return edges;
            }
        }
        panic!("more than a million events before {to} ns");
    }
}

/// Declares the contract test of a device: brought into the middle of an operation, saved and restored into a fresh device,
/// it goes on exactly as the one that was never stopped.
macro_rules! device_contract {
    ($name:ident, $prepare:expr, $go_on:expr) => {
        #[test]
        fn $name() {
            let mut straight = $prepare();
            let saved = crate::device::Device::save(&straight.device);
            let mut other = $prepare();
            crate::testing::disturb(&mut other);
            crate::device::Device::restore(&mut other.device, &saved).expect("its own state is valid");
            assert_eq!(crate::device::Device::save(&other.device), saved, "restoring is exact");
            assert_eq!(
                crate::device::Device::next_event(&other.device),
                crate::device::Device::next_event(&straight.device)
            );
            other.line = straight.line;
            other.now = straight.now;
            straight.log.clear();
            other.log.clear();
            let go_on = $go_on;
            go_on(&mut straight);
            go_on(&mut other);
            assert_eq!(straight.log, other.log, "what the guest sees");
            assert_eq!(
                crate::device::Device::save(&straight.device),
                crate::device::Device::save(&other.device),
                "what is left behind"
            );
        }
    };
}
pub(crate) use device_contract;

/// Leaves the device in some other state: whatever survives a restore from here is state that was not saved.
pub(crate) fn disturb<D: Device>(bench: &mut Bench<D>) {
    let now = bench.now.0;
    for step in 0..64u64 {
        bench.write(step, 1, step.wrapping_mul(0x35) & 0xff);
        bench.write(step * 16, 4, step.wrapping_mul(0x0101_0101));
        bench.read(step, 1);
    }
    bench.run_to(now + 100_000);
}
