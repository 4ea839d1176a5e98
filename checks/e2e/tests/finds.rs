// SPDX-License-Identifier: AGPL-3.0-or-later
//! Exploration finds planted bugs within 64 branches, shrinks them to what matters, and finds none where there is none. The long
//! runs (512 branches of the correct Raft, 64 seeds of each variant without faults) are `checks/campaign`.

use chaoscontrol_e2e::{Bench, boot, outputs};
use serde_json::Value;

const SEED: &str = "42";

fn explored(bench: &Bench, bug: &str, arguments: &[&str]) -> Vec<u8> {
    let booted = boot(bench, &["--seed", SEED, "--append", &format!("raft_bug={bug}")]).expect_code(0);
    let mut all = vec!["--jobs", "2", "--quiet"];
    all.extend(arguments);
    bench.run("chaos-explore-round", &all, &booted).expect_code(0)
}

#[test]
fn planted_bugs_are_found_within_64_branches_and_shrink_to_at_least_one_fault() {
    for bug in ["double_vote", "skip_truncate", "leader_no_stepdown"] {
        let bench = Bench::new();
        let round = explored(&bench, bug, &["--branches", "64", "--stop-after-bugs", "1"]);
        assert!(!outputs(&round, "bug").is_empty(), "{bug}: no bug in 64 branches");
        let minimal = bench.run("chaos-minimize", &["--jobs", "2", "--bug", "1", "--quiet"], &round).expect_code(0);
        let digest = &outputs(&minimal, "minimized-bug")[0];
        let raw = bench.run("chaos-show", &["--raw", digest], b"").expect_code(0);
        let document: Value = serde_json::from_slice(&raw).expect("a document");
        let faults = document["record"]["schedule"]["events"].as_array().expect("events").len();
        assert!(faults >= 1, "{bug}: violated without a fault");
        let reproduced = bench.run("chaos-reproduce", &["--quiet"], &minimal).expect_code(0);
        let required = ["--require", "snapshot_backed_reproduced"];
        let verdict = bench.run("chaos-verdict", &required, &reproduced).expect_code(0);
        let receipt = bench.run("chaos-receipt", &[], &verdict).expect_code(0);
        let _ = bench.run("chaos-receipt", &["--check"], &receipt).expect_code(0);
    }
}

#[test]
fn the_correct_raft_shows_no_violation() {
    let bench = Bench::new();
    let round = explored(&bench, "none", &["--branches", "48"]);
    assert!(outputs(&round, "bug").is_empty(), "the correct Raft violated a property");
}
