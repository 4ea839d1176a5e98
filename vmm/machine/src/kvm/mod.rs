// SPDX-License-Identifier: AGPL-3.0-or-later
//! The KVM engine: the host CPU runs guest code, below the same machine.
//!
//! Between two runs the architectural state lies in a software CPU ([`chaoscontrol_cpu::Cpu`]), which delivers every interrupt,
//! executes what KVM cannot be trusted with and answers every question about the state; KVM holds it only inside `run` and
//! while an exit is half done. So the state is always in our own form, whatever the host.
//!
//! Invariants: no interrupt controller or timer of the kernel exists; no timer of the host ever preempts a guest; an exit that
//! the host caused (a signal, EINTR) counts nothing; an engine that may have progressed without exact evidence fails every
//! later run.

mod cpuid;
mod engine;
mod error;
mod exits;
mod pmu;
mod probe;
mod regs;
mod step;
mod vcpu;
mod walk;
mod watchdog;

pub use engine::Kvm;
pub use error::KvmError;
pub use probe::{ExitCost, HostReport, ModeReport, measure, report};
