// SPDX-License-Identifier: AGPL-3.0-or-later
//! The TCP service under network faults: its planted bugs are found, and its histories are checked.

use chaoscontrol_e2e::{Bench, initrd, kernel, outputs};

/// A bad quarter of a second for everyone, then one client cut off.
const FAULTS: &str = r#"{"schema": "chaoscontrol.schedule", "version": 1, "schedule": {"events": [
  {"time_ns": "100000000", "fault": "network_loss", "from_vms": 7, "to_vms": 7, "loss_ppm": 100000, "duration_ns": "250000000"},
  {"time_ns": "400000000", "fault": "network_partition", "vms": 2, "duration_ns": "400000000"}
]}}"#;

fn booted(bench: &Bench, bug: &str) -> Vec<u8> {
    let (kernel, initrd) = (kernel(), initrd("net"));
    let (kernel, initrd) = (kernel.to_str().expect("a path"), initrd.to_str().expect("a path"));
    let append = format!("net_bug={bug}");
    let arguments =
        ["--kernel", kernel, "--initrd", initrd, "--vms", "3", "--disk-mib", "0", "--seed", "1", "--append", &append];
    bench.run("chaos-boot", &arguments, b"").expect_code(0)
}

#[test]
fn a_request_that_applies_twice_is_found() {
    let bench = Bench::new();
    let arguments =
        ["--branches", "64", "--jobs", "2", "--horizon-ns", "2500000000", "--stop-after-bugs", "1", "--quiet"];
    let round = bench.run("chaos-explore-round", &arguments, &booted(&bench, "no_dedup")).expect_code(0);
    assert!(!outputs(&round, "bug").is_empty(), "no bug in 64 branches");
    let shown = String::from_utf8(bench.run("chaos-show", &["-"], &round).expect_code(0)).expect("text");
    assert!(shown.contains("a request applies at most once"), "{shown}");
}

#[test]
fn histories_of_guests_are_checked() {
    for (bug, code, said) in [("none", 0, "ok: "), ("stale_read", 10, "not linearizable")] {
        let bench = Bench::new();
        let (faults, events) = (bench.path("faults.json"), bench.path("events.jsonl"));
        std::fs::write(&faults, FAULTS).expect("a file");
        let (faults, events) = (faults.to_str().expect("a path"), events.to_str().expect("a path"));
        let arguments = ["--quiet", "--schedule", faults, "--horizon-ns", "1500000000", "--events", events];
        let _ = bench.run("chaos-diverge", &arguments, &booted(&bench, bug)).expect_code(0);
        let ran = bench.run("chaos-history", &[events], b"");
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert_eq!(ran.code, code, "{bug}: {text}{}", ran.stderr);
        assert!(text.contains(said), "{bug}: {text}");
        let operations = text.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap_or(0);
        assert!(bug == "stale_read" || operations > 20, "too few operations to mean anything: {text}");
    }
}
