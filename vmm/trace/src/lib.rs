// SPDX-License-Identifier: AGPL-3.0-or-later
//! The determinism log: what each VM of a branch did, exit by exit, and hashes of its state at fixed counts.
//!
//! Two logs of one thing must be the same to the last bit. Where they are not, the first difference is named, and two runs that
//! can be repeated are narrowed down to the one instruction. Nothing here runs guests, reads files or asks the host.

pub mod diff;
pub mod entry;
pub mod format;
pub mod narrow;
pub mod stats;

pub use diff::{Difference, first_difference};
pub use entry::{Entry, Mark};
pub use format::{FormatError, Log};
pub use narrow::{Found, Narrowing, narrow};
