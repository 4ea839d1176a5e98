// SPDX-License-Identifier: AGPL-3.0-or-later
//! From reproductions to classes, from classes to a status.

use chaoscontrol_artifact::schema::{
    Assertions, Bug, BugIdentity, BugVerdict, Class, Corpus, Descriptor, Link, MinimizedBug, Outcome, Parameters,
    Reproduction, Start, Status, Verdict,
};
use chaoscontrol_artifact::{ExitCode, MediaType, ObjectRef, StageResult, Store};

use crate::chain::Step;
use crate::error::EvidenceError;

/// Judges the chain that ends with `previous` and publishes the verdict. `required` is the class that must hold: any other
/// one ends with its own code, the verdict is written all the same.
pub fn judge(
    store: &Store,
    previous: (Descriptor, ObjectRef),
    required: Option<Class>,
) -> Result<StageResult, EvidenceError> {
    let (descriptor, reference) = previous;
    let steps = crate::walk(store, Step { descriptor, reference })?;
    let (mut bugs, mut inputs) = bugs_of(store, &steps)?;
    let corpus = steps.iter().rev().find_map(|step| step.descriptor.output("corpus"));
    // Whatever the stages behind left out: where the campaign found bugs there is no verdict that it found none.
    if let Some(corpus) = corpus.filter(|_| bugs.is_empty()) {
        for bug in store.load::<Corpus>(&corpus)?.bugs {
            inputs.push(Link::new("bug", bug));
            bugs.push(judged(store, bug, None)?);
        }
    }
    let gaps = match &corpus {
        Some(corpus) => gaps(store, corpus)?,
        None => Vec::new(),
    };
    let class = bugs.iter().map(|(bug, _)| bug.class).max_by_key(|class| class.severity()).unwrap_or(Class::NoBugFound);
    let minimal: Vec<(Class, bool)> = bugs.iter().map(|(bug, minimal)| (bug.class, *minimal)).collect();
    let status = status_of(&minimal, corpus.is_some());
    let bugs = bugs.into_iter().map(|(bug, _)| bug).collect();
    let verdict = Verdict { class, status, bugs, corpus, gaps };
    let output = store.publish(&verdict)?;
    let mut parameters = Parameters::new();
    if let Some(seed) = steps.last().and_then(|step| step.descriptor.number("seed")) {
        parameters.insert("seed".to_owned(), seed.into());
    }
    let mut result =
        StageResult { parameters, inputs, outputs: vec![Link::new("verdict", output)], ..StageResult::default() };
    if let Some(required) = required {
        result.parameters.insert("require".to_owned(), required.name().into());
        if required != class {
            result.code = ExitCode::RequirementFailed;
            result.note = Some(format!("class {} is required, the verdict is {}", required.name(), class.name()));
        }
    }
    Ok(result)
}

/// What the evidence is worth, from each bug's class and whether its schedule is minimal, and whether anything was explored.
pub fn status_of(bugs: &[(Class, bool)], explored: bool) -> Status {
    if bugs.is_empty() {
        return if explored { Status::NoBugCoverageGap } else { Status::RawLogOnly };
    }
    let all = |class: Class| bugs.iter().all(|(is, _)| *is == class);
    if all(Class::SnapshotBackedReproduced) {
        let minimal = explored && bugs.iter().all(|(_, minimal)| *minimal);
        return if minimal { Status::Accepted } else { Status::SnapshotBackedProof };
    }
    if bugs.iter().any(|(class, _)| *class == Class::SnapshotBackedReproduced) {
        return Status::Partial;
    }
    if all(Class::ScheduleOnlyReplayGap) {
        return Status::ScheduleOnlyGap;
    }
    if all(Class::SnapshotBackedNotReproduced) {
        return Status::KnownGap;
    }
    if bugs.iter().any(|(class, _)| *class == Class::NoBugFound) {
        // A bug whose class says that there is none.
        return Status::Invalid;
    }
    let missing = |class: &Class| {
        matches!(class, Class::MissingSnapshotRef | Class::MissingSnapshotArtifact | Class::InvalidSnapshotDigest)
    };
    if bugs.iter().all(|(class, _)| missing(class)) { Status::MissingArtifactSkip } else { Status::Partial }
}

/// A bug's verdict, and whether its schedule is minimal.
type Judged = (BugVerdict, bool);

/// Each bug's verdict with whether its schedule is minimal, from the last stage's reproductions, or from its bugs where it
/// reproduced nothing.
fn bugs_of(store: &Store, steps: &[Step]) -> Result<(Vec<Judged>, Vec<Link>), EvidenceError> {
    let Some(last) = steps.last() else { return Ok((Vec::new(), Vec::new())) };
    let (mut bugs, mut inputs) = (Vec::new(), Vec::new());
    for link in &last.descriptor.outputs {
        let bug = match link.role.as_str() {
            "reproduction" => {
                let reproduction: Reproduction = store.load(&link.object)?;
                judged(store, reproduction.bug, Some((link.object, class_of(&reproduction))))?
            }
            "bug" | "minimized-bug" => judged(store, link.object, None)?,
            _ => continue,
        };
        inputs.push(link.clone());
        bugs.push(bug);
    }
    Ok((bugs, inputs))
}

/// A bug's verdict by its reproduction. One without is known by its schedule, and was never run again.
fn judged(store: &Store, bug: ObjectRef, reproduced: Option<(ObjectRef, Class)>) -> Result<Judged, EvidenceError> {
    let (identity, minimal, has_snapshot) = facts(store, &bug)?;
    let class = match reproduced {
        Some((_, class)) => class,
        None if has_snapshot => Class::ScheduleOnlyReplayGap,
        None => Class::MissingSnapshotRef,
    };
    Ok((BugVerdict { bug, identity, reproduction: reproduced.map(|(object, _)| object), class }, minimal))
}

fn facts(store: &Store, bug: &ObjectRef) -> Result<(BugIdentity, bool, bool), EvidenceError> {
    if bug.media_type == MediaType::MinimizedBug {
        let bug: MinimizedBug = store.load(bug)?;
        return Ok((bug.violation.identity, bug.one_minimal, bug.record.snapshot.is_some()));
    }
    let bug: Bug = store.load(bug)?;
    Ok((bug.violation.identity, false, bug.record.snapshot.is_some()))
}

fn class_of(reproduction: &Reproduction) -> Class {
    match (&reproduction.outcome, reproduction.start) {
        (Outcome::Reproduced, Start::Snapshot) => Class::SnapshotBackedReproduced,
        (Outcome::Reproduced, Start::Boot) => Class::ScheduleOnlyReplayGap,
        (Outcome::Diverged(_), Start::Snapshot) => Class::SnapshotBackedNotReproduced,
        (Outcome::Diverged(_), Start::Boot) | (Outcome::Error(_), _) => Class::ReplayError,
        (Outcome::MissingSnapshotRef, _) => Class::MissingSnapshotRef,
        (Outcome::MissingSnapshotArtifact, _) => Class::MissingSnapshotArtifact,
        (Outcome::InvalidSnapshotDigest(_), _) => Class::InvalidSnapshotDigest,
    }
}

/// Properties that should have been reached and never were.
fn gaps(store: &Store, corpus: &ObjectRef) -> Result<Vec<String>, EvidenceError> {
    let corpus: Corpus = store.load(corpus)?;
    let assertions: Assertions = store.load(&corpus.assertions)?;
    let gaps = assertions.assertions.iter().filter(|assertion| assertion.is_gap());
    Ok(gaps.map(|assertion| assertion.property.clone()).collect())
}
