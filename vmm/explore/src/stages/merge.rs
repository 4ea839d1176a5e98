// SPDX-License-Identifier: AGPL-3.0-or-later
//! Merge: the shards of one round to the corpus that the next round begins with.

use std::collections::BTreeSet;

use chaoscontrol_artifact::schema::{
    Bug, BugIdentity, Corpus, Descriptor, Link, Parameter, Parameters, RunConfiguration, ScheduleDocument,
    SnapshotManifest,
};
use chaoscontrol_artifact::{ObjectRef, StageResult, Store};
use chaoscontrol_machine::KvmOptions;

use super::Talk;
use super::explore::{Explorer, note_without, without_before};
use crate::campaign::{Campaign, Settings};
use crate::error::ExploreError;
use crate::machines::configuration;
use crate::shard::Shard;

/// What one shard left.
struct Part {
    shard: Shard,
    descriptor: Descriptor,
    reference: ObjectRef,
    corpus_ref: ObjectRef,
    corpus: Corpus,
}

/// Merges what the shards of one round wrote, in whatever order they are given. A whole round is passed on as it is.
pub fn merge(store: &Store, given: Vec<(Descriptor, ObjectRef)>, talk: Talk) -> Result<StageResult, ExploreError> {
    let total = given.len() as u64;
    let mut parts = Vec::new();
    for (descriptor, reference) in given {
        talk(parts.len() as u64, total, "shards");
        parts.push(part(store, descriptor, reference)?);
    }
    parts.sort_by_key(|part| (part.shard, part.reference));
    let first = parts.first().ok_or_else(|| ExploreError::Input("there is no shard to merge".to_owned()))?;
    let base_ref = base_of(first);
    let branches = branches_of(first)?;
    for part in &parts {
        let same = base_of(part) == base_ref && given_of(part) == given_of(first);
        if !same || branches_of(part)? != branches || !same_cluster(&part.corpus, &first.corpus) {
            let (one, other) = (first.shard, part.shard);
            return Err(ExploreError::Input(format!(
                "shards {one} and {other} are not of one round: they began from different stages, under \
                 different schedules, or are of rounds of different sizes"
            )));
        }
    }
    let mut state = Explorer {
        store,
        run: first.corpus.run,
        snapshot: first.corpus.snapshot,
        bugs: Vec::new(),
        horizon_ns: first.corpus.horizon_ns.0,
    };
    let mut merged = campaign(&mut state, &parts, base_ref, branches)?;
    let outputs = match &parts[..] {
        [whole] if whole.shard == Shard::WHOLE => whole.descriptor.outputs.clone(),
        _ => state.publish(&mut merged)?,
    };
    let mut inputs = vec![Link::new("previous", parts[0].reference)];
    inputs.extend(parts[1..].iter().map(|part| Link::new("shard", part.reference)));
    inputs.extend(parts.iter().map(|part| Link::new("corpus", part.corpus_ref)));
    inputs.extend(given_of(&parts[0]).map(|given| Link::new("schedule", given)));
    let engine = "none".to_owned();
    Ok(StageResult { parameters: parameters(&parts[0], branches), inputs, outputs, engine, ..StageResult::default() })
}

fn part(store: &Store, descriptor: Descriptor, reference: ObjectRef) -> Result<Part, ExploreError> {
    let stage = &descriptor.stage;
    let corpus_ref = descriptor.output("corpus").filter(|_| stage == "explore-round" || stage == "explore");
    let corpus_ref =
        corpus_ref.ok_or_else(|| ExploreError::Input(format!("stage {stage} is no round that was explored")))?;
    let shard = match descriptor.parameters.get("shard") {
        None => Shard::WHOLE,
        Some(Parameter::Text(text)) => text.parse().map_err(ExploreError::Input)?,
        Some(other) => return Err(ExploreError::Input(format!("its parameter shard is {other:?}, it must be text"))),
    };
    let corpus = store.load(&corpus_ref)?;
    Ok(Part { shard, descriptor, reference, corpus_ref, corpus })
}

/// What the round began from: a corpus, or none where that was a snapshot.
fn base_of(part: &Part) -> Option<ObjectRef> {
    part.descriptor.inputs.iter().find(|link| link.role == "corpus").map(|link| link.object)
}

/// The faults that every branch of the round has, if it was given any.
fn given_of(part: &Part) -> Option<ObjectRef> {
    part.descriptor.inputs.iter().find(|link| link.role == "schedule").map(|link| link.object)
}

fn branches_of(part: &Part) -> Result<u64, ExploreError> {
    let what = || {
        ExploreError::Input(format!(
            "shard {}: its descriptor does not say how many branches the round has",
            part.shard
        ))
    };
    part.descriptor.number("branches").ok_or_else(what)
}

fn same_cluster(one: &Corpus, other: &Corpus) -> bool {
    (one.run, one.snapshot) == (other.run, other.snapshot)
}

fn campaign(
    state: &mut Explorer,
    parts: &[Part],
    base_ref: Option<ObjectRef>,
    branches: u64,
) -> Result<Campaign, ExploreError> {
    let store = state.store;
    let run: RunConfiguration = store.load(&store.load::<SnapshotManifest>(&state.snapshot)?.run)?;
    let sim = configuration(store, &run, KvmOptions::default())?.sim();
    let settings = |corpus: &Corpus| Settings {
        seed: corpus.seed.0,
        window: corpus.window,
        shape: sim.shape(corpus.horizon_ns.0),
        without: without_before(&parts[0].descriptor),
        mode: corpus.mode,
        // What guests do is known from the shards by now.
        labels: Vec::new(),
    };
    // The base's own seed or horizon may have been others: the round is what counts.
    let round = settings(&parts[0].corpus);
    let base_corpus: Option<Corpus> = match &base_ref {
        Some(reference) => Some(store.load(reference)?),
        None => None,
    };
    let given = match given_of(&parts[0]) {
        Some(reference) => Some(store.load::<ScheduleDocument>(&reference)?.schedule),
        None => None,
    };
    let base = state.campaign(base_corpus, round, given.clone(), false)?;
    let before = state.bugs.clone();
    let mut shards = Vec::new();
    for part in parts {
        let corpus = Some(part.corpus.clone());
        shards.push((part.shard, state.campaign(corpus, settings(&part.corpus), given.clone(), false)?));
    }
    let merged = Campaign::merge_shards(&base, branches, shards);
    let merged = merged.map_err(|error| ExploreError::Input(error.to_string()))?;
    state.bugs = bugs(store, before, parts)?;
    Ok(merged)
}

/// The bugs known before, then the new ones in order of branches; of those that are one bug the earliest.
fn bugs(store: &Store, before: Vec<ObjectRef>, parts: &[Part]) -> Result<Vec<ObjectRef>, ExploreError> {
    let mut known: BTreeSet<BugIdentity> = BTreeSet::new();
    for bug in &before {
        known.insert(store.load::<Bug>(bug)?.violation.identity);
    }
    let mut found = Vec::new();
    for reference in parts.iter().flat_map(|part| &part.corpus.bugs).filter(|bug| !before.contains(bug)) {
        let bug: Bug = store.load(reference)?;
        found.push((bug.branch, *reference, bug.violation.identity));
    }
    // Several bugs of one branch keep the order in which their shard reported them: the sort is stable.
    found.sort_by_key(|(branch, _, _)| *branch);
    let mut bugs = before;
    for (_, reference, identity) in found {
        if known.insert(identity) {
            bugs.push(reference);
        }
    }
    Ok(bugs)
}

fn parameters(first: &Part, branches: u64) -> Parameters {
    let corpus = &first.corpus;
    let mut parameters = Parameters::from([
        ("seed".to_owned(), corpus.seed.0.into()),
        ("branches".to_owned(), branches.into()),
        ("shards".to_owned(), u64::from(first.shard.count()).into()),
        ("horizon_ns".to_owned(), corpus.horizon_ns.0.into()),
        ("window".to_owned(), u64::from(corpus.window).into()),
    ]);
    note_without(&mut parameters, &without_before(&first.descriptor));
    parameters
}
