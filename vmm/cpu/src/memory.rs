// SPDX-License-Identifier: AGPL-3.0-or-later
//! Guest RAM as the CPU sees it: host pointers to page-aligned regions, with a few flags a page.
//!
//! This is the only way from a physical address to a host address; every pointer handed out stays inside one page of one
//! region.
//!
//! Several CPUs of one machine hold handles of one RAM (`GuestRam::share`). They run one at a time; what one of them does to
//! what others have derived from memory stands in a list that each catches up with before it goes on (`changes.rs`).

use crate::changes::Changes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One region of RAM, or of a device-owned window that behaves like RAM.
#[derive(Clone, Copy, Debug)]
pub struct RamRegion {
    /// Guest-physical start, page aligned.
    pub address: u64,
    /// Length, a multiple of the page size.
    pub bytes: u64,
    /// Host address of the first byte.
    pub pointer: *mut u8,
}

/// Why regions were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RamError {
    /// Not page aligned, or empty.
    #[error("ram region at {address:#x} of {bytes:#x} bytes is empty or not page aligned")]
    Unaligned {
        /// Start.
        address: u64,
        /// Length.
        bytes: u64,
    },
    /// Two regions overlap, or are not in ascending order.
    #[error("ram region at {address:#x} overlaps or precedes the one before it")]
    Order {
        /// Start.
        address: u64,
    },
    /// The end lies past the physical address space.
    #[error("ram region at {address:#x} ends past the {bits}-bit physical address space")]
    TooHigh {
        /// Start.
        address: u64,
        /// Address width.
        bits: u32,
    },
}

/// Width of a guest-physical address (CPUID 0x8000_0008).
pub const PHYSICAL_BITS: u32 = 40;
pub(crate) const PAGE_BYTES: u64 = 4096;
pub(crate) const OFFSET_MASK: u64 = PAGE_BYTES - 1;
pub(crate) const PAGE_MASK: u64 = !OFFSET_MASK;

/// Pages whose flags share a word. The pages of a region begin with a word of their own.
const FLAG_GROUP: usize = 8;

/// Page flags.
pub(crate) mod page_flag {
    /// Written since the last call of `take_dirty_pages`.
    pub const DIRTY: u8 = 1;
    /// Decoded blocks come from this page.
    pub const CODE: u8 = 2;
    /// A page walk that something cached depends on has read this page.
    pub const WALKED: u8 = 4;
    /// The translation cache may let stores to this page pass unnoticed.
    pub const WRITE_CACHED: u8 = 8;
}

#[derive(Clone, Copy, Debug)]
struct Region {
    start: u64,
    end: u64,
    pointer: *mut u8,
    first_page: usize,
}

/// All RAM of one guest, as one of its CPUs holds it.
#[derive(Debug)]
pub struct GuestRam {
    regions: Vec<Region>,
    pages: Arc<Pages>,
    /// What CPUs tell each other, of a machine that has several.
    pub(crate) changes: Option<Changes>,
    /// Pages that walks have read since everything was forgotten, of a machine with one CPU.
    walked: Vec<PageIndex>,
}

/// What is known about each page. Atomic only so that handles may be shared: whoever runs is alone, and loads and stores that
/// are not ordered cost what plain ones do.
#[derive(Debug)]
struct Pages {
    /// [`page_flag`] bits, a byte a page.
    flags: Box<[AtomicU64]>,
    /// For pages with code: which of their 64-byte chunks decoded instructions come from.
    code_chunks: Box<[AtomicU64]>,
}

fn zeroes(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

// SAFETY: the regions are plain memory that the creator keeps alive and shares by contract (see `GuestRam::new`).
unsafe impl Send for GuestRam {}

/// A page of RAM: index into the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageIndex(pub(crate) usize);

impl GuestRam {
    /// Takes regions in ascending order of address.
    ///
    /// # Safety
    /// Each pointer must be valid for reads and writes of its `bytes` for as long as this value (and the `Cpu` it moves
    /// into) lives, and nobody else may access that memory while `Cpu::run` or another `&mut` method of the CPU executes.
    pub unsafe fn new(regions: &[RamRegion]) -> Result<Self, RamError> {
        let mut list: Vec<Region> = Vec::with_capacity(regions.len());
        let mut pages = 0usize;
        for region in regions {
            let RamRegion { address, bytes, pointer } = *region;
            if bytes == 0 || (address | bytes) & OFFSET_MASK != 0 {
                return Err(RamError::Unaligned { address, bytes });
            }
            let end = address.checked_add(bytes).filter(|end| *end <= 1 << PHYSICAL_BITS);
            let Some(end) = end else { return Err(RamError::TooHigh { address, bits: PHYSICAL_BITS }) };
            if list.last().is_some_and(|last| last.end > address) {
                return Err(RamError::Order { address });
            }
            list.push(Region { start: address, end, pointer, first_page: pages });
            pages += ((bytes / PAGE_BYTES) as usize).next_multiple_of(FLAG_GROUP);
        }
        let pages = Pages { flags: zeroes(pages / FLAG_GROUP), code_chunks: zeroes(pages) };
        Ok(Self { regions: list, pages: Arc::new(pages), changes: None, walked: Vec::new() })
    }

    /// Handles for `count` CPUs of one machine, at least one. What [`GuestRam::new`] asks for holds for all of them together:
    /// only one of the CPUs may be used at a time.
    pub fn share(self, count: usize) -> Vec<Self> {
        if count < 2 {
            return vec![self];
        }
        let handle = |changes| Self {
            regions: self.regions.clone(),
            pages: self.pages.clone(),
            changes: Some(changes),
            walked: Vec::new(),
        };
        Changes::among(count).into_iter().map(handle).collect()
    }

    /// Whether other CPUs hold handles of this RAM.
    pub(crate) fn is_shared(&self) -> bool {
        self.changes.is_some()
    }

    /// A walk that something cached depends on has read a page.
    pub(crate) fn note_walk(&mut self, page: PageIndex) {
        match &mut self.changes {
            None => self.walked.push(page),
            Some(changes) => changes.note_walk(page),
        }
    }

    /// Nothing depends on the walks so far any more; other CPUs are told.
    pub(crate) fn forget_walks(&mut self) {
        let walked = match &mut self.changes {
            None => std::mem::take(&mut self.walked),
            Some(changes) => changes.forget_walks(),
        };
        for page in &walked {
            self.clear_flags(*page, page_flag::WALKED);
        }
        if self.changes.is_none() {
            // The list keeps its room.
            self.walked = walked;
            self.walked.clear();
        }
    }

    fn region(&self, address: u64) -> Option<&Region> {
        self.regions.iter().find(|region| region.start <= address && address < region.end)
    }

    /// The page that holds a physical address, and the host address of its first byte.
    pub(crate) fn page(&self, address: u64) -> Option<(PageIndex, *mut u8)> {
        let region = self.region(address)?;
        let offset = (address - region.start) & PAGE_MASK;
        // SAFETY: `offset` is below the region's length, which `new` requires to be valid.
        let pointer = unsafe { region.pointer.add(offset as usize) };
        Some((PageIndex(region.first_page + (offset / PAGE_BYTES) as usize), pointer))
    }

    /// The start of the first region above `address`.
    pub(crate) fn next_region(&self, address: u64) -> Option<u64> {
        self.regions.iter().map(|region| region.start).find(|start| *start > address)
    }

    fn flag_word(&self, page: PageIndex) -> (&AtomicU64, u32) {
        (&self.pages.flags[page.0 / FLAG_GROUP], (page.0 % FLAG_GROUP) as u32 * 8)
    }

    pub(crate) fn flags(&self, page: PageIndex) -> u8 {
        let (word, shift) = self.flag_word(page);
        (word.load(Relaxed) >> shift) as u8
    }

    pub(crate) fn set_flags(&mut self, page: PageIndex, flags: u8) {
        let (word, shift) = self.flag_word(page);
        word.store(word.load(Relaxed) | u64::from(flags) << shift, Relaxed);
    }

    pub(crate) fn clear_flags(&mut self, page: PageIndex, flags: u8) {
        let (word, shift) = self.flag_word(page);
        word.store(word.load(Relaxed) & !(u64::from(flags) << shift), Relaxed);
    }

    /// Which 64-byte chunks of a page hold decoded instructions.
    pub(crate) fn code_chunks(&self, page: PageIndex) -> u64 {
        self.pages.code_chunks[page.0].load(Relaxed)
    }

    /// More chunks of a page hold decoded instructions.
    pub(crate) fn add_code_chunks(&mut self, page: PageIndex, chunks: u64) {
        let all = &self.pages.code_chunks[page.0];
        all.store(all.load(Relaxed) | chunks, Relaxed);
    }

    /// No decoded instructions come from a page any more.
    pub(crate) fn clear_code(&mut self, page: PageIndex) {
        self.clear_flags(page, page_flag::CODE);
        self.pages.code_chunks[page.0].store(0, Relaxed);
    }

    /// Calls `visit` with the physical page number of each page that has any of `flags`, ascending, and clears them.
    pub(crate) fn take_flagged(&mut self, flags: u8, visit: &mut dyn FnMut(u64)) {
        for region in &self.regions {
            let pages = ((region.end - region.start) / PAGE_BYTES) as usize;
            let first = region.start / PAGE_BYTES;
            let words = region.first_page / FLAG_GROUP..(region.first_page + pages).div_ceil(FLAG_GROUP);
            let wanted = u64::from_ne_bytes([flags; FLAG_GROUP]);
            for (group, word) in self.pages.flags[words].iter().enumerate() {
                let found = word.load(Relaxed) & wanted;
                if found == 0 {
                    continue;
                }
                word.store(word.load(Relaxed) & !wanted, Relaxed);
                for index in (0..FLAG_GROUP).filter(|index| found >> (index * 8) & 0xff != 0) {
                    visit(first + (group * FLAG_GROUP + index) as u64);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_checked_and_pages_found() {
        let mut memory = vec![0u8; 4 * 4096];
        let pointer = memory.as_mut_ptr();
        let region = |address, bytes| RamRegion { address, bytes, pointer };
        // SAFETY: `memory` outlives every value made here and is large enough for the regions that are accepted.
        unsafe {
            assert!(matches!(GuestRam::new(&[region(1, 4096)]), Err(RamError::Unaligned { .. })));
            assert!(matches!(GuestRam::new(&[region(0, 8192), region(4096, 4096)]), Err(RamError::Order { .. })));
            assert!(matches!(GuestRam::new(&[region(1 << 40, 4096)]), Err(RamError::TooHigh { .. })));
            let mut ram = GuestRam::new(&[region(0, 8192), region(0x10_0000, 8192)]).expect("two regions");
            assert!(ram.page(8192).is_none());
            let (page, host) = ram.page(0x10_1fff).expect("last page");
            assert_eq!((page, host), (PageIndex(9), pointer.add(4096)));
            ram.set_flags(page, page_flag::DIRTY);
            let mut seen = Vec::new();
            ram.take_flagged(page_flag::DIRTY, &mut |number| seen.push(number));
            assert_eq!(seen, [0x101]);
            assert_eq!(ram.flags(page), 0);
        }
    }
}
