// SPDX-License-Identifier: Apache-2.0
//! The guest's side of the window: claiming a slot and writing its ring. `chaoscontrol_protocol::layout` has the rules.

use crate::error::SdkError;
use crate::site::Catalog;
use chaoscontrol_protocol::digest::Sha256;
use chaoscontrol_protocol::layout::*;
use chaoscontrol_protocol::{AgentRequest, DOORBELL_BYTES, Doorbell, LogLevel, Record, VERSION};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The mapped region: doorbell page and window.
pub struct Window {
    region: *mut u8,
    #[cfg(all(test, feature = "std"))]
    on_bell: Option<fn(*mut u8, u32)>,
}

// SAFETY: the region is shared memory that is only reached through atomics, or under the runtime's lock.
unsafe impl Send for Window {}
// SAFETY: as above; `ring` is one aligned store.
unsafe impl Sync for Window {}

impl Window {
    /// Takes the region that is mapped at `region`.
    ///
    /// # Safety
    /// `region` points to a mapping of the whole region (doorbell page and window), page aligned, readable and writable,
    /// that stays for as long as the program runs.
    pub unsafe fn from_raw(region: *mut u8) -> Result<Self, SdkError> {
        let window = Self {
            region,
            #[cfg(all(test, feature = "std"))]
            on_bell: None,
        };
        let magic = u64::from(window.word(HEADER_MAGIC).load(Ordering::Relaxed))
            | u64::from(window.word(HEADER_MAGIC + 4).load(Ordering::Relaxed)) << 32;
        if magic != MAGIC {
            return Err(SdkError::NotAWindow);
        }
        let found = window.word(HEADER_VERSION).load(Ordering::Relaxed);
        if found != u32::from(VERSION) {
            return Err(SdkError::Version { found });
        }
        Ok(window)
    }

    /// Rings the doorbell. The host acts before this returns.
    pub fn ring(&self, bell: Doorbell) {
        // SAFETY: the doorbell page is mapped, and its first word is aligned.
        unsafe { self.region.cast::<u32>().write_volatile(bell.encode()) };
        #[cfg(all(test, feature = "std"))]
        if let Some(host) = self.on_bell {
            host(self.region, bell.encode());
        }
    }

    /// The coverage map.
    #[cfg(any(feature = "std", feature = "sancov"))]
    pub(crate) fn coverage(&self) -> *mut u8 {
        self.pointer(COVERAGE_OFFSET)
    }

    /// How far the host has stepped the wall clock since the machine started, in nanoseconds.
    pub fn wall_step_ns(&self) -> i64 {
        // SAFETY: the field is aligned and inside the mapping.
        unsafe { AtomicU64::from_ptr(self.pointer(HEADER_WALL_STEP_NS).cast()) }.load(Ordering::Acquire) as i64
    }

    /// Requests of the host to the guest's agent so far.
    pub fn agent_requests(&self) -> u32 {
        self.word(AGENT_COUNT).load(Ordering::Acquire)
    }

    /// The next request behind the first `seen`, which is counted as seen: its number and what it says, if that makes sense.
    /// What was lost because the agent was too far behind is skipped.
    pub fn next_agent_request(&self, seen: &mut u32) -> Option<(u32, Option<AgentRequest>)> {
        let count = self.agent_requests();
        let behind = count.wrapping_sub(*seen);
        if behind == 0 {
            return None;
        }
        let number = if behind > AGENT_REQUESTS { count.wrapping_sub(AGENT_REQUESTS) } else { *seen };
        *seen = number.wrapping_add(1);
        let mut bytes = [0; AGENT_REQUEST_BYTES as usize];
        let offset = AGENT_RING + number % AGENT_REQUESTS * AGENT_REQUEST_BYTES;
        for (word, bytes) in (0..).zip(bytes.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&self.word(offset + word * 4).load(Ordering::Relaxed).to_le_bytes());
        }
        Some((number, AgentRequest::decode(&bytes).filter(|request| request.number == number)))
    }

    #[cfg(all(test, feature = "std"))]
    pub(crate) fn with_host(mut self, host: fn(*mut u8, u32)) -> Self {
        self.on_bell = Some(host);
        self
    }

    fn pointer(&self, offset: u32) -> *mut u8 {
        debug_assert!(u64::from(offset) < chaoscontrol_protocol::WINDOW_BYTES);
        // SAFETY: offsets stay inside the window, which follows the doorbell page in one mapping.
        unsafe { self.region.add(DOORBELL_BYTES as usize + offset as usize) }
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offset is aligned and inside the mapping, which is only written through atomics there.
        unsafe { AtomicU32::from_ptr(self.pointer(offset).cast()) }
    }

    /// Claims a slot for the process `pid`: its own from before an `exec`, else a free one, else one whose owner is dead.
    pub(crate) fn claim(self, pid: u32, alive: fn(u32) -> bool) -> Result<Slot, SdkError> {
        let classes: [&dyn Fn(u32) -> bool; 3] =
            [&|owner| owner == pid, &|owner| owner == 0, &|owner| owner != 0 && owner != pid && !alive(owner)];
        for wants in classes {
            for number in 0..SLOTS {
                let base = SLOTS_OFFSET + number * SLOT_BYTES;
                let word = self.word(base + SLOT_OWNER);
                let owner = word.load(Ordering::Relaxed);
                let takes =
                    wants(owner) && word.compare_exchange(owner, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
                if takes {
                    return Ok(Slot { window: self, number, base });
                }
            }
        }
        Err(SdkError::NoSlot)
    }
}

/// A claimed slot.
pub(crate) struct Slot {
    window: Window,
    number: u32,
    base: u32,
}

impl Slot {
    fn word(&self, offset: u32) -> &AtomicU32 {
        self.window.word(self.base + offset)
    }

    /// Makes the host read everything written so far.
    pub(crate) fn ring(&self) {
        self.window.ring(Doorbell::Drain(self.number));
    }

    /// The first counter pair.
    pub(crate) fn counters(&self) -> *mut u8 {
        self.window.pointer(self.base + SLOT_COUNTERS)
    }

    /// Hands what the last owner left to the host, then introduces this process and its catalog.
    pub(crate) fn start(&self, pid: u32, name: &str, catalog: &Catalog, buffer: &mut Buffer) -> Result<(), SdkError> {
        // The first ring may find a random request that nobody waits for any more, and answer it. The second finds the ring
        // empty, which makes the host take over the counters.
        self.ring();
        self.ring();
        let last_sites = (self.word(SLOT_SITES).load(Ordering::Relaxed) as usize).min(SITES_MAX);
        for word in 0..(last_sites * 2) as u32 {
            // SAFETY: the counter table has room for `SITES_MAX` pairs and is eight-byte aligned.
            let counter = unsafe { AtomicU64::from_ptr(self.counters().add(word as usize * 8).cast()) };
            counter.store(0, Ordering::Relaxed);
        }
        let generation = self.word(SLOT_GENERATION).load(Ordering::Relaxed).wrapping_add(1);
        self.word(SLOT_GENERATION).store(generation, Ordering::Relaxed);
        self.word(SLOT_SITES).store(catalog.len() as u32, Ordering::Relaxed);
        self.push(&Record::ProcessStart { pid, generation, name }, buffer)?;
        let mut hash = Sha256::new();
        let mut left_out = 0;
        for (index, site) in catalog.sites() {
            let entry = site.entry(index);
            match self.push(&Record::Catalog(entry), buffer) {
                // A site whose texts are too long stays out of the catalog, and the report says so.
                Err(SdkError::TooLong { field, .. }) => {
                    self.push(&Record::Log { level: LogLevel::Error, text: too_long_text(field) }, buffer)?;
                    left_out += 1;
                }
                other => {
                    other?;
                    let bytes = entry.encode_payload(&mut buffer.0)?;
                    hash.update(&buffer.0[..bytes]);
                }
            }
        }
        self.push(&Record::CatalogEnd { sites: catalog.len() as u16 - left_out, digest: hash.finish() }, buffer)?;
        self.ring();
        Ok(())
    }

    /// Writes a record into the ring. A full ring makes the host drain it first.
    pub(crate) fn push(&self, record: &Record<'_>, buffer: &mut Buffer) -> Result<(), SdkError> {
        let bytes = record.encode(&mut buffer.0)?;
        let head = self.word(SLOT_HEAD).load(Ordering::Relaxed);
        if self.room(head) < bytes {
            self.ring();
            if self.room(head) < bytes {
                return Err(SdkError::HostSilent);
            }
        }
        self.copy_in(head, &buffer.0[..bytes]);
        self.word(SLOT_HEAD).store(head.wrapping_add(bytes as u32), Ordering::Release);
        Ok(())
    }

    fn room(&self, head: u32) -> usize {
        let used = head.wrapping_sub(self.word(SLOT_TAIL).load(Ordering::Acquire));
        RING_BYTES.saturating_sub(used) as usize
    }

    fn copy_in(&self, head: u32, bytes: &[u8]) {
        let start = (head % RING_BYTES) as usize;
        let (first, second) = bytes.split_at(bytes.len().min(RING_BYTES as usize - start));
        let ring = self.window.pointer(self.base + SLOT_RING);
        // SAFETY: both pieces lie inside the ring, and only this process, under its lock, writes there.
        unsafe {
            core::ptr::copy_nonoverlapping(first.as_ptr(), ring.add(start), first.len());
            core::ptr::copy_nonoverlapping(second.as_ptr(), ring, second.len());
        }
    }

    /// Asks the host for a number below `below` (0: any).
    pub(crate) fn ask_random(&self, below: u64, buffer: &mut Buffer) -> Result<u64, SdkError> {
        let id = self.word(SLOT_RANDOM_ID).load(Ordering::Acquire).wrapping_add(1).max(1);
        self.push(&Record::Random { id, below }, buffer)?;
        self.ring();
        if self.word(SLOT_RANDOM_ID).load(Ordering::Acquire) != id {
            return Err(SdkError::HostSilent);
        }
        let low = self.word(SLOT_RANDOM_VALUE).load(Ordering::Relaxed);
        let high = self.word(SLOT_RANDOM_VALUE + 4).load(Ordering::Relaxed);
        Ok(u64::from(high) << 32 | u64::from(low))
    }
}

/// Room for the longest record.
pub(crate) struct Buffer([u8; RECORD_BYTES_MAX]);

impl Buffer {
    pub(crate) const fn new() -> Self {
        Self([0; RECORD_BYTES_MAX])
    }

    /// Whether a record is within its bounds.
    #[cfg(feature = "std")]
    pub(crate) fn check(&mut self, record: &Record<'_>) -> Result<(), SdkError> {
        record.encode(&mut self.0)?;
        Ok(())
    }
}

fn too_long_text(field: &'static str) -> &'static str {
    match field {
        "message" => "an assertion site has a message that is too long and is left out",
        "file" => "an assertion site has a file path that is too long and is left out",
        "version" => "an assertion site has a package version that is too long and is left out",
        "namespace" => "an assertion site has a namespace that is too long and is left out",
        "key" => "an assertion site has a key that is too long and is left out",
        "module" => "an assertion site has a module path that is too long and is left out",
        _ => "an assertion site has a package name that is too long and is left out",
    }
}
