// SPDX-License-Identifier: AGPL-3.0-or-later
//! What exploration keeps: corpus, coverage, assertions.

use std::collections::BTreeMap;

use chaoscontrol_fault::{FaultKind, MAX_VMS, Schedule, Tactic};
use serde::{Deserialize, Serialize};

use super::{HORIZON_NS_MAX, ObjectRef, rule};
use crate::document::{Document, MediaType};
use crate::{Bytes, Digest, U64};

/// Branches that one corpus keeps.
pub const ENTRIES_MAX: usize = 65_536;
/// Largest window: branches that may run at once.
pub const WINDOW_MAX: u32 = 256;

/// Distinct bugs of one campaign.
const BUGS_MAX: usize = 4096;
/// Rounds of one campaign.
const ROUNDS_MAX: usize = 65_536;
/// Slots of a coverage map.
const SLOTS_MAX: usize = 1 << 24;
/// Assertions of all guests.
const ASSERTIONS_MAX: usize = 65_536;
/// Labels of one campaign.
pub const LABELS_MAX: usize = 1024;
/// Moments that one entry keeps.
pub const MOMENTS_MAX: usize = 32;
/// What an assertion can claim.
const KINDS: &[&str] = &["always", "sometimes", "reachable", "unreachable", "always_or_unreachable", "agree"];

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
    /// Faults that belong together: one after the other, or all at once.
    Shape,
    /// Faults that follow what the guests do, alone or on top of an entry's.
    Tactic,
    /// Every fault drawn by itself.
    Uniform,
    /// Written by hand.
    Given,
    /// No fault at all.
    Empty,
}

/// How a campaign plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Schedules of faults, guided by what earlier branches reached and by what guests do.
    #[default]
    Faults,
    /// The answers to the guests' own choices, in place of faults.
    Inputs,
    /// Both.
    Hybrid,
    /// Every fault drawn by itself, without any guidance: what the others are measured against.
    Uniform,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Faults, Self::Inputs, Self::Hybrid, Self::Uniform];

    /// Its name in documents and flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faults => "faults",
            Self::Inputs => "inputs",
            Self::Hybrid => "hybrid",
            Self::Uniform => "uniform",
        }
    }

    /// The mode of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
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
    #[serde(deserialize_with = "rule::present")]
    pub parent: Option<U64>,
    /// Its faults.
    pub schedule: Schedule,
    /// Faults that follow what its guests do, on top.
    #[serde(deserialize_with = "rule::present")]
    pub tactic: Option<Tactic>,
}

/// A moment of a branch: a guest did something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moment {
    /// Cluster ns after the start of the branch.
    pub time_ns: U64,
    /// Which VM.
    pub vm: u16,
    /// What. It may hold text from the guest.
    pub label: String,
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
    #[serde(deserialize_with = "rule::present")]
    pub parent: Option<U64>,
    /// Its faults, those that a tactic added among them.
    pub schedule: Schedule,
    /// Edges that it was the first to reach.
    pub new_edges: u32,
    /// Edges that it was the first to reach so often (or so seldom).
    pub new_counts: u32,
    /// Things that guests did in it, that they had not done before or not so often.
    pub new_labels: u32,
    /// Branches that grew from it.
    pub grown: u32,
    /// Some of what the guests did in it, the rarest first chosen, in order of time.
    pub moments: Vec<Moment>,
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

/// How often guests did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelCounts {
    /// Branches in which they did.
    pub branches: U64,
    /// How often, in all of them.
    pub marks: U64,
    /// How often in one, at most.
    pub most: U64,
    /// How close a numeric assertion came to its limit: a smaller number is closer. Left out for everything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closest: Option<U64>,
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
    /// Branches merged when the last new edge was reached.
    pub novel: U64,
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
    /// How branches are planned.
    pub mode: Mode,
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
    /// What guests do, and how often.
    pub labels: BTreeMap<String, LabelCounts>,
    /// After each round.
    pub rounds: Vec<RoundSummary>,
    /// Where the campaign stands.
    pub total: RoundSummary,
}

impl Document for Corpus {
    const MEDIA: MediaType = MediaType::Corpus;
    const VERSION: u32 = 2;

    fn check(&self) -> Result<(), String> {
        rule::within("window", self.window, 1, WINDOW_MAX)?;
        rule::within("horizon_ns", self.horizon_ns.0, 1, HORIZON_NS_MAX)?;
        rule::at_most("entries", self.entries.len(), ENTRIES_MAX)?;
        rule::at_most("bugs", self.bugs.len(), BUGS_MAX)?;
        rule::at_most("rounds", self.rounds.len(), ROUNDS_MAX)?;
        rule::at_most("labels", self.labels.len(), LABELS_MAX)?;
        let moments = |entry: &CorpusEntry| rule::at_most("entries.moments", entry.moments.len(), MOMENTS_MAX);
        self.entries.iter().try_for_each(moments)?;
        self.planned.iter().filter_map(|planned| planned.tactic.as_ref()).try_for_each(Tactic::check)?;
        rule::media("run", &self.run, &[MediaType::Run])?;
        rule::media("snapshot", &self.snapshot, &[MediaType::Snapshot])?;
        rule::media("coverage", &self.coverage, &[MediaType::Coverage])?;
        rule::media("assertions", &self.assertions, &[MediaType::Assertions])?;
        self.bugs.iter().try_for_each(|bug| rule::media("bugs", bug, &[MediaType::Bug]))?;
        if let Some(name) = self.faults.keys().find(|name| FaultKind::from_name(name).is_none()) {
            return Err(format!("faults has the name {name:?}, which is no kind of fault"));
        }
        if self.total.bugs as usize != self.bugs.len() {
            return Err(format!("total.bugs is {}, but bugs has {} entries", self.total.bugs, self.bugs.len()));
        }
        let next = self.planned.iter().zip(self.total.branches.0..);
        if self.planned.len() != self.window as usize || !next.clone().all(|(planned, index)| planned.branch.0 == index)
        {
            return Err(format!("planned must hold the {} branches from {} on", self.window, self.total.branches));
        }
        if !self.entries.is_sorted_by(|a, b| a.branch < b.branch) {
            return Err("entries must be in order of branches".to_owned());
        }
        Ok(())
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
        rule::at_most("slots", self.slots.0.len(), SLOTS_MAX)?;
        let edges = self.slots.0.iter().filter(|slot| **slot != 0).count();
        if edges != self.edges as usize {
            return Err(format!("edges is {}, but {edges} slots are not zero", self.edges));
        }
        Ok(())
    }
}

/// When an assertion passed or failed for the first time. Running the branch again brings the moment back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssertionMoment {
    /// Index of the branch in the campaign; none before the snapshot that it forks from.
    #[serde(deserialize_with = "rule::present")]
    pub branch: Option<U64>,
    /// Which VM.
    pub vm: u16,
    /// When, in cluster ns since power-on.
    pub cluster_ns: U64,
}

/// What orders assertions and tells them apart: kind, property and identity.
pub type AssertionKey = (String, String, String);

/// One assertion with its hits over all branches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssertionSummary {
    /// What it claims: `always`, `sometimes`, `reachable`, `unreachable`, `always_or_unreachable` or `agree`.
    pub kind: String,
    /// The property's name: the assertion's message.
    pub property: String,
    /// What the assertion is known by: its namespace and key, or package, version, file, line and column.
    pub identity: String,
    /// BLAKE3 of its whole descriptor.
    pub fingerprint: Digest,
    /// Package, file, line and column.
    pub site: String,
    /// Whether never reaching it is a gap.
    pub must_hit: bool,
    /// Evaluations that passed.
    pub passes: U64,
    /// Evaluations that failed.
    pub failures: U64,
    /// Branches in which it passed.
    pub branches: U64,
    /// When it passed first.
    #[serde(deserialize_with = "rule::present")]
    pub first_pass: Option<AssertionMoment>,
    /// When it failed first.
    #[serde(deserialize_with = "rule::present")]
    pub first_failure: Option<AssertionMoment>,
    /// What follows for it: `held`, `violated`, `never_passed` (evaluated, and never true) or `never_reached`.
    pub verdict: String,
}

impl AssertionSummary {
    /// What orders it and tells it apart.
    pub fn key(&self) -> AssertionKey {
        (self.kind.clone(), self.property.clone(), self.identity.clone())
    }

    /// What its counts mean for its kind.
    pub fn judged(&self) -> &'static str {
        let must_hold = matches!(self.kind.as_str(), "always" | "always_or_unreachable" | "unreachable");
        match (self.passes.0, self.failures.0) {
            (_, 1..) if must_hold => "violated",
            (1.., _) => "held",
            (0, 1..) => "never_passed",
            (0, 0) if self.must_hit => "never_reached",
            (0, 0) => "held",
        }
    }

    /// A property that should have held at some time and never did, and was not violated either.
    pub fn is_gap(&self) -> bool {
        self.must_hit && self.passes.0 == 0 && self.judged() != "violated"
    }
}

/// Every assertion of the guests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assertions {
    /// In order of kind, property and identity.
    pub assertions: Vec<AssertionSummary>,
}

impl Document for Assertions {
    const MEDIA: MediaType = MediaType::Assertions;
    /// 2: each site by its identity, with fingerprint, verdict and first moments.
    const VERSION: u32 = 2;

    fn check(&self) -> Result<(), String> {
        rule::at_most("assertions", self.assertions.len(), ASSERTIONS_MAX)?;
        self.assertions.iter().try_for_each(|assertion| rule::one_of("assertions.kind", &assertion.kind, KINDS))?;
        if let Some(pair) = self.assertions.windows(2).find(|pair| pair[0].key() >= pair[1].key()) {
            return Err(format!("assertions: {:?} stands out of order or twice", pair[1].property));
        }
        for moment in
            self.assertions.iter().flat_map(|assertion| [&assertion.first_pass, &assertion.first_failure]).flatten()
        {
            rule::within("assertions.vm", moment.vm, 0, MAX_VMS - 1)?;
        }
        match self.assertions.iter().find(|assertion| assertion.verdict != assertion.judged()) {
            Some(wrong) => {
                let (verdict, judged) = (&wrong.verdict, wrong.judged());
                Err(format!("assertions: {:?} has the verdict {verdict:?}, its counts say {judged:?}", wrong.property))
            }
            None => Ok(()),
        }
    }
}
