// SPDX-License-Identifier: AGPL-3.0-or-later
//! What every tool shares: one flag table, help, man pages, completions, exit codes, descriptors on stdin and stdout, progress.
//!
//! Invariants: stdout is data and stderr is talk; a closed stdout is success; a tool holds no logic, it parses with its
//! table, calls one library function and writes what that returns; nothing printed depends on the locale.

#[cfg(feature = "canary")]
pub mod canary;
mod colour;
pub mod elf;
mod failure;
mod generate;
mod handoff;
mod help;
mod parse;
mod progress;
mod run;
mod stage;
mod table;

pub use chaoscontrol_artifact::StageResult;
pub use failure::{Failure, FailureExt, Failures};
pub use handoff::{admit, descriptor_before, descriptors_given, read_document, read_handed, read_profile};
pub use parse::{Arguments, nearest};
pub use progress::Progress;
pub use run::{Context, Output, identity, read_input, tool_main, write_file};
pub use stage::{Stage, Work, checker, error_output, stage_main, store_of, stores_checked, stores_read};
pub use table::{
    ALLOW_UNFAITHFUL_KVM, BUG, ENGINE, FROM, Flag, GENERATE, HELP, INPUT, JOBS, PIN_CORE, PREFIX_CACHE, PROFILE,
    Positional, QUIET, SEED, STORE, TIER, Tool, VERSION, Value, WATCHDOG,
};
