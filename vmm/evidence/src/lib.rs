// SPDX-License-Identifier: AGPL-3.0-or-later
//! Verdicts, acceptance statuses, receipts and their verification, and reports for people.
//!
//! This crate runs nothing: it reads objects and concludes. The same objects give the same conclusion.

mod chain;
mod error;
pub mod page;
mod receipt;
pub mod report;
mod verdict;

pub use chain::{Step, walk};
pub use error::EvidenceError;
pub use receipt::{Checked, check, derive};
pub use verdict::{judge, status_of};
