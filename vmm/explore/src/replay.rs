// SPDX-License-Identifier: AGPL-3.0-or-later
//! Comparing two runs of one branch: the first difference, named.

use chaoscontrol_artifact::schema::{Divergence, TraceDocument, TraceRound, TraceVm};
use chaoscontrol_artifact::{Digest, U64};

/// The first place where `found` is not `expected`, or none when they are the same to the last bit.
pub fn first_divergence(expected: &TraceDocument, found: &TraceDocument) -> Option<Divergence> {
    for (left, right) in expected.rounds.iter().zip(&found.rounds) {
        if let Some(divergence) = in_round(left, right) {
            return Some(divergence);
        }
    }
    let (left, right) = (expected.rounds.len(), found.rounds.len());
    let end = |rounds: &[TraceRound]| rounds.last().map_or((0, 0), |round| (round.round, round.end_ns));
    if left != right {
        let (round, cluster_ns) = end(if left < right { &expected.rounds } else { &found.rounds });
        return Some(divergence(
            (round, cluster_ns),
            None,
            "length",
            format!("{left} rounds"),
            format!("{right} rounds"),
        ));
    }
    if expected.digest == found.digest {
        return None;
    }
    let what = if expected.rolling == found.rolling { "memory or disks" } else { "start" };
    Some(divergence(end(&expected.rounds), None, what, expected.digest.to_string(), found.digest.to_string()))
}

fn in_round(left: &TraceRound, right: &TraceRound) -> Option<Divergence> {
    let at = (left.round, left.end_ns);
    let times = |round: &TraceRound| format!("round {}, {} to {} ns", round.round, round.start_ns, round.end_ns);
    if times(left) != times(right) {
        return Some(divergence(at, None, "time", times(left), times(right)));
    }
    if left.faults != right.faults {
        return Some(divergence(at, None, "faults", format!("{:?}", left.faults), format!("{:?}", right.faults)));
    }
    if left.vms.len() != right.vms.len() {
        let vms = |round: &TraceRound| format!("{} VMs", round.vms.len());
        return Some(divergence(at, None, "length", vms(left), vms(right)));
    }
    let pairs = (0..).zip(left.vms.iter().zip(&right.vms));
    pairs.filter_map(|(vm, (left, right))| in_vm(at, vm, left, right)).next()
}

fn in_vm(at: (u64, u64), vm: u16, left: &TraceVm, right: &TraceVm) -> Option<Divergence> {
    let hashed = |count: u64, hash: &Digest| format!("{count}, {}", hash.short());
    let facts = |vm: &TraceVm| {
        [
            ("power", vm.power.to_string()),
            ("frames delivered", vm.frames_delivered.to_string()),
            ("instructions", vm.instructions.to_string()),
            ("registers", vm.registers.to_string()),
            ("frames", hashed(vm.frames_sent, &vm.frames)),
            ("sdk", hashed(vm.sdk_records, &vm.sdk)),
        ]
    };
    let mut pairs = facts(left).into_iter().zip(facts(right));
    let ((what, expected), (_, found)) = pairs.find(|(left, right)| left != right)?;
    Some(divergence(at, Some(vm), what, expected, found))
}

fn divergence(
    (round, cluster_ns): (u64, u64),
    vm: Option<u16>,
    what: &str,
    expected: String,
    found: String,
) -> Divergence {
    Divergence { round: U64(round), cluster_ns: U64(cluster_ns), vm, what: what.to_owned(), expected, found }
}
