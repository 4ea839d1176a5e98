// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a campaign counts: edges of which code, and what guests count themselves.

use chaoscontrol_artifact::schema::{Corpus, CoverageMap, Descriptor};
use chaoscontrol_artifact::{Store, document};
use chaoscontrol_e2e::{Bench, initrd, kernel, outputs, printed_path};

/// Slots of the edges that the engine counts; those of guests lie behind them.
const EDGES: usize = 1 << 16;

fn booted(bench: &Bench, guest: &str, more: &[&str]) -> Vec<u8> {
    let (kernel, initrd) = (kernel(), initrd(guest));
    let (kernel, initrd) = (kernel.to_str().expect("a path"), initrd.to_str().expect("a path"));
    let mut boot = vec!["--kernel", kernel, "--initrd", initrd, "--vms", "1", "--disk-mib", "0", "--quiet"];
    boot.extend(more);
    bench.run("chaos-boot", &boot, b"").expect_code(0)
}

fn explored(bench: &Bench, booted: &[u8], more: &[&str]) -> Vec<u8> {
    let mut explore = vec!["--horizon-ns", "600000000", "--quiet"];
    explore.extend(more);
    bench.run("chaos-explore-round", &explore, booted).expect_code(0)
}

/// The corpus and the coverage map that a round wrote.
fn kept(bench: &Bench, round: &[u8]) -> (Corpus, CoverageMap) {
    let descriptor: Descriptor = document::decode_loose(round).expect("a descriptor");
    let store = Store::open(&bench.store(), &[]).expect("a store");
    let corpus = descriptor.outputs.iter().find(|link| link.role == "corpus").expect("a corpus");
    let corpus: Corpus = store.load(&corpus.object).expect("the corpus");
    let coverage = store.load(&corpus.coverage).expect("the coverage");
    (corpus, coverage)
}

fn reached(slots: &[u8]) -> usize {
    slots.iter().filter(|slot| **slot != 0).count()
}

#[test]
fn a_guest_that_counts_its_own_edges_reaches_new_ones_by_choices_and_faults_with_any_number_of_jobs() {
    let bench = Bench::new();
    // Nothing but what the guest counts: as on an engine without edges.
    let booted = booted(&bench, "counted", &["--seed", "3", "--coverage", "none"]);
    let first = explored(&bench, &booted, &["--branches", "1", "--jobs", "1"]);
    let rounds = ["1", "2"].map(|jobs| explored(&bench, &booted, &["--branches", "24", "--jobs", jobs]));
    assert!(rounds[0] == rounds[1], "the number of jobs shows in what was counted");

    let (_, alone) = kept(&bench, &first);
    let (corpus, all) = kept(&bench, &rounds[0]);
    assert!(all.slots.0.len() > EDGES && reached(&all.slots.0[..EDGES]) == 0, "the engine counted nothing");
    let (alone, all) = (reached(&alone.slots.0), reached(&all.slots.0));
    assert!(alone > 50 && all > alone, "{alone} edges in the first branch, {all} in all");
    assert!(corpus.total.novel.0 > 0, "later branches reached new edges");
}

#[test]
fn only_the_code_that_was_asked_for_is_counted() {
    let bench = Bench::new();
    let program = printed_path("guest/build", &["--print-binary", "chaos-sdk-demo"]);
    let program = program.to_str().expect("a path");
    let edges = |more: &[&str]| {
        let booted = booted(&bench, "sdk-demo", more);
        let round = explored(&bench, &booted, &["--branches", "2", "--jobs", "2"]);
        let (_, coverage) = kept(&bench, &round);
        (coverage.slots.0, outputs(&booted, "snapshot"), outputs(&booted, "run"))
    };
    let (default, snapshot, run) = edges(&[]);
    assert_eq!(
        edges(&["--coverage", "user"]),
        (default.clone(), snapshot.clone(), run.clone()),
        "the default said aloud"
    );
    let (own, of_own, run_of_own) = edges(&["--coverage-of", program]);
    let (kernel, ..) = edges(&["--coverage", "kernel"]);
    let (none, ..) = edges(&["--coverage", "none"]);
    let (nowhere, ..) = edges(&["--coverage-range", "0x1000-2000"]);
    let all = edges(&["--coverage", "all"]).0;
    let within = |part: &[u8]| part.iter().zip(&all).all(|(part, all)| *part == 0 || *all != 0);
    assert!(reached(&own) > 100 && reached(&own) <= reached(&default) && within(&own), "{} edges", reached(&own));
    assert!(reached(&kernel) > 1000 && within(&kernel) && reached(&all) > reached(&default).max(reached(&kernel)));
    assert_eq!((reached(&none), reached(&nowhere)), (0, 0));
    assert!(run_of_own != run, "the run says what was counted");
    assert!(of_own != snapshot, "and the snapshot names its run");
}

#[test]
fn what_counts_nothing_or_cannot_be_known_is_refused_in_words() {
    let bench = Bench::new();
    let kernel = kernel();
    let initrd = initrd("sdk-demo");
    let (kernel, initrd) = (kernel.to_str().expect("a path"), initrd.to_str().expect("a path"));
    let refused = |more: &[&str], code: i32| {
        let boot = [&["--kernel", kernel, "--initrd", initrd, "--vms", "1"], more].concat();
        let ran = bench.run("chaos-boot", &boot, b"");
        assert_eq!(ran.code, code, "{more:?}: {}", ran.stderr);
        ran.stderr
    };
    assert!(refused(&["--coverage-range", "2000-1000"], 2).contains("the second above the first"));
    assert!(
        refused(&["--coverage-range", "1000-2000", "--coverage", "kernel"], 2).contains("begin at 0x8000000000000000")
    );
    assert!(refused(&["--coverage-range", "1000-2000", "--coverage", "none"], 2).contains("leave the range out"));
    assert!(refused(&["--coverage-range", "1000-2000", "--coverage-of", "x"], 2).contains("give one"));
    // A tool of this host is linked dynamically.
    let tool = bench.command("chaos-boot", &[]).get_program().to_owned();
    assert!(refused(&["--coverage-of", tool.to_str().expect("a path")], 3).contains("--coverage-range"));
    assert!(refused(&["--coverage-of", initrd], 3).contains("it is a cpio archive"));
}

#[test]
fn a_guest_that_writes_garbage_where_counts_go_breaks_nothing() {
    let bench = Bench::new();
    let booted = booted(&bench, "misbehave", &["--append", "misbehave=garbage"]);
    let rounds = ["1", "2"].map(|jobs| explored(&bench, &booted, &["--branches", "4", "--jobs", jobs]));
    assert!(rounds[0] == rounds[1], "garbage is the same bytes too");
    let (_, coverage) = kept(&bench, &rounds[0]);
    assert_eq!(coverage.slots.0.len(), (1 << 16) + (60 << 10), "a map has the size that it has");
}
