// SPDX-License-Identifier: AGPL-3.0-or-later
//! The call to `chaos-contract`: every document under its Nickel contract at every handoff.
//!
//! Invariants:
//!
//! - Nickel is linked into one binary only. Everyone else sends it documents over a pipe, many a call, with the digest of the
//!   contract set that they were built with; another set is an error, and so is that the binary is missing.
//! - What is checked are the very bytes that were hashed. CBOR, which the contracts cannot read, goes through a [`view`].
//! - A [`Gate`] collects what a stage reads and writes, so that a stage costs at most two calls.

mod call;
mod gate;
mod view;
pub mod wire;

pub use call::{Checker, ContractError};
pub use gate::{Gate, Origin};
pub use view::view;

use crate::Digest;

mod set {
    include!(concat!(env!("OUT_DIR"), "/contracts.rs"));
}

/// The contract set that this build knows: BLAKE3 over the names and bytes of its files, sorted by name.
pub fn set_digest() -> Digest {
    Digest(set::SET)
}

/// The files of the set: names relative to `contracts/`, and texts.
pub fn sources() -> &'static [(&'static str, &'static str)] {
    set::SOURCES
}

/// A contract that a document breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which document of the call.
    pub index: usize,
    /// The field underlined, the rule and the value, in several lines; and who wrote the document.
    pub text: String,
}
