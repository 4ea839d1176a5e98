// SPDX-License-Identifier: AGPL-3.0-or-later
//! A cluster whose round failed half-way refuses everything, and what it had recorded stays readable.

mod common;

use chaoscontrol_cluster::{BranchPlan, ClusterError};
use chaoscontrol_fault::Schedule;
use common::{MS, SECOND, Step, booted, hello, looping};

#[test]
fn a_round_that_fails_poisons_the_cluster_for_good() {
    // The second VM fails 300 ms into the branch, when the first has already run its part of the round.
    let fails = vec![Step::RestartPoint, hello(), Step::Sleep(300 * MS), Step::Fail];
    let mut cluster = booted(vec![looping(vec![Step::Work(500), Step::Sleep(7 * MS)]), fails]);
    let snapshot = cluster.snapshot().expect("sound");
    let plan = BranchPlan::new(Schedule::default(), SECOND, 1);
    assert!(matches!(cluster.run(&plan), Err(ClusterError::Machine { vm: 1, .. })));
    let why = cluster.poisoned().expect("poisoned").to_owned();
    assert!(why.contains("a fake failed"), "{why}");
    let refused = [
        cluster.run(&plan).map(drop),
        cluster.run_branch(&snapshot, &plan).map(drop),
        cluster.snapshot().map(drop),
        cluster.restore(&snapshot),
        cluster.run_to_setup(1, SECOND),
    ];
    for result in refused {
        assert!(matches!(&result, Err(ClusterError::Poisoned(_))), "{result:?}");
    }
    assert_eq!(cluster.turns().vms.len(), 2, "what was recorded is there");
}
