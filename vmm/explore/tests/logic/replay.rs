// SPDX-License-Identifier: AGPL-3.0-or-later
//! A difference between two runs is named where it begins.

use crate::fake::round;
use chaoscontrol_artifact::Digest;
use chaoscontrol_artifact::schema::{TraceDocument, TraceRound};
use chaoscontrol_explore::replay::first_divergence;

type Change = fn(&mut TraceDocument);

fn trace() -> TraceDocument {
    let digest = Digest::of(b"x");
    let rounds = (0..5).map(|index| TraceRound { round: index, ..round(digest) }).collect();
    TraceDocument { digest, rolling: digest, rounds }
}

#[test]
fn equal_runs_have_no_divergence() {
    assert_eq!(first_divergence(&trace(), &trace()), None);
}

#[test]
fn the_first_differing_event_is_named() {
    let changes: [(&str, Option<u16>, Change); 8] = [
        ("instructions", Some(1), |t| t.rounds[2].vms[1].instructions += 1),
        ("registers", Some(2), |t| t.rounds[2].vms[2].registers = Digest::of(b"y")),
        ("frames", Some(0), |t| t.rounds[2].vms[0].frames = Digest::of(b"y")),
        ("sdk", Some(0), |t| t.rounds[2].vms[0].sdk_records = 9),
        ("power", Some(0), |t| t.rounds[2].vms[0].power = 2),
        ("time", None, |t| t.rounds[2].end_ns += 1),
        ("faults", None, |t| t.rounds[2].faults.push(1)),
        ("length", None, |t| drop(t.rounds.split_off(3))),
    ];
    for (what, vm, change) in changes {
        let mut other = trace();
        change(&mut other);
        // Later differences do not hide the first.
        if let Some(last) = other.rounds.get_mut(4) {
            last.vms[0].instructions += 5;
        }
        let divergence = first_divergence(&trace(), &other).unwrap();
        assert_eq!((divergence.what.as_str(), divergence.vm, divergence.round.0), (what, vm, 2));
        assert_ne!(divergence.expected, divergence.found);
    }
}

#[test]
fn equal_rounds_with_another_end_differ_in_memory() {
    let other = TraceDocument { digest: Digest::of(b"y"), ..trace() };
    assert_eq!(first_divergence(&trace(), &other).unwrap().what, "memory or disks");
}
