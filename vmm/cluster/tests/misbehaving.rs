// SPDX-License-Identifier: AGPL-3.0-or-later
//! Linux guests that do what no guest should: each ends with a typed word about it, and none hurts the host.
//!
//! Each test says loudly that it was skipped where no guest kernel or initrd has been built.

mod guests;

use chaoscontrol_cluster::{
    BootFailure, BranchOutcome, BranchPlan, Cluster, ClusterError, EndReason, SERIAL_TAIL_BYTES,
};
use chaoscontrol_fault::Schedule;
use guests::{MS, SECOND, config};

/// Boots the guest with one way to misbehave; none where it was not built.
fn boot(how: &str, setup_limit_ns: u64) -> Option<Result<Cluster, BootFailure>> {
    let mut config = config("misbehave", 1)?;
    (config.append, config.setup_limit_ns) = (format!("misbehave={how}"), setup_limit_ns);
    match Cluster::boot(&config) {
        Ok(cluster) => Some(Ok(cluster)),
        Err(ClusterError::Boot(failure)) => Some(Err(failure)),
        Err(other) => panic!("{how}: {other}"),
    }
}

fn run(how: &str) -> Option<BranchOutcome> {
    let mut cluster = boot(how, 20 * SECOND)?.unwrap_or_else(|failure| panic!("{how}: {failure}"));
    let snapshot = cluster.snapshot().expect("sound");
    let plan = BranchPlan::new(Schedule::default(), 400 * MS, 1);
    let outcome = cluster.run_branch(&snapshot, &plan).unwrap();
    assert_eq!(cluster.run_branch(&snapshot, &plan).unwrap(), outcome, "{how}: the same again");
    Some(outcome)
}

fn signatures(outcome: &BranchOutcome) -> Vec<String> {
    outcome.violations.iter().map(|violation| violation.kind.signature()).collect()
}

#[test]
fn guests_that_do_not_get_to_setup_say_why() {
    let Some(died) = boot("die", 20 * SECOND) else { return };
    assert_eq!(died.err(), Some(BootFailure::WorkloadExited { vm: 0, how: "exit code 3".into() }));
    let crashed = boot("crash", 20 * SECOND).unwrap();
    assert_eq!(crashed.err(), Some(BootFailure::WorkloadExited { vm: 0, how: "signal 6".into() }));
    for how in ["spin", "mute"] {
        let limit_ns = SECOND;
        let silent = boot(how, limit_ns).unwrap();
        assert_eq!(silent.err(), Some(BootFailure::NoSetup { vms: vec![0], limit_ns }), "{how}");
    }
}

#[test]
fn guests_that_go_wrong_after_setup_are_violations() {
    let Some(panicked) = run("panic") else { return };
    assert_eq!(signatures(&panicked), ["guest_panic"]);
    assert_eq!(signatures(&run("fail").unwrap()), ["assertion: this guest never fails"]);
    let ended = run("end").unwrap();
    assert_eq!((ended.end, ended.violations), (EndReason::AllExited, vec![]));
}

#[test]
fn guests_that_spin_or_flood_cost_their_horizon_and_no_more() {
    let Some(spun) = run("spin-after") else { return };
    assert_eq!((spun.end, spun.violations), (EndReason::Horizon, vec![]));
    assert!(spun.instructions <= 400 * MS / 10 + 10);
    let flooded = run("flood").unwrap();
    assert_eq!((flooded.end, flooded.violations), (EndReason::Horizon, vec![]));
    assert_eq!(flooded.serial[0].len(), SERIAL_TAIL_BYTES);
}

#[test]
fn garbage_in_the_sdk_window_is_refused_and_counted() {
    let Some(booted) = boot("garbage", 20 * SECOND) else { return };
    let mut cluster = booted.unwrap();
    let outcome = cluster.run(&BranchPlan::new(Schedule::default(), 400 * MS, 1)).unwrap();
    assert_eq!((&outcome.end, &outcome.violations), (&EndReason::Horizon, &vec![]));
    let console = String::from_utf8_lossy(&outcome.serial[0]);
    assert!(cluster.oracle().refused() > 0, "{} {console}", outcome.instructions);
    assert!(!cluster.oracle().reports().is_empty());
}
