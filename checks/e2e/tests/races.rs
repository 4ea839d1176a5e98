// SPDX-License-Identifier: AGPL-3.0-or-later
//! Exploration of schedules of CPUs finds a planted data race and a planted lost wake-up within a stated budget, shrinks them, and
//! replays them; the same guest without a bug stays clean.

use chaoscontrol_e2e::{Bench, initrd, smp_kernel};
use serde_json::Value;

/// Branches within which each bug must be found, and that the correct guest must survive.
const BRANCHES: &str = "48";
/// Cluster time of each branch.
const HORIZON_NS: &str = "400000000";

fn links(descriptor: &[u8], role: &str) -> Vec<String> {
    let descriptor: Value = serde_json::from_slice(descriptor).expect("a descriptor");
    let outputs = descriptor["outputs"].as_array().expect("outputs").clone();
    let of_role = outputs.iter().filter(|link| link["role"] == role);
    of_role.map(|link| link["object"]["digest"].as_str().expect("a digest").to_owned()).collect()
}

fn explored(bench: &Bench, bug: &str, schedule: &str, more: &[&str]) -> Vec<u8> {
    let (kernel, initrd) = (smp_kernel(), initrd("race"));
    let append = format!("race_bug={bug}");
    let mut boot = vec!["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path")];
    boot.extend(["--vms", "1", "--cpus", "2", "--cpu-schedule", schedule, "--seed", "5", "--append", &append]);
    let booted = bench.run("chaos-boot", &boot, b"").expect_code(0);
    let mut all = vec!["--branches", BRANCHES, "--horizon-ns", HORIZON_NS, "--jobs", "2", "--quiet"];
    all.extend(more);
    bench.run("chaos-explore-round", &all, &booted).expect_code(0)
}

#[test]
fn a_data_race_and_a_lost_wakeup_are_found_shrunk_and_replayed_under_both_schedules() {
    for schedule in ["random", "round-robin"] {
        for bug in ["data_race", "lost_wakeup"] {
            let bench = Bench::new();
            let round = explored(&bench, bug, schedule, &["--stop-after-bugs", "1"]);
            assert!(!links(&round, "bug").is_empty(), "{bug}, {schedule}: no bug in {BRANCHES} branches");
            let minimal = bench.run("chaos-minimize", &["--jobs", "2", "--bug", "1", "--quiet"], &round).expect_code(0);
            let digest = &links(&minimal, "minimized-bug")[0];
            let raw = bench.run("chaos-show", &["--raw", digest], b"").expect_code(0);
            let document: Value = serde_json::from_slice(&raw).expect("a document");
            let events = document["record"]["schedule"]["events"].as_array().expect("events").len();
            assert!(events <= 2, "{bug}, {schedule}: {events} events are left");
            let reproduced = bench.run("chaos-reproduce", &["--quiet"], &minimal).expect_code(0);
            let required = ["--require", "snapshot_backed_reproduced"];
            let _ = bench.run("chaos-verdict", &required, &reproduced).expect_code(0);
        }
    }
}

#[test]
fn the_guest_without_a_bug_stays_clean() {
    for schedule in ["random", "round-robin"] {
        let bench = Bench::new();
        let round = explored(&bench, "none", schedule, &[]);
        assert!(links(&round, "bug").is_empty(), "{schedule}: the correct guest violated a property");
    }
}
