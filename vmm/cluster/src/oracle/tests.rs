// SPDX-License-Identifier: AGPL-3.0-or-later

use chaoscontrol_protocol::digest::{Sha256, sha256};
use chaoscontrol_protocol::layout::{AGREE_KEYS_MAX, PAYLOAD_BYTES_MAX};
use chaoscontrol_protocol::{AssertionKind, CatalogEntry};

use super::*;

fn at(vm: u16) -> Moment {
    Moment { vm, guest_ns: 5, cluster_ns: 6, instructions: 7 }
}

fn take(oracle: &mut Oracle, vm: u16, record: Record<'_>) {
    oracle.take(at(vm), 0, &record);
}

fn entry(site: u16, kind: AssertionKind, message: &str) -> CatalogEntry<'_> {
    CatalogEntry {
        site,
        kind,
        must_hit: true,
        line: 10 + u32::from(site),
        column: 5,
        message,
        package: "raft",
        version: "0.1.0",
        file: "src/log.rs",
        module: "raft::log",
        namespace: "",
        key: "",
    }
}

/// A process starts with this catalog.
fn start(oracle: &mut Oracle, vm: u16, pid: u32, entries: &[CatalogEntry<'_>]) {
    take(oracle, vm, Record::ProcessStart { pid, generation: 1, name: "raft" });
    let mut hash = Sha256::new();
    for entry in entries {
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let bytes = entry.encode_payload(&mut payload).unwrap();
        hash.update(&payload[..bytes]);
        take(oracle, vm, Record::Catalog(*entry));
    }
    take(oracle, vm, Record::CatalogEnd { sites: entries.len() as u16, digest: hash.finish() });
}

const SOMETIMES: (AssertionKind, &str) = (AssertionKind::Sometimes, "a leader is elected");

fn started(vms: u16) -> Oracle {
    let mut oracle = Oracle::new(vms);
    let entries = [
        entry(0, AssertionKind::Always, "terms never go back"),
        entry(1, SOMETIMES.0, SOMETIMES.1),
        entry(2, AssertionKind::Unreachable, "no way"),
        entry(3, AssertionKind::Agree, "leader"),
    ];
    (0..vms).for_each(|vm| start(&mut oracle, vm, 30, &entries));
    assert_eq!((oracle.refused(), oracle.limit()), (0, None));
    oracle
}

fn fails(oracle: &mut Oracle, vm: u16, site: u16) {
    take(oracle, vm, Record::Assertion { site, outcome: Outcome::Fail, details: "{\"term\":3}" });
}

#[test]
fn one_failure_of_an_always_or_an_unreachable_is_a_violation_and_of_a_sometimes_is_not() {
    for (number, signatures) in
        [(0, vec!["assertion: terms never go back"]), (1, vec![]), (2, vec!["assertion: no way"])]
    {
        let mut oracle = started(2);
        fails(&mut oracle, 1, number);
        let found: Vec<String> = oracle.violations().iter().map(|violation| violation.kind.signature()).collect();
        assert_eq!(found, signatures, "site {number}");
    }
    let mut oracle = started(2);
    fails(&mut oracle, 1, 0);
    let expected = ViolationKind::Assertion {
        message: "terms never go back".into(),
        site: "raft/src/log.rs:10".into(),
        details: "{\"term\":3}".into(),
    };
    let moment = Violation { kind: expected, vm: 1, guest_ns: 5, cluster_ns: 6, instructions: 7 };
    assert_eq!(oracle.violations(), [moment]);
}

#[test]
fn a_site_is_one_assertion_over_all_vms() {
    let mut oracle = started(3);
    for vm in 0..3 {
        oracle.count(vm, 0, 1, Counts { passes: 10, failures: 1 });
        oracle.count(vm, 0, 1, Counts { passes: 12, failures: 1 });
    }
    let rows = oracle.assertions();
    assert_eq!(rows.len(), 4);
    assert_eq!((rows[0].message.as_str(), rows[0].passes, rows[0].failures), ("a leader is elected", 36, 3));
}

#[test]
fn a_new_process_counts_from_zero_on_top_of_what_was_counted() {
    let mut oracle = started(1);
    oracle.count(0, 0, 1, Counts { passes: 10, failures: 0 });
    take(&mut oracle, 0, Record::ProcessStart { pid: 31, generation: 2, name: "raft" });
    // Sites that the new process did not announce mean nothing.
    oracle.count(0, 0, 1, Counts { passes: 3, failures: 0 });
    start(&mut oracle, 0, 31, &[entry(1, SOMETIMES.0, SOMETIMES.1)]);
    oracle.count(0, 0, 1, Counts { passes: 4, failures: 0 });
    assert_eq!(oracle.assertions()[0].passes, 14);
}

#[test]
fn slots_that_are_set_back_with_memory_do_not_count_twice() {
    let mut oracle = started(1);
    oracle.count(0, 0, 1, Counts { passes: 10, failures: 0 });
    let slots = oracle.slots(0);
    oracle.count(0, 0, 1, Counts { passes: 25, failures: 0 });
    oracle.set_slots(0, slots);
    oracle.count(0, 0, 1, Counts { passes: 11, failures: 0 });
    assert_eq!(oracle.assertions()[0].passes, 26);
}

fn agree(oracle: &mut Oracle, vm: u16, key: &[u8], value: &[u8]) {
    take(oracle, vm, Record::Agree { site: 3, namespace: "leader", key, digest: sha256(value), value });
}

#[test]
fn the_first_value_of_a_key_binds_every_vm() {
    let mut oracle = started(3);
    agree(&mut oracle, 0, b"1", b"vm 0");
    agree(&mut oracle, 1, b"1", b"vm 0");
    agree(&mut oracle, 1, b"2", b"vm 1");
    assert_eq!(oracle.violations(), []);
    agree(&mut oracle, 2, b"1", b"vm 2");
    let expected = ViolationKind::Disagreement {
        namespace: "leader".into(),
        key: "31".into(),
        first_vm: 0,
        first_value: "766d2030".into(),
        value: "766d2032".into(),
    };
    assert_eq!(oracle.violations()[0].kind, expected);
}

#[test]
fn agreements_are_bounded_by_keys_and_by_bytes() {
    let mut oracle = started(1);
    for key in 0..=AGREE_KEYS_MAX as u32 {
        assert_eq!(oracle.limit(), None);
        agree(&mut oracle, 0, &key.to_le_bytes(), b"");
    }
    assert_eq!(oracle.limit(), Some(OracleLimit::AgreeKeys(AGREE_KEYS_MAX as u64)));

    let mut oracle = started(1);
    let value = [7; 256];
    for key in 0..50_000u32 {
        agree(&mut oracle, 0, &key.to_le_bytes().repeat(64), &value);
    }
    assert!(matches!(oracle.limit(), Some(OracleLimit::AgreeBytes(_))));
}

#[test]
fn what_makes_no_sense_is_reported_and_not_believed() {
    let mut oracle = started(1);
    fails(&mut oracle, 0, 900);
    oracle.refuse(0, 3, "unknown kind 99");
    take(&mut oracle, 0, Record::CatalogEnd { sites: 9, digest: [0; 32] });
    assert_eq!(oracle.violations(), []);
    let mistakes: Vec<Mistake> = oracle.reports().iter().map(|report| report.mistake).collect();
    assert_eq!((oracle.refused(), mistakes), (3, vec![Mistake::Unbound, Mistake::Malformed, Mistake::Catalog]));
    for _ in 0..1_000 {
        fails(&mut oracle, 0, 900);
    }
    assert_eq!(oracle.reports().len(), REPORTS_MAX);
}

#[test]
fn nothing_is_heard_of_a_process_whose_catalog_is_not_whole() {
    let mut oracle = Oracle::new(1);
    let always = entry(0, AssertionKind::Always, "terms never go back");
    take(&mut oracle, 0, Record::ProcessStart { pid: 30, generation: 1, name: "raft" });
    take(&mut oracle, 0, Record::Catalog(always));
    fails(&mut oracle, 0, 0);
    take(&mut oracle, 0, Record::CatalogEnd { sites: 1, digest: [7; 32] });
    fails(&mut oracle, 0, 0);
    oracle.count(0, 0, 0, Counts { passes: 5, failures: 1 });
    agree(&mut oracle, 0, b"1", b"a");
    assert_eq!((oracle.violations().len(), oracle.refused()), (0, 4));
    assert_eq!((oracle.assertions()[0].passes, oracle.assertions()[0].first_failure), (0, None));
    start(&mut oracle, 0, 31, &[always]);
    fails(&mut oracle, 0, 0);
    assert_eq!(oracle.violations().len(), 1);
}

#[test]
fn an_agreement_at_a_site_of_another_kind_is_refused() {
    let mut oracle = started(1);
    let wrong = Record::Agree { site: 0, namespace: "leader", key: b"1", digest: sha256(b"a"), value: b"a" };
    take(&mut oracle, 0, wrong);
    agree(&mut oracle, 0, b"1", b"b");
    assert_eq!((oracle.violations().len(), oracle.refused()), (0, 1));
}

#[test]
fn two_different_assertions_of_one_identity_end_the_run_and_equal_ones_are_one() {
    let place = entry(0, AssertionKind::Always, "terms never go back");
    let stable = CatalogEntry { namespace: "raft", key: "terms", ..place };
    for (first, second, conflict) in [
        (place, place, false),
        (place, CatalogEntry { message: "other", ..place }, true),
        (place, CatalogEntry { kind: AssertionKind::Sometimes, ..place }, true),
        (place, CatalogEntry { version: "0.2.0", message: "other", ..place }, false),
        (place, stable, false),
        (stable, CatalogEntry { line: 99, ..stable }, true),
        (stable, CatalogEntry { key: "commits", ..stable }, false),
    ] {
        let mut oracle = Oracle::new(2);
        start(&mut oracle, 0, 30, &[first]);
        start(&mut oracle, 1, 30, &[second]);
        assert_eq!(oracle.limit(), conflict.then_some(OracleLimit::CatalogConflict), "{first:?} {second:?}");
        let same = first == second;
        assert_eq!(oracle.assertions().len(), if same || conflict { 1 } else { 2 });
    }
}

#[test]
fn fingerprints_cover_the_whole_descriptor() {
    let base = entry(0, AssertionKind::Always, "terms never go back");
    let fingerprint = |entry: CatalogEntry<'_>| {
        let mut oracle = Oracle::new(1);
        start(&mut oracle, 0, 30, &[entry]);
        oracle.assertions()[0].fingerprint()
    };
    let first = fingerprint(base);
    assert_eq!(fingerprint(CatalogEntry { site: 7, ..base }), first, "the place in a catalog is no part of it");
    let changed = [
        CatalogEntry { kind: AssertionKind::Unreachable, ..base },
        CatalogEntry { must_hit: false, ..base },
        CatalogEntry { line: 11, ..base },
        CatalogEntry { column: 6, ..base },
        CatalogEntry { message: "other", ..base },
        CatalogEntry { package: "other", ..base },
        CatalogEntry { version: "0.2.0", ..base },
        CatalogEntry { file: "other", ..base },
        CatalogEntry { module: "other", ..base },
        CatalogEntry { namespace: "raft", key: "terms", ..base },
    ];
    for entry in changed {
        assert_ne!(fingerprint(entry), first, "{entry:?}");
    }
}

#[test]
fn the_first_pass_and_the_first_failure_keep_their_moments() {
    let mut oracle = started(2);
    let pass = Record::Assertion { site: 1, outcome: Outcome::Pass, details: "" };
    oracle.take(Moment { cluster_ns: 40, ..at(1) }, 0, &pass);
    oracle.take(Moment { cluster_ns: 50, ..at(0) }, 0, &pass);
    fails(&mut oracle, 0, 1);
    let row = &oracle.assertions()[0];
    assert_eq!(row.first_pass, Some(FirstTime { vm: 1, cluster_ns: 40 }));
    assert_eq!(row.first_failure, Some(FirstTime { vm: 0, cluster_ns: 6 }));
}

#[test]
fn a_stored_oracle_judges_on_as_if_it_had_never_been_stored() {
    let mut oracle = started(2);
    agree(&mut oracle, 0, b"1", b"a");
    take(&mut oracle, 0, Record::SetupComplete { details: "" });
    take(&mut oracle, 0, Record::Event { name: "leader", details: "" });
    oracle.count(0, 0, 1, Counts { passes: 2, failures: 0 });
    let mut stored: Oracle = serde_json::from_str(&serde_json::to_string(&oracle).unwrap()).unwrap();
    assert_eq!(stored, oracle);
    assert!(stored.fits(2) && !stored.fits(3));
    assert_eq!(stored.without_setup(), [1]);
    agree(&mut stored, 1, b"1", b"b");
    assert_eq!(stored.violations().len(), 1);
}
