// SPDX-License-Identifier: AGPL-3.0-or-later
//! What every device is: a register machine with a saved state, wired to the bus by the board.
//!
//! A device never sees the host: it learns the time from [`Context::now`], reads and writes guest memory through
//! [`Context::memory`], drives one interrupt line and asks for the machine's attention with [`Context::request`]. Each
//! device's file has the same order: registers, saved state, `Device` implementation, tests.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::memory::GuestMemory;
use crate::time::GuestNs;

/// An interrupt output. The board samples it after each call into the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    level: bool,
    edge: bool,
}

impl Line {
    /// Drives the line; a change from low to high is also an edge.
    pub fn set(&mut self, level: bool) {
        self.edge |= level && !self.level;
        self.level = level;
    }

    /// Goes high and low again: an edge that leaves the line low.
    pub fn pulse(&mut self) {
        self.edge = true;
        self.level = false;
    }

    /// Sets the level without making an edge, for outputs whose edges are reported by [`Line::pulse`].
    pub fn set_quietly(&mut self, level: bool) {
        self.level = level;
    }

    /// Whether the line is high.
    pub fn level(&self) -> bool {
        self.level
    }

    /// Takes the edge that happened since the last call, if any.
    pub fn take_edge(&mut self) -> bool {
        std::mem::take(&mut self.edge)
    }
}

/// Something a device needs the machine, or who runs it, to act on at this instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The guest rang the doorbell for an SDK slot: the host must process that slot at once.
    Doorbell {
        /// Slot index, below the protocol's slot count.
        slot: u32,
    },
    /// `chaos-init` is about to start the workload (semantics, point 10).
    RestartPoint,
    /// The guest asked for a reset (ACPI reset register, keyboard controller, port 0xCF9).
    Reset,
    /// The guest entered ACPI S5.
    PowerOff,
}

/// What a device may use during one call.
pub struct Context<'a> {
    /// Guest memory; writes are seen by the engine and by dirty tracking.
    pub memory: &'a GuestMemory,
    /// Guest time at this instruction boundary.
    pub now: GuestNs,
    /// The device's interrupt output.
    pub line: &'a mut Line,
    /// Left as it is, or set to what the machine must act on.
    pub request: &'a mut Option<Request>,
}

/// A saved state that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("saved state of {device}: {what}")]
pub struct StateError {
    /// Which device.
    pub device: &'static str,
    /// The field and the rule it breaks.
    pub what: String,
}

impl StateError {
    /// A refusal of `device`'s saved state.
    pub fn new(device: &'static str, what: impl Into<String>) -> Self {
        Self { device, what: what.into() }
    }
}

/// A device on the bus.
pub trait Device {
    /// Saved state: plain data, complete, nothing derived.
    type State: Clone + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;

    /// Reads `data.len()` bytes (1, 2, 4 or 8) at `offset` from the device's base. Fills all of `data`: what does not exist
    /// reads as the bus would (ones on ports, zeros in memory).
    fn read(&mut self, offset: u64, data: &mut [u8], context: &mut Context<'_>);

    /// Writes `data` at `offset`. What does not exist is ignored.
    fn write(&mut self, offset: u64, data: &[u8], context: &mut Context<'_>);

    /// When [`Device::advance`] must be called next, if ever. May be at or before now.
    fn next_event(&self) -> Option<GuestNs> {
        None
    }

    /// Does what is due at `context.now`. Called at the first boundary at or after each event; harmless at any time.
    fn advance(&mut self, _context: &mut Context<'_>) {}

    /// The saved state.
    fn save(&self) -> Self::State;

    /// Replaces the whole state. On an error the device is unchanged.
    fn restore(&mut self, state: &Self::State) -> Result<(), StateError>;
}

/// `data` as a little-endian number; at most 8 bytes are read.
pub fn value_of(data: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = data.len().min(8);
    bytes[..length].copy_from_slice(&data[..length]);
    u64::from_le_bytes(bytes)
}

/// Fills `data` with the low bytes of `value`, little-endian; bytes past the eighth are zero.
pub fn fill(data: &mut [u8], value: u64) {
    let bytes = value.to_le_bytes();
    for (index, byte) in data.iter_mut().enumerate() {
        *byte = bytes.get(index).copied().unwrap_or(0);
    }
}
