// SPDX-License-Identifier: AGPL-3.0-or-later
//! The interface between the machine and whatever runs guest code.
//!
//! What is above this trait learns about the engine only through [`Capabilities`].

pub use chaoscontrol_cpu::{COVERAGE_MAP_BYTES, CoverageFilter, TscBase};
use chaoscontrol_cpu::{CpuState, Exit};

pub use crate::kvm::KvmError;

/// What one unit of progress is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ProgressUnit {
    /// Guest instructions (and delivered events), each counted.
    Instructions,
    /// Exits to the machine.
    Exits,
}

/// Which CPU the guest is shown. A snapshot names its own: a guest that counts on a TSC goes on only where it can have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum CpuModel {
    /// Everything in the list of CPUID leaves.
    #[default]
    Full,
    /// The same, with the TSC hidden: reading it would show the host's time.
    WithoutTsc,
}

impl CpuModel {
    /// The model that every engine shows unless the host stands in the way.
    pub fn is_full(&self) -> bool {
        *self == Self::Full
    }
}

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What it is called where people and documents name it.
    pub name: &'static str,
    /// Which CPU the guest is shown.
    pub cpu_model: CpuModel,
    /// `run` stops at exactly the budget.
    pub exact_budget: bool,
    /// Unit of budgets and of `CpuState::instructions`.
    pub progress_unit: ProgressUnit,
    /// Control-flow edges can be recorded.
    pub edge_coverage: bool,
}

/// A failure of the engine itself, not of the guest.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine cannot represent this state.
    #[error("cpu state cannot be loaded: {0}")]
    State(String),
    /// The host does not have what was asked for. Nothing has run.
    #[error("{0}")]
    HostLacks(String),
    /// The tiers of the software CPU, run side by side, did different things: a bug of this program.
    #[error("{0}")]
    TiersDiffer(String),
    /// KVM, or a host without it.
    #[error(transparent)]
    Kvm(#[from] KvmError),
}

/// One virtual CPU.
pub trait Engine: Send {
    /// What this engine can do.
    fn capabilities(&self) -> Capabilities;
    /// Runs at most `budget` units of progress and says why it stopped.
    fn run(&mut self, budget: u64) -> Result<Exit, EngineError>;
    /// Answers `PortRead`, `MmioRead` or `MsrRead`; the interrupted instruction goes on at the next `run`.
    fn complete_read(&mut self, value: u64);
    /// Refuses `MsrRead` or `MsrWrite`: the instruction raises #GP(0) at the next `run`.
    fn refuse_msr(&mut self);
    /// Units of progress since reset.
    fn progress(&self) -> u64;
    /// How many of them were made by compiled code.
    fn compiled_progress(&self) -> u64 {
        0
    }
    /// Whether a maskable interrupt can be delivered at this boundary (IF set, no shadow, nothing half done).
    fn interrupt_ready(&self) -> bool;
    /// Delivers a maskable interrupt now. Only when `interrupt_ready`. Counts 1 and wakes a halted CPU.
    fn inject_interrupt(&mut self, vector: u8);
    /// Delivers an NMI now, or returns false where NMIs are held.
    fn inject_nmi(&mut self) -> bool;
    /// Asks `run` to stop with `InterruptWindow` at the first boundary where `interrupt_ready`.
    fn request_interrupt_window(&mut self, wanted: bool);
    /// Task priority class (CR8).
    fn tpr(&self) -> u8;
    /// Sets the task priority class when the guest wrote the local APIC's TPR.
    fn set_tpr(&mut self, tpr: u8);
    /// The whole architectural state.
    fn state(&self) -> CpuState;
    /// Replaces the whole architectural state.
    fn set_state(&mut self, state: &CpuState) -> Result<(), EngineError>;
    /// How RDTSC follows progress.
    fn set_tsc_base(&mut self, base: TscBase);
    /// Calls `page` with each guest-physical page number written since the last call, in ascending order, and forgets them. Engines
    /// of one machine share what they know of its memory: one of them answers for all.
    fn take_dirty_pages(&mut self, page: &mut dyn FnMut(u64));
    /// Guest memory in `[address, address + bytes)` was changed by someone else: a device, a loader, a restore. Of a machine with
    /// several engines one is told, for all.
    fn memory_changed(&mut self, address: u64, bytes: u64);
    /// Switches edge coverage on with a filter, or off.
    fn set_coverage(&mut self, filter: Option<CoverageFilter>);
    /// The edge hit counts so far (saturating bytes; the index is a hash of branch and target), if coverage is on.
    fn coverage(&self) -> Option<&[u8]>;
    /// Zeroes the edge hit counts.
    fn clear_coverage(&mut self);
}
