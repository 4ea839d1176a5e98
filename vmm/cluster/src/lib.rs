// SPDX-License-Identifier: AGPL-3.0-or-later
//! The shell that runs N machines as the pure core commands: boot, branches, snapshots, the assertion oracle.
//!
//! [`Cluster`] owns the machines, the [`chaoscontrol_sim::Sim`] that decides what happens, and the [`Oracle`] that judges what
//! the guests report. It is generic over [`Node`], so that its own logic is tested with small fakes; everyone else uses the
//! default, [`chaoscontrol_machine::Machine`].
//!
//! ```text
//!   boot ──> snapshot ──> restore + run(BranchPlan) ──> BranchOutcome      (any number of times)
//! ```

mod branch;
mod cluster;
mod config;
mod machine_node;
mod marks;
mod node;
mod oracle;
mod parts;
mod snapshot;
mod spent;
mod turns;
mod violation;
mod watch;

pub use branch::{BranchOutcome, BranchPlan, EVENTS_MAX, EndReason, GuestEvent, MARKS_MAX};
pub use chaoscontrol_fault as fault;
pub use chaoscontrol_sim as sim;
pub use cluster::{Cluster, GUEST_SLOTS_FROM, Midway, SERIAL_TAIL_BYTES};
pub use config::{BootFailure, ClusterConfig, ClusterError, DiskSpec, SETUP_LIMIT_NS};
pub use marks::{CHOICE, FLUSH, SEND};
pub use node::{Message, MessageBody, Node, NodeStop};
pub use oracle::{AssertionRow, FirstTime, Mistake, Oracle, OracleLimit, Report};
pub use parts::{ClusterState, MachineParts, PageList, PartsError, VmState};
pub use snapshot::{ClusterSnapshot, VmSnapshot};
pub use spent::{HostClock, Spent};
pub use turns::{Segment, Tick, TurnRecording};
pub use violation::{Violation, ViolationKind};
pub use watch::{BranchLog, ConsoleLog, ConsolePiece, HEARD_MAX, Heard, HeardKind};
