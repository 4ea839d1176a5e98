// SPDX-License-Identifier: AGPL-3.0-or-later
//! The machine: configure, load, run, snapshot, restore, fork.

use std::sync::Arc;

use crate::config::VmConfig;
use crate::engine::CoverageFilter;
use crate::memory::GuestMemory;
use crate::pages::Digest;
use crate::snapshot::MachineSnapshot;
use crate::stop::{MachineError, Stop};
use crate::time::{GuestNs, TimeMap};

/// A frame that the guest sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    /// Guest time at which the guest sent it.
    pub at: GuestNs,
    /// The Ethernet frame, without preamble and checksum.
    pub bytes: Vec<u8>,
}

/// One deterministic virtual machine.
pub struct Machine {
    config: Arc<VmConfig>,
    memory: GuestMemory,
}

#[allow(clippy::todo, unused_variables)]
impl Machine {
    /// A machine at power-on with empty memory. Nothing is loaded yet.
    pub fn new(config: Arc<VmConfig>) -> Result<Self, MachineError> {
        let memory = GuestMemory::new(config.memory_bytes)?;
        Ok(Self { config, memory })
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<VmConfig> {
        &self.config
    }

    /// Places kernel, initrd, command line and tables, and the CPU at the kernel's entry.
    pub fn load(&mut self) -> Result<(), MachineError> {
        todo!()
    }

    /// Runs until guest time is at or after `deadline`, or something stops the machine earlier. Timer events inside the
    /// span are met and idle time inside it is skipped.
    pub fn run_until(&mut self, deadline: GuestNs) -> Result<Stop, MachineError> {
        todo!()
    }

    /// Runs exactly `count` more units of progress, unless something stops the machine earlier.
    pub fn run_instructions(&mut self, count: u64) -> Result<Stop, MachineError> {
        todo!()
    }

    /// Runs, skipping idle time, until `pattern` was written to the serial console, at most to `limit`.
    pub fn run_until_serial(&mut self, pattern: &str, limit: GuestNs) -> Result<Stop, MachineError> {
        todo!()
    }

    /// Lets guest time pass to `to` without running: an idle jump, or the end of a pause. Timers that fell due fire at the
    /// next run. A time at or before now changes nothing.
    pub fn skip_to(&mut self, to: GuestNs) {
        todo!()
    }

    /// Guest time at this boundary.
    pub fn now(&self) -> GuestNs {
        todo!()
    }

    /// Units of progress since power-on.
    pub fn instructions(&self) -> u64 {
        todo!()
    }

    /// Whether the CPU is halted with no interrupt to take.
    pub fn is_halted(&self) -> bool {
        todo!()
    }

    /// When the next timer event is due, if any.
    pub fn next_event(&self) -> Option<GuestNs> {
        todo!()
    }

    /// How this machine's guest time follows cluster time.
    pub fn time_map(&self) -> TimeMap {
        todo!()
    }

    /// Replaces the map: a skew starts (same instant at both origins), or a restarted machine joins the cluster's present.
    pub fn set_time_map(&mut self, map: TimeMap) {
        todo!()
    }

    /// The wall clock now: nanoseconds since 1970.
    pub fn wall_clock_ns(&self) -> u64 {
        todo!()
    }

    /// Sets the wall clock (RTC) as a step; guest time and TSC go on.
    pub fn set_wall_clock_ns(&mut self, wall_ns: u64) {
        todo!()
    }

    /// Restarts the entropy device's stream from `seed`.
    pub fn reseed_entropy(&mut self, seed: [u8; 32]) {
        todo!()
    }

    /// Gives the guest a new VM Generation ID and notifies it: it was forked or restarted.
    pub fn set_generation_id(&mut self, id: [u8; 16]) {
        todo!()
    }

    /// Takes the frames sent since the last call, in order.
    pub fn take_frames(&mut self) -> Vec<SentFrame> {
        todo!()
    }

    /// Hands a frame to the network card. False where there is none or its receive queue is full (the frame is lost).
    pub fn deliver_frame(&mut self, frame: &[u8]) -> bool {
        todo!()
    }

    /// Takes what the guest wrote to the serial port since the last call.
    pub fn take_serial(&mut self) -> Vec<u8> {
        todo!()
    }

    /// Types into the serial port; what does not fit waits, bounded.
    pub fn type_serial(&mut self, input: &[u8]) {
        todo!()
    }

    /// Guest memory: reads by the host, and writes that both dirty tracking and the engine see.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Switches edge coverage on or off.
    pub fn set_coverage(&mut self, filter: Option<CoverageFilter>) {
        todo!()
    }

    /// Edge hit counts since the last clear, if coverage is on.
    pub fn coverage(&self) -> Option<&[u8]> {
        todo!()
    }

    /// Zeroes the edge hit counts.
    pub fn clear_coverage(&mut self) {
        todo!()
    }

    /// BLAKE3 of the CPU state's canonical bytes.
    pub fn register_hash(&self) -> Digest {
        todo!()
    }

    /// BLAKE3 over guest memory, as [`crate::pages::PageMap::hash`].
    pub fn memory_hash(&mut self) -> Digest {
        todo!()
    }

    /// The whole machine. Pages that did not change since the last snapshot or restore are shared with it.
    pub fn snapshot(&mut self) -> MachineSnapshot {
        todo!()
    }

    /// Becomes the machine of `snapshot`; copies only the pages that differ.
    pub fn restore(&mut self, snapshot: &MachineSnapshot) -> Result<(), MachineError> {
        todo!()
    }

    /// A second machine that goes on from here on its own.
    pub fn fork(&mut self) -> Result<Self, MachineError> {
        let snapshot = self.snapshot();
        let mut copy = Self::new(self.config.clone())?;
        copy.restore(&snapshot)?;
        Ok(copy)
    }
}
