// SPDX-License-Identifier: AGPL-3.0-or-later
//! Each stage killed at many moments: the store stays sound, and the stage run again gives what it would have given.
//!
//! The guest is a small one that fails an assertion 100 ms after its setup, so that each stage is short and has work to do.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use chaoscontrol_e2e::{Bench, initrd, kernel};

/// Kills that must hit each stage at work.
const KILLS: u32 = 50;
/// Kills that are tried: some come when the stage has just ended.
const TRIES: u32 = 200;
/// After every so many kills the stage is run again and must give what it would have given.
const AGAIN: u32 = 5;

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let status = Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs");
    assert!(status.success(), "cp -a {} {}", from.display(), to.display());
}

/// Kills the stage at moments spread over the time that it takes, each time in the store as it was before.
fn killed(bench: &Bench, tool: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let before = bench.path("before");
    std::fs::create_dir_all(bench.store()).expect("a folder for the store");
    copy(&bench.store(), &before);
    let file = bench.path("input.json");
    std::fs::write(&file, input).expect("an input file");
    let started = Instant::now();
    let expected = bench.run(tool, arguments, input).expect_code(0);
    let (takes, objects) = (started.elapsed(), bench.objects());
    let kept = |name: &String| !name.starts_with("tmp/") && !name.starts_with("packs/");
    let (mut hits, mut tries) = (0, 0);
    while hits < KILLS {
        assert!(tries < TRIES, "{tool}: only {hits} of {tries} kills hit it at work");
        tries += 1;
        copy(&before, &bench.store());
        let stdin = std::fs::File::open(&file).expect("the input file");
        let mut command = bench.command(tool, arguments);
        command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the tool starts");
        // Multiples of 0.618 modulo 1 spread evenly however many there are.
        std::thread::sleep(takes * (tries * 618 % 1000) / 1000 + Duration::from_millis(1));
        child.kill().expect("our own child");
        hits += u32::from(!child.wait().expect("our own child").success());
        if bench.store().join("format").exists() {
            bench.run("chaos-store", &["verify"], b"").expect_code(0);
        }
        if tries.is_multiple_of(AGAIN) {
            assert_eq!(bench.run(tool, arguments, input).expect_code(0), expected, "{tool} after kill {tries}");
            let again: Vec<String> = bench.objects().into_iter().filter(kept).collect();
            assert_eq!(again, objects.iter().filter(|name| kept(name)).cloned().collect::<Vec<_>>());
        }
    }
    println!("{tool}: {hits} of {tries} kills over {takes:?} hit it at work");
    copy(&before, &bench.store());
    assert_eq!(bench.run(tool, arguments, input).expect_code(0), expected, "{tool}");
    expected
}

#[test]
fn a_stage_killed_at_any_moment_leaves_a_sound_store_and_runs_again() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("misbehave"));
    let boot = [
        "--kernel",
        kernel.to_str().expect("a path"),
        "--initrd",
        initrd.to_str().expect("a path"),
        "--vms",
        "1",
        "--append",
        "misbehave=fail",
    ];
    let mut descriptor = killed(&bench, "chaos-boot", &boot, b"");
    let stages: [(&str, &[&str]); 5] = [
        ("chaos-explore-round", &["--branches", "2", "--horizon-ns", "200000000"]),
        ("chaos-minimize", &[]),
        ("chaos-reproduce", &[]),
        ("chaos-verdict", &["--require", "snapshot_backed_reproduced"]),
        ("chaos-receipt", &[]),
    ];
    for (tool, arguments) in stages {
        descriptor = killed(&bench, tool, arguments, &descriptor);
    }
    let receipt = bench.path("receipt.json");
    std::fs::write(&receipt, &descriptor).expect("the receipt");
    let check = ["--check", receipt.to_str().expect("a path")];
    bench.run("chaos-receipt", &check, b"").expect_code(0);
    bench.run("chaos-store", &["gc"], b"").expect_code(0);
    bench.run("chaos-receipt", &check, b"").expect_code(0);
}
