// SPDX-License-Identifier: AGPL-3.0-or-later
//! Virtio devices over the memory-mapped transport (Virtual I/O Device 1.2; "virtio 1.2" below).
//!
//! Three layers, each a state machine over plain data:
//! - [`queue`]: walks split virtqueues in guest memory. Everything there is hostile; a ring that breaks the rules is an
//!   error that stops the device until the driver resets it.
//! - [`mmio`]: the register block of the modern transport (version 2): features, status, queues, interrupts.
//! - the devices: [`block`], [`net`], [`rng`] and [`console`].
//!
//! Nothing here reads a clock, a file or host randomness: guest time comes in with each call, and every random draw is from
//! a [`crate::entropy::Stream`].
//!
//! The ring walker is our own rather than `virtio-queue`'s iterator: that one ends a malformed chain early and goes on, where we
//! need a typed error for the whole chain before any byte of it is used.

pub mod block;
pub mod console;
pub mod mmio;
pub mod net;
pub mod queue;
pub mod rng;
#[cfg(test)]
mod tests;

pub use mmio::VirtioMmio;
pub use queue::{Chain, Queue, QueueError, Segment};

use serde::{Serialize, de::DeserializeOwned};

use crate::device::StateError;
use crate::memory::GuestMemory;
use crate::time::GuestNs;

/// What a device works with while it runs: its queues, guest memory and the guest's time.
pub struct Io<'a> {
    /// The device's queues, in the order of the specification.
    pub queues: &'a mut [Queue],
    /// Guest memory.
    pub memory: &'a GuestMemory,
    /// Guest time.
    pub now: GuestNs,
    /// Set when the driver must be told of used buffers.
    pub used_interrupt: &'a mut bool,
}

impl Io<'_> {
    /// Takes the next chain that the driver made available on `queue`.
    pub fn pop(&mut self, queue: usize) -> Result<Option<Chain>, QueueError> {
        self.queues[queue].pop(self.memory)
    }

    /// Chains that the driver has made available on `queue` and the device has not taken.
    pub fn available(&self, queue: usize) -> Result<u16, QueueError> {
        self.queues[queue].available(self.memory)
    }

    /// Gives a chain back to the driver after writing `written` bytes into it, with an interrupt unless it wants none.
    pub fn complete(&mut self, queue: usize, head: u16, written: u32) -> Result<(), QueueError> {
        if self.queues[queue].complete(self.memory, head, written)? {
            *self.used_interrupt = true;
        }
        Ok(())
    }
}

/// One device type behind the transport.
pub trait VirtioDevice {
    /// Saved state: plain data, complete, nothing derived.
    type State: Clone + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;
    /// The device's name in messages.
    const NAME: &'static str;
    /// Device type (virtio 1.2, section 5).
    const DEVICE_ID: u32;
    /// The largest size of each queue; also says how many there are.
    const QUEUE_SIZES: &'static [u16];

    /// Feature bits of the device itself; the transport adds its own.
    fn features(&self) -> u64;
    /// Reads the configuration space; bytes past its end are zero.
    fn read_config(&self, offset: u64, out: &mut [u8]);
    /// Writes the configuration space; what is not writable is ignored, and most devices have nothing writable.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}
    /// The driver is ready (DRIVER_OK) with these negotiated features.
    fn activate(&mut self, features: u64);
    /// The driver made buffers available on `queue`.
    fn notify(&mut self, queue: usize, io: &mut Io<'_>) -> Result<(), QueueError>;
    /// When [`VirtioDevice::advance`] has something to do.
    fn next_event(&self) -> Option<GuestNs> {
        None
    }
    /// Does what is due at `io.now`.
    fn advance(&mut self, _io: &mut Io<'_>) -> Result<(), QueueError> {
        Ok(())
    }
    /// The driver stopped or reset one queue: chains taken from it must not be touched again.
    fn queue_stopped(&mut self, queue: usize);
    /// The driver reset the device.
    fn reset(&mut self);
    /// The saved state.
    fn save(&self) -> Self::State;
    /// Replaces the whole state. On an error the device is unchanged.
    fn restore(&mut self, state: &Self::State) -> Result<(), StateError>;
}

/// Copies the part of a configuration space that starts at `offset` into `out`, zeroes behind its end.
pub(crate) fn read_config_bytes(space: &[u8], offset: u64, out: &mut [u8]) {
    out.fill(0);
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(space.len());
    let part = &space[start..(start.saturating_add(out.len())).min(space.len())];
    out[..part.len()].copy_from_slice(part);
}
