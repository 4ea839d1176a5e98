// SPDX-License-Identifier: Apache-2.0
//! What the host's side of the window promises, whatever a guest wrote into it.

use chaoscontrol_protocol::host::{self, Counts, WindowMemory};
use chaoscontrol_protocol::layout::*;
use chaoscontrol_protocol::{DecodeError, Record, WINDOW_BYTES};

struct Window(Vec<u8>);

impl Window {
    fn new() -> Self {
        let mut bytes = vec![0; WINDOW_BYTES as usize];
        host::initialize(bytes.as_mut_slice());
        Self(bytes)
    }

    fn u32(&self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.0.as_slice().read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn set_u32(&mut self, offset: u32, value: u32) {
        self.0.as_mut_slice().write(offset, &value.to_le_bytes());
    }

    /// Writes bytes into the ring as a guest would.
    fn push(&mut self, slot: u32, bytes: &[u8]) {
        let base = slot_offset(slot).unwrap();
        let head = self.u32(base + SLOT_HEAD);
        for (i, byte) in bytes.iter().enumerate() {
            let position = head.wrapping_add(i as u32) % RING_BYTES;
            self.0[(base + SLOT_RING + position) as usize] = *byte;
        }
        self.set_u32(base + SLOT_HEAD, head.wrapping_add(bytes.len() as u32));
    }

    fn push_record(&mut self, slot: u32, record: &Record<'_>) {
        let mut buffer = [0; RECORD_BYTES_MAX];
        let bytes = record.encode(&mut buffer).unwrap();
        self.push(slot, &buffer[..bytes]);
    }

    /// Drains a slot into event names and errors.
    fn drain(&mut self, slot: u32) -> Vec<Result<String, DecodeError>> {
        let mut out = Vec::new();
        host::drain(self.0.as_mut_slice(), slot, &mut |record| {
            out.push(record.map(|record| match record {
                Record::Event { name, .. } => name.to_string(),
                other => format!("{other:?}"),
            }));
        });
        out
    }
}

#[test]
fn records_come_out_in_order_over_many_wraps_of_the_ring() {
    let mut window = Window::new();
    let base = slot_offset(2).unwrap();
    // Start close to the wrap of the 32-bit positions as well.
    window.set_u32(base + SLOT_HEAD, u32::MAX - 7);
    window.set_u32(base + SLOT_TAIL, u32::MAX - 7);
    let mut sent = Vec::new();
    let mut received = Vec::new();
    for i in 0..5_000u32 {
        let name = format!("event {i} {}", "x".repeat(i as usize % 100));
        window.push_record(2, &Record::Event { name: &name, details: "" });
        sent.push(Ok(name));
        if i % 50 == 49 {
            assert!(host::has_records(window.0.as_slice(), 2));
            received.extend(window.drain(2));
            assert!(!host::has_records(window.0.as_slice(), 2));
        }
    }
    assert_eq!(sent, received);
}

#[test]
fn a_malformed_payload_costs_only_its_own_record() {
    let mut window = Window::new();
    let mut buffer = [0; RECORD_BYTES_MAX];
    let bytes = Record::Event { name: "bad", details: "" }.encode(&mut buffer).unwrap();
    buffer[2] = 200;
    window.push(0, &buffer[..bytes]);
    window.push_record(0, &Record::Event { name: "good", details: "" });
    assert_eq!(window.drain(0), [Err(DecodeError::UnknownKind(200)), Ok("good".into())]);
    assert_eq!(window.u32(slot_offset(0).unwrap() + SLOT_REFUSED), 1);
}

#[test]
fn broken_framing_drops_what_was_written_and_the_slot_goes_on() {
    let mut window = Window::new();
    window.push(1, &[0xff; 64]);
    window.push_record(1, &Record::Event { name: "lost", details: "" });
    assert_eq!(window.drain(1), [Err(DecodeError::Version(0xff))]);
    window.push_record(1, &Record::Event { name: "after", details: "" });
    assert_eq!(window.drain(1), [Ok("after".into())]);
}

#[test]
fn a_record_that_claims_more_than_was_written_is_refused() {
    let mut window = Window::new();
    let mut buffer = [0; RECORD_BYTES_MAX];
    Record::Event { name: &"x".repeat(100), details: "" }.encode(&mut buffer).unwrap();
    window.push(1, &buffer[..16]);
    assert!(matches!(window.drain(1)[..], [Err(DecodeError::PastHead { available: 16, .. })]));
}

#[test]
fn impossible_positions_are_reported_and_repaired() {
    for (head, tail) in [(3, 0), (0, 8), (RING_BYTES + 8, 0), (u32::MAX, 5), (8, 4)] {
        let mut window = Window::new();
        let base = slot_offset(4).unwrap();
        window.set_u32(base + SLOT_HEAD, head);
        window.set_u32(base + SLOT_TAIL, tail);
        assert_eq!(window.drain(4), [Err(DecodeError::Ring { head, tail })]);
        window.push_record(4, &Record::Event { name: "after", details: "" });
        assert_eq!(window.drain(4), [Ok("after".into())]);
    }
}

#[test]
fn a_full_ring_drains() {
    let mut window = Window::new();
    let event = Record::Event { name: "x", details: "" };
    let bytes = event.encode(&mut [0; RECORD_BYTES_MAX]).unwrap();
    let count = RING_BYTES as usize / bytes;
    for _ in 0..count {
        window.push_record(0, &event);
    }
    assert_eq!(window.drain(0).len(), count);
}

#[test]
fn counters_are_bounded_by_the_table_whatever_the_guest_claims() {
    let mut window = Window::new();
    let base = slot_offset(3).unwrap();
    window.set_u32(base + SLOT_SITES, u32::MAX);
    let last = counter_offset(base, SITES_MAX as u16 - 1).unwrap();
    window.0.as_mut_slice().write(last + 8, &5u64.to_le_bytes());
    let mut seen = Vec::new();
    host::counters(window.0.as_slice(), 3, &mut |site, counts| seen.push((site, counts)));
    assert_eq!(seen.len(), SITES_MAX);
    assert_eq!(seen[SITES_MAX - 1], (SITES_MAX as u16 - 1, Counts { passes: 0, failures: 5 }));
}

#[test]
fn random_slots_full_of_garbage_never_panic_and_always_end() {
    let seed = 7u64;
    println!("seed {seed}");
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for _ in 0..300 {
        let mut window = Window::new();
        let base = slot_offset(5).unwrap();
        for offset in (SLOT_RING..SLOT_BYTES).step_by(4) {
            // Small numbers make many plausible headers.
            let word = if next() % 2 == 0 { (next() % 64) | ((next() % 16) << 16) | (1 << 24) } else { 0 };
            window.set_u32(base + offset, word);
        }
        let tail = next() & !7;
        window.set_u32(base + SLOT_TAIL, tail);
        window.set_u32(base + SLOT_HEAD, tail.wrapping_add(next() % (RING_BYTES + 16)));
        window.drain(5);
        assert!(!host::has_records(window.0.as_slice(), 5));
    }
}

#[test]
fn an_answer_stands_where_the_guest_looks() {
    let mut window = Window::new();
    host::answer_random(window.0.as_mut_slice(), 1, 77, 0x1234_5678_9abc);
    let base = slot_offset(1).unwrap();
    assert_eq!(window.u32(base + SLOT_RANDOM_ID), 77);
    assert_eq!(window.u32(base + SLOT_RANDOM_VALUE), 0x5678_9abc);
    assert_eq!(window.u32(base + SLOT_RANDOM_VALUE + 4), 0x1234);
}

#[test]
fn steps_of_the_wall_clock_add_up() {
    let mut window = Window::new();
    host::step_wall_clock(window.0.as_mut_slice(), 5);
    host::step_wall_clock(window.0.as_mut_slice(), -7);
    assert_eq!(window.u32(HEADER_WALL_STEP_NS), -2i32 as u32);
    assert_eq!(window.u32(HEADER_WALL_STEP_NS + 4), u32::MAX);
}
