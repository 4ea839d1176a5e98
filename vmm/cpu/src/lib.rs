// SPDX-License-Identifier: AGPL-3.0-or-later
//! An exact x86-64 CPU in software: every instruction counted, nothing of the host visible.
//!
//! Invariants of this crate: it knows no devices, files or clocks; `run` stops at exactly the given count; stopping,
//! resuming, cache sizes and restores cannot be seen by the guest; the host CPU's choices (undefined flags, NaN payloads,
//! approximations) never reach a result.

pub mod exit;
pub mod state;

pub use exit::{Exit, GuestError};
pub use state::CpuState;
