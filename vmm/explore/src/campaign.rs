// SPDX-License-Identifier: AGPL-3.0-or-later
//! The state of a campaign and how the next branch is planned from it.
//!
//! A campaign always holds the next `window` branches planned. Merging branch i plans branch i + window at once, from what is
//! merged then; so a branch is planned from the results of branches up to i - window, whoever runs them in whatever order,
//! and a campaign that is stored and read back goes on as if it had never been.

mod merge;
mod plan;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use chaoscontrol_artifact::schema::{
    AssertionKey, AssertionMoment, AssertionSummary, Assertions, BugIdentity, Corpus, CorpusEntry, FaultCounts,
    LabelCounts, Mode, Origin, PlannedBranch, RoundSummary, Violation,
};
use chaoscontrol_artifact::{ObjectRef, U64};
use chaoscontrol_fault::{FaultKind, Planner, Schedule, Shape, StageCounts};

use crate::coverage::{Coverage, Novelty};
use crate::subject::{Plan, Ran};

pub use merge::MergeError;

/// Default window: as many branches may run at once.
pub const WINDOW: u32 = 16;
/// Entries kept; past it the least novel one goes.
const ENTRIES_KEPT: usize = 4096;

/// What a campaign is about, fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Seed of all planning.
    pub seed: u64,
    /// Branch i is planned from merged results up to i - window.
    pub window: u32,
    /// VMs, disks and the length of a branch.
    pub shape: Shape,
    /// Kinds of faults that are never planned.
    pub without: Vec<FaultKind>,
    /// How branches are planned.
    pub mode: Mode,
    /// What guests are known to do before any branch is merged, with how often they did.
    pub labels: Vec<(String, u64)>,
}

impl Settings {
    /// What plans schedules.
    #[must_use]
    pub fn planner(&self) -> Planner {
        Planner::with_kinds(self.shape.clone(), |kind| !self.without.contains(&kind))
    }
}

/// A violation seen for the first time, with the branch that showed it.
#[derive(Debug)]
pub struct Found {
    /// What.
    pub violation: Violation,
    /// The branch.
    pub branch: PlannedBranch,
}

/// What merging a branch gave.
#[derive(Debug)]
pub struct Merged {
    /// What it added to the coverage map.
    pub novelty: Novelty,
    /// Things that guests did for the first time, or more often than ever.
    pub labels: u32,
    /// Bugs that no earlier branch showed.
    pub found: Vec<Found>,
}

/// A campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    settings: Settings,
    /// Faults that every branch has, whatever else is planned for it.
    base: Schedule,
    planner: Planner,
    coverage: Coverage,
    entries: Vec<CorpusEntry>,
    planned: VecDeque<PlannedBranch>,
    assertions: BTreeMap<AssertionKey, AssertionSummary>,
    faults: BTreeMap<FaultKind, StageCounts>,
    labels: BTreeMap<String, LabelCounts>,
    known: BTreeSet<BugIdentity>,
    total: RoundSummary,
    rounds: Vec<RoundSummary>,
}

const NOTHING: RoundSummary = RoundSummary {
    branches: U64(0),
    edges: 0,
    entries: 0,
    bugs: 0,
    instructions: U64(0),
    cluster_ns: U64(0),
    novel: U64(0),
};

impl Campaign {
    /// A new campaign. Every branch has the faults of `given`, and the first has no others: without any, what fails in it needs
    /// no fault.
    pub fn new(settings: Settings, given: Option<Schedule>) -> Self {
        let planner = settings.planner();
        let mut campaign = Self {
            settings,
            base: given.clone().unwrap_or_default(),
            planner,
            coverage: Coverage::default(),
            entries: Vec::new(),
            planned: VecDeque::new(),
            assertions: BTreeMap::new(),
            faults: BTreeMap::new(),
            labels: BTreeMap::new(),
            known: BTreeSet::new(),
            total: NOTHING,
            rounds: Vec::new(),
        };
        campaign.fill();
        campaign.planned[0].origin = if given.is_some() { Origin::Given } else { Origin::Empty };
        campaign.planned[0].schedule = campaign.base.clone();
        campaign.planned[0].tactic = None;
        campaign
    }

    /// The campaign that a corpus stores. Other settings, or faults of every branch that the corpus was not planned with
    /// (`base_is_new`), begin a new campaign on top of it: its entries and its map stay, the branches that were planned are
    /// planned again, and the next one has just the faults of `base` if they are new.
    pub fn resume(
        corpus: Corpus,
        coverage: Coverage,
        assertions: Assertions,
        known: BTreeSet<BugIdentity>,
        settings: Settings,
        (base, base_is_new): (Schedule, bool),
    ) -> Self {
        let same = !base_is_new
            && corpus.seed.0 == settings.seed
            && corpus.window == settings.window
            && corpus.mode == settings.mode
            && corpus.horizon_ns.0 == settings.shape.horizon_ns;
        let counts = |counts: &FaultCounts| StageCounts {
            selected: counts.selected.0,
            applicable: counts.applicable.0,
            rejected: counts.rejected.0,
            applied: counts.applied.0,
            failed: counts.failed.0,
            observed: counts.observed.0,
        };
        let faults = corpus.faults.iter().filter_map(|(name, c)| Some((FaultKind::from_name(name)?, counts(c))));
        let key = |a: AssertionSummary| (a.key(), a);
        let mut campaign = Self {
            planner: settings.planner(),
            settings,
            base,
            coverage,
            entries: corpus.entries,
            planned: if same { corpus.planned.into() } else { VecDeque::new() },
            assertions: assertions.assertions.into_iter().map(key).collect(),
            faults: faults.collect(),
            labels: corpus.labels,
            known,
            total: corpus.total,
            rounds: corpus.rounds,
        };
        campaign.fill();
        if base_is_new {
            campaign.planned[0].origin = Origin::Given;
            campaign.planned[0].parent = None;
            campaign.planned[0].tactic = None;
            campaign.planned[0].schedule = campaign.base.clone();
        }
        campaign
    }

    /// Index of the next branch to merge.
    pub fn next(&self) -> u64 {
        self.total.branches.0
    }

    /// The branches planned and not merged, in order.
    pub fn planned(&self) -> impl Iterator<Item = &PlannedBranch> {
        self.planned.iter()
    }

    /// What runs a planned branch.
    pub fn plan(&self, branch: &PlannedBranch) -> Plan {
        let horizon_ns = self.settings.shape.horizon_ns;
        let (schedule, tactic) = (branch.schedule.clone(), branch.tactic.clone());
        let parent = branch.parent.and_then(|parent| self.index_of(parent)).map(|index| &self.entries[index]);
        let moments = parent.filter(|parent| parent.seed == branch.seed).map_or(&[][..], |parent| &parent.moments);
        let novel_ns = moments.iter().map(|moment| moment.time_ns.0).collect();
        Plan { schedule, tactic, seed: branch.seed.0, horizon_ns, coverage: true, novel_ns }
    }

    /// Where the entry of a branch stands, if there is one.
    fn index_of(&self, branch: U64) -> Option<usize> {
        self.entries.binary_search_by_key(&branch, |entry| entry.branch).ok()
    }

    /// Where the campaign stands.
    pub fn total(&self) -> &RoundSummary {
        &self.total
    }

    /// Every bug so far.
    pub fn known(&self) -> &BTreeSet<BugIdentity> {
        &self.known
    }

    /// Merges how the next branch ran and plans one more.
    pub fn merge(&mut self, ran: &Ran) -> Merged {
        let branch = self.planned.pop_front().expect("a campaign always has branches planned");
        let novelty = self.coverage.merge(&ran.coverage);
        self.merge_assertions(branch.branch, &ran.assertions);
        ran.ledger.count_into(&mut self.faults);
        let mut found = Vec::new();
        for violation in &ran.violations {
            if self.known.insert(violation.identity.clone()) {
                found.push(Found { violation: violation.clone(), branch: branch.clone() });
            }
        }
        let labels = self.merge_marks(ran);
        if let Some(index) = branch.parent.and_then(|parent| self.index_of(parent)) {
            self.entries[index].grown += 1;
        }
        if novelty.any() || labels > 0 {
            self.keep(branch, novelty, labels, ran);
        }
        let total = &mut self.total;
        total.branches.0 += 1;
        if novelty.edges > 0 {
            total.novel = total.branches;
        }
        total.edges = self.coverage.edges();
        total.entries = self.entries.len() as u32;
        total.bugs = self.known.len() as u32;
        total.instructions.0 = total.instructions.0.saturating_add(ran.instructions);
        total.cluster_ns.0 = total.cluster_ns.0.saturating_add(ran.cluster_ns);
        self.fill();
        Merged { novelty, labels, found }
    }

    /// Ends a round and gives the campaign as a document.
    pub fn to_corpus(&mut self, [run, snapshot, coverage, assertions]: [ObjectRef; 4], bugs: Vec<ObjectRef>) -> Corpus {
        self.rounds.push(self.total);
        let counts = |counts: &StageCounts| FaultCounts {
            selected: U64(counts.selected),
            applicable: U64(counts.applicable),
            rejected: U64(counts.rejected),
            applied: U64(counts.applied),
            failed: U64(counts.failed),
            observed: U64(counts.observed),
        };
        Corpus {
            run,
            snapshot,
            seed: U64(self.settings.seed),
            window: self.settings.window,
            horizon_ns: U64(self.settings.shape.horizon_ns),
            mode: self.settings.mode,
            coverage,
            assertions,
            entries: self.entries.clone(),
            planned: self.planned.iter().cloned().collect(),
            bugs,
            faults: self.faults.iter().map(|(kind, c)| (kind.name().to_owned(), counts(c))).collect(),
            labels: self.labels.clone(),
            rounds: self.rounds.clone(),
            total: self.total,
        }
    }

    /// The merged coverage map.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Every assertion so far.
    pub fn assertions(&self) -> Assertions {
        let judged = |assertion: &AssertionSummary| {
            let verdict = assertion.judged().to_owned();
            AssertionSummary { verdict, ..assertion.clone() }
        };
        Assertions { assertions: self.assertions.values().map(judged).collect() }
    }

    fn merge_assertions(&mut self, index: U64, seen: &[AssertionSummary]) {
        // A branch knows of its own moments only that they are its own.
        let own = |moment: AssertionMoment| AssertionMoment { branch: moment.branch.map(|_| index), ..moment };
        for assertion in seen {
            let merged = self.assertions.entry(assertion.key()).or_insert_with(|| AssertionSummary {
                passes: U64(0),
                failures: U64(0),
                branches: U64(0),
                first_pass: None,
                first_failure: None,
                ..assertion.clone()
            });
            merged.first_pass = merged.first_pass.or(assertion.first_pass.map(own));
            merged.first_failure = merged.first_failure.or(assertion.first_failure.map(own));
            merged.must_hit |= assertion.must_hit;
            merged.passes.0 = merged.passes.0.saturating_add(assertion.passes.0);
            merged.failures.0 = merged.failures.0.saturating_add(assertion.failures.0);
            merged.branches.0 += u64::from(assertion.passes.0 > 0);
        }
    }

    fn keep(&mut self, branch: PlannedBranch, novelty: Novelty, new_labels: u32, ran: &Ran) {
        let moments = self.moments(&ran.marks);
        self.entries.push(CorpusEntry {
            branch: branch.branch,
            seed: branch.seed,
            origin: branch.origin,
            parent: branch.parent,
            schedule: ran.schedule.clone(),
            new_edges: novelty.edges,
            new_counts: novelty.counts,
            new_labels,
            grown: 0,
            moments,
            instructions: U64(ran.instructions),
            trace: ran.trace.digest,
        });
        if self.entries.len() > ENTRIES_KEPT {
            let least = (0..self.entries.len()).min_by_key(|index| {
                let entry = &self.entries[*index];
                (entry.new_edges, entry.new_counts, entry.branch)
            });
            self.entries.remove(least.expect("there are entries"));
        }
    }
}
