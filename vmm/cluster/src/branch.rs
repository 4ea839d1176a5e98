// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a branch is asked to do and what comes of it.

use std::collections::BTreeMap;

use chaoscontrol_fault::{Ledger, Mark, Schedule, Tactic};
use chaoscontrol_sim::{Digest, NetworkCounts, RoundRecord, Trace};
use serde::{Deserialize, Serialize};

use crate::oracle::{AssertionRow, OracleLimit};
use crate::turns::TurnRecording;
use crate::violation::Violation;

/// One branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchPlan {
    /// Faults; times count from the start of the branch.
    pub schedule: Schedule,
    /// Length in cluster ns.
    pub horizon_ns: u64,
    /// Seeds every random stream of the branch: network, entropy devices, SDK choices.
    pub entropy_seed: u64,
    /// Whether edges are counted.
    pub coverage: bool,
    /// Whether every round's record, and every event, is kept.
    pub full_trace: bool,
    /// Faults that follow what the guests do, on top of the schedule.
    pub tactic: Option<Tactic>,
}

impl BranchPlan {
    /// A branch with coverage and without full records.
    #[must_use]
    pub fn new(schedule: Schedule, horizon_ns: u64, entropy_seed: u64) -> Self {
        Self { schedule, horizon_ns, entropy_seed, coverage: true, full_trace: false, tactic: None }
    }
}

/// Why a branch ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Cluster time reached the horizon.
    Horizon,
    /// A violation.
    Violation,
    /// Every workload ended by itself with success.
    AllExited,
    /// The guests exceeded a bound of the oracle: judging on would not be sound.
    OracleLimit(OracleLimit),
}

/// An event that a guest sent. Texts come from the guest and must be escaped where they are shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestEvent {
    /// Which VM.
    pub vm: u16,
    /// When, in cluster ns.
    pub cluster_ns: u64,
    /// Its name.
    pub name: String,
    /// A JSON text, or empty.
    pub details: String,
}

/// Events of one branch that are kept; what comes after them is only counted.
pub const EVENTS_MAX: usize = 65_536;

/// Marks of one branch that are kept. A tactic sees all of them.
pub const MARKS_MAX: usize = 16_384;

/// Numeric assertions of one branch whose closest approach is kept.
pub const APPROACHES_MAX: usize = 4_096;

/// What came of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchOutcome {
    /// Why it ended.
    pub end: EndReason,
    /// Violations in the order of (round, VM, report).
    pub violations: Vec<Violation>,
    /// Every property of the guests' catalogs with its counts since power-on, ordered by message and kind.
    pub assertions: Vec<AssertionRow>,
    /// Events by name, since power-on.
    pub events: BTreeMap<String, u64>,
    /// Edge hit counts of each VM, when asked for.
    pub coverage: Option<Vec<Vec<u8>>>,
    /// The faults of the plan and those that its tactic added. A branch under this schedule alone is the same to the last bit.
    pub schedule: Schedule,
    /// What the guests did, in the order of (round, VM); the first [`MARKS_MAX`].
    pub marks: Vec<Mark>,
    /// How close each numeric assertion came to its limit, by its label `closer: MESSAGE`: a smaller number is closer. One that
    /// came no closer than before the branch is left out, and what exceeds [`APPROACHES_MAX`].
    pub closest: BTreeMap<String, u64>,
    /// Numbers that the guests got from `get_random`, but for VMs that were restarted before, which get no answers any more.
    pub randoms: u64,
    /// What became of each fault.
    pub ledger: Ledger,
    /// The rolling trace over the branch's rounds.
    pub trace: Trace,
    /// The rolling trace and every VM's final memory and disks: two runs are the same when this is.
    pub digest: Digest,
    /// Every round's record, when asked for.
    pub records: Option<Vec<RoundRecord>>,
    /// The guests' events in the order in which they were heard, when asked for; the first [`EVENTS_MAX`].
    pub event_log: Option<Vec<GuestEvent>>,
    /// Instructions that all VMs ran in the branch.
    pub instructions: u64,
    /// Cluster ns that the branch took.
    pub cluster_ns: u64,
    /// The end of each VM's console output.
    pub serial: Vec<Vec<u8>>,
    /// What happened to frames since power-on.
    pub network: NetworkCounts,
    /// The turns of the VMs' CPUs, where a journal of them is kept.
    pub turns: TurnRecording,
}
