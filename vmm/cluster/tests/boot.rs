// SPDX-License-Identifier: AGPL-3.0-or-later
//! How a cluster gets to `setup_complete`, and what it says when it does not.

mod common;

use chaoscontrol_cluster::{BootFailure, ClusterError};
use common::{MS, SECOND, Step, cluster, failure, hello, looping};

fn failure_of(programs: Vec<Vec<Step>>) -> BootFailure {
    match cluster(programs).run_to_setup(1, 2 * SECOND) {
        Err(ClusterError::Boot(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn setup_ends_at_the_barrier_at_which_the_last_vm_reported_it() {
    let slow = vec![Step::Sleep(700 * MS), hello(), Step::Loop(0)];
    let mut cluster = cluster(vec![looping(vec![Step::Sleep(MS)]), slow]);
    cluster.run_to_setup(1, 2 * SECOND).unwrap();
    let now = cluster.sim().now_ns();
    assert!((700 * MS..702 * MS).contains(&now), "{now}");
}

#[test]
fn vms_that_do_not_report_in_time_are_named() {
    let forever = vec![Step::Work(1_000), Step::Loop(0)];
    let found = failure_of(vec![forever.clone(), looping(vec![Step::Sleep(MS)]), forever]);
    assert_eq!(found, BootFailure::NoSetup { vms: vec![0, 2], limit_ns: 2 * SECOND });
    let said = "no setup_complete from vm 0, vm 2 within 2000000000 ns of cluster time; if it needs longer, raise the limit \
                (--setup-limit-ns)";
    assert_eq!(found.to_string(), said);
}

#[test]
fn a_guest_that_halts_forever_runs_into_the_limit_at_once() {
    let mut cluster = cluster(vec![vec![Step::Work(5)]]);
    assert!(cluster.run_to_setup(1, 1_000_000 * SECOND).is_err());
}

#[test]
fn each_way_to_fail_has_a_failure_of_its_own() {
    let fine = || looping(vec![Step::Sleep(MS)]);
    let panic = vec![fine(), vec![Step::Panic("Attempted to kill init! exitcode=0x0000000b")]];
    assert!(matches!(failure_of(panic), BootFailure::Panic { vm: 1, .. }));
    let no_init = vec![vec![Step::Panic("No working init found."), hello()]];
    assert!(matches!(failure_of(no_init), BootFailure::NoInit { vm: 0, .. }));
    let exited = vec![fine(), vec![Step::Exit(101), hello()]];
    assert_eq!(failure_of(exited), BootFailure::WorkloadExited { vm: 1, how: "exit code 101".into() });
    let done = vec![fine(), vec![Step::Exit(0)]];
    assert_eq!(failure_of(done), BootFailure::WorkloadExited { vm: 1, how: "exit code 0".into() });
    let off = vec![fine(), vec![Step::PowerOff]];
    assert_eq!(failure_of(off), BootFailure::Shutdown { vm: 1, how: "power-off".into() });
    let mut broken = looping(vec![Step::Sleep(MS)]);
    broken.insert(2, failure());
    let late = vec![Step::Sleep(100 * MS), hello()];
    assert!(matches!(failure_of(vec![broken, late]), BootFailure::Violation { vm: 0, .. }));
}
