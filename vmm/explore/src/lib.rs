// SPDX-License-Identifier: AGPL-3.0-or-later
//! Coverage, corpus, planning, rounds, minimization and replay.
//!
//! Everything here is written against [`Subject`]: something that runs a branch from one snapshot. Invariants:
//!
//! - branch i is planned only from the merged results of branches up to i - window; the window belongs to the campaign;
//! - results merge in order of branches, and minimizing accepts the success of lowest index, so that the number of worker
//!   threads and their speed reach nothing;
//! - budgets count branches and instructions; whoever calls may stop a round at any time and gets a corpus that goes on as
//!   if it had never been stopped.

pub mod campaign;
pub mod coverage;
pub mod error;
pub mod events;
pub mod journal;
pub mod machines;
pub mod minimize;
pub mod pool;
pub mod prefix_cache;
pub mod replay;
pub mod round;
pub mod shard;
pub mod snapshots;
pub mod stages;
pub mod subject;

pub use campaign::Campaign;
pub use coverage::Coverage;
pub use error::ExploreError;
pub use shard::Shard;
pub use subject::{Factory, Plan, Ran, Subject};
