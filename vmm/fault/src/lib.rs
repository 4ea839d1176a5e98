// SPDX-License-Identifier: AGPL-3.0-or-later
//! Faults as data: kinds, schedules, planning and the stage ledger.
//!
//! One table ([`SPECS`]) gives every kind its name, its parameters with bounds and its documentation; parsing, checking,
//! planning, shrinking and the docs page all read that table. Nothing here touches a machine, a file or a clock, and every
//! random draw comes from a [`Stream`] that the caller names and seeds.

mod composite;
mod kinds;
mod ledger;
mod planner;
mod schedule;
mod stream;
mod table;
mod tactic;
mod wire;

pub use composite::{Label, Pace};
pub use kinds::{Category, Companion, Domain, Draw, Parameter, Role, Spec, Width};
pub use ledger::{Applicability, Application, Ledger, LedgerEntry, LedgerError, Rejection, StageCounts};
pub use planner::Planner;
pub use schedule::{
    Choice, FaultEvent, MAX_CHOICES, MAX_EVENTS, MAX_VMS, RANDOMS_FROM, Schedule, ScheduleError, Shape,
};
pub use stream::{Stream, StreamState};
pub use table::{Fault, FaultKind, SPECS};
pub use tactic::{LABEL_BYTES_MAX, Mark, REACTIONS_MAX, Reaction, TACTIC_EVENTS_MAX, Tactic, Tactician};
