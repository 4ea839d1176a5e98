// SPDX-License-Identifier: AGPL-3.0-or-later

use chaoscontrol_protocol::digest::sha256;
use chaoscontrol_protocol::layout::AGREE_KEYS_MAX;
use chaoscontrol_protocol::{AssertionKind, CatalogEntry};

use super::*;

fn at(vm: u16) -> Moment {
    Moment { vm, guest_ns: 5, cluster_ns: 6, instructions: 7 }
}

fn take(oracle: &mut Oracle, vm: u16, record: Record<'_>) {
    oracle.take(at(vm), 0, &record);
}

fn site(site: u16, kind: AssertionKind, message: &str) -> Record<'_> {
    let (package, file, module) = ("raft", "src/log.rs", "raft::log");
    Record::Catalog(CatalogEntry { site, kind, must_hit: true, line: 10, column: 5, message, package, file, module })
}

fn started(vms: u16) -> Oracle {
    let mut oracle = Oracle::new(vms);
    for vm in 0..vms {
        take(&mut oracle, vm, Record::ProcessStart { pid: 30, generation: 1, name: "raft" });
        take(&mut oracle, vm, site(0, AssertionKind::Always, "terms never go back"));
        take(&mut oracle, vm, site(1, AssertionKind::Sometimes, "a leader is elected"));
        take(&mut oracle, vm, site(2, AssertionKind::Unreachable, "no way"));
    }
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
fn sites_of_one_message_are_one_property_over_all_vms() {
    let mut oracle = started(3);
    for vm in 0..3 {
        oracle.count(vm, 0, 1, Counts { passes: 10, failures: 1 });
        oracle.count(vm, 0, 1, Counts { passes: 12, failures: 1 });
    }
    let rows = oracle.assertions();
    assert_eq!(rows.len(), 3);
    assert_eq!((rows[0].message.as_str(), rows[0].passes, rows[0].failures), ("a leader is elected", 36, 3));
}

#[test]
fn a_new_process_counts_from_zero_on_top_of_what_was_counted() {
    let mut oracle = started(1);
    oracle.count(0, 0, 1, Counts { passes: 10, failures: 0 });
    take(&mut oracle, 0, Record::ProcessStart { pid: 31, generation: 2, name: "raft" });
    // Sites that the new process did not announce mean nothing.
    oracle.count(0, 0, 1, Counts { passes: 3, failures: 0 });
    take(&mut oracle, 0, site(1, AssertionKind::Sometimes, "a leader is elected"));
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
    take(oracle, vm, Record::Agree { site: 0, namespace: "leader", key, digest: sha256(value), value });
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
    assert_eq!((oracle.refused(), oracle.reports().len()), (1, 3));
    for _ in 0..1_000 {
        fails(&mut oracle, 0, 900);
    }
    assert_eq!(oracle.reports().len(), REPORTS_MAX);
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
