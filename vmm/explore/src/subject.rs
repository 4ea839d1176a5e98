// SPDX-License-Identifier: AGPL-3.0-or-later
//! What runs branches: the cluster, or a small fake in tests.

use std::collections::BTreeMap;

use chaoscontrol_artifact::schema::{AssertionSummary, TraceDocument, Violation};
use chaoscontrol_cluster::{GuestEvent, TurnRecording};
use chaoscontrol_fault::{Ledger, Mark, Schedule, Shape, Tactic};

use crate::error::ExploreError;

/// A branch to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The faults.
    pub schedule: Schedule,
    /// Faults that follow what the guests do, on top.
    pub tactic: Option<Tactic>,
    /// Seed of the branch's own random streams.
    pub seed: u64,
    /// Its length in cluster ns.
    pub horizon_ns: u64,
    /// Whether edges are counted.
    pub coverage: bool,
    /// Moments at which the branch that it grows from was novel, in order: where it is worth keeping for others. No result depends on them.
    pub novel_ns: Vec<u64>,
}

/// How a branch ran.
#[derive(Clone, Debug)]
pub struct Ran {
    /// In the order in which they were reported.
    pub violations: Vec<Violation>,
    /// Every property of the guests with its counts.
    pub assertions: Vec<AssertionSummary>,
    /// Edge hit counts of each VM; empty when they were not asked for.
    pub coverage: Vec<Vec<u8>>,
    /// The faults of the plan and those that its tactic added. A plan of these alone runs to the same bits.
    pub schedule: Schedule,
    /// What the guests did, in order of rounds.
    pub marks: Vec<Mark>,
    /// Numbers that the guests got from `get_random` and a schedule could have answered.
    pub randoms: u64,
    /// How close each numeric assertion came to its limit, by its label: a smaller number is closer.
    pub closest: BTreeMap<String, u64>,
    /// What became of each fault.
    pub ledger: Ledger,
    /// Every round.
    pub trace: TraceDocument,
    /// The turns of the CPUs; empty where no VM keeps a schedule journal.
    pub turns: TurnRecording,
    /// What the guests reported as events, in the order in which it was heard; a first part where there were too many.
    pub events: Vec<GuestEvent>,
    /// Instructions of all VMs.
    pub instructions: u64,
    /// Cluster ns that it took.
    pub cluster_ns: u64,
    /// The end of each VM's console output.
    pub serial: Vec<Vec<u8>>,
}

/// Something that runs branches from one snapshot, each as if it were the first.
pub trait Subject: Send {
    /// Runs a branch.
    fn run(&mut self, plan: &Plan) -> Result<Ran, ExploreError>;
}

/// Makes subjects, one a worker thread.
pub trait Factory: Sync {
    /// A new subject, equal to every other.
    fn subject(&self) -> Result<Box<dyn Subject>, ExploreError>;
    /// What guests are known to do before any branch has run, with how often they did by then.
    fn labels(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
    /// What schedules are checked against, for branches of `horizon_ns`.
    fn shape(&self, horizon_ns: u64) -> Shape;
}
