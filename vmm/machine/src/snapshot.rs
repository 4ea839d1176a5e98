// SPDX-License-Identifier: AGPL-3.0-or-later
//! A whole machine as plain data plus shared pages; taking one and going back to one.
//!
//! A snapshot holds everything a guest could tell apart, and what waits for the host (frames, SDK messages, console output).
//! Not in it: coverage counts, which belong to an observation, and anything an engine derives.

use chaoscontrol_cpu::CpuState;
use serde::{Deserialize, Serialize};

use crate::board::BoardState;
use crate::engine::{CpuModel, ProgressUnit};
use crate::machine::Machine;
use crate::memory::PAGE_BYTES;
use crate::pages::PageMap;
use crate::smp::SmpState;
use crate::stop::{MachineError, Stop};
use crate::time::{GuestNs, TimeMap};

/// Version of [`MachineState`]; any change of meaning or layout bumps it.
pub const STATE_VERSION: u32 = 1;
/// Version of a [`MachineState`] of several CPUs.
pub const STATE_VERSION_SMP: u32 = 2;

/// Everything of a machine but its memory and disk pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineState {
    /// [`STATE_VERSION`], or [`STATE_VERSION_SMP`] where `smp` is there.
    pub version: u32,
    /// Bytes of RAM.
    pub memory_bytes: u64,
    /// Guest nanoseconds per unit of progress; a machine of another value refuses the snapshot.
    pub ns_per_instruction: u32,
    /// What a unit of progress is.
    pub progress_unit: ProgressUnit,
    /// Which CPU the guest was shown; not written where it is the full one.
    #[serde(default, skip_serializing_if = "CpuModel::is_full")]
    pub cpu_model: CpuModel,
    /// Guest time.
    pub now: GuestNs,
    /// Guest time over cluster time.
    pub time_map: TimeMap,
    /// How the guest ended, if it did.
    pub ended: Option<Stop>,
    /// The first CPU.
    pub cpu: CpuState,
    /// Every device and interrupt controller.
    pub board: BoardState,
    /// The other CPUs, of a machine that has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smp: Option<SmpState>,
}

/// A machine at an instruction boundary. Cloning shares the pages.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSnapshot {
    /// CPU, devices and clocks.
    pub state: MachineState,
    /// RAM and SDK window by guest-physical page number.
    pub pages: PageMap,
    /// Each disk's durable contents.
    pub disks: Vec<PageMap>,
}

impl Machine {
    /// The whole machine. Pages that did not change since the last snapshot or restore are shared with it.
    pub fn snapshot(&mut self) -> MachineSnapshot {
        self.collect_pages();
        let state = MachineState {
            version: if self.cpus.len() > 1 { STATE_VERSION_SMP } else { STATE_VERSION },
            memory_bytes: self.config.memory_bytes,
            ns_per_instruction: self.config.ns_per_instruction,
            progress_unit: self.capabilities().progress_unit,
            cpu_model: self.capabilities().cpu_model,
            now: self.now(),
            time_map: self.time_map,
            ended: self.ended.clone(),
            cpu: self.cpus[0].engine.state(),
            board: self.board.save(),
            smp: self.save_smp(),
        };
        MachineSnapshot { state, pages: self.base.clone(), disks: self.board.media() }
    }

    /// Becomes the machine of `snapshot`; copies only the pages that differ. A snapshot that does not fit this machine's
    /// configuration is refused. After another error (a damaged state) the machine must not be used, only restored again.
    pub fn restore(&mut self, snapshot: &MachineSnapshot) -> Result<(), MachineError> {
        let state = &snapshot.state;
        self.check_sound()?;
        self.check_fit(state)?;
        self.restore_pages(&snapshot.pages)?;
        self.board.restore(&state.board, &snapshot.disks)?;
        self.cpus[0].engine.set_state(&state.cpu)?;
        self.cpus[0].halted = state.cpu.halted;
        self.restore_smp(state.smp.as_ref())?;
        let run = self.progress().wrapping_mul(u64::from(state.ns_per_instruction));
        self.skipped_ns = state.now.0.wrapping_sub(run);
        self.time_map = state.time_map;
        self.ended = state.ended.clone();
        for each in &mut self.cpus {
            each.window_wanted = false;
            each.engine.request_interrupt_window(false);
        }
        self.set_tsc_base();
        Ok(())
    }

    fn check_fit(&self, state: &MachineState) -> Result<(), MachineError> {
        let refuse = |what: String| Err(MachineError::Snapshot(what));
        let expected = if state.smp.is_some() { STATE_VERSION_SMP } else { STATE_VERSION };
        if state.version != expected {
            return refuse(format!("state version {}, this program reads {expected}", state.version));
        }
        self.check_smp_fit(state.smp.as_ref())?;
        if state.memory_bytes != self.config.memory_bytes {
            return refuse(format!(
                "{} bytes of memory, the machine has {}",
                state.memory_bytes, self.config.memory_bytes
            ));
        }
        if state.ns_per_instruction != self.config.ns_per_instruction {
            let (theirs, ours) = (state.ns_per_instruction, self.config.ns_per_instruction);
            return refuse(format!("taken at {theirs} ns an instruction, the machine runs at {ours}"));
        }
        let capabilities = self.capabilities();
        if state.cpu_model.is_full() && !capabilities.cpu_model.is_full() {
            return refuse(format!(
                "its guest counts on a tsc, and engine {} must hide it on this host",
                capabilities.name
            ));
        }
        if !state.time_map.rate.is_valid() {
            return refuse("clock rate out of range".to_owned());
        }
        Ok(())
    }

    /// Brings `dirty` and `base` up to date: afterwards `base` is memory and nothing is dirty.
    pub(crate) fn collect_pages(&mut self) {
        self.collect_dirty();
        let mut bytes = [0; PAGE_BYTES];
        for page in std::mem::take(&mut self.dirty) {
            if self.memory.read(page << 12, &mut bytes).is_ok() {
                self.base.set(page, &bytes);
            }
        }
    }

    fn collect_dirty(&mut self) {
        self.publish_writes();
        let dirty = &mut self.dirty;
        self.cpus[0].engine.take_dirty_pages(&mut |page| {
            dirty.insert(page);
        });
    }

    fn restore_pages(&mut self, pages: &PageMap) -> Result<(), MachineError> {
        self.publish_writes();
        // Ascending thrice, so that sorting is a merge.
        let mut wanted: Vec<u64> = std::mem::take(&mut self.dirty).into_iter().collect();
        self.cpus[0].engine.take_dirty_pages(&mut |page| wanted.push(page));
        self.base.differences(pages, &mut |page| wanted.push(page));
        wanted.sort();
        wanted.dedup();
        if let Some(page) = wanted.iter().copied().find(|page| !self.memory.contains(page << 12, PAGE_BYTES as u64)) {
            // Too much counts as dirty now, which costs copies and nothing else.
            wanted.retain(|page| self.memory.contains(page << 12, PAGE_BYTES as u64));
            self.dirty = wanted.into_iter().collect();
            return Err(MachineError::Snapshot(format!("page {page:#x} is not in the machine's memory")));
        }
        const ZERO: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        for page in wanted {
            self.memory.replace_page(page, pages.get(page).map_or(&ZERO, |page| page.bytes()));
            self.cpus[0].engine.memory_changed(page << 12, PAGE_BYTES as u64);
        }
        // What was just copied is what the snapshot holds: not dirty.
        self.cpus[0].engine.take_dirty_pages(&mut |_| {});
        self.base = pages.clone();
        Ok(())
    }
}
