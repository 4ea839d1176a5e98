// SPDX-License-Identifier: AGPL-3.0-or-later
//! What holds for every tool, and what the tools say about each other.

use std::io::Read;
use std::process::Stdio;

use chaoscontrol_e2e::{Bench, initrd, kernel};

const TOOLS: [&str; 11] = [
    "chaos-boot",
    "chaos-explore-round",
    "chaos-explore",
    "chaos-minimize",
    "chaos-reproduce",
    "chaos-verdict",
    "chaos-receipt",
    "chaos-show",
    "chaos-diverge",
    "chaos-store",
    "chaos-bench",
];

#[test]
fn every_tool_says_what_it_reads_writes_and_ends_with() {
    let bench = Bench::new();
    for tool in TOOLS {
        let help = String::from_utf8(bench.run(tool, &["--help"], b"").expect_code(0)).expect("text");
        for part in
            ["Usage:", "Flags:", "Reads:", "Writes:", "Exit codes:", "Examples:", "--version", "\n   0  the stage"]
        {
            assert!(help.contains(part), "{tool}: no {part:?} in:\n{help}");
        }
        assert!(help.lines().all(|line| line.chars().count() <= 140), "{tool}: a line is too long");
        assert_eq!(help.matches("\n  # ").count(), 2, "{tool}: two examples");
        let version = String::from_utf8(bench.run(tool, &["--version"], b"").expect_code(0)).expect("text");
        assert!(version.starts_with(&format!("{tool} ")) && version.contains("(source "), "{version}");
        let wrong = bench.run(tool, &["--vresion"], b"");
        assert_eq!(wrong.code, 2, "{tool}: {}", wrong.stderr);
        assert!(wrong.stderr.contains("did you mean --version?"), "{tool}: {}", wrong.stderr);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let bench = Bench::new();
    let mut command = bench.command("chaos-boot", &["--help"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tool starts");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
    assert!(child.wait().expect("our own child").success(), "{stderr}");
    assert_eq!(stderr, "");
}

#[test]
fn the_driver_writes_what_so_many_rounds_in_a_pipeline_would() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("sdk-demo"));
    let arguments =
        ["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path"), "--vms", "1"];
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    let round = ["--branches", "3", "--horizon-ns", "100000000", "--window", "2"];
    let first = bench.run("chaos-explore-round", &round, &booted).expect_code(0);
    let second = bench.run("chaos-explore-round", &round, &first);
    let driver = bench.run("chaos-explore", &[&["--rounds", "2"], &round[..]].concat(), &booted);
    let corpus = |ran: &chaoscontrol_e2e::Ran| ran.descriptor()["outputs"][0].clone();
    assert_eq!(corpus(&second)["role"], "corpus");
    assert_eq!(corpus(&second), corpus(&driver));
}

#[test]
fn two_runs_of_one_thing_are_the_same_from_snapshot_and_from_boot() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("sdk-demo"));
    let arguments =
        ["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path"), "--vms", "1"];
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    let says = |more: &[&str]| {
        let arguments = [&["--horizon-ns", "100000000"], more].concat();
        String::from_utf8(bench.run("chaos-diverge", &arguments, &booted).expect_code(0)).expect("text")
    };
    let line = says(&[]);
    assert!(line.starts_with("the same: "), "{line}");
    assert_eq!(line, says(&["--from-boot"]), "a snapshot and a boot go on alike");
}
