// SPDX-License-Identifier: Apache-2.0
//! Where things are in the window. Offsets count from the start of the window (region offset 0x1000).
//!
//! | window offset | bytes | what |
//! |---|---|---|
//! | 0 | 32 | header, written by the host: magic u64, version u32, slots u32, slot bytes u32, ring bytes u32, wall step i64 |
//! | 0x40 | 4 | requests to the guest's agent so far, u32, written by the host |
//! | 0x100 + (n mod 32) * 32 | 32 | request n ([`crate::agent`]), written by the host |
//! | 0x1000 | 60 KiB | coverage map: a saturating hit count a byte, written by all processes, zeroed by the host |
//! | 0x10000 + n * 0x10000 | 64 KiB | slot n |
//!
//! | slot offset | type | writer | what |
//! |---|---|---|---|
//! | 0x00 | u32 | guest, compare-and-swap | owner: pid of the process, 0 when free |
//! | 0x04 | u32 | guest | generation: claims of this slot so far |
//! | 0x08 | u32 | guest | head: bytes ever written to the ring, modulo 2^32 |
//! | 0x0c | u32 | host | tail: bytes ever read from the ring, modulo 2^32 |
//! | 0x10 | u32 | host | id of the random request answered last |
//! | 0x14 | u32 | host | records refused as malformed |
//! | 0x18 | u64 | host | answer to that random request |
//! | 0x20 | u32 | guest | counters in use (sites in the owner's catalog) |
//! | 0x1000 | 16 bytes a site | guest, atomic adds | passes u64, failures u64 |
//! | 0x8000 | 32 KiB | guest | ring |
//!
//! Taking over a slot (free, or its owner is dead, or its owner was this very process before an `exec`): swap the owner,
//! ring the doorbell twice so that the host collects what the last owner left (a ring for an empty slot makes it read the
//! counters before the guest goes on), zero the counters, bump the generation, write
//! [`crate::Record::ProcessStart`] and ring again. Head and tail go on from where they were.

/// First word of the window: "CHAOSWIN" read as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CHAOSWIN");

/// Processes that can report at the same time. More than any workload here runs; a process without a slot gets a typed
/// error.
pub const SLOTS: u32 = 15;
/// Bytes of a slot.
pub const SLOT_BYTES: u32 = 0x1_0000;
/// Window offset of slot 0.
pub const SLOTS_OFFSET: u32 = 0x1_0000;
/// Bytes of a slot's ring: a power of two, so that wrapping positions stay aligned.
pub const RING_BYTES: u32 = 0x8000;

/// Header: magic, u64.
pub const HEADER_MAGIC: u32 = 0;
/// Header: protocol version, u32.
pub const HEADER_VERSION: u32 = 8;
/// Header: number of slots, u32.
pub const HEADER_SLOTS: u32 = 12;
/// Header: bytes of a slot, u32.
pub const HEADER_SLOT_BYTES: u32 = 16;
/// Header: bytes of a ring, u32.
pub const HEADER_RING_BYTES: u32 = 20;
/// Header: how far the host has stepped the wall clock since the machine started, i64 nanoseconds. `chaos-init` adds each
/// change of it to the guest's `CLOCK_REALTIME`.
pub const HEADER_WALL_STEP_NS: u32 = 24;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 32;
/// Requests to the agent so far, u32.
pub const AGENT_COUNT: u32 = 0x40;
/// First request to the agent.
pub const AGENT_RING: u32 = 0x100;
/// Requests that can wait; an agent that is further behind loses the oldest.
pub const AGENT_REQUESTS: u32 = 32;
/// Bytes of a request.
pub const AGENT_REQUEST_BYTES: u32 = 32;

/// The coverage map. What the guest counts itself (SanCov, KCOV) goes there; the host reads it at the end of a branch and zeroes it
/// at the start. All processes of a VM share it. A byte is read, increased and written without a lock, so that of two CPUs
/// one may lose a count; which one follows from the order of their instructions and from nothing else.
pub const COVERAGE_OFFSET: u32 = 0x1000;
/// Bytes of the coverage map: what is free before the slots.
pub const COVERAGE_BYTES: u32 = SLOTS_OFFSET - COVERAGE_OFFSET;

/// Slot: owner pid, u32.
pub const SLOT_OWNER: u32 = 0x00;
/// Slot: generation, u32.
pub const SLOT_GENERATION: u32 = 0x04;
/// Slot: head, u32.
pub const SLOT_HEAD: u32 = 0x08;
/// Slot: tail, u32.
pub const SLOT_TAIL: u32 = 0x0c;
/// Slot: id of the answered random request, u32.
pub const SLOT_RANDOM_ID: u32 = 0x10;
/// Slot: records refused, u32.
pub const SLOT_REFUSED: u32 = 0x14;
/// Slot: random answer, u64.
pub const SLOT_RANDOM_VALUE: u32 = 0x18;
/// Slot: counters in use, u32.
pub const SLOT_SITES: u32 = 0x20;
/// Slot: first counter pair.
pub const SLOT_COUNTERS: u32 = 0x1000;
/// Slot: ring.
pub const SLOT_RING: u32 = 0x8000;

/// Bytes of one site's counters: passes, failures.
pub const COUNTER_BYTES: u32 = 16;

/// Assertion sites a process may have: 16 KiB of counters.
pub const SITES_MAX: usize = 1024;

/// Every record starts at a multiple of this.
pub const RECORD_ALIGN: u32 = 8;
/// Bytes of a record's header: payload length u16, kind u8, version u8, zero u32.
pub const RECORD_HEADER_BYTES: usize = 8;
/// Bytes of a record's payload at most: the largest is a catalog entry.
pub const PAYLOAD_BYTES_MAX: usize = 2048;
/// Bytes of a whole record at most.
pub const RECORD_BYTES_MAX: usize = RECORD_HEADER_BYTES + PAYLOAD_BYTES_MAX;

/// Bytes of an assertion's message.
pub const MESSAGE_BYTES_MAX: usize = 512;
/// Bytes of a package name.
pub const PACKAGE_BYTES_MAX: usize = 128;
/// Bytes of a package's version.
pub const VERSION_BYTES_MAX: usize = 64;
/// Bytes of an explicit identity's namespace, and of its key.
pub const STABLE_BYTES_MAX: usize = 128;
/// Longest quiet period that one request gets: a minute.
pub const QUIET_NS_MAX: u64 = 60_000_000_000;
/// Bytes of a package-relative file path.
pub const FILE_BYTES_MAX: usize = 512;
/// Bytes of a module path.
pub const MODULE_BYTES_MAX: usize = 256;
/// Bytes of details, a JSON text.
pub const DETAILS_BYTES_MAX: usize = 1024;
/// Bytes of an event's name.
pub const EVENT_NAME_BYTES_MAX: usize = 128;
/// Bytes of an agreement's namespace.
pub const NAMESPACE_BYTES_MAX: usize = 64;
/// Bytes of an agreement's key.
pub const KEY_BYTES_MAX: usize = 256;
/// Bytes of an agreement's value that are shown; the digest covers all of it.
pub const VALUE_SHOWN_BYTES_MAX: usize = 256;
/// Bytes of an agreement's value.
pub const VALUE_BYTES_MAX: usize = 0x10_0000;
/// Bytes of a log line.
pub const LOG_BYTES_MAX: usize = 1024;
/// Bytes of a process's name.
pub const PROCESS_NAME_BYTES_MAX: usize = 64;
/// Keys that one timeline may bind, over all namespaces. The oracle answers more with an error.
pub const AGREE_KEYS_MAX: usize = 0x1_0000;
/// Bytes that one timeline's agreements may hold.
pub const AGREE_BYTES_MAX: usize = 0x100_0000;

/// Window offset of slot `slot`, or none where there is no such slot.
pub const fn slot_offset(slot: u32) -> Option<u32> {
    if slot < SLOTS { Some(SLOTS_OFFSET + slot * SLOT_BYTES) } else { None }
}

/// Window offset of the counters of `site` in the slot at `slot_offset`, or none where there is no such site.
pub const fn counter_offset(slot_offset: u32, site: u16) -> Option<u32> {
    if (site as usize) < SITES_MAX { Some(slot_offset + SLOT_COUNTERS + site as u32 * COUNTER_BYTES) } else { None }
}

/// Bytes that a payload of `payload_bytes` takes in the ring.
pub const fn record_bytes(payload_bytes: usize) -> usize {
    (RECORD_HEADER_BYTES + payload_bytes).next_multiple_of(RECORD_ALIGN as usize)
}

const _: () = assert!(SLOTS_OFFSET as u64 + SLOTS as u64 * SLOT_BYTES as u64 == crate::WINDOW_BYTES);
const _: () = assert!(SLOT_RING + RING_BYTES == SLOT_BYTES && RING_BYTES.is_power_of_two());
const _: () = assert!(SLOT_COUNTERS as usize + SITES_MAX * COUNTER_BYTES as usize <= SLOT_RING as usize);
const _: () = assert!(AGENT_RING + AGENT_REQUESTS * AGENT_REQUEST_BYTES <= COVERAGE_OFFSET);
const _: () = assert!(PAYLOAD_BYTES_MAX <= u16::MAX as usize);
