// SPDX-License-Identifier: AGPL-3.0-or-later
//! Many short-lived processes without root in one guest: what each of them counted is counted, and by whom it may be counted.

use chaoscontrol_e2e::{Bench, initrd, kernel, outputs};
use serde_json::Value;

/// Faults none, so that every process comes to its end.
const NO_FAULT: &str = r#"{"schema": "chaoscontrol.schedule", "version": 1, "schedule": {"events": []}}"#;

#[test]
fn evaluations_of_processes_that_die_and_share_a_slot_are_counted_exactly() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("processes"));
    let (kernel, initrd) = (kernel.to_str().expect("a path"), initrd.to_str().expect("a path"));
    let arguments = ["--kernel", kernel, "--initrd", initrd, "--vms", "1", "--append", "processes=40", "--quiet"];
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    std::fs::write(bench.path("none.json"), NO_FAULT).expect("a schedule");
    let round = ["--branches", "1", "--schedule", "none.json", "--horizon-ns", "2000000000", "--quiet"];
    let explored = bench.run("chaos-explore-round", &round, &booted).expect_code(0);
    assert_eq!(outputs(&explored, "bug"), [""; 0], "a process without root could not report");
    let raw = bench.run("chaos-show", &["--raw", &outputs(&explored, "assertions")[0]], b"").expect_code(0);
    let document: Value = serde_json::from_slice(&raw).expect("assertions");
    let passes = |property: &str| {
        let list = document["assertions"].as_array().expect("a list");
        let row = list.iter().find(|row| row["property"] == property).unwrap_or_else(|| panic!("no {property}"));
        row["passes"].as_str().expect("a number").to_owned()
    };
    // The guest says that it came to its end, and each of its 40 processes evaluated the assertion 1,000 times.
    assert_eq!(passes("every process came and went"), "1");
    assert_eq!(passes("a process without root reports"), "40000");
}
