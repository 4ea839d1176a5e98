// SPDX-License-Identifier: AGPL-3.0-or-later
//! The content-addressed store, the canonical encodings and every document schema.
//!
//! Invariants of this crate:
//!
//! - an object is named by the BLAKE3 of its canonical uncompressed bytes, and is decoded only after that name was checked;
//! - [`document::encode`] and [`document::decode`] are the only ways a document is written or read, so that a check added
//!   there holds at every handoff; a guarded [`Store`] also holds every document against its Nickel contract;
//! - nothing here depends on the host's clock, on iteration order of hash tables, or on what a store already holds;
//! - sizes and counts are checked before anything is allocated for them.

pub mod cbor;
pub mod contract;
pub mod digest;
pub mod document;
pub mod escape;
pub mod exit_code;
pub mod journal;
pub mod json;
pub mod number;
pub mod pack;
pub mod schema;
pub mod stage;
pub mod store;

pub use digest::Digest;
pub use document::{Document, MediaType};
pub use exit_code::{CodedError, ExitCode};
pub use number::{Bytes, U64};
pub use schema::ObjectRef;
pub use stage::StageResult;
pub use store::{Store, StoreError};
