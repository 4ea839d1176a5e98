// SPDX-License-Identifier: AGPL-3.0-or-later
//! Bugs, their minimal schedules, their reproductions and the verdict on them.

use std::collections::BTreeMap;

use chaoscontrol_fault::{Ledger, Schedule};
use serde::{Deserialize, Serialize};

use super::ObjectRef;
use crate::document::{Document, MediaType};
use crate::{Digest, U64};

/// What is wrong, as bugs are told apart: two violations of one property and kind are one bug.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BugIdentity {
    /// `assertion`, `disagreement`, `guest_panic`, `workload_exited` or `guest_shutdown`.
    pub kind: String,
    /// The property: the assertion's message, the namespace of the agreement, how the guest ended.
    pub property: String,
}

/// One violation. Its texts come from a guest: escape them before showing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Violation {
    /// Which bug it is.
    pub identity: BugIdentity,
    /// The VM that reported it.
    pub vm: u16,
    /// Cluster time.
    pub cluster_ns: U64,
    /// The VM's guest time.
    pub guest_ns: U64,
    /// The VM's instructions.
    pub instructions: U64,
    /// Everything else that is known, by name: the site, the guest's details, the values that disagree.
    pub facts: BTreeMap<String, String>,
}

/// How a branch ran: enough to run it again and to see whether the second run is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BranchRecord {
    /// What the cluster consists of.
    pub run: ObjectRef,
    /// What it forked from. None where there never was a snapshot.
    pub snapshot: Option<ObjectRef>,
    /// Seed of the branch's own random streams.
    pub seed: U64,
    /// Length of the branch in cluster ns.
    pub horizon_ns: U64,
    /// The faults, by cluster time after the snapshot.
    pub schedule: Schedule,
    /// What became of each of them.
    pub ledger: Ledger,
    /// What happened, round by round.
    pub trace: ObjectRef,
    /// Instructions of all VMs.
    pub instructions: U64,
    /// Cluster ns that it took.
    pub cluster_ns: U64,
}

/// A violation and how it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bug {
    /// What is wrong.
    pub violation: Violation,
    /// Index of the branch in the campaign.
    pub branch: U64,
    /// How that branch ran.
    pub record: BranchRecord,
}

impl Document for Bug {
    const MEDIA: MediaType = MediaType::Bug;
}

/// A bug whose every fault is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MinimizedBug {
    /// The bug.
    pub bug: ObjectRef,
    /// The violation under the minimal schedule.
    pub violation: Violation,
    /// How the branch with the minimal schedule ran.
    pub record: BranchRecord,
    /// Faults before.
    pub original_faults: u32,
    /// Branches run.
    pub attempts: u32,
    /// Whether leaving out any one fault makes the bug go away. False when the budget ran out first.
    pub one_minimal: bool,
}

impl Document for MinimizedBug {
    const MEDIA: MediaType = MediaType::MinimizedBug;
}

/// Where a reproduction began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// The bug's snapshot.
    Snapshot,
    /// Cold boot, up to where the snapshot was taken.
    Boot,
}

/// The first place where two runs are not the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Divergence {
    /// Round since the cluster started.
    pub round: U64,
    /// Cluster time of that round's end.
    pub cluster_ns: U64,
    /// VM, where one can be named.
    pub vm: Option<u16>,
    /// What differs: `instructions`, `registers`, `frames`, `sdk`, `power`, `time`, `faults`, `length`, or `memory or disks`.
    pub what: String,
    /// In the first run.
    pub expected: String,
    /// In the second run.
    pub found: String,
}

/// What running a bug again gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// The same violation, and the same trace to the last bit.
    Reproduced,
    /// The run differs from the recorded one.
    Diverged(Divergence),
    /// The bug names no snapshot.
    MissingSnapshotRef,
    /// The snapshot is in no store.
    MissingSnapshotArtifact,
    /// The snapshot's bytes are not those of its name.
    InvalidSnapshotDigest(String),
    /// The run could not be made.
    Error(String),
}

/// The result of running a bug again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reproduction {
    /// The bug, or the minimized bug.
    pub bug: ObjectRef,
    /// Where it began.
    pub start: Start,
    /// What came of it.
    pub outcome: Outcome,
    /// The violation that this run showed, if any.
    pub violation: Option<Violation>,
    /// Rolling hash of this run's trace, if it ran.
    pub trace: Option<Digest>,
    /// Console output of each VM, if it was asked for.
    pub consoles: Vec<ObjectRef>,
}

impl Document for Reproduction {
    const MEDIA: MediaType = MediaType::Reproduction;
}
