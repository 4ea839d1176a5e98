// SPDX-License-Identifier: AGPL-3.0-or-later
//! The SDK window against guests that speak the protocol and guests that do not.

use chaoscontrol_protocol::layout::{
    COVERAGE_OFFSET, HEADER_MAGIC, MAGIC, RING_BYTES, SLOT_BYTES, SLOT_HEAD, SLOT_RANDOM_ID, SLOT_RANDOM_VALUE,
    SLOT_REFUSED, SLOT_RING, SLOT_SITES, SLOT_TAIL, slot_offset,
};
use chaoscontrol_protocol::{LogLevel, Outcome};

use super::*;
use crate::testing::Bench;

const ROOT: [u8; 32] = [5; 32];

fn bench() -> Bench<SdkWindow> {
    let bench = Bench::new(SdkWindow::new(&ROOT));
    SdkWindow::initialize(&bench.memory);
    bench
}

fn address(slot: u32, field: u32) -> u64 {
    REGION_ADDRESS + DOORBELL_BYTES + u64::from(slot_offset(slot).unwrap() + field)
}

fn word(bench: &Bench<SdkWindow>, slot: u32, field: u32) -> u32 {
    let mut bytes = [0; 4];
    bench.memory.read(address(slot, field), &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

/// Writes raw bytes at the head of a ring, which must not wrap, and moves the head.
fn send_raw(bench: &Bench<SdkWindow>, slot: u32, bytes: &[u8]) {
    let head = word(bench, slot, SLOT_HEAD);
    bench.memory.write(address(slot, SLOT_RING + head % RING_BYTES), bytes).unwrap();
    let head = head.wrapping_add(bytes.len() as u32);
    bench.memory.write(address(slot, SLOT_HEAD), &head.to_le_bytes()).unwrap();
}

fn send(bench: &Bench<SdkWindow>, slot: u32, record: Record<'_>) {
    let mut buffer = [0; RECORD_BYTES_MAX];
    let bytes = record.encode(&mut buffer).unwrap();
    send_raw(bench, slot, &buffer[..bytes]);
}

fn ring(bench: &mut Bench<SdkWindow>, bell: Doorbell) -> Option<Request> {
    bench.request = None;
    bench.write32(0, bell.encode());
    bench.request
}

fn event(name: &str) -> Record<'_> {
    Record::Event { name, details: "{}" }
}

fn ask(bench: &mut Bench<SdkWindow>, id: u32, below: u64) -> u64 {
    send(bench, 3, Record::Random { id, below });
    ring(bench, Doorbell::Drain(3));
    assert_eq!(word(bench, 3, SLOT_RANDOM_ID), id);
    u64::from(word(bench, 3, SLOT_RANDOM_VALUE)) | u64::from(word(bench, 3, SLOT_RANDOM_VALUE + 4)) << 32
}

#[test]
fn a_fresh_window_announces_itself() {
    let bench = bench();
    let mut magic = [0; 8];
    bench.memory.read(REGION_ADDRESS + DOORBELL_BYTES + u64::from(HEADER_MAGIC), &mut magic).unwrap();
    assert_eq!(u64::from_le_bytes(magic), MAGIC);
}

#[test]
fn a_doorbell_hands_over_one_slot_at_once() {
    let mut bench = bench();
    bench.now = GuestNs(55);
    let failing = Record::Assertion { site: 4, outcome: Outcome::Fail, details: "" };
    send(&bench, 2, event("one"));
    send(&bench, 2, failing);
    send(&bench, 7, event("other"));
    assert_eq!(ring(&mut bench, Doorbell::Drain(2)), Some(Request::Doorbell { slot: 2 }));
    let messages = bench.device.take_messages();
    assert_eq!(messages.iter().map(Message::record).collect::<Vec<_>>(), [Some(event("one")), Some(failing)]);
    assert!(messages.iter().all(|message| message.at == GuestNs(55)));
    assert_eq!(word(&bench, 2, SLOT_TAIL), word(&bench, 2, SLOT_HEAD));
    assert_eq!(
        ring(&mut bench, Doorbell::Drain(2)),
        Some(Request::Doorbell { slot: 2 }),
        "whose counters may be wanted"
    );
    assert_eq!(bench.device.take_messages(), [], "nothing is left");
    bench.device.drain_all(&bench.memory, GuestNs(60));
    let messages = bench.device.take_messages();
    assert_eq!(messages.len(), 1);
    assert_eq!((messages[0].at, messages[0].sequence, messages[0].record()), (GuestNs(60), 2, Some(event("other"))));
}

#[test]
fn special_bells_are_messages() {
    let mut bench = bench();
    assert_eq!(ring(&mut bench, Doorbell::RestartPoint), Some(Request::RestartPoint));
    for bell in [Doorbell::InitFailed, Doorbell::WorkloadExited(3), Doorbell::WorkloadKilled(9)] {
        assert_eq!(ring(&mut bench, bell), None);
    }
    let bodies: Vec<Body> = bench.device.take_messages().into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, [Body::RestartPoint, Body::InitFailed, Body::WorkloadExited(3), Body::WorkloadKilled(9)]);
    assert_eq!(bench.device.counters().doorbells, 4);
}

#[test]
fn accesses_without_a_meaning_are_counted() {
    let mut bench = bench();
    assert_eq!(bench.read32(0), 0);
    bench.write32(4, 0);
    bench.write(0, 8, 0);
    bench.write8(0, 0);
    bench.write32(0, SLOTS);
    bench.write32(0, u32::MAX);
    assert_eq!(bench.device.counters().refused_doorbells, 6);
    let last = bench.device.take_messages().pop().unwrap();
    assert_eq!(last.body, Body::UnknownDoorbell(u64::from(u32::MAX)));
}

#[test]
fn a_random_request_is_answered_within_the_doorbell_write() {
    let mut bench = bench();
    let first = ask(&mut bench, 1, 0);
    let second = ask(&mut bench, 2, 0);
    let mut stream = Stream::new(&ROOT, Purpose::SdkRandom);
    assert_eq!([first, second], [stream.next_u64(), stream.next_u64()]);
    assert_eq!(bench.request, None, "nobody else has to act");
    for id in 3..50 {
        assert!(ask(&mut bench, id, 3) < 3);
    }
    assert_eq!(bench.device.choices_made(), 47);
}

#[test]
fn forcing_a_random_number_changes_that_one_only_and_counts_from_the_start_of_the_branch() {
    let drawn = |forced: &[(u64, u64)]| -> Vec<u64> {
        let mut bench = bench();
        let before = ask(&mut bench, 1, 0);
        bench.device.force_randoms(0, forced.iter().copied().collect());
        let first: Vec<u64> = (2..=6).map(|id| ask(&mut bench, id, 0)).collect();
        // As a branch goes on from its middle under other answers.
        assert_eq!(bench.device.randoms_made(), 5);
        bench.device.force_randoms(5, [(7, u64::MAX)].into());
        let rest = (7..=10).map(|id| ask(&mut bench, id, 0));
        [vec![before], first, rest.collect()].concat()
    };
    let free = drawn(&[]);
    let forced = drawn(&[(1, 3), (4, 0), (6, 9)]);
    for (index, (free, forced)) in free.iter().zip(&forced).enumerate() {
        match index {
            2 => assert_eq!(*forced, 3),
            5 => assert_eq!(*forced, 0),
            8 => assert_eq!((*free, *forced), (u64::MAX, u64::MAX)),
            _ => assert_eq!(forced, free),
        }
    }
    let mut bench = bench();
    for id in 1..=4 {
        ask(&mut bench, id, 0);
    }
    assert_eq!(
        bench.device.randoms_made(),
        0,
        "before a branch nothing is counted, and nothing more stands in a snapshot"
    );
    let mut encoded = Vec::new();
    ciborium::into_writer(&bench.device.save(), &mut encoded).expect("plain data");
    assert!(!encoded.windows(7).any(|window| window == b"randoms"));
}

#[test]
fn forcing_a_choice_changes_that_choice_only() {
    let choices = |forced: BTreeMap<u64, u64>| -> Vec<u64> {
        let mut bench = bench();
        bench.device.force_choices(forced);
        (1..=20).map(|id| ask(&mut bench, id, 10)).collect()
    };
    let free = choices(BTreeMap::new());
    let forced = choices([(4, (free[4] + 1) % 10), (6, 25)].into());
    for (index, (free, forced)) in free.iter().zip(&forced).enumerate() {
        match index {
            4 => assert_eq!(*forced, (free + 1) % 10),
            6 => assert_eq!(*forced, 5, "25 is reduced to the bound"),
            _ => assert_eq!(forced, free),
        }
    }
}

#[test]
fn every_answer_is_a_message() {
    let mut bench = bench();
    let value = ask(&mut bench, 1, 6);
    let random = ask(&mut bench, 2, 0);
    let bodies: Vec<Body> = bench.device.take_messages().into_iter().map(|message| message.body).collect();
    assert_eq!(
        bodies,
        [
            Body::Random { slot: 3, below: 6, value, choice: Some(0) },
            Body::Random { slot: 3, below: 0, value: random, choice: None },
        ]
    );
}

#[test]
fn a_malformed_record_is_reported_and_the_slot_goes_on() {
    let mut bench = bench();
    let mut garbage = [0; RECORD_BYTES_MAX];
    let bytes = event("spoiled").encode(&mut garbage).unwrap();
    garbage[2] = 200;
    send_raw(&bench, 1, &garbage[..bytes]);
    send(&bench, 1, event("good"));
    assert_eq!(ring(&mut bench, Doorbell::Drain(1)), Some(Request::Doorbell { slot: 1 }));
    let messages = bench.device.take_messages();
    assert!(matches!(&messages[0].body, Body::Refused { slot: 1, reason } if !reason.is_empty()), "{messages:?}");
    assert_eq!(messages[1].record(), Some(event("good")));
    assert_eq!(word(&bench, 1, SLOT_REFUSED), 1, "the guest can see it");
    let counters = bench.device.counters();
    assert_eq!((counters.records, counters.refused_records), (1, 1));
}

#[test]
fn waiting_messages_are_bounded() {
    let mut bench = bench();
    let text = "x".repeat(1000);
    let log = Record::Log { level: LogLevel::Info, text: &text };
    let per_message = {
        send(&bench, 0, log);
        ring(&mut bench, Doorbell::Drain(0));
        bench.device.waiting_bytes
    };
    let fitting = MESSAGE_BYTES_MAX / per_message;
    for _ in 0..fitting + 9 {
        // The ring's position may wrap: start over.
        for field in [SLOT_HEAD, SLOT_TAIL] {
            bench.memory.write(address(0, field), &[0; 4]).unwrap();
        }
        send(&bench, 0, log);
        bench.device.drain_all(&bench.memory, GuestNs(1));
    }
    assert_eq!(bench.device.counters().dropped_messages, 10);
    assert_eq!(bench.device.take_messages().len() as u64, fitting);
    send(&bench, 0, event("room again"));
    ring(&mut bench, Doorbell::Drain(0));
    assert_eq!(bench.device.take_messages().len(), 1);
}

#[test]
fn counters_of_sites_are_read_within_their_bound() {
    let bench = bench();
    bench.memory.write(address(2, SLOT_SITES), &u32::MAX.to_le_bytes()).unwrap();
    let mut seen = 0;
    SdkWindow::assertion_counts(&bench.memory, 2, &mut |_, _| seen += 1);
    assert_eq!(seen, chaoscontrol_protocol::layout::SITES_MAX);
    SdkWindow::assertion_counts(&bench.memory, SLOTS, &mut |_, _| panic!("there is no such slot"));
}

#[test]
fn garbage_in_the_whole_window_is_survived_and_a_copy_does_the_same() {
    for seed in 0..30u8 {
        let mut stream = Stream::new(&[seed; 32], Purpose::BootSeed);
        let mut first = bench();
        for slot in 0..SLOTS {
            let mut garbage = vec![0; SLOT_BYTES as usize];
            stream.fill(&mut garbage);
            first.memory.write(address(slot, 0), &garbage).unwrap();
            // Half of the slots get positions that make sense, so that the records are looked at.
            if slot % 2 == 0 {
                let head = stream.below(u64::from(RING_BYTES) / 8 + 1) as u32 * 8;
                first.memory.write(address(slot, SLOT_HEAD), &head.to_le_bytes()).unwrap();
                first.memory.write(address(slot, SLOT_TAIL), &[0; 4]).unwrap();
                first.memory.write(address(slot, SLOT_RING + 4), &[0; 4]).unwrap();
                first.memory.write(address(slot, SLOT_RING), &[40, 0, 1 + (slot as u8 % 11), 1]).unwrap();
            }
        }
        let mut copy = bench();
        copy.device.restore(&first.device.save()).unwrap();
        let mut window = vec![0; chaoscontrol_protocol::WINDOW_BYTES as usize];
        first.memory.read(REGION_ADDRESS + DOORBELL_BYTES, &mut window).unwrap();
        copy.memory.write(REGION_ADDRESS + DOORBELL_BYTES, &window).unwrap();
        for bench in [&mut first, &mut copy] {
            for slot in 0..SLOTS {
                ring(bench, Doorbell::Drain(slot));
            }
            bench.device.drain_all(&bench.memory, GuestNs(9));
        }
        assert_eq!(first.device.save(), copy.device.save(), "seed {seed}");
        assert!(first.device.counters().refused_records >= u64::from(SLOTS), "seed {seed}");
    }
}

#[test]
fn whatever_a_guest_counts_is_a_map_of_its_size_and_touches_nothing_else() {
    let bench = bench();
    let at = REGION_ADDRESS + DOORBELL_BYTES + u64::from(COVERAGE_OFFSET);
    let window = || {
        let mut window = vec![0; chaoscontrol_protocol::WINDOW_BYTES as usize];
        bench.memory.read(REGION_ADDRESS + DOORBELL_BYTES, &mut window).unwrap();
        window
    };
    let fresh = window();
    assert_eq!(SdkWindow::coverage(&bench.memory), None);
    for seed in 0..8 {
        let mut hostile = vec![255; COVERAGE_BYTES as usize];
        Stream::new(&[seed; 32], Purpose::SdkRandom).fill(&mut hostile);
        bench.memory.write(at, &hostile).unwrap();
        assert_eq!(SdkWindow::coverage(&bench.memory).as_deref(), Some(&hostile[..]));
        SdkWindow::clear_coverage(&bench.memory);
        assert_eq!(SdkWindow::coverage(&bench.memory), None);
        assert!(window() == fresh, "header and slots are as they were");
    }
}

#[test]
fn a_restored_window_goes_on_with_waiting_messages_and_streams() {
    let mut first = bench();
    first.device.force_choices([(2, 1)].into());
    ask(&mut first, 1, 5);
    send(&first, 1, event("waiting"));
    ring(&mut first, Doorbell::Drain(1));
    let mut copy = bench();
    copy.device.reseed(&[9; 32]);
    copy.device.restore(&first.device.save()).unwrap();
    for id in 2..9 {
        assert_eq!(ask(&mut first, id, 7), ask(&mut copy, id, 7));
        assert_eq!(ask(&mut first, id, 0), ask(&mut copy, id, 0));
    }
    assert_eq!(first.device.save(), copy.device.save());
    assert_eq!(first.device.waiting_bytes, copy.device.waiting_bytes);
}

#[test]
fn saved_states_with_malformed_records_are_refused() {
    let mut bench = bench();
    send(&bench, 1, event("waiting"));
    ring(&mut bench, Doorbell::Drain(1));
    let mut state = bench.device.save();
    let Body::Record { bytes, .. } = &mut state.messages[0].body else { panic!("a record waits") };
    bytes[2] = 200;
    assert!(bench.device.restore(&state).is_err());
}

crate::testing::device_contract!(
    the_window_keeps_the_contract,
    || {
        let mut bench = bench();
        ask(&mut bench, 1, 5);
        send(&bench, 1, event("waiting"));
        ring(&mut bench, Doorbell::Drain(1));
        send(&bench, 2, event("in the ring"));
        bench
    },
    |bench: &mut Bench<SdkWindow>| {
        for id in 2..9 {
            ask(bench, id, 7);
        }
        ring(bench, Doorbell::Drain(2));
        bench.read32(0);
    }
);
