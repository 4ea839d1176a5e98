// SPDX-License-Identifier: Apache-2.0
//! The host's side of the window, without knowing how the host keeps its memory.
//!
//! The guest does not run while these functions do; everything they read is hostile all the same.

use crate::VERSION;
use crate::agent::{AgentAction, AgentRequest};
use crate::codec::DecodeError;
use crate::layout::*;
use crate::record::{Header, Record};

/// The window's bytes as the host keeps them. Offsets count from the start of the window and, together with the length,
/// never leave it.
pub trait WindowMemory {
    /// Reads bytes at `offset`.
    fn read(&self, offset: u32, into: &mut [u8]);
    /// Writes bytes at `offset`.
    fn write(&mut self, offset: u32, bytes: &[u8]);
}

impl WindowMemory for [u8] {
    fn read(&self, offset: u32, into: &mut [u8]) {
        let offset = offset as usize;
        into.copy_from_slice(&self[offset..offset + into.len()]);
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) {
        let offset = offset as usize;
        self[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// What one site counted since its process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passing evaluations.
    pub passes: u64,
    /// Failing evaluations.
    pub failures: u64,
}

/// Writes the header of a fresh (all zero) window.
pub fn initialize(memory: &mut (impl WindowMemory + ?Sized)) {
    memory.write(HEADER_MAGIC, &MAGIC.to_le_bytes());
    memory.write(HEADER_VERSION, &u32::from(VERSION).to_le_bytes());
    memory.write(HEADER_SLOTS, &SLOTS.to_le_bytes());
    memory.write(HEADER_SLOT_BYTES, &SLOT_BYTES.to_le_bytes());
    memory.write(HEADER_RING_BYTES, &RING_BYTES.to_le_bytes());
}

/// Adds a step of the wall clock to those before; the guest's `chaos-init` follows.
pub fn step_wall_clock(memory: &mut (impl WindowMemory + ?Sized), change_ns: i64) {
    let mut bytes = [0; 8];
    memory.read(HEADER_WALL_STEP_NS, &mut bytes);
    let total_ns = i64::from_le_bytes(bytes).wrapping_add(change_ns);
    memory.write(HEADER_WALL_STEP_NS, &total_ns.to_le_bytes());
}

/// Puts a request to the guest's agent behind those before it and returns its number.
pub fn ask_agent(memory: &mut (impl WindowMemory + ?Sized), action: AgentAction) -> u32 {
    let number = read_u32(memory, AGENT_COUNT);
    let request = AgentRequest { number, action };
    memory.write(AGENT_RING + number % AGENT_REQUESTS * AGENT_REQUEST_BYTES, &request.encode());
    memory.write(AGENT_COUNT, &number.wrapping_add(1).to_le_bytes());
    number
}

/// Reads every record that a slot's ring holds and hands each to `visit`, in order, then frees the room.
///
/// A record with a malformed payload is reported and skipped. Where the framing itself is broken, the rest of the ring is
/// reported once and dropped. Either way the slot goes on, and the refusals are counted in the slot where its owner can see
/// them. `slot` must be below [`SLOTS`].
pub fn drain(
    memory: &mut (impl WindowMemory + ?Sized),
    slot: u32,
    visit: &mut dyn FnMut(Result<Record<'_>, DecodeError>),
) {
    let base = slot_offset(slot).expect("the caller checked the slot number");
    let head = read_u32(memory, base + SLOT_HEAD);
    let mut tail = read_u32(memory, base + SLOT_TAIL);
    let mut refused = 0u32;
    if positions_are_sane(head, tail) {
        let mut buffer = [0; RECORD_BYTES_MAX];
        while tail != head {
            let available = head.wrapping_sub(tail) as usize;
            match next_record(memory, base, tail, available, &mut buffer) {
                Ok(bytes) => {
                    let record = Record::decode(&buffer[..bytes]);
                    refused += u32::from(record.is_err());
                    visit(record);
                    tail = tail.wrapping_add(bytes as u32);
                }
                Err(error) => {
                    refused += 1;
                    visit(Err(error));
                    tail = head;
                }
            }
        }
    } else {
        refused += 1;
        visit(Err(DecodeError::Ring { head, tail }));
        // The writer's position stands, rounded down so that the ring is usable again.
        tail = head - head % RECORD_ALIGN;
        memory.write(base + SLOT_HEAD, &tail.to_le_bytes());
    }
    memory.write(base + SLOT_TAIL, &tail.to_le_bytes());
    if refused > 0 {
        let total = read_u32(memory, base + SLOT_REFUSED).saturating_add(refused);
        memory.write(base + SLOT_REFUSED, &total.to_le_bytes());
    }
}

/// Whether a slot has records to drain (or positions that `drain` must report).
pub fn has_records(memory: &(impl WindowMemory + ?Sized), slot: u32) -> bool {
    let base = slot_offset(slot).expect("the caller checked the slot number");
    read_u32(memory, base + SLOT_HEAD) != read_u32(memory, base + SLOT_TAIL)
}

/// Hands each counter pair in use to `visit` with its site. Counts only grow until the slot's next `ProcessStart`.
pub fn counters(memory: &(impl WindowMemory + ?Sized), slot: u32, visit: &mut dyn FnMut(u16, Counts)) {
    let base = slot_offset(slot).expect("the caller checked the slot number");
    let sites = (read_u32(memory, base + SLOT_SITES) as usize).min(SITES_MAX);
    for site in 0..sites as u16 {
        let offset = counter_offset(base, site).expect("the site is below the bound");
        let mut pair = [0; COUNTER_BYTES as usize];
        memory.read(offset, &mut pair);
        let (passes, failures) = pair.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        visit(site, Counts { passes: word(passes), failures: word(failures) });
    }
}

/// Copies the coverage map into `map` and says whether there is a count in it. Every byte means something, so that none is hostile.
pub fn coverage(memory: &(impl WindowMemory + ?Sized), map: &mut [u8; COVERAGE_BYTES as usize]) -> bool {
    memory.read(COVERAGE_OFFSET, map);
    map.iter().any(|count| *count != 0)
}

/// Zeroes the coverage map. Where it is zero nothing is written, so that a guest that counts nothing keeps its pages.
pub fn clear_coverage(memory: &mut (impl WindowMemory + ?Sized)) {
    let mut map = [0; COVERAGE_BYTES as usize];
    if coverage(memory, &mut map) {
        memory.write(COVERAGE_OFFSET, &[0; COVERAGE_BYTES as usize]);
    }
}

/// Answers the random request `id` of a slot. The value must already lie below the request's bound.
pub fn answer_random(memory: &mut (impl WindowMemory + ?Sized), slot: u32, id: u32, value: u64) {
    let base = slot_offset(slot).expect("the caller checked the slot number");
    memory.write(base + SLOT_RANDOM_VALUE, &value.to_le_bytes());
    memory.write(base + SLOT_RANDOM_ID, &id.to_le_bytes());
}

fn positions_are_sane(head: u32, tail: u32) -> bool {
    head.is_multiple_of(RECORD_ALIGN) && tail.is_multiple_of(RECORD_ALIGN) && head.wrapping_sub(tail) <= RING_BYTES
}

/// Copies the record at `tail` into `buffer` and returns its bytes.
fn next_record(
    memory: &(impl WindowMemory + ?Sized),
    base: u32,
    tail: u32,
    available: usize,
    buffer: &mut [u8; RECORD_BYTES_MAX],
) -> Result<usize, DecodeError> {
    if available < RECORD_HEADER_BYTES {
        return Err(DecodeError::PastHead { bytes: RECORD_HEADER_BYTES, available });
    }
    read_ring(memory, base, tail, &mut buffer[..RECORD_HEADER_BYTES]);
    let bytes = record_bytes(Header::parse(&buffer[..RECORD_HEADER_BYTES])?.payload_bytes);
    if bytes > available {
        return Err(DecodeError::PastHead { bytes, available });
    }
    read_ring(memory, base, tail, &mut buffer[..bytes]);
    Ok(bytes)
}

/// Reads ring bytes that may wrap once: nothing is longer than the ring.
fn read_ring(memory: &(impl WindowMemory + ?Sized), base: u32, position: u32, into: &mut [u8]) {
    let start = position % RING_BYTES;
    let before_wrap = into.len().min((RING_BYTES - start) as usize);
    let (first, second) = into.split_at_mut(before_wrap);
    memory.read(base + SLOT_RING + start, first);
    if !second.is_empty() {
        memory.read(base + SLOT_RING, second);
    }
}

fn read_u32(memory: &(impl WindowMemory + ?Sized), offset: u32) -> u32 {
    let mut bytes = [0; 4];
    memory.read(offset, &mut bytes);
    u32::from_le_bytes(bytes)
}
