// SPDX-License-Identifier: AGPL-3.0-or-later
//! The journal of a bug: its branch is run again from its snapshot, and watched.

use chaoscontrol_artifact::journal::{ConsoleText, Journal, Message, MessageFate, NetworkTotals, Said, SaidKind};
use chaoscontrol_artifact::schema::TraceDocument;
use chaoscontrol_artifact::{ObjectRef, Store, U64};
use chaoscontrol_cluster::sim::{CopyFate, FrameCopy, NetworkCounts};
use chaoscontrol_cluster::{BranchLog, Heard, HeardKind};
use chaoscontrol_machine::KvmOptions;

use crate::error::ExploreError;
use crate::machines::{Host, Machines};
use crate::replay::first_divergence;
use crate::stages::AnyBug;

/// Runs the bug's branch again and gives what was seen, or why that is not what the bug recorded.
pub fn journal_of(store: &Store, bug: &ObjectRef, kvm: KvmOptions) -> Result<Journal, ExploreError> {
    let bug = AnyBug::load(store, *bug)?;
    let expected: TraceDocument = store.load(&bug.record.trace)?;
    let snapshot = bug.record.snapshot.ok_or_else(|| ExploreError::Input("the bug names no snapshot".to_owned()))?;
    let host = Host { kvm, ..Host::default() }.on_engine_of(&store.load(&bug.record.run)?);
    let (machines, run) = Machines::load(store, &snapshot, &host)?;
    if run != bug.record.run {
        let what = "the bug's snapshot is of another cluster than the bug's run configuration";
        return Err(ExploreError::Input(what.to_owned()));
    }
    let (ran, log, network) = machines.watched(&bug.plan())?;
    match first_divergence(&expected, &ran.trace) {
        None => Ok(journal(log, network)),
        Some(at) => Err(ExploreError::Input(format!(
            "run again, it is another run from round {} on: {} differs",
            at.round, at.what
        ))),
    }
}

fn journal(log: BranchLog, network: NetworkCounts) -> Journal {
    let console = |log: chaoscontrol_cluster::ConsoleLog| {
        log.pieces.into_iter().map(|piece| ConsoleText { at_ns: U64(piece.cluster_ns), bytes: piece.bytes }).collect()
    };
    Journal {
        messages: log.frames.copies.into_iter().map(message).collect(),
        messages_left_out: U64(log.frames.left_out),
        said: log.heard.into_iter().map(said).collect(),
        said_left_out: U64(log.heard_left_out),
        consoles: log.consoles.into_iter().map(console).collect(),
        network: since(&network, &log.network_before),
    }
}

fn message(copy: FrameCopy) -> Message {
    Message {
        from: copy.from,
        to: copy.to,
        sent_ns: U64(copy.sent_ns),
        due_ns: U64(copy.due_ns),
        fate: match copy.fate {
            CopyFate::InFlight => MessageFate::InFlight,
            CopyFate::Delivered => MessageFate::Delivered,
            CopyFate::Lost => MessageFate::Lost,
            CopyFate::Partitioned => MessageFate::Partitioned,
            CopyFate::Overflowed => MessageFate::Overflowed,
            CopyFate::ToDown => MessageFate::ToDown,
        },
        corrupted: copy.corrupted,
        duplicate: copy.duplicate,
        bytes: u32::try_from(copy.bytes).unwrap_or(u32::MAX),
        head: copy.head,
    }
}

fn said(heard: Heard) -> Said {
    Said {
        vm: heard.vm,
        at_ns: U64(heard.cluster_ns),
        kind: match heard.kind {
            HeardKind::Event => SaidKind::Event,
            HeardKind::Passed => SaidKind::Passed,
            HeardKind::Failed => SaidKind::Failed,
            HeardKind::Missed => SaidKind::Missed,
            HeardKind::Agree => SaidKind::Agree,
            HeardKind::Setup => SaidKind::Setup,
            HeardKind::Log => SaidKind::Log,
            HeardKind::Process => SaidKind::Process,
            HeardKind::Refused => SaidKind::Refused,
        },
        name: heard.name,
        details: heard.details,
    }
}

/// Counts since power-on, less those from before the branch.
fn since(now: &NetworkCounts, before: &NetworkCounts) -> NetworkTotals {
    let less = |now: u64, before: u64| U64(now.saturating_sub(before));
    NetworkTotals {
        sent: less(now.sent, before.sent),
        delivered: less(now.delivered, before.delivered),
        lost: less(now.lost, before.lost),
        partitioned: less(now.partitioned, before.partitioned),
        duplicated: less(now.duplicated, before.duplicated),
        corrupted: less(now.corrupted, before.corrupted),
        overflowed: less(now.overflowed, before.overflowed),
        to_down: less(now.to_down, before.to_down),
        malformed: less(now.malformed, before.malformed),
    }
}
