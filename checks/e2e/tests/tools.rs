// SPDX-License-Identifier: AGPL-3.0-or-later
//! What the tools say about each other.

use chaoscontrol_e2e::{Bench, initrd, kernel};

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
