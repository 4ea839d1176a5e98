// SPDX-License-Identifier: AGPL-3.0-or-later
//! Export: the bugs of a campaign, each checked with all it needs before any is written.

use std::collections::BTreeSet;

use chaoscontrol_artifact::schema::{
    Bug, Corpus, Descriptor, Link, Parameter, Parameters, RunConfiguration, SnapshotManifest, TraceDocument,
};
use chaoscontrol_artifact::{ObjectRef, StageResult, Store};
use chaoscontrol_machine::KvmOptions;

use super::{Talk, turns};
use crate::error::ExploreError;
use crate::machines::configuration;
use crate::snapshots;

/// Which bugs.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// Their properties; none are all.
    pub properties: Vec<String>,
    /// From how deep they replay, at least.
    pub min_depth: u64,
    /// How many, at most.
    pub max_bugs: Option<u64>,
}

/// From how deep a bug replays: 0 is cold boot only, 1 a snapshot.
pub fn replay_depth(bug: &Bug) -> u64 {
    u64::from(bug.record.snapshot.is_some())
}

/// Checks every bug of the campaign that the stage before left, then gives those that are asked for.
pub fn export_bugs(
    store: &Store,
    previous: &Descriptor,
    options: &ExportOptions,
    talk: Talk,
) -> Result<StageResult, ExploreError> {
    let corpus_ref = previous
        .output("corpus")
        .ok_or_else(|| ExploreError::Input(format!("stage {} wrote no corpus: it explored nothing", previous.stage)))?;
    let corpus: Corpus = store.load(&corpus_ref)?;
    let written: Vec<ObjectRef> = previous.outputs_of("bug").collect();
    if written != corpus.bugs {
        let (named, have) = (written.len(), corpus.bugs.len());
        return Err(ExploreError::Input(format!(
            "the descriptor names {named} bugs that are not the {have} of its corpus: it was put together from two campaigns"
        )));
    }
    let mut bugs = Vec::new();
    for (index, reference) in corpus.bugs.iter().enumerate() {
        talk(index as u64, corpus.bugs.len() as u64, "bugs checked");
        let bug: Bug = store.load(reference)?;
        check(store, &corpus, &bug).map_err(|error| match error {
            ExploreError::Input(text) => ExploreError::Input(format!("bug {}: {text}", index + 1)),
            other => other,
        })?;
        bugs.push((*reference, bug));
    }
    let wanted = |(_, bug): &&(ObjectRef, Bug)| {
        let property = &bug.violation.identity.property;
        let named = options.properties.is_empty() || options.properties.contains(property);
        named && replay_depth(bug) >= options.min_depth
    };
    let limit = options.max_bugs.and_then(|bugs| usize::try_from(bugs).ok()).unwrap_or(usize::MAX);
    let chosen = bugs.iter().filter(wanted).take(limit).map(|(reference, _)| Link::new("bug", *reference));
    let mut result = StageResult { parameters: parameters(previous, options), ..StageResult::default() };
    result.outputs = chosen.collect();
    if result.outputs.is_empty() && !bugs.is_empty() {
        let properties: BTreeSet<&str> = bugs.iter().map(|(_, bug)| bug.violation.identity.property.as_str()).collect();
        let properties: Vec<&str> = properties.into_iter().collect();
        return Err(ExploreError::Input(format!(
            "none of the campaign's {} bugs is asked for; their properties are: {}",
            bugs.len(),
            properties.join("; ")
        )));
    }
    result.inputs = vec![Link::new("corpus", corpus_ref)];
    result.note = Some(format!("{} of {} bugs", result.outputs.len(), bugs.len()));
    Ok(result)
}

fn parameters(previous: &Descriptor, options: &ExportOptions) -> Parameters {
    let mut parameters = Parameters::from([("min_replay_depth".to_owned(), options.min_depth.into())]);
    if !options.properties.is_empty() {
        parameters.insert("property".to_owned(), Parameter::List(options.properties.clone()));
    }
    if let Some(bugs) = options.max_bugs {
        parameters.insert("max_bugs".to_owned(), bugs.into());
    }
    if let Some(seed) = previous.number("seed") {
        parameters.insert("seed".to_owned(), seed.into());
    }
    parameters
}

/// Whether a bug is of this campaign and has all it takes to run it again.
fn check(store: &Store, corpus: &Corpus, bug: &Bug) -> Result<(), ExploreError> {
    let record = &bug.record;
    let wrong = |what: &str| Err(ExploreError::Input(format!("{what} is not that of its campaign")));
    if record.run != corpus.run {
        return wrong("its run configuration");
    }
    if record.snapshot.is_some_and(|snapshot| snapshot != corpus.snapshot) {
        return wrong("its snapshot");
    }
    if bug.branch.0 >= corpus.total.branches.0 {
        return wrong("its branch");
    }
    let run: RunConfiguration = store.load(&record.run)?;
    let shape = configuration(store, &run, KvmOptions::default())?.sim().shape(record.horizon_ns.0);
    record.schedule.check(&shape).map_err(|error| ExploreError::Input(format!("its schedule: {error}")))?;
    let trace: TraceDocument = store.load(&record.trace)?;
    if let Some(fault) = trace
        .rounds
        .iter()
        .flat_map(|round| &round.faults)
        .find(|fault| usize::try_from(**fault).is_ok_and(|fault| fault >= record.schedule.len()))
    {
        return Err(ExploreError::Input(format!("its trace names fault {fault}, which its schedule does not have")));
    }
    if let Some(reference) = &record.turns {
        turns::load(store, reference)?;
    }
    if let Some(snapshot) = &record.snapshot {
        let manifest: SnapshotManifest = store.load(snapshot)?;
        snapshots::load(store, &manifest)?;
    }
    Ok(())
}
