// SPDX-License-Identifier: AGPL-3.0-or-later
//! The exact engine: the software CPU behind the engine trait.

use std::sync::Arc;

use chaoscontrol_cpu::{Config, Cpu, CpuState, Exit, GuestRam, RamRegion};

use crate::engine::{Capabilities, CoverageFilter, Engine, EngineError, ProgressUnit, TscBase};
use crate::memory::GuestMemory;

/// The software CPU over a machine's memory.
pub struct Exact {
    cpu: Cpu,
    /// What the CPU points into; freed after it.
    _memory: Arc<GuestMemory>,
}

impl Exact {
    /// A CPU after reset.
    pub fn new(memory: Arc<GuestMemory>) -> Result<Self, EngineError> {
        Self::with_config(memory, &Config::default())
    }

    /// A CPU after reset with caches of other sizes, which no guest can see.
    pub fn with_config(memory: Arc<GuestMemory>, config: &Config) -> Result<Self, EngineError> {
        let regions: Vec<RamRegion> = memory
            .regions()
            .into_iter()
            .map(|(address, bytes, pointer)| RamRegion { address, bytes, pointer })
            .collect();
        // SAFETY: the pointers are the live mappings of `memory`, which this value keeps alive for longer than the CPU
        // (fields drop in order), and the machine, which owns both, calls devices only while the CPU does not run.
        let ram = unsafe { GuestRam::new(&regions) }.map_err(|error| EngineError::State(error.to_string()))?;
        Ok(Self { cpu: Cpu::new(ram, config), _memory: memory })
    }
}

impl Engine for Exact {
    fn capabilities(&self) -> Capabilities {
        Capabilities { exact_budget: true, progress_unit: ProgressUnit::Instructions, edge_coverage: true }
    }

    fn run(&mut self, budget: u64) -> Result<Exit, EngineError> {
        Ok(self.cpu.run(budget))
    }

    fn complete_read(&mut self, value: u64) {
        self.cpu.complete_read(value);
    }

    fn refuse_msr(&mut self) {
        self.cpu.refuse_msr();
    }

    fn progress(&self) -> u64 {
        self.cpu.progress()
    }

    fn compiled_progress(&self) -> u64 {
        self.cpu.compiled_progress()
    }

    fn interrupt_ready(&self) -> bool {
        self.cpu.interrupt_ready()
    }

    fn inject_interrupt(&mut self, vector: u8) {
        self.cpu.inject_interrupt(vector);
    }

    fn inject_nmi(&mut self) -> bool {
        self.cpu.inject_nmi()
    }

    fn request_interrupt_window(&mut self, wanted: bool) {
        self.cpu.request_interrupt_window(wanted);
    }

    fn tpr(&self) -> u8 {
        self.cpu.tpr()
    }

    fn set_tpr(&mut self, tpr: u8) {
        self.cpu.set_tpr(tpr);
    }

    fn state(&self) -> CpuState {
        self.cpu.state()
    }

    fn set_state(&mut self, state: &CpuState) -> Result<(), EngineError> {
        self.cpu.set_state(state).map_err(|error| EngineError::State(error.to_string()))
    }

    fn set_tsc_base(&mut self, base: TscBase) {
        self.cpu.set_tsc_base(base);
    }

    fn take_dirty_pages(&mut self, page: &mut dyn FnMut(u64)) {
        self.cpu.take_dirty_pages(page);
    }

    fn memory_changed(&mut self, address: u64, bytes: u64) {
        self.cpu.memory_changed(address, bytes);
    }

    fn set_coverage(&mut self, filter: Option<CoverageFilter>) {
        self.cpu.set_coverage(filter);
    }

    fn coverage(&self) -> Option<&[u8]> {
        self.cpu.coverage()
    }

    fn clear_coverage(&mut self) {
        self.cpu.clear_coverage();
    }
}
