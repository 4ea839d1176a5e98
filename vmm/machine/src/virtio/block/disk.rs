// SPDX-License-Identifier: AGPL-3.0-or-later
//! The disk behind a block device: a medium, a write cache in front of it, and what a power cut leaves.
//!
//! ```text
//!            completes                    covered by a completed FLUSH, or written back
//!  in flight ---------> cached (visible) ----------------------------------------------> durable (medium)
//!      |                    |                                                               |
//!      +--- power cut ------+--- only the writes that the schedule keeps, whole or in part -+--> the medium that is left
//! ```
//!
//! Reads see the medium with every cached write over it, in the order of completion. With write-through (the driver did not
//! negotiate FLUSH) a completed write goes to the medium at once and the cache stays empty.
//!
//! The cache is bounded: when it is over its limit, writes picked by a seeded stream go to the medium, each together with the
//! older cached writes that it overlaps, so that an old write never lands on a newer one. Pages are shared copy-on-write with
//! the image and with every snapshot.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::entropy::Stream;
use crate::memory::PAGE_BYTES;
use crate::pages::PageMap;

/// Bytes of a sector: what a power cut leaves whole or untouched, unless torn on purpose.
pub const SECTOR_BYTES: u64 = 512;
/// Cached bytes before write-back starts, unless configured.
pub const CACHE_BYTES_DEFAULT: u64 = 4 << 20;
/// Read pages that are remembered one by one; past it the whole disk counts as read.
const READ_PAGES_MAX: usize = 4096;
const PAGE: u64 = PAGE_BYTES as u64;

/// A completed write that is not durable yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedWrite {
    /// Position in the order of completion; ascending, never used twice.
    pub order: u64,
    /// First sector.
    pub sector: u64,
    /// What was written; whole sectors but for a torn write.
    #[serde(with = "crate::byte_string")]
    pub data: Vec<u8>,
}

impl CachedWrite {
    fn start(&self) -> u64 {
        self.sector * SECTOR_BYTES
    }

    fn end(&self) -> u64 {
        self.start() + self.data.len() as u64
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start() < other.end() && other.start() < self.end()
    }
}

/// A write that a power cut may lose, as a planner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingWrite {
    /// First sector.
    pub sector: u64,
    /// Length.
    pub bytes: u32,
    /// Submitted and not completed; else completed and not durable.
    pub in_flight: bool,
}

/// How much of a pending write a power cut leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kept {
    /// All of it.
    Whole,
    /// Its first bytes. A number that is no multiple of 512 tears a sector.
    Prefix {
        /// How many.
        bytes: u32,
    },
    /// These of its sectors, counted from its first.
    Sectors(Vec<u32>),
}

/// What a power cut leaves of the pending writes: by index into the list of pending writes at that moment, oldest first.
/// What is not named is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivors(pub BTreeMap<u32, Kept>);

impl Survivors {
    /// Everything that is not durable is lost.
    pub fn none() -> Self {
        Self::default()
    }

    /// The first `pending` writes survive whole.
    pub fn all(pending: usize) -> Self {
        Survivors((0..pending as u32).map(|index| (index, Kept::Whole)).collect())
    }

    /// Write *i* of `pending` survives if bit *i* modulo 64 of `bits` is set. Where `torn_bytes` is above zero, write
    /// `torn_write` is left with its first `torn_bytes`, whatever its bit says.
    pub fn from_bits(pending: usize, bits: u64, torn_write: u32, torn_bytes: u32) -> Self {
        Self::from_bits_behind(0, pending, bits, torn_write, torn_bytes)
    }

    /// As [`Self::from_bits`] where the disks before this one have `before` pending writes, which are counted first: one set of
    /// bits names any subset of the writes of all disks.
    pub fn from_bits_behind(before: usize, pending: usize, bits: u64, torn_write: u32, torn_bytes: u32) -> Self {
        let kept = (0..pending).filter(|index| bits >> ((before + index) % 64) & 1 == 1);
        let mut survivors: BTreeMap<u32, Kept> = kept.map(|index| (index as u32, Kept::Whole)).collect();
        let torn = (torn_write as usize).checked_sub(before).filter(|index| torn_bytes > 0 && *index < pending);
        if let Some(index) = torn {
            survivors.insert(index as u32, Kept::Prefix { bytes: torn_bytes });
        }
        Survivors(survivors)
    }
}

/// What a power cut did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerCut {
    /// Pending writes that survived whole.
    pub whole: u32,
    /// Pending writes of which a part survived.
    pub torn: u32,
    /// Pending writes that were lost.
    pub lost: u32,
    /// Survivors that named no pending write.
    pub unknown: u32,
}

/// Saved state of a disk, all but its pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskState {
    cache: Vec<CachedWrite>,
    next_order: u64,
    write_back: Stream,
    read_pages: BTreeSet<u64>,
    read_everything: bool,
    /// Writes that went to the medium because the cache was full.
    pub written_back: u64,
}

/// A disk. The medium is shared pages; everything else is in [`DiskState`] or derived from both.
#[derive(Clone, Debug)]
pub struct Disk {
    size_bytes: u64,
    cache_bytes_max: u64,
    medium: PageMap,
    state: DiskState,
    /// Derived: the medium with the cached writes over it.
    visible: PageMap,
    /// Derived: bytes in the cache.
    cached_bytes: u64,
    /// Derived: cached writes on each page.
    cached_pages: BTreeMap<u64, u32>,
}

impl Disk {
    /// A disk of `size_bytes` (a multiple of 512) with these contents and an empty cache.
    pub fn new(medium: PageMap, size_bytes: u64, cache_bytes_max: u64, write_back: Stream) -> Self {
        let state = DiskState {
            cache: Vec::new(),
            next_order: 0,
            write_back,
            read_pages: BTreeSet::new(),
            read_everything: false,
            written_back: 0,
        };
        Disk {
            size_bytes,
            cache_bytes_max,
            visible: medium.clone(),
            medium,
            state,
            cached_bytes: 0,
            cached_pages: BTreeMap::new(),
        }
    }

    /// Sectors of the disk.
    pub fn sectors(&self) -> u64 {
        self.size_bytes / SECTOR_BYTES
    }

    /// What is durable.
    pub fn medium(&self) -> &PageMap {
        &self.medium
    }

    /// What the guest reads.
    pub fn visible(&self) -> &PageMap {
        &self.visible
    }

    /// The completed writes that are not durable, in the order of completion.
    pub fn cache(&self) -> &[CachedWrite] {
        &self.state.cache
    }

    /// Bytes in the cache.
    pub fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    /// Writes that went to the medium because the cache was full.
    pub fn written_back(&self) -> u64 {
        self.state.written_back
    }

    /// Starts the write-back stream over under another root seed.
    pub fn reseed(&mut self, root: &[u8; 32]) {
        self.state.write_back.reseed(root);
    }

    /// Whether every page that the guest read so far has the same contents on `other`. A guest that goes on from here with
    /// `other` in place of this disk then holds no stale data; what it wrote is `other`'s owner's business.
    pub fn reads_agree_with(&self, other: &PageMap) -> bool {
        if self.state.read_everything {
            return self.visible == *other;
        }
        self.state.read_pages.iter().all(|page| self.visible.get(*page) == other.get(*page))
    }

    /// Whether `[sector, sector + bytes)` lies on the disk.
    pub fn contains(&self, sector: u64, bytes: u64) -> bool {
        sector <= self.sectors() && bytes <= self.size_bytes - sector * SECTOR_BYTES
    }

    /// Reads what the guest sees. The range must lie on the disk.
    pub fn read(&mut self, sector: u64, out: &mut [u8]) {
        let start = sector * SECTOR_BYTES;
        for_pages(start, out.len(), |page, within, range| {
            match self.visible.get(page) {
                Some(contents) => out[range.clone()].copy_from_slice(&contents.bytes()[within..within + range.len()]),
                None => out[range].fill(0),
            }
            if !self.state.read_everything {
                self.state.read_pages.insert(page);
            }
        });
        if self.state.read_pages.len() > READ_PAGES_MAX {
            self.state.read_everything = true;
            self.state.read_pages.clear();
        }
    }

    /// A write completes: into the cache, or with `durable` onto the medium. The range must lie on the disk.
    pub fn write(&mut self, sector: u64, data: Vec<u8>, durable: bool) {
        let order = self.state.next_order;
        self.state.next_order += 1;
        let write = CachedWrite { order, sector, data };
        patch(&mut self.visible, write.start(), &write.data);
        self.count_pages(&write, true);
        self.cached_bytes += write.data.len() as u64;
        if durable {
            self.make_durable(write);
        } else {
            self.state.cache.push(write);
            self.write_back();
        }
    }

    /// The order that the next completed write will get: a FLUSH submitted now covers what is below it.
    pub fn next_order(&self) -> u64 {
        self.state.next_order
    }

    /// A FLUSH completes: makes durable the cached writes that completed before `before`.
    pub fn flush(&mut self, before: u64) {
        let covered = self.state.cache.partition_point(|write| write.order < before);
        let rest = self.state.cache.split_off(covered);
        for write in std::mem::replace(&mut self.state.cache, rest) {
            self.make_durable(write);
        }
    }

    /// Cuts the power: of the cached writes and then `in_flight` ones, in this order, only `survivors` reach the medium.
    pub fn power_cut(&mut self, in_flight: Vec<(u64, Vec<u8>)>, survivors: &Survivors) -> PowerCut {
        let cached = std::mem::take(&mut self.state.cache).into_iter().map(|write| (write.sector, write.data));
        let mut result = PowerCut::default();
        let mut count = 0;
        for (sector, data) in cached.chain(in_flight) {
            let part = match survivors.0.get(&count) {
                None => 0,
                Some(kept) => self.keep(sector, &data, kept),
            };
            match part {
                0 => result.lost += 1,
                whole if whole == data.len() => result.whole += 1,
                _ => result.torn += 1,
            }
            count += 1;
        }
        result.unknown = survivors.0.range(count..).count() as u32;
        self.drop_cache();
        result
    }

    /// Puts another medium under an empty cache: the disk as it is after a power cut elsewhere.
    pub fn replace(&mut self, medium: PageMap) {
        self.medium = medium;
        self.drop_cache();
    }

    /// The saved state, all but the medium.
    pub fn save(&self) -> DiskState {
        self.state.clone()
    }

    /// Whether a saved state can be this disk's.
    pub fn check(&self, state: &DiskState) -> Result<(), String> {
        let mut before = 0;
        for write in &state.cache {
            if write.data.is_empty() || !self.contains(write.sector, write.data.len() as u64) {
                return Err(format!("a cached write at sector {} does not lie on the disk", write.sector));
            }
            if write.order < before || write.order >= state.next_order {
                return Err(format!("cached write {} is out of order", write.order));
            }
            before = write.order + 1;
        }
        Ok(())
    }

    /// Takes over a state that passed [`Disk::check`], with the medium that belongs to it.
    pub fn restore(&mut self, state: &DiskState, medium: PageMap) {
        self.medium = medium;
        self.drop_cache();
        self.state = state.clone();
        for index in 0..self.state.cache.len() {
            let write = self.state.cache[index].clone();
            patch(&mut self.visible, write.start(), &write.data);
            self.count_pages(&write, true);
            self.cached_bytes += write.data.len() as u64;
        }
    }

    fn drop_cache(&mut self) {
        self.state.cache.clear();
        self.cached_pages.clear();
        self.cached_bytes = 0;
        self.visible = self.medium.clone();
    }

    /// Writes the surviving part of one write to the medium; returns its bytes.
    fn keep(&mut self, sector: u64, data: &[u8], kept: &Kept) -> usize {
        let start = sector * SECTOR_BYTES;
        match kept {
            Kept::Whole => patch(&mut self.medium, start, data),
            Kept::Prefix { bytes } => {
                let part = data.len().min(*bytes as usize);
                patch(&mut self.medium, start, &data[..part]);
                return part;
            }
            Kept::Sectors(sectors) => {
                let unique: BTreeSet<u32> = sectors.iter().copied().collect();
                let mut part = 0;
                for index in unique {
                    let from = u64::from(index) * SECTOR_BYTES;
                    if from >= data.len() as u64 {
                        break;
                    }
                    let to = (from + SECTOR_BYTES).min(data.len() as u64);
                    patch(&mut self.medium, start + from, &data[from as usize..to as usize]);
                    part += (to - from) as usize;
                }
                return part;
            }
        }
        data.len()
    }

    /// Brings the cache back under its limit.
    fn write_back(&mut self) {
        while self.cached_bytes > self.cache_bytes_max {
            let victim = self.state.write_back.below(self.state.cache.len() as u64) as usize;
            // Downwards from the victim, whatever overlaps one that was picked is picked too.
            let mut picked = vec![victim];
            for older in (0..victim).rev() {
                if picked.iter().any(|index| self.state.cache[*index].overlaps(&self.state.cache[older])) {
                    picked.push(older);
                }
            }
            // `picked` descends; removing from the back keeps the other positions valid.
            let writes: Vec<CachedWrite> = picked.into_iter().map(|index| self.state.cache.remove(index)).collect();
            self.state.written_back += writes.len() as u64;
            for write in writes.into_iter().rev() {
                self.make_durable(write);
            }
        }
    }

    /// Puts a write that has left the cache onto the medium. A page without further cached writes is shared with what is
    /// visible, for it is equal by then.
    fn make_durable(&mut self, write: CachedWrite) {
        self.count_pages(&write, false);
        self.cached_bytes -= write.data.len() as u64;
        for_pages(write.start(), write.data.len(), |page, within, range| {
            if self.cached_pages.contains_key(&page) {
                patch(&mut self.medium, page * PAGE + within as u64, &write.data[range]);
            } else {
                self.medium.insert(page, self.visible.get(page).cloned());
            }
        });
    }

    fn count_pages(&mut self, write: &CachedWrite, added: bool) {
        for_pages(write.start(), write.data.len(), |page, _, _| {
            let count = self.cached_pages.entry(page).or_insert(0);
            if added {
                *count += 1;
            } else {
                *count -= 1;
                if *count == 0 {
                    self.cached_pages.remove(&page);
                }
            }
        });
    }
}

/// Overwrites bytes of a page map.
fn patch(pages: &mut PageMap, start: u64, data: &[u8]) {
    for_pages(start, data.len(), |page, within, range| {
        let mut contents = pages.get(page).map_or([0; PAGE_BYTES], |page| *page.bytes());
        contents[within..within + range.len()].copy_from_slice(&data[range]);
        pages.set(page, &contents);
    });
}

/// Calls `visit` with (page, offset within it, range of `0..bytes`) for each page that `[start, start + bytes)` touches.
fn for_pages(start: u64, bytes: usize, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < bytes {
        let address = start + done as u64;
        let within = (address % PAGE) as usize;
        let part = (PAGE_BYTES - within).min(bytes - done);
        visit(address / PAGE, within, done..done + part);
        done += part;
    }
}
