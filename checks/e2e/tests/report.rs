// SPDX-License-Identifier: AGPL-3.0-or-later
//! `chaos-report` on a real campaign: a guest whose texts try to break out of the page, and what a replay adds.

use std::path::Path;

use chaoscontrol_e2e::{Bench, initrd, kernel};
use serde_json::Value;

/// One fault, so that minimizing has something to leave out.
const SCHEDULE: &str = r#"{"schema": "chaoscontrol.schedule", "version": 1, "schedule": {"events": [
    {"time_ns": "1000000", "fault": "vm_pause", "vm": 0, "duration_ns": "1000000"}
]}}"#;

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

#[test]
fn every_stage_can_be_reported_and_the_page_is_the_same_each_time() {
    let bench = Bench::new();
    let schedule = bench.path("schedule.json");
    std::fs::write(&schedule, SCHEDULE).expect("a schedule");
    let path = |path: &Path| path.to_str().expect("a path").to_owned();
    let (schedule, kernel, initrd) = (path(&schedule), path(&kernel()), path(&initrd("misbehave")));
    let boot = ["--kernel", &kernel, "--initrd", &initrd, "--vms", "1", "--append", "misbehave=steer", "--quiet"];
    let round = ["--branches", "2", "--horizon-ns", "300000000", "--schedule", &schedule];
    let stages: [(&str, &[&str]); 6] = [
        ("chaos-boot", &boot),
        ("chaos-explore-round", &round),
        ("chaos-minimize", &[]),
        ("chaos-reproduce", &[]),
        ("chaos-verdict", &[]),
        ("chaos-receipt", &[]),
    ];
    let mut descriptor = Vec::new();
    for (tool, arguments) in stages {
        descriptor = bench.run(tool, arguments, &descriptor).expect_code(0);
        let page = text(bench.run("chaos-report", &[], &descriptor).expect_code(0));
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "{tool}");
        assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'), "{tool}: the guest's text is made visible");
    }
    let page = bench.run("chaos-report", &[], &descriptor).expect_code(0);
    assert_eq!(
        page,
        bench.run("chaos-report", &["--tier", "reference"], &descriptor).expect_code(0),
        "one campaign, one page"
    );
    let page = text(page);
    assert!(page.contains("1 bug found, and replayed bit for bit"), "the verdict stands at the top");
    assert!(page.contains("\\u{1b}[31mred\\u{202e} message\\u{9b}"), "what the guest said can be read");

    let json = bench.run("chaos-report", &["--format", "json"], &descriptor).expect_code(0);
    let report: Value = serde_json::from_slice(&json).expect("JSON");
    let bug = &report["bugs"][0];
    assert_eq!(report["class"], "snapshot_backed_reproduced");
    assert_eq!(bug["no_moments"], Value::Null, "{bug}");
    let said = bug["moments"]["said"].as_array().expect("what the guest said");
    let failed =
        said.iter().filter(|said| said["kind"] == "failed" && said["name"] == bug["violation"]["identity"]["property"]);
    assert_eq!(failed.count(), 1, "the failure itself is among what was said: {said:?}");

    // The command on the page is the one that shows it again.
    let replay = bug["replay"][0][1].as_str().expect("a command");
    let digest = replay.strip_prefix("chaos-show --raw ").and_then(|rest| rest.split(' ').next()).expect("a digest");
    let minimal = bench.run("chaos-show", &["--raw", digest], b"").expect_code(0);
    let number = bug["number"].to_string();
    let again = bench.run("chaos-reproduce", &["--bug", &number], &minimal).expect_code(0);
    assert!(text(again).contains("\"stage\":\"reproduce\""));

    let plain: Value = serde_json::from_slice(
        &bench.run("chaos-report", &["--format", "json", "--no-replay"], &descriptor).expect_code(0),
    )
    .expect("JSON");
    assert_eq!((&plain["bugs"][0]["moments"], &plain["bugs"][0]["lanes"]), (&Value::Null, &bug["lanes"]));
    let told = text(bench.run("chaos-report", &["--format", "text", "--bug", "1"], &descriptor).expect_code(0));
    assert!(told.chars().all(|c| !c.is_control() || c == '\n'), "{told}");
    let ran = bench.run("chaos-report", &["--bug", "2"], &descriptor);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("there is no bug 2: the chain has 1"), "{}", ran.stderr);
}
