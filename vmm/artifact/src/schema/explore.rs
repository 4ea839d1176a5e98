// SPDX-License-Identifier: AGPL-3.0-or-later
//! What exploration keeps: corpus, coverage, assertions.

use std::collections::BTreeMap;

use chaoscontrol_fault::Schedule;
use serde::{Deserialize, Serialize};

use super::ObjectRef;
use crate::document::{Document, MediaType};
use crate::{Bytes, Digest, U64};

/// Branches that one corpus keeps.
pub const ENTRIES_MAX: usize = 65_536;
/// Largest window: branches that may run at once.
pub const WINDOW_MAX: u32 = 256;

/// Where a schedule came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Drawn anew.
    Random,
    /// A changed copy of a corpus entry's.
    Mutation,
    /// Two corpus entries' put together.
    Splice,
    /// Written by hand.
    Given,
    /// No fault at all.
    Empty,
}

/// A branch that is planned but not merged yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedBranch {
    /// Its index in the campaign.
    pub branch: U64,
    /// Seed of the branch's own random streams.
    pub seed: U64,
    /// Where its schedule came from.
    pub origin: Origin,
    /// The entry that it grew from.
    pub parent: Option<U64>,
    /// Its faults.
    pub schedule: Schedule,
}

/// A branch worth building on: it reached something that no branch before it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusEntry {
    /// Its index in the campaign.
    pub branch: U64,
    /// Seed of the branch's own random streams.
    pub seed: U64,
    /// Where its schedule came from.
    pub origin: Origin,
    /// The entry that it grew from.
    pub parent: Option<U64>,
    /// Its faults.
    pub schedule: Schedule,
    /// Edges that it was the first to reach.
    pub new_edges: u32,
    /// Edges that it was the first to reach so often (or so seldom).
    pub new_counts: u32,
    /// Instructions of all its VMs.
    pub instructions: U64,
    /// Rolling hash of its trace.
    pub trace: Digest,
}

/// What became of all faults of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultCounts {
    /// In schedules.
    pub selected: U64,
    /// Could be applied.
    pub applicable: U64,
    /// Could not.
    pub rejected: U64,
    /// Took effect.
    pub applied: U64,
    /// Refused by the machine.
    pub failed: U64,
    /// Had an effect that was observed.
    pub observed: U64,
}

/// Where a campaign stood after one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundSummary {
    /// Branches merged since the campaign began.
    pub branches: U64,
    /// Edges reached.
    pub edges: u32,
    /// Corpus entries.
    pub entries: u32,
    /// Distinct bugs.
    pub bugs: u32,
    /// Instructions of all branches.
    pub instructions: U64,
    /// Cluster time of all branches.
    pub cluster_ns: U64,
}

/// The state of a campaign: its best branches and all it needs to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corpus {
    /// What the cluster consists of.
    pub run: ObjectRef,
    /// What the branches fork from.
    pub snapshot: ObjectRef,
    /// Seed of the campaign.
    pub seed: U64,
    /// Branch i is planned from the merged results of branches up to i - window.
    pub window: u32,
    /// Length of a branch in cluster ns.
    pub horizon_ns: U64,
    /// The merged coverage map.
    pub coverage: ObjectRef,
    /// Every assertion with its hits.
    pub assertions: ObjectRef,
    /// Branches, in order of index.
    pub entries: Vec<CorpusEntry>,
    /// The next branches, `window` of them, planned already.
    pub planned: Vec<PlannedBranch>,
    /// Distinct bugs, in order of discovery.
    pub bugs: Vec<ObjectRef>,
    /// What became of the faults, by kind.
    pub faults: BTreeMap<String, FaultCounts>,
    /// After each round.
    pub rounds: Vec<RoundSummary>,
    /// Where the campaign stands.
    pub total: RoundSummary,
}

impl Document for Corpus {
    const MEDIA: MediaType = MediaType::Corpus;

    fn check(&self) -> Result<(), String> {
        if self.window == 0 || self.window > WINDOW_MAX {
            return Err(format!("window is {}, it must lie between 1 and {WINDOW_MAX}", self.window));
        }
        if self.entries.len() > ENTRIES_MAX {
            return Err(format!("entries has {} entries, at most {ENTRIES_MAX} are allowed", self.entries.len()));
        }
        let next = self.planned.iter().zip(self.total.branches.0..);
        if self.planned.len() != self.window as usize || !next.clone().all(|(planned, index)| planned.branch.0 == index)
        {
            return Err(format!("planned must hold the {} branches from {} on", self.window, self.total.branches));
        }
        if !self.entries.is_sorted_by(|a, b| a.branch < b.branch) {
            return Err("entries must be in order of branches".to_owned());
        }
        let kinds = [(self.snapshot.media_type, MediaType::Snapshot), (self.coverage.media_type, MediaType::Coverage)];
        match kinds.iter().find(|(is, must)| is != must) {
            Some((is, must)) => Err(format!("a {} stands where a {} must", is.schema(), must.schema())),
            None => Ok(()),
        }
    }
}

/// The merged coverage map: for each slot the set of hit-count buckets that some branch reached (bit 0: 1 hit, then 2, 3,
/// 4-7, 8-15, 16-31, 32-127, 128 and more).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoverageMap {
    /// One byte a slot.
    pub slots: Bytes,
    /// Slots that are not zero.
    pub edges: u32,
    /// Estimated number of edges that share a slot with another one.
    pub collisions: u32,
}

impl Document for CoverageMap {
    const MEDIA: MediaType = MediaType::Coverage;

    fn check(&self) -> Result<(), String> {
        let edges = self.slots.0.iter().filter(|slot| **slot != 0).count();
        if edges != self.edges as usize {
            return Err(format!("edges is {}, but {edges} slots are not zero", self.edges));
        }
        Ok(())
    }
}

/// One assertion with its hits over all branches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssertionSummary {
    /// What it claims: `always`, `sometimes`, `reachable`, `unreachable`, `always_or_unreachable` or `agree`.
    pub kind: String,
    /// The property's name.
    pub property: String,
    /// Package, file, line and column of its first site.
    pub site: String,
    /// Whether never reaching it is a gap.
    pub must_hit: bool,
    /// Evaluations that passed.
    pub passes: U64,
    /// Evaluations that failed.
    pub failures: U64,
    /// Branches in which it passed.
    pub branches: U64,
}

impl AssertionSummary {
    /// A property that should have been reached and never was.
    pub fn is_gap(&self) -> bool {
        self.must_hit && self.passes.0 == 0
    }
}

/// Every assertion of the guests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assertions {
    /// In order of kind and property.
    pub assertions: Vec<AssertionSummary>,
}

impl Document for Assertions {
    const MEDIA: MediaType = MediaType::Assertions;

    fn check(&self) -> Result<(), String> {
        let key = |assertion: &AssertionSummary| (assertion.kind.clone(), assertion.property.clone());
        match self.assertions.windows(2).find(|pair| key(&pair[0]) >= key(&pair[1])) {
            Some(pair) => Err(format!("assertions: {:?} stands out of order or twice", pair[1].property)),
            None => Ok(()),
        }
    }
}
