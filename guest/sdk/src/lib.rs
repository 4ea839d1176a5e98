// SPDX-License-Identifier: Apache-2.0
//! The guest SDK: say what must always and sometimes hold, and ask the explorer for choices.
//!
//! ```
//! use chaoscontrol_sdk::{assert_agree, assert_always, assert_sometimes, details};
//!
//! let (term, leader, committed) = (3u64, 1u32, 7u64);
//! assert_always!(committed <= 10, "nothing is committed that nobody proposed", details! { committed: committed });
//! assert_sometimes!(term > 1, "leadership moves");
//! assert_agree!("leader of a term", term, leader)?;
//! chaoscontrol_sdk::setup_complete(details! { nodes: 3 })?;
//! # Ok::<(), chaoscontrol_sdk::SdkError>(())
//! ```
//!
//! Inside a ChaosControl VM, reports go to the host through a slot of the device's window (`chaoscontrol_protocol`).
//! Elsewhere they are JSON lines in the shape that Antithesis' SDK writes, appended to the file named by
//! `CHAOS_SDK_LOCAL_OUTPUT` or `ANTITHESIS_SDK_LOCAL_OUTPUT`; without such a file they go nowhere. So one binary runs
//! everywhere.
//!
//! A site writes a record at its first pass and at its first failure; after that, an evaluation costs an atomic addition.
//! Threads and forked children may report; a signal handler must not.

#![cfg_attr(not(feature = "std"), no_std)]

mod agree;
#[cfg(any(feature = "std", feature = "sancov"))]
mod coverage;
mod details;
mod error;
mod lock;
mod macros;
mod numeric;
mod random;
mod runtime;
#[cfg(feature = "sancov")]
mod sancov;
mod site;
mod window;

#[cfg(feature = "std")]
pub mod guest;
#[cfg(feature = "std")]
mod kcov;
#[cfg(feature = "std")]
mod lines;
#[cfg(feature = "std")]
mod process;

#[doc(hidden)]
pub mod private;

#[cfg(all(test, feature = "std"))]
mod fake_host;

pub use agree::AgreeValue;
pub use chaoscontrol_protocol::{AGENT_DONE, AgentAction, AgentRequest, Doorbell, LogLevel};
pub use details::{Details, ToJson};
pub use error::SdkError;
pub use numeric::Numeric;
pub use random::{get_random, random_below, random_choice};
pub use runtime::{attach, end_quiet, init, log, process_exit, quiet, send_event, send_event_at_once, setup_complete};
pub use window::Window;

#[cfg(feature = "std")]
pub use process::open_window;
#[cfg(feature = "std")]
pub use runtime::collect_coverage;
#[cfg(feature = "std")]
pub use site::{SiteReport, sites};
