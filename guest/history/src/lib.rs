// SPDX-License-Identifier: Apache-2.0
//! Checks histories of operations against what a register, a queue or a counter may do.
//!
//! A history is a list of [`Operation`]s: who called what on which key, from when to when, and what came back. [`check`] takes it
//! apart by key (a history is linearizable when each object's is: Herlihy and Wing 1990) and holds each part against three properties:
//!
//! - **linearizability** of registers and queues: there is an order of the operations that keeps real time and that one sequential
//!   object could have answered; searched as Wing and Gong (1993) do, with the visited configurations remembered (Lowe 2017);
//! - **read-your-writes**: what a process reads is not older than what it wrote before;
//! - **no lost updates**: of two successful compare-and-sets none is based on what the other replaced, and a counter holds what was added.
//!
//! An operation that never returned, or of which nobody knows whether it happened, may take effect at any time after its call, or never.
//! What is found is reduced to the fewest operations that still show it.
//!
//! The crate has no dependency and no clock: guests check themselves with it, and `chaos-history` checks what they sent.

mod check;
mod history;
mod linear;
mod model;
mod reduce;
mod sessions;
mod value;

pub use check::{Budget, Property, Report, Violation, check};
pub use history::{BuildError, Builder, Call, Kind, OPERATIONS_MAX, Operation, Outcome, PROCESSES_MAX};
pub use linear::{Linear, linearizable};
pub use value::{TEXT_BYTES_MAX, Value};
