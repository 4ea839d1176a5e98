// SPDX-License-Identifier: AGPL-3.0-or-later
//! Reproduce: run each bug again and compare the whole trace.

use chaoscontrol_artifact::schema::{
    Descriptor, Link, Outcome, Parameters, Reproduction, RunConfiguration, Start, TraceDocument,
};
use chaoscontrol_artifact::{ExitCode, MediaType, ObjectRef, StageResult, Store, StoreError};
use chaoscontrol_cluster::{Cluster, GuestEvent, TurnRecording};
use chaoscontrol_machine::KvmOptions;

use super::{AnyBug, Talk, bugs_of, turns};
use crate::error::ExploreError;
use crate::machines::{Host, Machines, branch_plan, configuration, note_engine, ran};
use crate::replay::first_divergence;
use crate::subject::{Plan, Ran};

/// What to reproduce.
#[derive(Clone, Copy, Debug)]
pub struct ReproduceOptions {
    /// The bug of this number only, counted from 1.
    pub bug: Option<u64>,
    /// From cold boot in place of the snapshot.
    pub from_boot: bool,
    /// Whether console output is kept.
    pub serial: bool,
    /// Whether and how KVM may be used.
    pub kvm: KvmOptions,
}

/// What a replay left beside its documents.
#[derive(Clone, Debug)]
pub struct Heard {
    /// The bug.
    pub bug: ObjectRef,
    /// Console output by VM, where it was asked for.
    pub serial: Vec<Vec<u8>>,
    /// What the guests reported as events.
    pub events: Vec<GuestEvent>,
}

/// Runs the bugs that the stage before wrote. Gives what was heard of the guests too.
pub fn reproduce_bugs(
    store: &Store,
    previous: &Descriptor,
    options: &ReproduceOptions,
    talk: Talk,
) -> Result<(StageResult, Vec<Heard>), ExploreError> {
    let parameters = Parameters::from([
        ("start".to_owned(), if options.from_boot { "boot" } else { "snapshot" }.into()),
        ("serial".to_owned(), chaoscontrol_artifact::schema::Parameter::Flag(options.serial)),
    ]);
    let mut result = StageResult { parameters, ..StageResult::default() };
    if let Some(seed) = previous.number("seed") {
        result.parameters.insert("seed".to_owned(), seed.into());
    }
    if let Some(bug) = options.bug {
        result.parameters.insert("bug".to_owned(), bug.into());
    }
    let mut heard = Vec::new();
    let bugs = bugs_of(previous, options.bug)?;
    for (index, reference) in bugs.iter().enumerate() {
        talk(index as u64, bugs.len() as u64, "bugs");
        let bug = AnyBug::load(store, *reference)?;
        let (outcome, ran) = match replay(store, &bug, options) {
            Ok((outcome, ran)) => (outcome, Some(ran)),
            Err(error) => (unable(&bug, error)?, None),
        };
        if matches!(outcome, Outcome::Diverged(_)) {
            result.code = ExitCode::Diverged;
            result.note = Some(format!("{}: the replay diverged", bug.identity().property.escape_debug()));
        }
        let serial = ran.as_ref().filter(|_| options.serial).map_or(Vec::new(), |ran| ran.serial.clone());
        let kept = serial.iter().map(|text| store.put(MediaType::Console, text)).collect::<Result<Vec<_>, _>>()?;
        let same = |ran: &Ran| ran.violations.iter().find(|v| v.identity == *bug.identity()).cloned();
        let reproduction = Reproduction {
            bug: *reference,
            start: if options.from_boot { Start::Boot } else { Start::Snapshot },
            outcome,
            violation: ran.as_ref().and_then(same),
            trace: ran.as_ref().map(|ran| ran.trace.digest),
            consoles: kept,
        };
        if ran.is_some() {
            note_engine(&mut result, &store.load(&bug.record.run)?);
        }
        result.inputs.push(Link::new("bug", *reference));
        result.outputs.push(Link::new("reproduction", store.publish(&reproduction)?));
        let events = ran.map_or_else(Vec::new, |ran| ran.events);
        heard.push(Heard { bug: *reference, serial, events });
    }
    Ok((result, heard))
}

/// Runs a bug's branch again and compares it with the recorded one.
pub fn replay(store: &Store, bug: &AnyBug, options: &ReproduceOptions) -> Result<(Outcome, Ran), ExploreError> {
    let expected: TraceDocument = store.load(&bug.record.trace)?;
    let turns = bug.record.turns.map(|turns| turns::load(store, &turns)).transpose()?;
    let run = |turns| {
        if options.from_boot {
            run_from_boot(store, &bug.record.run, &bug.plan(), turns, options.kvm)
        } else {
            from_snapshot(store, bug, turns, options.kvm)
        }
    };
    let ran = match run(turns) {
        // Freely: the trace says where the run left the recorded one, or that the recording is no recording of it.
        Err(ExploreError::Turns(what)) => {
            let ran = run(None)?;
            return Ok(match first_divergence(&expected, &ran.trace) {
                Some(divergence) => (Outcome::Diverged(divergence), ran),
                None => (Outcome::Error(format!("the run is the recorded one, but its turns are not: {what}")), ran),
            });
        }
        ran => ran?,
    };
    let outcome = match first_divergence(&expected, &ran.trace) {
        Some(divergence) => Outcome::Diverged(divergence),
        // The trace covers what the guests said, so that an equal trace without the violation means a wrong document.
        None if !ran.violations.iter().any(|violation| violation == &bug.violation) => Outcome::Error(
            "the run is the recorded one, but it does not show the violation that the bug states".to_owned(),
        ),
        None => Outcome::Reproduced,
    };
    Ok((outcome, ran))
}

fn from_snapshot(
    store: &Store,
    bug: &AnyBug,
    turns: Option<TurnRecording>,
    kvm: KvmOptions,
) -> Result<Ran, ExploreError> {
    let snapshot = bug.record.snapshot.ok_or_else(|| ExploreError::Input(NO_SNAPSHOT.to_owned()))?;
    let host = Host { kvm, ..Host::default() }.on_engine_of(&store.load(&bug.record.run)?);
    let (machines, run) = Machines::load(store, &snapshot, &host)?;
    if run != bug.record.run {
        let what = "the bug's snapshot is of another cluster than the bug's run configuration";
        return Err(ExploreError::Input(what.to_owned()));
    }
    machines.held_to(&bug.plan(), turns)
}

/// How a bug without a snapshot shows among errors.
const NO_SNAPSHOT: &str = "the bug names no snapshot";

/// Boots the cluster that `run` names and runs a branch from where setup was complete.
pub fn run_from_boot(
    store: &Store,
    run: &ObjectRef,
    plan: &Plan,
    turns: Option<TurnRecording>,
    kvm: KvmOptions,
) -> Result<Ran, ExploreError> {
    let config = configuration(store, &store.load::<RunConfiguration>(run)?, kvm)?;
    let mut cluster = Cluster::boot(&config)?;
    let start_ns = cluster.sim().now_ns();
    Ok(ran(cluster.run_held_to(&branch_plan(plan), turns)?, start_ns))
}

/// A snapshot that is missing or damaged is a result; whatever keeps the host from working is a failure.
fn unable(bug: &AnyBug, error: ExploreError) -> Result<Outcome, ExploreError> {
    let snapshot = bug.record.snapshot;
    match error {
        ExploreError::Input(text) if text == NO_SNAPSHOT => Ok(Outcome::MissingSnapshotRef),
        ExploreError::Store(StoreError::Missing { digest, what })
            if what == "page" || Some(digest) == snapshot.map(|s| s.digest) =>
        {
            Ok(Outcome::MissingSnapshotArtifact)
        }
        ExploreError::Store(
            error @ (StoreError::Damaged { .. }
            | StoreError::Wrong { .. }
            | StoreError::Mismatch { .. }
            | StoreError::Document { .. }),
        ) => Ok(Outcome::InvalidSnapshotDigest(file_free(&error))),
        ExploreError::Input(text) | ExploreError::Turns(text) | ExploreError::Guest(text) => Ok(Outcome::Error(text)),
        ExploreError::Store(_) | ExploreError::HostLacks(_) | ExploreError::Watchdog(_) | ExploreError::Internal(_) => {
            Err(error)
        }
    }
}

/// What to say of an error where two stores must give one text.
#[must_use]
pub fn without_paths(error: &ExploreError) -> String {
    match error {
        ExploreError::Store(error) => file_free(error),
        other => other.to_string(),
    }
}

/// The error without the path of the file: two stores give one document.
fn file_free(error: &StoreError) -> String {
    match error {
        StoreError::Damaged { what, .. } | StoreError::Wrong { what, .. } => what.clone(),
        other => other.to_string(),
    }
}
