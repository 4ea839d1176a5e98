// SPDX-License-Identifier: AGPL-3.0-or-later
//! redb under power cuts: a planted missing flush is found and needs one power cut, and redb itself stands a few dozen of them.

use chaoscontrol_e2e::{Bench, initrd, kernel, outputs, printed_path};
use serde_json::Value;

/// What a store does not promise to stand, and what does not reach it.
const WITHOUT: [&str; 2] = ["disk_*", "network_*"];

fn booted(bench: &Bench, append: &str) -> Vec<u8> {
    let (kernel, initrd) = (kernel(), initrd("redb"));
    let disk = printed_path("guest/build", &["--print-disk", "ext4"]);
    let path = |path: &std::path::Path| path.to_str().expect("a path").to_owned();
    let (kernel, initrd, disk) = (path(&kernel), path(&initrd), path(&disk));
    let arguments =
        ["--kernel", &kernel, "--initrd", &initrd, "--disk", &disk, "--vms", "1", "--seed", "1", "--append", append];
    bench.run("chaos-boot", &arguments, b"").expect_code(0)
}

fn explored(bench: &Bench, append: &str, branches: &str) -> Vec<u8> {
    let mut arguments = vec!["--branches", branches, "--jobs", "2", "--horizon-ns", "2000000000", "--quiet"];
    arguments.extend(WITHOUT.iter().flat_map(|kinds| ["--without-faults", kinds]));
    arguments.extend(["--stop-after-bugs", "1"]);
    bench.run("chaos-explore-round", &arguments, &booted(bench, append)).expect_code(0)
}

#[test]
fn a_flush_that_is_missing_is_found_and_takes_one_power_cut_or_reset() {
    let bench = Bench::new();
    let round = explored(&bench, "redb_bug=missing_flush", "64");
    assert!(!outputs(&round, "bug").is_empty(), "no bug in 64 branches");
    let minimal = bench.run("chaos-minimize", &["--jobs", "2", "--bug", "1", "--quiet"], &round).expect_code(0);
    let raw = bench.run("chaos-show", &["--raw", &outputs(&minimal, "minimized-bug")[0]], b"").expect_code(0);
    let document: Value = serde_json::from_slice(&raw).expect("a document");
    let events = document["record"]["schedule"]["events"].as_array().expect("events");
    assert_eq!(events.len(), 1, "{events:?}");
    // A reset loses what was not flushed as a power cut does.
    assert!(events[0]["fault"] == "vm_kill" || events[0]["fault"] == "vm_restart", "{events:?}");
}

#[test]
fn redb_itself_stands_power_cuts() {
    let bench = Bench::new();
    let round = explored(&bench, "redb_bug=none", "24");
    assert!(outputs(&round, "bug").is_empty(), "redb broke a promise");
    let shown = bench.run("chaos-show", &["-"], &round).expect_code(0);
    let shown = String::from_utf8(shown).expect("text");
    let line = shown.lines().find(|line| line.contains("transactions are committed after a power cut"));
    assert!(line.is_some_and(|line| !line.contains("NEVER REACHED")), "no power cut was survived:\n{shown}");
}
