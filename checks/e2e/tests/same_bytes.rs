// SPDX-License-Identifier: AGPL-3.0-or-later
//! The same seed gives the same bytes: in new processes, with one and two jobs, idle and beside a CPU hog, in release and
//! debug builds. And the comparison can see: a build that leaks host time fails it.

use std::process::{Child, Command};

use chaoscontrol_e2e::{Bench, boot, raft_chain, root};

/// Two processes that burn both cores until dropped.
struct Hog(Vec<Child>);

impl Hog {
    fn start() -> Self {
        Self((0..2).map(|_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh runs")).collect())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().and_then(|()| child.wait().map(drop)).expect("the hog can be ended");
        }
    }
}

#[test]
fn same_bytes_with_one_job_and_two_idle_and_beside_a_hog() {
    let idle = Bench::new();
    let first = raft_chain(&idle, "double_vote", 42, 16, 1);
    let busy = Bench::new();
    let hog = Hog::start();
    let second = raft_chain(&busy, "double_vote", 42, 16, 2);
    drop(hog);
    assert_eq!(idle.objects(), busy.objects(), "the stores differ");
    assert!(first == second, "descriptors differ");
}

#[test]
fn same_bytes_whatever_is_kept_of_branches_in_their_middle() {
    let bench = Bench::new();
    let booted = boot(&bench, &["--seed", "42", "--append", "raft_bug=fig8_commit"]).expect_code(0);
    let horizon = ["--horizon-ns", "2000000000"];
    for mode in ["faults", "hybrid"] {
        // None, room for a few, and all; each descriptor names its corpus by digest.
        let rounds = [("0", "1"), ("0", "2"), ("8", "1"), ("8", "2"), ("512", "2")].map(|(mib, jobs)| {
            let explore =
                ["--branches", "48", "--seed", "3", "--mode", mode, "--prefix-cache-mib", mib, "--jobs", jobs];
            bench.run("chaos-explore-round", &[&explore[..], &horizon].concat(), &booted).expect_code(0)
        });
        assert!(rounds.iter().all(|round| *round == rounds[0]), "{mode}: descriptors differ");
        let minimal = [("0", "1"), ("512", "2")].map(|(mib, jobs)| {
            let minimize = ["--attempts", "40", "--prefix-cache-mib", mib, "--jobs", jobs];
            bench.run("chaos-minimize", &minimize, &rounds[0]).expect_code(0)
        });
        assert!(minimal[0] == minimal[1], "{mode}: minimized bugs differ");
    }
}

#[test]
fn same_bytes_from_a_debug_build() {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--bins"])
        .args(
            ["boot", "explore-round", "minimize", "reproduce", "verdict", "receipt"]
                .map(|tool| format!("-pchaos-{tool}")),
        )
        .current_dir(root())
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the debug build failed");
    let (release, debug) = (Bench::new(), Bench::with_profile("debug"));
    let first = raft_chain(&release, "double_vote", 42, 4, 2);
    let second = raft_chain(&debug, "double_vote", 42, 4, 2);
    assert_eq!(release.objects(), debug.objects(), "the stores differ");
    assert!(first == second, "descriptors differ");
}

#[test]
fn canary_a_build_that_leaks_host_time_is_caught() {
    // Its own target directory, so that the leaking tools can never be taken for the real ones.
    let target = chaoscontrol_e2e::tools("release").parent().expect("target/release").join("canary");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--release", "-p", "chaos-boot", "-p", "chaos-diverge"])
        .args(["--features", "chaos-boot/canary,chaos-diverge/canary", "--target-dir"])
        .arg(&target)
        .current_dir(root())
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the canary build failed");
    let snapshot = || {
        let bench = Bench::with_tools(target.join("release"));
        chaoscontrol_e2e::boot(&bench, &["--append", "raft_bug=double_vote"]).expect_code(0)
    };
    assert!(snapshot() != snapshot(), "host time reached the guest and nothing showed it");

    // The tool that looks for the place names it: VM, time, instruction and registers.
    let bench = Bench::with_tools(target.join("release"));
    let booted = chaoscontrol_e2e::boot(&bench, &["--append", "raft_bug=none"]).expect_code(0);
    let ran = bench.run("chaos-diverge", &["--horizon-ns", "500000000", "--quiet"], &booted);
    assert_eq!(ran.code, 12, "{}", ran.stderr);
    assert!(ran.stderr.contains("two runs that must be the same are not"), "{}", ran.stderr);
    let said = String::from_utf8(ran.stdout).expect("text");
    let first = said.lines().next().expect("a line");
    assert!(first.starts_with("diverged in round ") && first.contains(" ns, vm "), "{said}");
    let row = |name: &str| said.lines().find(|line| line.split_ascii_whitespace().next() == Some(name));
    for name in ["first", "second", "instructions", "rip"] {
        assert!(row(name).is_some(), "no {name} in\n{said}");
    }
    let differ =
        |line: &&str| line.split_once(" | ").is_some_and(|(left, right)| !left.ends_with(&format!(" {right}")));
    assert!(said.lines().filter(differ).count() > 0, "no register differs in\n{said}");
    println!("{said}");
}
