// SPDX-License-Identifier: AGPL-3.0-or-later
//! From a descriptor and its store to the report: which bugs there are, and what the documents say of each.

use std::collections::BTreeMap;

use chaoscontrol_artifact::journal::Journal;
use chaoscontrol_artifact::schema::{
    Assertions, BranchRecord, Bug, Class, Corpus, Descriptor, MinimizedBug, Outcome, Parameter, Reproduction,
    RunConfiguration, Start, ToolIdentity, TraceDocument, Verdict, Violation,
};
use chaoscontrol_artifact::{Digest, MediaType, ObjectRef, Store, U64, document};
use chaoscontrol_fault::{Applicability, Application, LedgerEntry, Role};

use super::lanes::lanes;
use super::model::{BugPart, CampaignPart, FaultPart, Guests, Report, StagePart, VERSION};
use super::moments::moments;
use crate::chain::{Step, walk};
use crate::error::EvidenceError;
use crate::report;

/// Bugs of one report; more are left to reports of single bugs.
const BUGS_MAX: usize = 256;

/// Gives what a replay of a bug's branch saw, or why there is none.
pub type Replays<'a> = &'a mut dyn FnMut(&ObjectRef) -> Result<Journal, String>;

/// The report on the chain that ends with `descriptor`. With `only`, the bug of that number alone, counted from 1.
pub fn gather(
    store: &Store,
    tool: ToolIdentity,
    descriptor: Descriptor,
    only: Option<u64>,
    replays: Replays,
) -> Result<Report, EvidenceError> {
    let bytes = document::encode(&descriptor)?;
    let digest = Digest::of(&bytes);
    let reference = ObjectRef { digest, size_bytes: U64(bytes.len() as u64), media_type: MediaType::Descriptor };
    let stage = descriptor.stage.clone();
    let steps = walk(store, Step { descriptor, reference })?;
    let last = |role: &str| steps.iter().rev().find_map(|step| step.descriptor.output(role));
    let corpus: Option<(Digest, Corpus)> = match last("corpus") {
        Some(corpus) => Some((corpus.digest, store.load(&corpus)?)),
        None => None,
    };
    let verdict: Option<Verdict> = match last("verdict") {
        Some(verdict) => Some(store.load(&verdict)?),
        None => None,
    };
    let found = found(store, &steps, corpus.as_ref().map(|(_, corpus)| corpus))?;
    let mut bugs = Vec::new();
    for (number, one) in (1u64..).zip(&found) {
        if only.is_none_or(|only| only == number) && bugs.len() < BUGS_MAX {
            bugs.push(bug(store, number, one, verdict.as_ref(), replays)?);
        }
    }
    if let Some(only) = only.filter(|_| bugs.is_empty()) {
        return Err(EvidenceError::Input(format!("there is no bug {only}: the chain has {}", found.len())));
    }
    let assertions = match &corpus {
        Some((_, corpus)) => store.load::<Assertions>(&corpus.assertions)?.assertions,
        None => Vec::new(),
    };
    let run = corpus.as_ref().map(|(_, corpus)| corpus.run).or(last("run"));
    let run = run.or_else(|| found.first().map(|one| one.record.run));
    Ok(Report {
        format: "chaos-report",
        version: VERSION,
        tool,
        stage,
        descriptor: digest,
        class: verdict.as_ref().map(|verdict| verdict.class.name().to_owned()),
        status: verdict.as_ref().map(|verdict| verdict.status.name().to_owned()),
        cluster: match run {
            Some(run) => Some(guests(store.load(&run)?)),
            None => None,
        },
        campaign: corpus.as_ref().map(|(digest, corpus)| campaign(*digest, corpus)),
        bugs,
        assertions,
        faults: corpus.map(|(_, corpus)| corpus.faults).unwrap_or_default(),
        stages: steps.into_iter().map(stage_part).collect(),
    })
}

fn guests(run: RunConfiguration) -> Guests {
    Guests {
        vms: run.vms,
        memory_bytes: run.memory_bytes,
        seed: run.seed,
        engine: run.engine,
        append: run.append,
        append_vm: run.append_vm,
        disk_bytes: run.disks.iter().map(|disk| disk.size_bytes).collect(),
        latency_ns: run.network.latency_ns,
        jitter_ns: run.network.jitter_ns,
        kernel: run.kernel.digest,
        initrd: run.initrd.map(|initrd| initrd.digest),
    }
}

fn campaign(digest: Digest, corpus: &Corpus) -> CampaignPart {
    let total = &corpus.total;
    let mut edges = 0;
    let mut origins = BTreeMap::new();
    for entry in &corpus.entries {
        *origins.entry(format!("{:?}", entry.origin).to_lowercase()).or_default() += 1;
    }
    let growing = corpus.entries.iter().filter(|entry| entry.new_edges > 0);
    CampaignPart {
        corpus: digest,
        seed: corpus.seed,
        mode: corpus.mode.name().to_owned(),
        branches: total.branches,
        novel: total.novel,
        origins,
        labels: corpus.labels.clone(),
        horizon_ns: corpus.horizon_ns,
        edges: total.edges,
        entries: total.entries,
        instructions: total.instructions,
        cluster_ns: total.cluster_ns,
        growth: growing
            .map(|entry| {
                edges += u64::from(entry.new_edges);
                (entry.branch, edges)
            })
            .collect(),
        rounds: corpus.rounds.iter().map(|round| (round.branches, round.edges, round.bugs)).collect(),
    }
}

fn stage_part(step: Step) -> StagePart {
    let text = |value: &Parameter| match value {
        Parameter::Flag(flag) => flag.to_string(),
        Parameter::Number(number) => number.to_string(),
        Parameter::Text(text) => text.clone(),
        Parameter::List(list) => list.join(" | "),
    };
    StagePart {
        stage: step.descriptor.stage,
        tool: step.descriptor.tool,
        descriptor: step.reference.digest,
        parameters: step.descriptor.parameters.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
    }
}

/// A bug as far as the chain got with it.
struct Found {
    /// The latest document.
    object: ObjectRef,
    violation: Violation,
    record: BranchRecord,
    /// The campaign's branch and its schedule, where the document that says so is there.
    original: Option<(U64, BranchRecord)>,
    minimal: Option<(bool, u32)>,
    reproduction: Option<Reproduction>,
    /// The stage that wrote the latest document, and its number there.
    written: Option<(Digest, u64)>,
}

/// Every bug, in order of discovery, each in its latest form.
fn found(store: &Store, steps: &[Step], corpus: Option<&Corpus>) -> Result<Vec<Found>, EvidenceError> {
    // The latest form of each bug by the digest of what it was first.
    let mut order: Vec<ObjectRef> = corpus.map_or_else(Vec::new, |corpus| corpus.bugs.clone());
    let mut latest: BTreeMap<Digest, ObjectRef> = order.iter().map(|bug| (bug.digest, *bug)).collect();
    let mut first: BTreeMap<Digest, Digest> = order.iter().map(|bug| (bug.digest, bug.digest)).collect();
    let mut reproductions: BTreeMap<Digest, Reproduction> = BTreeMap::new();
    let mut written: BTreeMap<Digest, (Digest, u64)> = BTreeMap::new();
    for step in steps {
        let mut number = 0;
        for link in &step.descriptor.outputs {
            let object = link.object;
            match object.media_type {
                MediaType::Bug | MediaType::MinimizedBug if link.role == "bug" || link.role == "minimized-bug" => {
                    number += 1;
                    written.insert(object.digest, (step.reference.digest, number));
                    let from = match object.media_type {
                        MediaType::MinimizedBug => store.load::<MinimizedBug>(&object)?.bug,
                        _ => object,
                    };
                    let origin = first.get(&from.digest).copied().unwrap_or(from.digest);
                    first.insert(object.digest, origin);
                    if latest.insert(origin, object).is_none() {
                        order.push(ObjectRef { digest: origin, ..object });
                    }
                }
                MediaType::Reproduction => {
                    let reproduction: Reproduction = store.load(&object)?;
                    reproductions.insert(reproduction.bug.digest, reproduction);
                }
                _ => {}
            }
        }
    }
    let object = |origin: &ObjectRef| latest.get(&origin.digest).copied().unwrap_or(*origin);
    order
        .iter()
        .map(|origin| {
            let object = object(origin);
            load(store, object, reproductions.get(&object.digest), written.get(&object.digest))
        })
        .collect()
}

fn load(
    store: &Store,
    object: ObjectRef,
    reproduction: Option<&Reproduction>,
    written: Option<&(Digest, u64)>,
) -> Result<Found, EvidenceError> {
    let (reproduction, written) = (reproduction.cloned(), written.copied());
    if object.media_type == MediaType::Bug {
        let Bug { violation, branch, record } = store.load(&object)?;
        let original = Some((branch, record.clone()));
        return Ok(Found { object, violation, record, original, minimal: None, reproduction, written });
    }
    let MinimizedBug { bug, violation, record, one_minimal, attempts, .. } = store.load(&object)?;
    let original = match bug.media_type {
        MediaType::Bug => store.load::<Bug>(&bug).ok().map(|bug| (bug.branch, bug.record)),
        _ => None,
    };
    Ok(Found { object, violation, record, original, minimal: Some((one_minimal, attempts)), reproduction, written })
}

fn bug(
    store: &Store,
    number: u64,
    found: &Found,
    verdict: Option<&Verdict>,
    replays: Replays,
) -> Result<BugPart, EvidenceError> {
    let record = &found.record;
    // A trace that is missing leaves the rest of the report as it is.
    let trace: Option<TraceDocument> = store.load(&record.trace).ok();
    let start_ns = match &trace {
        Some(trace) => trace.rounds.first().map_or(0, |round| round.start_ns),
        None => found.violation.cluster_ns.0.saturating_sub(record.cluster_ns.0),
    };
    let judged = verdict.and_then(|verdict| verdict.bugs.iter().find(|bug| bug.bug == found.object));
    let vms = trace.as_ref().and_then(|trace| trace.rounds.first()).map_or(0, |round| round.vms.len());
    let schedule = |record: &BranchRecord| {
        record.ledger.entries().iter().map(|entry| fault_part(entry, start_ns, vms)).collect::<Vec<_>>()
    };
    let (moments, no_moments) = match replays(&found.object) {
        Ok(journal) => (Some(moments(&journal, &found.violation)), None),
        Err(why) => (None, Some(why)),
    };
    let other = found.original.as_ref().filter(|(_, original)| original.schedule != record.schedule);
    Ok(BugPart {
        number,
        object: found.object.digest,
        violation: found.violation.clone(),
        class: judged.map(|bug| bug.class.name().to_owned()),
        reproduction: found.reproduction.as_ref().map(outcome),
        branch: found.original.as_ref().map(|(branch, _)| *branch),
        one_minimal: found.minimal.map(|(one_minimal, _)| one_minimal),
        attempts: found.minimal.map(|(_, attempts)| attempts),
        start_ns: U64(start_ns),
        cluster_ns: record.cluster_ns,
        seed: record.seed,
        instructions: record.instructions,
        schedule: schedule(record),
        found_with: other.map(|(_, original)| schedule(original)),
        lanes: trace.map_or_else(Vec::new, |trace| lanes(&trace)),
        moments,
        no_moments,
        replay: replay(found),
    })
}

fn fault_part(entry: &LedgerEntry, start_ns: u64, vms: usize) -> FaultPart {
    let event = &entry.event;
    let applied_ns = match &entry.application {
        Application::Applied { at_ns } => Some(at_ns.saturating_sub(start_ns)),
        _ => None,
    };
    let set: i128 = event
        .fault
        .kind()
        .spec()
        .parameters
        .iter()
        .zip(event.fault.values())
        .filter(|(parameter, _)| parameter.domain.role == Role::VmSet)
        .fold(0, |set, (_, value)| set | value);
    let aimed = match event.fault.vm() {
        Some(vm) => vec![vm],
        None => (0..32).filter(|vm| set >> vm & 1 == 1).collect(),
    };
    let lasts_ns = event.fault.duration_ns().filter(|lasts| *lasts > 0);
    FaultPart {
        due_ns: U64(event.time_ns),
        kind: event.fault.kind().name().to_owned(),
        text: report::fault(event),
        vms: if aimed.is_empty() { (0..).take(vms).collect() } else { aimed },
        applied_ns: applied_ns.map(U64),
        until_ns: applied_ns.zip(lasts_ns).map(|(from, lasts)| U64(from.saturating_add(lasts))),
        fate: fate(entry),
        observed: U64(entry.observed),
    }
}

fn fate(entry: &LedgerEntry) -> String {
    match (&entry.applicability, &entry.application) {
        (Applicability::NotReached, _) => "not reached: the branch ended before".to_owned(),
        (Applicability::Rejected(why), _) => {
            let why = serde_json::to_value(why).ok().and_then(|why| why.as_str().map(str::to_owned));
            format!("rejected: {}", why.unwrap_or_default().replace('_', " "))
        }
        (_, Application::Failed { reason }) => format!("failed: {reason}"),
        (_, Application::Requested { .. }) => "asked of the guest's agent, which did not answer".to_owned(),
        (_, Application::Applied { .. }) if entry.observed == 0 => "applied, no effect observed".to_owned(),
        (_, Application::Applied { .. }) if entry.observed == 1 => "applied, observed once".to_owned(),
        (_, Application::Applied { .. }) => format!("applied, observed {} times", entry.observed),
        (_, Application::None) => "not applied".to_owned(),
    }
}

fn outcome(reproduction: &Reproduction) -> String {
    let start = if reproduction.start == Start::Boot { "cold boot" } else { "the snapshot" };
    match &reproduction.outcome {
        Outcome::Reproduced => format!("replayed from {start}: the same violation and the same trace to the last bit"),
        Outcome::Diverged(at) => format!("replayed from {start}: another run from round {} on", at.round),
        Outcome::MissingSnapshotRef => "not replayed: the bug names no snapshot".to_owned(),
        Outcome::MissingSnapshotArtifact => "not replayed: the snapshot is in no store".to_owned(),
        Outcome::InvalidSnapshotDigest(_) => "not replayed: the snapshot is damaged".to_owned(),
        Outcome::Error(why) => format!("could not be replayed: {why}"),
    }
}

/// What runs it again, from the store alone.
fn replay(found: &Found) -> Vec<(String, String)> {
    let Some((descriptor, number)) = found.written else { return Vec::new() };
    let command = |more: &str| format!("chaos-show --raw {descriptor} | chaos-reproduce --bug {number}{more}");
    vec![
        ("from its snapshot, with the consoles".to_owned(), command(" --serial")),
        ("from cold boot".to_owned(), command(" --from-boot")),
    ]
}

/// Whether a class says that every bug was proved.
pub(super) fn is_proved(class: &str) -> bool {
    class == Class::SnapshotBackedReproduced.name()
}
