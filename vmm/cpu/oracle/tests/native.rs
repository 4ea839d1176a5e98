// SPDX-License-Identifier: AGPL-3.0-or-later
//! Our CPU against the host's: a bounded number of generated cases. `cpu-oracle native` runs any number.

use chaoscontrol_cpu_oracle::differential::{self, Kind, Options, Summary};
use chaoscontrol_cpu_oracle::host;
use std::collections::BTreeSet;

const SEED: u64 = 1;

fn run(kind: Kind, cases: u64) -> Option<Summary> {
    if let Err(reason) = host::available() {
        eprintln!("skipped: native cases: {reason}");
        return None;
    }
    let options = Options { cases, first: 0, seed: SEED, filter: None, kind, host: true, failures_max: 10, jobs: 1 };
    let summary = differential::run(&options, |_| {}).expect("the native runner works");
    let reports: Vec<String> = summary.failures.iter().map(|failure| failure.text(&options)).collect();
    assert!(reports.is_empty(), "the host disagrees (expected is the host):\n{}", reports.join("\n"));
    assert!(summary.lost.is_empty(), "cases that the native runner lost: {:?}", summary.lost);
    Some(summary)
}

#[test]
fn the_host_agrees_on_every_implemented_instruction() {
    let targets = differential::targets(None);
    let Some(summary) = run(Kind::Single, 40 * targets.len() as u64) else { return };
    let judged: BTreeSet<_> = summary.per_code.keys().copied().collect();
    let missing: BTreeSet<_> = targets.iter().map(|target| target.0).filter(|code| !judged.contains(code)).collect();
    assert!(missing.is_empty(), "no case was made for {missing:?}");
}

#[test]
fn the_host_agrees_on_short_sequences() {
    let Some(summary) = run(Kind::Sequence, 60_000) else { return };
    assert!(summary.compared > 30_000, "only {} sequences were compared", summary.compared);
}

#[test]
fn the_host_agrees_on_random_bytes() {
    let Some(summary) = run(Kind::Noise, 60_000) else { return };
    assert!(summary.compared > 10_000, "only {} cases were compared", summary.compared);
}

fn tiers(kind: Kind, cases: u64, jobs: usize) -> Options {
    Options { cases, first: 0, seed: SEED + 1, filter: None, kind, host: false, failures_max: 10, jobs }
}

#[test]
fn the_result_does_not_depend_on_the_number_of_jobs() {
    let [one, three] = [1, 3].map(|jobs| {
        let options = tiers(Kind::Noise, 40_000, jobs);
        let mut done = Vec::new();
        let summary = differential::run(&options, |cases| done.push(cases)).expect("no runner is needed");
        assert!(summary.failures.is_empty(), "the tiers disagree");
        (summary.compared, summary.per_code, done)
    });
    assert_eq!(one, three);
}

#[test]
fn the_tiers_agree_on_sequences_and_random_bytes() {
    for kind in [Kind::Sequence, Kind::Noise] {
        let options = tiers(kind, 40_000, 1);
        let summary = differential::run(&options, |_| {}).expect("no runner is needed");
        let reports: Vec<String> = summary.failures.iter().map(|failure| failure.text(&options)).collect();
        assert!(reports.is_empty(), "the tiers disagree (expected is the reference):\n{}", reports.join("\n"));
        assert!(summary.compared > 5_000, "only {} cases of {kind:?} were compared", summary.compared);
    }
}

#[test]
fn a_wrong_result_is_seen() {
    use chaoscontrol_cpu_oracle::case::Case;
    use chaoscontrol_cpu_oracle::guest::GuestRunner;
    use chaoscontrol_cpu_oracle::native::{Native, NativeRunner};
    use chaoscontrol_cpu_oracle::{compare, report};
    if let Err(reason) = host::available() {
        eprintln!("skipped: native cases: {reason}");
        return;
    }
    // add rax, rcx on the host, sub rax, rcx on ours.
    let case = |code: &[u8]| -> Case {
        let mut case = report::from_text("rax=5\nrcx=3\n").expect("a case file");
        case.set_code(code);
        case
    };
    let (planted, original) = (case(&[0x48, 0x29, 0xc8]), case(&[0x48, 0x01, 0xc8]));
    let results = NativeRunner::new().expect("mapped").run(&[original]).expect("the native runner works");
    let Some(Native::Done(expected)) = results.into_iter().next() else { panic!("the case was lost") };
    let got = GuestRunner::default().run(&planted);
    let mut factory = iced_x86::InstructionInfoFactory::new();
    let difference = compare::compare(&original, &expected, &got, &mut factory).expect("a difference");
    assert_eq!(difference.what, "rax");
    let same = GuestRunner::default().run(&original);
    assert_eq!(compare::compare(&original, &expected, &same, &mut factory), None);
}

/// POPF sets TF, so a case ends in the trap behind a shift, whose undefined flags follow a count that the case has changed.
#[test]
fn the_flags_of_a_shift_are_open_by_the_count_it_had() {
    use chaoscontrol_cpu_oracle::report;
    if let Err(reason) = host::available() {
        eprintln!("skipped: native cases: {reason}");
        return;
    }
    for text in [
        "rip=0x100000a7\ncode=67d2f039c34ddf1d6d120010668d8abb447c0e67489dd2a76e737fb839d3490f7e37\n\
         rsp=0x10000016b0\nrdi=0x6780a212\nftw=0xff\n",
        "rip=0x10000364\ncode=264b80d655f2420f38f0cb3e4569120000084039f366419d66d32e39c5\n\
         rbx=0x100242800022001\nrsp=0x20002ff0\nrsi=0x20001ffe\nr10=0x1000000d19\n",
    ] {
        let case = report::from_text(text).expect("a case file");
        assert_eq!(differential::replay(&case).expect("the native runner works"), None);
    }
}
