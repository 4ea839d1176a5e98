// SPDX-License-Identifier: AGPL-3.0-or-later
//! Bugs, their minimal schedules, their reproductions and the verdict on them.

use std::collections::BTreeMap;

use chaoscontrol_fault::{Ledger, MAX_EVENTS, MAX_VMS, Schedule};
use serde::{Deserialize, Serialize};

use super::{ObjectRef, rule};
use crate::document::{Document, MediaType};
use crate::{Digest, U64};

/// Longest branch: a day of cluster time.
pub const HORIZON_NS_MAX: u64 = 86_400_000_000_000;
/// Facts of one violation.
const FACTS_MAX: usize = 256;
/// Branches that minimizing may state to have run.
const ATTEMPTS_MAX: u32 = 1 << 21;
/// What can be wrong.
const KINDS: &[&str] =
    &["assertion", "disagreement", "guest_panic", "workload_exited", "guest_shutdown", "oracle_limit"];

/// What is wrong, as bugs are told apart: two violations of one property and kind are one bug.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BugIdentity {
    /// `assertion`, `disagreement`, `guest_panic`, `workload_exited` or `guest_shutdown`.
    pub kind: String,
    /// The property: the assertion's message, the namespace of the agreement, how the guest ended.
    pub property: String,
}

impl BugIdentity {
    pub(crate) fn check(&self, field: &str) -> rule::Rule {
        rule::one_of(&format!("{field}.kind"), &self.kind, KINDS)
    }
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

impl Violation {
    fn check(&self) -> rule::Rule {
        self.identity.check("violation.identity")?;
        rule::within("violation.vm", self.vm, 0, MAX_VMS - 1)?;
        rule::at_most("violation.facts", self.facts.len(), FACTS_MAX)
    }
}

/// How a branch ran: enough to run it again and to see whether the second run is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BranchRecord {
    /// What the cluster consists of.
    pub run: ObjectRef,
    /// What it forked from. None where there never was a snapshot.
    #[serde(deserialize_with = "rule::present")]
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
    /// The turns that the CPUs took. None where no VM keeps a schedule journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<ObjectRef>,
    /// Instructions of all VMs.
    pub instructions: U64,
    /// Cluster ns that it took.
    pub cluster_ns: U64,
}

impl BranchRecord {
    fn check(&self) -> rule::Rule {
        rule::media("record.run", &self.run, &[MediaType::Run])?;
        rule::media_of("record.snapshot", self.snapshot.as_ref(), MediaType::Snapshot)?;
        rule::media("record.trace", &self.trace, &[MediaType::Trace])?;
        rule::media_of("record.turns", self.turns.as_ref(), MediaType::Turns)?;
        rule::within("record.horizon_ns", self.horizon_ns.0, 1, HORIZON_NS_MAX)?;
        if let Some(event) = self.schedule.events().iter().find(|event| event.time_ns >= self.horizon_ns.0) {
            let (time, horizon) = (event.time_ns, self.horizon_ns);
            return Err(format!("record.schedule has time_ns {time}, it must lie before the horizon of {horizon} ns"));
        }
        self.ledger.check(&self.schedule, self.cluster_ns.0).map_err(|error| format!("record.ledger: {error}"))
    }
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

    fn check(&self) -> Result<(), String> {
        self.violation.check()?;
        self.record.check()
    }
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

    fn check(&self) -> Result<(), String> {
        rule::media("bug", &self.bug, &[MediaType::Bug, MediaType::MinimizedBug])?;
        self.violation.check()?;
        self.record.check()?;
        rule::within("original_faults", self.original_faults, self.record.schedule.len() as u32, MAX_EVENTS as u32)?;
        rule::within("attempts", self.attempts, 0, ATTEMPTS_MAX)
    }
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
    #[serde(deserialize_with = "rule::present")]
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
    #[serde(deserialize_with = "rule::present")]
    pub violation: Option<Violation>,
    /// Rolling hash of this run's trace, if it ran.
    #[serde(deserialize_with = "rule::present")]
    pub trace: Option<Digest>,
    /// Console output of each VM, if it was asked for.
    pub consoles: Vec<ObjectRef>,
}

impl Document for Reproduction {
    const MEDIA: MediaType = MediaType::Reproduction;

    fn check(&self) -> Result<(), String> {
        rule::media("bug", &self.bug, &[MediaType::Bug, MediaType::MinimizedBug])?;
        self.violation.as_ref().map_or(Ok(()), Violation::check)?;
        rule::at_most("consoles", self.consoles.len(), usize::from(MAX_VMS))?;
        self.consoles.iter().try_for_each(|console| rule::media("consoles", console, &[MediaType::Console]))?;
        if let Outcome::Diverged(Divergence { vm: Some(vm), .. }) = self.outcome {
            rule::within("outcome.diverged.vm", vm, 0, MAX_VMS - 1)?;
        }
        let (ran, shows) = (self.trace.is_some(), self.violation.is_some());
        match self.outcome {
            Outcome::Reproduced if !ran || !shows => {
                Err("a bug that was reproduced has a trace and a violation".to_owned())
            }
            Outcome::Diverged(_) if !ran => Err("a run that diverged has a trace".to_owned()),
            Outcome::MissingSnapshotRef | Outcome::MissingSnapshotArtifact if ran || shows => {
                Err("without its snapshot nothing ran: trace and violation must be null".to_owned())
            }
            _ => Ok(()),
        }
    }
}
