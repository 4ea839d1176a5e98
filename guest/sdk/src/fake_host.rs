// SPDX-License-Identifier: Apache-2.0
//! Tests of the window's guest side against a host that lives in the same process.

use crate::error::SdkError;
use crate::site::{Catalog, SITES};
use crate::window::{Buffer, Slot, Window};
use crate::{assert_agree, assert_always, assert_sometimes, assert_unreachable, details};
use chaoscontrol_protocol::host;
use chaoscontrol_protocol::layout::*;
use chaoscontrol_protocol::{DOORBELL_BYTES, Doorbell, Record, WINDOW_BYTES};
use std::cell::RefCell;

const REGION_BYTES: usize = (DOORBELL_BYTES + WINDOW_BYTES) as usize;

thread_local! {
    /// What the host saw, one line a record.
    static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn new_region() -> *mut u8 {
    // Leaked on purpose: a window stays for as long as the program runs.
    let region: &'static mut [u64] = Box::leak(vec![0u64; REGION_BYTES / 8].into_boxed_slice());
    let region = region.as_mut_ptr().cast::<u8>();
    host::initialize(window_bytes(region));
    region
}

fn window_bytes(region: *mut u8) -> &'static mut [u8] {
    // SAFETY: the region is leaked and as long as stated; test host and test guest take turns on one thread.
    unsafe { std::slice::from_raw_parts_mut(region.add(DOORBELL_BYTES as usize), WINDOW_BYTES as usize) }
}

/// Drains the slot whose doorbell rang, and answers random requests with 1,000 plus their bound.
fn answer(region: *mut u8, value: u32) {
    let Some(Doorbell::Drain(slot)) = Doorbell::decode(value) else { return };
    let mut asked = Vec::new();
    host::drain(window_bytes(region), slot, &mut |record| {
        let record = record.expect("the sdk writes well-formed records");
        if let Record::Random { id, below } = record {
            asked.push((id, 1000 + below));
        }
        SEEN.with_borrow_mut(|seen| seen.push(format!("{slot} {record:?}")));
    });
    for (id, value) in asked {
        host::answer_random(window_bytes(region), slot, id, value);
    }
}

fn silent(_region: *mut u8, _value: u32) {}

fn window(region: *mut u8, host: fn(*mut u8, u32)) -> Window {
    // SAFETY: `new_region` made the region.
    unsafe { Window::from_raw(region) }.expect("the region has a header").with_host(host)
}

fn seen() -> Vec<String> {
    SEEN.with_borrow_mut(std::mem::take)
}

fn claim(region: *mut u8, pid: u32, alive: fn(u32) -> bool) -> Result<Slot, SdkError> {
    window(region, answer).claim(pid, alive)
}

fn owner(region: *mut u8, slot: u32) -> u32 {
    let at = (slot_offset(slot).unwrap() + SLOT_OWNER) as usize;
    u32::from_le_bytes(window_bytes(region)[at..at + 4].try_into().unwrap())
}

#[test]
fn memory_that_is_no_window_is_refused() {
    let region = new_region();
    window_bytes(region)[HEADER_VERSION as usize] = 9;
    // SAFETY: the region is as long as a real one.
    assert!(matches!(unsafe { Window::from_raw(region) }, Err(SdkError::Version { found: 9 })));
    window_bytes(region)[0] = 0;
    // SAFETY: as above.
    assert!(matches!(unsafe { Window::from_raw(region) }, Err(SdkError::NotAWindow)));
}

#[test]
fn each_process_gets_a_slot_until_none_is_left() {
    let region = new_region();
    for pid in 1..=SLOTS {
        claim(region, pid, |_| true).unwrap();
    }
    assert!(matches!(claim(region, 100, |_| true), Err(SdkError::NoSlot)));
    // A dead owner's slot is taken over, a program that replaced itself by exec gets its own again.
    claim(region, 100, |pid| pid != 4).unwrap();
    assert_eq!(owner(region, 3), 100);
    claim(region, 7, |_| false).unwrap();
    assert_eq!((owner(region, 6), owner(region, 0)), (7, 1));
}

#[test]
fn a_new_program_hands_over_what_the_last_one_left() {
    let region = new_region();
    let mut buffer = Buffer::new();
    let first = claim(region, 5, |_| true).unwrap();
    first.start(5, "first", &Catalog::new(), &mut buffer).unwrap();
    first.push(&Record::Event { name: "last words", details: "" }, &mut buffer).unwrap();
    seen();
    let second = claim(region, 5, |_| true).unwrap();
    second.start(5, "second", &Catalog::new(), &mut buffer).unwrap();
    let seen = seen();
    assert!(seen[0].contains("last words"), "{seen:?}");
    assert!(seen[1].contains("ProcessStart { pid: 5, generation: 2, name: \"second\" }"), "{seen:?}");
}

#[test]
fn a_full_ring_makes_the_host_drain_and_loses_nothing() {
    let region = new_region();
    let mut buffer = Buffer::new();
    let slot = claim(region, 5, |_| true).unwrap();
    let text = "x".repeat(1000);
    for i in 0..500 {
        slot.push(&Record::Event { name: &format!("event {i}"), details: &text }, &mut buffer).unwrap();
    }
    slot.ring();
    let seen = seen();
    assert_eq!(seen.len(), 500);
    assert!(seen.iter().enumerate().all(|(i, line)| line.contains(&format!("\"event {i}\""))));
}

#[test]
fn a_silent_host_is_an_error_and_not_a_hang() {
    let region = new_region();
    let mut buffer = Buffer::new();
    let slot = window(region, silent).claim(5, |_| true).unwrap();
    let event = Record::Event { name: "x", details: "" };
    let first_error = (0..100_000).find_map(|_| slot.push(&event, &mut buffer).err());
    assert_eq!(first_error, Some(SdkError::HostSilent));
    assert_eq!(slot.ask_random(5, &mut buffer), Err(SdkError::HostSilent));
}

#[test]
fn the_host_answers_random_requests() {
    let region = new_region();
    let mut buffer = Buffer::new();
    let slot = claim(region, 5, |_| true).unwrap();
    assert_eq!(slot.ask_random(7, &mut buffer), Ok(1007));
    assert_eq!(slot.ask_random(0, &mut buffer), Ok(1000));
}

/// The only test that uses the process-wide runtime.
#[test]
fn a_program_reports_first_outcomes_and_counts_the_rest() {
    let region = new_region();
    crate::attach(window(region, answer), 42, "demo", |_| true).unwrap();
    let start = seen();
    assert!(start[0].contains("ProcessStart { pid: 42"), "{start:?}");
    let catalog: Vec<_> = start.iter().filter(|line| line.contains("Catalog(")).collect();
    assert_eq!(catalog.len(), SITES.len());
    assert!(
        catalog[0].contains("package: \"chaoscontrol-sdk\", version: \"0.1.0\", file: \"src/fake_host.rs\""),
        "{catalog:?}"
    );
    assert!(start.last().unwrap().contains("CatalogEnd"));

    for i in 0..10u32 {
        assert_always!(i < 8, "i stays below eight", details! { i: i });
        assert_sometimes!(i == 3, "i is three");
    }
    // The failure of `always` rang the doorbell; that of `sometimes` did not need to.
    let after = seen();
    assert_eq!(after.len(), 4, "{after:?}");
    assert!(after[3].contains(r#"outcome: Fail, details: "{\"i\":8}""#), "{after:?}");

    assert_agree!("leader of a term", 3u64, "node 1").unwrap();
    assert!(seen()[0].contains("namespace: \"leader of a term\", key: [51]"));
    let error = assert_agree!("keys are bounded", "k".repeat(KEY_BYTES_MAX + 1), 1u32);
    assert_eq!(error, Err(SdkError::TooLong { field: "key", bytes: 257, bytes_max: KEY_BYTES_MAX }));
    let error = crate::send_event("big", "x".repeat(DETAILS_BYTES_MAX + 1));
    assert_eq!(error, Err(SdkError::TooLong { field: "details", bytes: 1025, bytes_max: DETAILS_BYTES_MAX }));
    assert_eq!(crate::random_choice(&[1, 2, 3]), Some(&(1 + 1003 % 3)));
    assert_eq!(crate::random_choice::<u8>(&[]), None);
    if catalog.is_empty() {
        assert_unreachable!("the catalog is empty");
    }

    let mut counts = Vec::new();
    host::counters(window_bytes(region), 0, &mut |_, count| counts.push((count.passes, count.failures)));
    counts.sort_unstable();
    assert_eq!(counts, [(0, 0), (0, 0), (1, 0), (1, 9), (8, 2)]);
}
