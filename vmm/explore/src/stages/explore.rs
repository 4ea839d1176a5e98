// SPDX-License-Identifier: AGPL-3.0-or-later
//! Explore: rounds of branches from a snapshot or on top of an earlier corpus.

use std::collections::BTreeSet;

use chaoscontrol_artifact::schema::{
    Assertions, BranchRecord, Bug, BugIdentity, Corpus, CoverageMap, Descriptor, Link, Parameter, Parameters,
    RoundSummary, RunConfiguration, ScheduleDocument, SnapshotManifest,
};
use chaoscontrol_artifact::{ExitCode, ObjectRef, StageResult, Store, U64};
use chaoscontrol_fault::{FaultKind, Schedule};

use super::{Talk, same_guest};
use crate::campaign::{Campaign, Settings, WINDOW};
use crate::coverage::Coverage;
use crate::error::ExploreError;
use crate::machines::{Host, Machines, note_engine};
use crate::pool::Pool;
use crate::round::{self, Ended, FoundBug, Limits};
use crate::shard::Shard;
use crate::subject::Factory;

/// Length of a branch unless it is said otherwise: 5 s of cluster time.
pub const HORIZON_NS: u64 = 5_000_000_000;
pub use chaoscontrol_artifact::schema::HORIZON_NS_MAX;

/// What to explore.
#[derive(Clone, Debug)]
pub struct ExploreOptions {
    /// Rounds; a corpus is stored after each.
    pub rounds: u64,
    /// Branches a round; of all its shards together.
    pub branches: u64,
    /// Which part of the round to explore. With more than one shard there is one round.
    pub shard: Shard,
    /// Worker threads.
    pub jobs: u32,
    /// Seed of all planning.
    pub seed: u64,
    /// Length of a branch; none is that of the corpus, or the default.
    pub horizon_ns: Option<u64>,
    /// Window; none is that of the corpus, or the default.
    pub window: Option<u32>,
    /// Instructions of the whole campaign.
    pub instructions: Option<u64>,
    /// Distinct bugs after which to stop.
    pub bugs: Option<u32>,
    /// Where the guests run.
    pub host: Host,
    /// Faults that every branch has, and the next one alone; none are those of the round before, if it had any.
    pub schedule: Option<Schedule>,
    /// Kinds of faults that are never planned; none are those of the round before.
    pub without: Option<Vec<FaultKind>>,
}

/// Explores from what the stage before wrote: a snapshot (boot) or a corpus (an earlier round). `go_on` is asked after each
/// branch. Gives the campaign's totals too.
pub fn explore(
    store: &Store,
    previous: &Descriptor,
    options: &ExploreOptions,
    go_on: &dyn Fn() -> bool,
    talk: Talk,
) -> Result<(StageResult, RoundSummary), ExploreError> {
    let corpus_ref = previous.output("corpus");
    let mut corpus: Option<Corpus> = match &corpus_ref {
        Some(reference) => Some(store.load(reference)?),
        None => None,
    };
    let snapshot = match &corpus {
        Some(corpus) => corpus.snapshot,
        None => previous.output("snapshot").ok_or_else(|| {
            let stage = &previous.stage;
            ExploreError::Input(format!("stage {stage} wrote neither a snapshot nor a corpus to explore from"))
        })?,
    };
    talk(0, 0, "reading the snapshot");
    // An exploration goes on with the engine that it began with.
    let begun = corpus.as_ref().map(|corpus| store.load::<RunConfiguration>(&corpus.run)).transpose()?;
    let host = match begun {
        Some(run) if options.host.engine.is_none() => options.host.on_engine_of(&run),
        _ => options.host,
    };
    let (machines, run) = Machines::load(store, &snapshot, &host)?;
    same_guest(store, previous, &store.load::<SnapshotManifest>(&snapshot)?.run)?;
    let without_before = without_before(previous);
    let settings = settings(options, corpus.as_ref(), &machines, &without_before);
    if settings.planner().is_empty() {
        return Err(ExploreError::Input("without these faults there is none left to plan".to_owned()));
    }
    if let Some(corpus) = corpus.as_mut().filter(|_| settings.without != without_before) {
        // They were planned with other kinds.
        corpus.planned.clear();
    }
    check_shard(options)?;
    let parameters = parameters(options, &settings);
    let mut inputs = vec![Link::new("snapshot", snapshot)];
    inputs.extend(corpus_ref.map(|reference| Link::new("corpus", reference)));
    let inherited = given_before(store, previous)?;
    let given = options.schedule.clone().or(inherited.clone());
    let given_is_new = given != inherited;
    if let Some(schedule) = &given {
        let fits = schedule.check(&settings.shape);
        fits.map_err(|error| ExploreError::Input(format!("schedule: {error}")))?;
        inputs.push(Link::new("schedule", store.publish(&ScheduleDocument { schedule: schedule.clone() })?));
    }
    let mut state = Explorer { store, run, snapshot, bugs: Vec::new(), horizon_ns: settings.shape.horizon_ns };
    let mut campaign = state.campaign(corpus, settings, given, given_is_new)?;
    let range = options.shard.range(campaign.next(), options.branches);
    if options.shard != Shard::WHOLE {
        campaign.skip_to(range.start);
    }
    let options = &ExploreOptions { branches: range.end - range.start, ..options.clone() };
    let pool = Pool::new(&machines, options.jobs);
    let (ended, outputs) = state.rounds(&mut campaign, &pool, options, go_on, talk)?;
    let (code, note) = ending(ended, &campaign);
    let mut result =
        StageResult { parameters, inputs, outputs, jobs: options.jobs, code, note, ..StageResult::default() };
    note_engine(&mut result, &store.load(&run)?);
    Ok((result, *campaign.total()))
}

/// The faults of every branch of the round before.
fn given_before(store: &Store, previous: &Descriptor) -> Result<Option<Schedule>, ExploreError> {
    let link = previous.inputs.iter().find(|link| link.role == "schedule");
    let Some(link) = link.filter(|_| previous.output("corpus").is_some()) else { return Ok(None) };
    Ok(Some(store.load::<ScheduleDocument>(&link.object)?.schedule))
}

/// The kinds that the round before did not plan.
pub(super) fn without_before(previous: &Descriptor) -> Vec<FaultKind> {
    match previous.parameters.get(WITHOUT) {
        Some(Parameter::List(names)) => names.iter().filter_map(|name| FaultKind::from_name(name)).collect(),
        _ => Vec::new(),
    }
}

/// The parameter that names kinds that are not planned; left out where all are.
pub(super) fn note_without(parameters: &mut Parameters, without: &[FaultKind]) {
    if !without.is_empty() {
        let names = without.iter().map(|kind| kind.name().to_owned()).collect();
        parameters.insert(WITHOUT.to_owned(), Parameter::List(names));
    }
}

const WITHOUT: &str = "without_faults";

/// Whether what is asked for makes sense for a part of a round.
fn check_shard(options: &ExploreOptions) -> Result<(), ExploreError> {
    let shard = options.shard;
    if options.branches < u64::from(shard.count()) {
        let branches = options.branches;
        return Err(ExploreError::Input(format!(
            "shard {shard}: a round of {branches} branches has not that many parts"
        )));
    }
    Ok(())
}

fn settings(
    options: &ExploreOptions,
    corpus: Option<&Corpus>,
    machines: &Machines,
    without_before: &[FaultKind],
) -> Settings {
    let horizon_ns = options.horizon_ns.or(corpus.map(|corpus| corpus.horizon_ns.0)).unwrap_or(HORIZON_NS);
    let window = options.window.or(corpus.map(|corpus| corpus.window)).unwrap_or(WINDOW);
    let without = options.without.clone().unwrap_or_else(|| without_before.to_vec());
    Settings { seed: options.seed, window, shape: machines.shape(horizon_ns), without }
}

fn parameters(options: &ExploreOptions, settings: &Settings) -> Parameters {
    let mut parameters = Parameters::new();
    let mut set = |name: &str, value: Parameter| parameters.insert(name.to_owned(), value);
    set("seed", settings.seed.into());
    set("rounds", options.rounds.into());
    set("branches", options.branches.into());
    set("horizon_ns", settings.shape.horizon_ns.into());
    set("window", u64::from(settings.window).into());
    if options.shard != Shard::WHOLE {
        set("shard", options.shard.to_string().as_str().into());
    }
    if let Some(instructions) = options.instructions {
        set("instructions", instructions.into());
    }
    if let Some(bugs) = options.bugs {
        set("bugs", u64::from(bugs).into());
    }
    note_without(&mut parameters, &settings.without);
    parameters
}

/// A budget that ran out is said with its code; what was done is kept all the same.
fn ending(ended: Ended, campaign: &Campaign) -> (ExitCode, Option<String>) {
    let branches = campaign.total().branches;
    let why = match ended {
        Ended::Branches | Ended::Bugs => return (ExitCode::Success, None),
        Ended::Instructions => "the instruction budget ran out",
        Ended::Asked => "the time limit was reached",
    };
    let note = format!("{why} after {branches} branches; explore from this stage's descriptor to go on");
    (ExitCode::BudgetExhausted, Some(note))
}

/// What a campaign is stored with.
pub(super) struct Explorer<'a> {
    pub(super) store: &'a Store,
    pub(super) run: ObjectRef,
    pub(super) snapshot: ObjectRef,
    pub(super) bugs: Vec<ObjectRef>,
    pub(super) horizon_ns: u64,
}

impl Explorer<'_> {
    /// The campaign that a corpus stores, or a new one.
    pub(super) fn campaign(
        &mut self,
        corpus: Option<Corpus>,
        settings: Settings,
        given: Option<Schedule>,
        given_is_new: bool,
    ) -> Result<Campaign, ExploreError> {
        let Some(corpus) = corpus else { return Ok(Campaign::new(settings, given)) };
        let coverage: CoverageMap = self.store.load(&corpus.coverage)?;
        let assertions: Assertions = self.store.load(&corpus.assertions)?;
        self.bugs = corpus.bugs.clone();
        let mut known: BTreeSet<BugIdentity> = BTreeSet::new();
        for bug in &corpus.bugs {
            known.insert(self.store.load::<Bug>(bug)?.violation.identity);
        }
        let base = (given.unwrap_or_default(), given_is_new);
        Ok(Campaign::resume(corpus, Coverage::from_document(coverage), assertions, known, settings, base))
    }

    fn rounds(
        &mut self,
        campaign: &mut Campaign,
        pool: &Pool,
        options: &ExploreOptions,
        go_on: &dyn Fn() -> bool,
        talk: Talk,
    ) -> Result<(Ended, Vec<Link>), ExploreError> {
        let limits = Limits { branches: options.branches, instructions: options.instructions, bugs: options.bugs };
        let (first, all) = (campaign.next(), options.branches.saturating_mul(options.rounds));
        let mut after_branch = |campaign: &Campaign| {
            let total = campaign.total();
            let note = format!("branches, {} edges, {} bugs", total.edges, total.bugs);
            talk(campaign.next() - first, all, &note);
            go_on()
        };
        let (mut ended, mut outputs) = (Ended::Branches, Vec::new());
        for _ in 0..options.rounds.max(1) {
            let (how, found) = round::run(campaign, pool, limits, &mut after_branch)?;
            ended = how;
            for bug in found {
                let reference = self.publish_bug(bug)?;
                self.bugs.push(reference);
            }
            outputs = self.publish(campaign)?;
            if ended != Ended::Branches {
                break;
            }
        }
        Ok((ended, outputs))
    }

    fn publish_bug(&self, bug: FoundBug) -> Result<ObjectRef, ExploreError> {
        let FoundBug { found, ran } = bug;
        let record = BranchRecord {
            run: self.run,
            snapshot: Some(self.snapshot),
            seed: found.branch.seed,
            horizon_ns: U64(self.horizon_ns),
            schedule: found.branch.schedule,
            ledger: ran.ledger,
            trace: self.store.publish(&ran.trace)?,
            instructions: U64(ran.instructions),
            cluster_ns: U64(ran.cluster_ns),
        };
        let bug = Bug { violation: found.violation, branch: found.branch.branch, record };
        Ok(self.store.publish(&bug)?)
    }

    /// Ends a round.
    pub(super) fn publish(&self, campaign: &mut Campaign) -> Result<Vec<Link>, ExploreError> {
        let coverage = self.store.publish(&campaign.coverage().to_document())?;
        let assertions = self.store.publish(&campaign.assertions())?;
        let corpus = campaign.to_corpus([self.run, self.snapshot, coverage, assertions], self.bugs.clone());
        let mut outputs = vec![
            Link::new("corpus", self.store.publish(&corpus)?),
            Link::new("coverage", coverage),
            Link::new("assertions", assertions),
        ];
        outputs.extend(self.bugs.iter().map(|bug| Link::new("bug", *bug)));
        Ok(outputs)
    }
}
