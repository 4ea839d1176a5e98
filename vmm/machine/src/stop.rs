// SPDX-License-Identifier: AGPL-3.0-or-later
//! Why a machine stopped running, and how running can fail.

use chaoscontrol_cpu::GuestError;
use serde::{Deserialize, Serialize};

use crate::device::StateError;
use crate::engine::EngineError;
use crate::memory::MemoryError;
use crate::time::GuestNs;

/// Why [`crate::Machine::run_until`] came back. The machine always stands at an instruction boundary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// Guest time reached the deadline (or the stated number of instructions ran).
    Deadline,
    /// The CPU is halted and nothing is due before the deadline. Guest time has not moved past the halt: the caller decides
    /// how far it jumps ([`crate::Machine::skip_to`]).
    Idle {
        /// The next timer event, at or after the deadline; none if only an input can wake the guest.
        next_event: Option<GuestNs>,
    },
    /// The serial pattern appeared ([`crate::Machine::run_until_serial`] only).
    SerialMatch,
    /// The guest rang the doorbell: this SDK slot must be processed now.
    Doorbell {
        /// Slot index.
        slot: u32,
    },
    /// `chaos-init` is about to start the workload.
    RestartPoint,
    /// The guest reset itself. It does not run on.
    Reset,
    /// The guest powered itself off. It does not run on.
    PowerOff,
    /// The guest kernel panicked. `hint` is the console line that says so, if there was one (guest text: escape it).
    Panic {
        /// Guest text.
        hint: Option<String>,
    },
    /// The CPU shut down (triple fault). It does not run on.
    TripleFault,
    /// The guest did what this CPU model does not define. It does not run on.
    GuestError(GuestError),
}

/// A failure of the machine or of its caller, not of the guest.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A configuration value is out of range.
    #[error("{field}: {rule}")]
    Config {
        /// Which field of the configuration.
        field: &'static str,
        /// The rule it breaks.
        rule: String,
    },
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The machine may have done what no evidence covers; it does nothing any more.
    #[error("this machine is not to be trusted any more: {0}")]
    Poisoned(String),
    /// The schedule journal.
    #[error(transparent)]
    Journal(#[from] crate::smp::journal::JournalError),
    /// There is no room in the event log for what may come next, so nothing runs.
    #[error("the event log is full with {limit} events: log less, or raise its limit")]
    LogFull {
        /// The limit.
        limit: usize,
    },
    /// A snapshot that does not fit.
    #[error("snapshot: {0}")]
    Snapshot(String),
    /// A device's saved state.
    #[error(transparent)]
    State(#[from] StateError),
    /// The kernel or initrd cannot be booted.
    #[error(transparent)]
    Boot(#[from] crate::boot::BootError),
}
