// SPDX-License-Identifier: AGPL-3.0-or-later
//! Kernels other than the default one. They take minutes to build, so a test runs where its kernel is built already and says so
//! loudly where it is not.

use std::path::PathBuf;
use std::process::Command;

use chaoscontrol_e2e::{Bench, initrd, outputs, root};

/// The cached kernel of a variant, or the one that `CHAOS_TEST_VARIANT_KERNEL` names.
fn variant(option: &str, check: &str) -> Option<PathBuf> {
    let given = std::env::var_os(format!("CHAOS_TEST_{}_KERNEL", option.trim_start_matches('-').to_uppercase()));
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        return Some(given.into());
    }
    let mut command = Command::new(root().join("guest/kernel/build"));
    let output = command.args([option, "--cached", "--print-path"]).output().expect("the script runs");
    if output.status.code() == Some(4) {
        eprintln!("skipped: the kernel of {option} is not built; {check} builds it and runs this test");
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim()))
}

#[test]
fn a_kernel_without_acpi_and_ioapic_runs_the_guests_on_the_pic_alone() {
    let Some(kernel) = variant("--pic", "checks/kernel-pic") else { return };
    let initrd = initrd("raft");
    let (kernel, initrd) = (kernel.to_str().expect("a path"), initrd.to_str().expect("a path"));
    let arguments = ["--legacy", "--kernel", kernel, "--initrd", initrd, "--vms", "3", "--seed", "42", "--quiet"];
    let bench = Bench::new();
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    let again = Bench::new();
    assert!(booted == again.run("chaos-boot", &arguments, b"").expect_code(0), "two boots are one");
    for digest in outputs(&booted, "console") {
        let console = bench.run("chaos-show", &[&digest], b"").expect_code(0);
        let console = String::from_utf8(console).expect("text");
        assert!(
            console.contains("chaos-raft") && !console.contains("IOAPIC") && !console.contains("ACPI"),
            "{console}"
        );
    }
    // Faults, network, disks and restarts work there too, and a round is the same twice.
    let round = ["--branches", "4", "--horizon-ns", "2000000000", "--quiet"];
    let explored = bench.run("chaos-explore-round", &round, &booted).expect_code(0);
    assert!(explored == again.run("chaos-explore-round", &round, &booted).expect_code(0), "two rounds are one");
    let line = bench.run("chaos-diverge", &["--from-boot", "--horizon-ns", "1000000000", "--quiet"], &booted);
    assert!(line.expect_code(0).starts_with(b"the same: "));
}

#[test]
fn kernel_coverage_of_a_kcov_kernel_reaches_the_map_and_is_the_same_twice() {
    let Some(kernel) = variant("--kcov", "checks/kcov") else { return };
    let initrd = initrd("sdk-demo");
    let (kernel, initrd) = (kernel.to_str().expect("a path"), initrd.to_str().expect("a path"));
    // This guest is not instrumented and the engine counts nothing, so that what is there is the kernel's.
    let boot = ["--kernel", kernel, "--initrd", initrd, "--vms", "1", "--coverage", "none", "--quiet"];
    let (bench, again) = (Bench::new(), Bench::new());
    let booted = bench.run("chaos-boot", &boot, b"").expect_code(0);
    assert!(booted == again.run("chaos-boot", &boot, b"").expect_code(0), "two boots are one");
    let round = |jobs| ["--branches", "4", "--horizon-ns", "1000000000", "--jobs", jobs, "--quiet"];
    let explored = bench.run("chaos-explore-round", &round("1"), &booted).expect_code(0);
    assert!(explored == again.run("chaos-explore-round", &round("2"), &booted).expect_code(0), "two rounds are one");
    let corpus = bench.run("chaos-show", &["--raw", &outputs(&explored, "corpus")[0]], b"").expect_code(0);
    let corpus: serde_json::Value = serde_json::from_slice(&corpus).expect("a document");
    let edges = corpus["total"]["edges"].as_u64().expect("a number");
    println!("kernel coverage of the guest: {edges} slots");
    assert!(edges > 100, "{edges} slots");
}
