// SPDX-License-Identifier: AGPL-3.0-or-later
//! Exploration of schedules of CPUs finds a planted data race and a planted lost wake-up within a stated budget, shrinks them, and
//! replays them; the same guest without a bug stays clean.

use chaoscontrol_artifact::schema::{Bug, Descriptor};
use chaoscontrol_artifact::{MediaType, Store, document};
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
    explored_with(bench, bug, schedule, &[], more)
}

fn explored_with(bench: &Bench, bug: &str, schedule: &str, boot_more: &[&str], more: &[&str]) -> Vec<u8> {
    let (kernel, initrd) = (smp_kernel(), initrd("race"));
    let append = format!("race_bug={bug}");
    let mut boot = vec!["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path")];
    boot.extend(["--vms", "1", "--cpus", "2", "--cpu-schedule", schedule, "--seed", "5", "--append", &append]);
    boot.extend(boot_more);
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
fn a_replay_is_held_to_the_recorded_turns_and_a_changed_recording_is_refused() {
    let bench = Bench::new();
    let more = ["--stop-after-bugs", "1"];
    let round = explored_with(&bench, "data_race", "random", &["--smp-schedule-journal-limit", "100000"], &more);
    let outcome = |round: &[u8]| {
        let reproduced = bench.run("chaos-reproduce", &["--quiet", "--bug", "1"], round).expect_code(0);
        let raw = bench.run("chaos-show", &["--raw", &links(&reproduced, "reproduction")[0]], b"").expect_code(0);
        serde_json::from_slice::<Value>(&raw).expect("a document")["outcome"].clone()
    };
    assert_eq!(outcome(&round), "reproduced");

    // The same bug with a recording in which one bit of the last record was changed.
    let mut descriptor: Descriptor = document::decode_loose(&round).expect("a descriptor");
    let store = Store::open(&bench.store(), &[]).expect("a store");
    let link = descriptor.outputs.iter_mut().find(|link| link.role == "bug").expect("a bug");
    let mut bug: Bug = store.load(&link.object).expect("the bug");
    let turns = bug.record.turns.expect("the bug keeps its turns");
    let mut bytes = store.read(&turns).expect("the turns");
    *bytes.last_mut().expect("turns") ^= 1;
    bug.record.turns = Some(store.put(MediaType::Turns, &bytes).expect("storing"));
    link.object = store.publish(&bug).expect("storing");
    drop(store);
    let refused = outcome(&document::encode(&descriptor).expect("a descriptor")).to_string();
    assert!(refused.contains("its turns are not") && refused.contains("is not what was recorded"), "{refused}");
}

#[test]
fn the_guest_without_a_bug_stays_clean() {
    for schedule in ["random", "round-robin"] {
        let bench = Bench::new();
        let round = explored(&bench, "none", schedule, &[]);
        assert!(links(&round, "bug").is_empty(), "{schedule}: the correct guest violated a property");
    }
}
