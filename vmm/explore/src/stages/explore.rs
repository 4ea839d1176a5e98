// SPDX-License-Identifier: AGPL-3.0-or-later
//! Explore: rounds of branches from a snapshot or on top of an earlier corpus.

use std::collections::BTreeSet;

use chaoscontrol_artifact::schema::{
    Assertions, BranchRecord, Bug, BugIdentity, Corpus, CoverageMap, Descriptor, Link, Mode, Parameter, Parameters,
    RoundSummary, RunConfiguration, ScheduleDocument, SnapshotManifest,
};
use chaoscontrol_artifact::{ExitCode, ObjectRef, StageResult, Store, U64};
use chaoscontrol_cluster::Spent;
use chaoscontrol_fault::{FaultKind, Schedule};

use super::{Talk, same_guest, turns};
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
    /// How branches are planned; none is as in the corpus, or the default.
    pub mode: Option<Mode>,
    /// Branches without a new edge after which to stop.
    pub plateau: Option<u64>,
    /// Distinct bugs after which to stop.
    pub bugs: Option<u32>,
    /// Whether a fault that could not be applied ends the exploration.
    pub rejection_is_fatal: bool,
    /// Where the guests run.
    pub host: Host,
    /// Faults that every branch has, and the next one alone; none are those of the round before, if it had any.
    pub schedule: Option<Schedule>,
    /// Kinds of faults that are never planned; none are those of the round before.
    pub without: Option<Vec<FaultKind>>,
}

/// Where a call stands after a branch.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Branches that this call merged.
    pub done: u64,
    /// Branches that it merges, unless something ends it before.
    pub all: u64,
    /// The campaign.
    pub total: RoundSummary,
}

/// What a call took of the host, for people.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Where time went while branches ran, on all threads; zero without a clock.
    pub spent: Spent,
    /// Time that rounds took, from the first branch to the last.
    pub rounds_ns: u64,
    /// Time in them that merging and planning took, on one thread beside those that run branches.
    pub merging_ns: u64,
    /// Cluster time of all branches.
    pub cluster_ns: u64,
    /// Cluster time that branches did not run because they went on from the middle of others.
    pub saved_ns: u64,
}

/// What happens along the way.
pub struct Along<'a> {
    /// Says what is being done.
    pub talk: Talk<'a>,
    /// Told after each branch; whether to go on.
    pub branch: &'a (dyn Fn(&Standing) -> bool + Sync),
    /// Given what the stage would leave if it ended after this round.
    pub round: &'a dyn Fn(&StageResult) -> Result<(), ExploreError>,
}

/// Explores from what the stage before wrote: a snapshot (boot) or a corpus (an earlier round). `checkpoint` is what a call
/// with the same arguments left before it was stopped; the outcome is then that of a call that was not. Gives the campaign's
/// totals too, and what it took.
pub fn explore(
    store: &Store,
    previous: &Descriptor,
    options: &ExploreOptions,
    checkpoint: Option<&Descriptor>,
    along: &Along,
) -> Result<(StageResult, RoundSummary, Effort), ExploreError> {
    let talk = along.talk;
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
    let rounds_before = corpus.as_ref().map_or(0, |corpus| corpus.rounds.len());
    let mut campaign = state.campaign(corpus, settings.clone(), given.clone(), given_is_new)?;
    let range = options.shard.range(campaign.next(), options.branches);
    if options.shard != Shard::WHOLE {
        campaign.skip_to(range.start);
    }
    let options = &ExploreOptions { branches: range.end - range.start, ..options.clone() };
    let mut result = StageResult { parameters, inputs, jobs: options.jobs, ..StageResult::default() };
    note_engine(&mut result, &store.load(&run)?);
    let mut done = 0;
    if let Some(checkpoint) = checkpoint {
        let corpus = state.corpus_of(checkpoint, &result, &settings)?;
        done = corpus.rounds.len().saturating_sub(rounds_before) as u64;
        result.outputs.clone_from(&checkpoint.outputs);
        campaign = state.campaign(Some(corpus), settings, given, false)?;
    }
    let before_ns = campaign.total().cluster_ns.0;
    let pool = Pool::new(&machines, options.jobs).timed(host.clock);
    let ended = state.rounds(&mut campaign, &pool, (options, done), along, &mut result)?;
    (result.code, result.note) = ending(ended, &campaign);
    let effort = Effort {
        spent: machines.spent(),
        rounds_ns: pool.rounds_ns(),
        merging_ns: pool.merging_ns(),
        cluster_ns: campaign.total().cluster_ns.0.saturating_sub(before_ns),
        saved_ns: machines.saved_ns(),
    };
    Ok((result, *campaign.total(), effort))
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
    let mode = options.mode.or(corpus.map(|corpus| corpus.mode)).unwrap_or_default();
    Settings { seed: options.seed, window, shape: machines.shape(horizon_ns), mode, labels: machines.labels(), without }
}

fn parameters(options: &ExploreOptions, settings: &Settings) -> Parameters {
    let mut parameters = Parameters::new();
    let mut set = |name: &str, value: Parameter| parameters.insert(name.to_owned(), value);
    set("seed", settings.seed.into());
    set("rounds", options.rounds.into());
    set("branches", options.branches.into());
    set("horizon_ns", settings.shape.horizon_ns.into());
    set("window", u64::from(settings.window).into());
    set("mode", settings.mode.name().into());
    if let Some(plateau) = options.plateau {
        set("plateau", plateau.into());
    }
    if options.shard != Shard::WHOLE {
        set("shard", options.shard.to_string().as_str().into());
    }
    if let Some(instructions) = options.instructions {
        set("instructions", instructions.into());
    }
    if let Some(bugs) = options.bugs {
        set("bugs", u64::from(bugs).into());
    }
    if options.rejection_is_fatal {
        set("rejection_is_fatal", Parameter::Flag(true));
    }
    note_without(&mut parameters, &settings.without);
    parameters
}

/// A budget that ran out is said with its code; what was done is kept all the same.
fn ending(ended: Ended, campaign: &Campaign) -> (ExitCode, Option<String>) {
    let branches = campaign.total().branches;
    let why = match ended {
        Ended::Branches | Ended::Bugs => return (ExitCode::Success, None),
        Ended::Rejected(kind, time_ns, why) => {
            let (last, name) = (branches.0.saturating_sub(1), kind.spec().name);
            let note = format!("branch {last}: {name} at {time_ns} ns could not be applied: {why}");
            return (ExitCode::RequirementFailed, Some(note));
        }
        Ended::Plateau => {
            let since = branches.0 - campaign.total().novel.0;
            return (
                ExitCode::Success,
                Some(format!("coverage stands still: no new edge in the last {since} branches")),
            );
        }
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

    /// The corpus that a checkpoint names, if a call with these parameters and inputs left it.
    fn corpus_of(
        &self,
        checkpoint: &Descriptor,
        result: &StageResult,
        settings: &Settings,
    ) -> Result<Corpus, ExploreError> {
        let other = |what: &str| {
            ExploreError::Input(format!(
                "checkpoint: it is of a campaign with other {what}: remove it, or name another file"
            ))
        };
        if checkpoint.parameters != result.parameters {
            return Err(other("parameters"));
        }
        let inputs = checkpoint.inputs.iter().filter(|link| link.role != "previous");
        if !inputs.eq(&result.inputs) {
            return Err(other("inputs"));
        }
        let corpus = checkpoint.output("corpus").ok_or_else(|| other("outputs"))?;
        let corpus: Corpus = self.store.load(&corpus)?;
        let same = (corpus.run, corpus.snapshot, corpus.seed.0) == (self.run, self.snapshot, settings.seed);
        if same { Ok(corpus) } else { Err(other("guests")) }
    }

    /// Runs the rounds that are left and puts what each leaves into `result`.
    fn rounds(
        &mut self,
        campaign: &mut Campaign,
        pool: &Pool,
        (options, done): (&ExploreOptions, u64),
        along: &Along,
        result: &mut StageResult,
    ) -> Result<Ended, ExploreError> {
        let limits = Limits {
            branches: options.branches,
            instructions: options.instructions,
            bugs: options.bugs,
            rejection_is_fatal: options.rejection_is_fatal,
            plateau: options.plateau,
        };
        if let (true, Some(ended)) = (done > 0, limits.reached(campaign)) {
            return Ok(ended);
        }
        let rounds = options.rounds.max(1).saturating_sub(done);
        let (first, all) = (campaign.next(), options.branches.saturating_mul(rounds));
        let mut after_branch = |campaign: &Campaign| {
            (along.branch)(&Standing { done: campaign.next() - first, all, total: *campaign.total() })
        };
        let mut ended = Ended::Branches;
        for _ in 0..rounds {
            let (how, found) = round::run(campaign, pool, limits, &mut after_branch)?;
            ended = how;
            for bug in found {
                let reference = self.publish_bug(bug)?;
                self.bugs.push(reference);
            }
            result.outputs = self.publish(campaign)?;
            // A round that was cut short is none that an uninterrupted call leaves.
            if ended != Ended::Asked {
                (along.round)(result)?;
            }
            if ended != Ended::Branches {
                break;
            }
        }
        Ok(ended)
    }

    fn publish_bug(&self, bug: FoundBug) -> Result<ObjectRef, ExploreError> {
        let FoundBug { found, ran } = bug;
        let record = BranchRecord {
            run: self.run,
            snapshot: Some(self.snapshot),
            seed: found.branch.seed,
            horizon_ns: U64(self.horizon_ns),
            schedule: ran.schedule,
            ledger: ran.ledger,
            trace: self.store.publish(&ran.trace)?,
            turns: turns::publish(self.store, &ran.turns)?,
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
