// SPDX-License-Identifier: AGPL-3.0-or-later
//! An exact x86-64 CPU in software: every instruction counted, nothing of the host visible.
//!
//! Invariants of this crate: it knows no devices, files or clocks; `run` stops at exactly the given count; stopping,
//! resuming, cache sizes and restores cannot be seen by the guest; the host CPU's choices (undefined flags, NaN payloads,
//! approximations) never reach a result.

mod access;
mod blocks;
mod changes;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod compiled;
mod config;
mod core_state;
mod coverage;
mod cpu;
mod debug;
mod decode;
pub mod exit;
mod flags;
mod forms;
mod fp;
mod int;
mod lockstep;
mod memory;
mod mmu;
mod mmu_legacy;
pub mod model;
mod op;
mod run;
mod segment;
pub mod state;
mod sys;
pub mod table;
#[cfg(test)]
mod tests;
mod tlb;
mod width;

pub use config::{Config, CoverageFilter, Tier, TscBase};
pub use coverage::COVERAGE_MAP_BYTES;
pub use cpu::{Cpu, StateError};
pub use exit::{Exit, GuestError};
pub use lockstep::{Lockstep, TiersDiffer};
pub use memory::{GuestRam, PHYSICAL_BITS, RamError, RamRegion};
pub use model::Topology;
pub use state::CpuState;
