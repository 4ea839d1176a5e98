// SPDX-License-Identifier: AGPL-3.0-or-later
//! Any artifact as text for people. Everything that may have come from a guest is escaped.

use std::fmt::Write;

use chaoscontrol_artifact::document::decode;
use chaoscontrol_artifact::escape::{controls, terminal, terminal_lines};
use chaoscontrol_artifact::schema::{
    AssertionMoment, Assertions, BranchRecord, Bug, Corpus, CoverageMap, Descriptor, Environment, ErrorDescriptor,
    MinimizedBug, Outcome, Parameter, ProfileDocument, Reproduction, RunConfiguration, ScheduleDocument,
    SnapshotManifest, Start, TraceDocument, Verdict, Violation,
};
use chaoscontrol_artifact::{MediaType, ObjectRef, Store};
use chaoscontrol_fault::{Applicability, Application, FaultEvent, LedgerEntry, Role, Schedule};

use crate::error::EvidenceError;
use crate::page::words::fact;

/// Rounds of a trace that are shown at each end.
const ROUNDS_SHOWN: usize = 8;

/// An object of a store as text.
pub fn show(store: &Store, reference: &ObjectRef) -> Result<String, EvidenceError> {
    let mut out = format!("{} {} ({} bytes)\n", reference.media_type.schema(), reference.digest, reference.size_bytes);
    if !matches!(reference.media_type, MediaType::Kernel | MediaType::Initrd | MediaType::Disk) {
        contents(&mut out, store, reference.media_type, &store.read(reference)?)?;
    }
    Ok(out)
}

/// A document as text, given its canonical bytes; what it refers to is read from the store.
pub fn contents(out: &mut String, store: &Store, media: MediaType, bytes: &[u8]) -> Result<(), EvidenceError> {
    // Writing to a string cannot fail anywhere below.
    match media {
        MediaType::Descriptor => descriptor(out, &decode(bytes)?),
        MediaType::Error => error(out, &decode(bytes)?),
        MediaType::Run => run(out, &decode(bytes)?),
        MediaType::Schedule => timeline(out, &decode::<ScheduleDocument>(bytes)?.schedule, &[]),
        MediaType::Snapshot => snapshot(out, &decode(bytes)?),
        MediaType::Corpus => corpus(out, store, &decode(bytes)?)?,
        MediaType::Coverage => coverage(out, &decode(bytes)?),
        MediaType::Trace => trace(out, &decode(bytes)?),
        MediaType::Bug => bug(out, &decode(bytes)?),
        MediaType::MinimizedBug => minimized(out, store, &decode(bytes)?)?,
        MediaType::Reproduction => reproduction(out, &decode(bytes)?),
        MediaType::Verdict => verdict(out, &decode(bytes)?),
        MediaType::Assertions => assertions(out, &decode(bytes)?),
        MediaType::Environment => environment(out, &decode(bytes)?),
        MediaType::Profile => profile(out, &decode(bytes)?)?,
        MediaType::Console => {
            out.push_str(&terminal_lines(&String::from_utf8_lossy(bytes)));
            out.push('\n');
        }
        MediaType::Kernel | MediaType::Initrd | MediaType::Disk | MediaType::Turns => {}
    }
    Ok(())
}

fn environment(out: &mut String, environment: &Environment) {
    let tool = &environment.tool;
    let _ = writeln!(out, "{} {} (source {})", terminal(&tool.name), terminal(&tool.version), tool.source.short());
    let _ = writeln!(
        out,
        "on {} with {} cores, engine {}, {} jobs",
        terminal(&environment.platform),
        environment.cores,
        terminal(&environment.engine),
        environment.jobs
    );
    if let Some(executable) = &environment.executable {
        let _ = writeln!(out, "executable {executable}");
    }
    let _ = writeln!(out, "ran for {}", seconds(environment.wall_ns.0));
}

/// A profile: where it comes from, and its values as JSON.
fn profile(out: &mut String, profile: &ProfileDocument) -> Result<(), EvidenceError> {
    let ProfileDocument { source, values, .. } = profile;
    let _ = writeln!(out, "  {} {} ({})", values.kind(), terminal(&source.name), source.digest.short());
    let shown = serde_json::to_string(values).map_err(|error| EvidenceError::Input(error.to_string()))?;
    let _ = writeln!(out, "  {}", terminal(&shown));
    Ok(())
}

/// Nanoseconds as seconds, to the nanosecond, trailing zeros left out.
pub fn seconds(ns: u64) -> String {
    let (whole, part) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let digits = format!("{part:09}");
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() { format!("{whole} s") } else { format!("{whole}.{digits} s") }
}

/// A descriptor, the receipt included.
pub fn descriptor(out: &mut String, descriptor: &Descriptor) {
    let tool = &descriptor.tool;
    let _ = writeln!(
        out,
        "stage {} by {} {} (source {})",
        terminal(&descriptor.stage),
        terminal(&tool.name),
        terminal(&tool.version),
        tool.source.short()
    );
    for (name, value) in &descriptor.parameters {
        let text = match value {
            Parameter::Flag(flag) => flag.to_string(),
            Parameter::Number(number) => number.to_string(),
            Parameter::Text(text) => text.clone(),
            Parameter::List(list) => list.join(" | "),
        };
        let _ = writeln!(out, "  {} = {}", terminal(name), terminal(&text));
    }
    for (title, links) in [("reads", &descriptor.inputs), ("writes", &descriptor.outputs)] {
        for link in links {
            let _ = writeln!(
                out,
                "  {title} {:14} {} ({} bytes)",
                terminal(&link.role),
                link.object.digest,
                link.object.size_bytes
            );
        }
    }
    if let Some(receipt) = &descriptor.receipt {
        let _ = writeln!(out, "receipt: class {}, status {}", receipt.class.name(), receipt.status.name());
        for stage in &receipt.stages {
            let _ = writeln!(out, "  {:14} {}", terminal(&stage.stage), stage.descriptor.digest);
        }
        let _ = writeln!(out, "  binds {} artifacts", receipt.artifacts.len());
    }
}

/// How a stage failed. Its message may quote a console and have several lines.
pub fn error(out: &mut String, error: &ErrorDescriptor) {
    let (stage, message) = (terminal(&error.stage), controls(&error.message));
    let _ = writeln!(out, "stage {stage} failed with exit code {}: {message}", error.exit_code);
}

fn run(out: &mut String, run: &RunConfiguration) {
    let _ = writeln!(
        out,
        "{} VMs of {} MiB, seed {}, engine {}",
        run.vms,
        run.memory_bytes.0 >> 20,
        run.seed,
        terminal(&run.engine)
    );
    let _ = writeln!(out, "kernel {}", run.kernel.digest);
    if let Some(initrd) = &run.initrd {
        let _ = writeln!(out, "initrd {}", initrd.digest);
    }
    let _ = writeln!(out, "append {:?}", terminal(&run.append));
    for (vm, append) in run.append_vm.iter().enumerate() {
        let _ = writeln!(out, "append of vm {vm} {:?}", terminal(append));
    }
    for disk in &run.disks {
        let _ = writeln!(out, "disk of {} bytes{}", disk.size_bytes, if disk.flush { "" } else { ", without FLUSH" });
    }
    let network = &run.network;
    let (latency, jitter) = (seconds(network.latency_ns.0), seconds(network.jitter_ns.0));
    let _ = writeln!(out, "links of {latency}, jitter {jitter}, loss {} ppm", network.loss_ppm);
}

fn snapshot(out: &mut String, snapshot: &SnapshotManifest) {
    let pages = snapshot.page_digests().count();
    let _ = writeln!(out, "{} VMs at {} of cluster time", snapshot.vms, seconds(snapshot.cluster_ns.0));
    let _ = writeln!(out, "{pages} distinct pages ({} KiB), {} bytes of state", pages * 4, snapshot.state.0.len());
    let _ = writeln!(out, "run {}", snapshot.run.digest);
}

fn corpus(out: &mut String, store: &Store, corpus: &Corpus) -> Result<(), EvidenceError> {
    let total = &corpus.total;
    let _ = writeln!(
        out,
        "{} branches of {}, seed {}, window {}: {} edges, {} entries, {} bugs, {} instructions, {} of cluster time",
        total.branches,
        seconds(corpus.horizon_ns.0),
        corpus.seed,
        corpus.window,
        total.edges,
        corpus.entries.len(),
        total.bugs,
        total.instructions,
        seconds(total.cluster_ns.0)
    );
    if corpus.bugs.is_empty() {
        let _ = writeln!(out, "no branch violated anything");
    }
    for bug in &corpus.bugs {
        let bug: Bug = store.load(bug)?;
        let _ = writeln!(out, "bug in branch {}: {}", bug.branch, identity(&bug.violation));
    }
    let _ = writeln!(out, "faults by kind: selected, applied, observed, rejected, failed");
    for (kind, counts) in &corpus.faults {
        let _ = writeln!(
            out,
            "  {:26} {:>6} {:>6} {:>6} {:>6} {:>6}",
            terminal(kind),
            counts.selected.0,
            counts.applied.0,
            counts.observed.0,
            counts.rejected.0,
            counts.failed.0
        );
    }
    let _ = writeln!(out, "entries: branch, origin, parent, new edges, new counts, faults");
    for entry in &corpus.entries {
        let origin = format!("{:?}", entry.origin).to_lowercase();
        let parent = entry.parent.map_or("-".to_owned(), |parent| parent.to_string());
        let _ = writeln!(
            out,
            "  {:>6} {origin:9} {parent:>6} {:>6} {:>6} {:>4}",
            entry.branch.0,
            entry.new_edges,
            entry.new_counts,
            entry.schedule.len()
        );
    }
    Ok(())
}

fn coverage(out: &mut String, coverage: &CoverageMap) {
    let slots = coverage.slots.0.len();
    let _ = writeln!(out, "{} of {slots} slots reached, about {} edges share one", coverage.edges, coverage.collisions);
}

fn trace(out: &mut String, trace: &TraceDocument) {
    let _ = writeln!(out, "{} rounds, rolling {}, whole {}", trace.rounds.len(), trace.rolling, trace.digest);
    let rounds = trace.rounds.len();
    for (index, round) in trace.rounds.iter().enumerate() {
        if index >= ROUNDS_SHOWN && index + ROUNDS_SHOWN < rounds {
            if index == ROUNDS_SHOWN {
                let _ = writeln!(out, "  ... {} rounds", rounds - 2 * ROUNDS_SHOWN);
            }
            continue;
        }
        let vms: Vec<String> =
            round.vms.iter().map(|vm| format!("{}@{}", vm.registers.short(), vm.instructions)).collect();
        let _ = writeln!(out, "  round {} to {}: {}", round.round, seconds(round.end_ns), vms.join(" "));
    }
}

/// Which bug a violation is, in one line.
pub fn identity(violation: &Violation) -> String {
    format!("{}: {}", terminal(&violation.identity.kind), terminal(&violation.identity.property))
}

fn violation(out: &mut String, violation: &Violation, record: &BranchRecord) {
    let _ = writeln!(out, "{}", identity(violation));
    let _ = writeln!(
        out,
        "  on vm {} at {} of cluster time ({} of its own, {} instructions)",
        violation.vm,
        seconds(violation.cluster_ns.0),
        seconds(violation.guest_ns.0),
        violation.instructions
    );
    for (name, value) in &violation.facts {
        let _ = writeln!(out, "  {}: {}", terminal(name), terminal(&fact(name, value)));
    }
    let _ = writeln!(
        out,
        "  branch of {} with seed {}, {} instructions, ended after {}",
        seconds(record.horizon_ns.0),
        record.seed,
        record.instructions,
        seconds(record.cluster_ns.0)
    );
}

/// Faults in time, with what became of each where that is known. Times count from the snapshot.
pub fn timeline(out: &mut String, schedule: &Schedule, ledger: &[LedgerEntry]) {
    if schedule.events().is_empty() {
        let _ = writeln!(out, "  no fault");
    }
    for choice in schedule.choices() {
        let _ = writeln!(out, "  choice {} of vm {} is answered {}", choice.nth, choice.vm, choice.value);
    }
    for (index, event) in schedule.events().iter().enumerate() {
        let fate = ledger.get(index).map_or(String::new(), fate);
        let _ = writeln!(out, "  +{:<16} {}{fate}", seconds(event.time_ns), fault(event));
    }
}

/// One fault in one line, without its time.
pub fn fault(event: &FaultEvent) -> String {
    let spec = event.fault.kind().spec();
    let mut text = spec.name.to_owned();
    for (parameter, value) in spec.parameters.iter().zip(event.fault.values()) {
        let shown = match parameter.domain.role {
            Role::VmSet => {
                let vms: Vec<String> = (0..32).filter(|bit| value >> bit & 1 == 1).map(|bit| bit.to_string()).collect();
                format!("{{{}}}", vms.join(","))
            }
            Role::Duration if value == 0 => "no end".to_owned(),
            _ if parameter.name.ends_with("_ns") => match u64::try_from(value) {
                Ok(ns) => seconds(ns),
                Err(_) => format!("-{}", seconds(u64::try_from(-value).unwrap_or(u64::MAX))),
            },
            _ => value.to_string(),
        };
        let name = parameter.name.strip_suffix("_ns").unwrap_or(parameter.name);
        text.push_str(&format!(" {name}={shown}"));
    }
    text
}

fn fate(entry: &LedgerEntry) -> String {
    let what = match (&entry.applicability, &entry.application) {
        (Applicability::NotReached, _) => "not reached".to_owned(),
        (Applicability::Rejected(why), _) => format!("rejected: {why:?}"),
        (_, Application::Failed { reason }) => format!("failed: {}", terminal(reason)),
        (_, Application::Requested { .. }) => "asked of the guest's agent, not answered".to_owned(),
        (_, Application::Applied { .. }) => format!("applied, observed {}", entry.observed),
        (_, Application::None) => "not applied".to_owned(),
    };
    format!("  [{what}]")
}

fn bug(out: &mut String, bug: &Bug) {
    violation(out, &bug.violation, &bug.record);
    let _ = writeln!(out, "found in branch {} with {} faults:", bug.branch, bug.record.schedule.len());
    timeline(out, &bug.record.schedule, bug.record.ledger.entries());
}

fn minimized(out: &mut String, store: &Store, bug: &MinimizedBug) -> Result<(), EvidenceError> {
    violation(out, &bug.violation, &bug.record);
    if bug.bug.media_type == MediaType::Bug {
        let original: Bug = store.load(&bug.bug)?;
        let _ = writeln!(out, "found in branch {} with {} faults:", original.branch, bug.original_faults);
        timeline(out, &original.record.schedule, original.record.ledger.entries());
    }
    let minimal = if bug.one_minimal { "each of them needed" } else { "the budget ran out before each was tried" };
    let faults = bug.record.schedule.len();
    let _ = writeln!(out, "minimal after {} attempts, {faults} faults, {minimal}:", bug.attempts);
    timeline(out, &bug.record.schedule, bug.record.ledger.entries());
    Ok(())
}

fn reproduction(out: &mut String, reproduction: &Reproduction) {
    let start = if reproduction.start == Start::Boot { "cold boot" } else { "the snapshot" };
    let _ = writeln!(out, "bug {} from {start}", reproduction.bug.digest);
    let _ = match &reproduction.outcome {
        Outcome::Reproduced => writeln!(out, "reproduced: the same violation and the same trace to the last bit"),
        Outcome::Diverged(at) => {
            let vm = at.vm.map_or(String::new(), |vm| format!(", vm {vm}"));
            let (expected, found) = (terminal(&at.expected), terminal(&at.found));
            let time = seconds(at.cluster_ns.0);
            writeln!(
                out,
                "diverged in round {} ({time}){vm}: {}: {expected} became {found}",
                at.round,
                terminal(&at.what)
            )
        }
        Outcome::MissingSnapshotRef => writeln!(out, "the bug names no snapshot"),
        Outcome::MissingSnapshotArtifact => writeln!(out, "the snapshot is in no store"),
        Outcome::InvalidSnapshotDigest(why) => writeln!(out, "the snapshot is damaged: {}", terminal(why)),
        Outcome::Error(why) => writeln!(out, "it could not be run: {}", terminal(why)),
    };
    if let Some(violation) = &reproduction.violation {
        let _ = writeln!(out, "{}", identity(violation));
    }
}

fn verdict(out: &mut String, verdict: &Verdict) {
    let _ = writeln!(out, "class {}, status {}", verdict.class.name(), verdict.status.name());
    for bug in &verdict.bugs {
        let (kind, property) = (terminal(&bug.identity.kind), terminal(&bug.identity.property));
        let _ = writeln!(out, "  {}: {kind}: {property} ({})", bug.class.name(), bug.bug.digest);
    }
    for gap in &verdict.gaps {
        let _ = writeln!(out, "  never reached, or never true: {}", terminal(gap));
    }
}

fn assertions(out: &mut String, assertions: &Assertions) {
    let _ = writeln!(out, "verdict, kind, passes, failures, branches, property (site)");
    for assertion in &assertions.assertions {
        let _ = writeln!(
            out,
            "  {:13} {:21} {:>10} {:>8} {:>8}  {} ({})",
            terminal(&assertion.verdict),
            terminal(&assertion.kind),
            assertion.passes.0,
            assertion.failures.0,
            assertion.branches.0,
            terminal(&assertion.property),
            terminal(&assertion.site)
        );
        let fingerprint = assertion.fingerprint.to_string();
        let _ = writeln!(out, "    {} ({fingerprint})", terminal(&assertion.identity));
        for (what, first) in [("pass", assertion.first_pass), ("failure", assertion.first_failure)] {
            let Some(AssertionMoment { branch, vm, cluster_ns }) = first else { continue };
            let place = branch.map_or_else(|| "before the snapshot".to_owned(), |branch| format!("branch {branch}"));
            let _ = writeln!(out, "    first {what}: {place}, vm {vm}, cluster time {cluster_ns} ns");
        }
    }
    let missing: Vec<_> = assertions.assertions.iter().filter(|assertion| assertion.is_gap()).collect();
    if !missing.is_empty() {
        let _ = writeln!(out, "never reached, or never true ({}):", missing.len());
    }
    for assertion in missing {
        let _ = writeln!(out, "  {} ({})", terminal(&assertion.property), terminal(&assertion.site));
    }
}
