// SPDX-License-Identifier: AGPL-3.0-or-later
//! Guest RAM as the CPU sees it: host pointers to page-aligned regions, with a few flags a page.
//!
//! This is the only way from a physical address to a host address; every pointer handed out stays inside one page of one
//! region.

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

/// Pages whose flags are looked at together.
const FLAG_GROUP: usize = 64;

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

/// All RAM of one guest.
#[derive(Debug)]
pub struct GuestRam {
    regions: Vec<Region>,
    flags: Vec<u8>,
    /// For pages with code: which of their 64-byte chunks decoded instructions come from.
    code_chunks: Vec<u64>,
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
            pages += (bytes / PAGE_BYTES) as usize;
        }
        Ok(Self { regions: list, flags: vec![0; pages], code_chunks: vec![0; pages] })
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

    pub(crate) fn flags(&self, page: PageIndex) -> u8 {
        self.flags[page.0]
    }

    pub(crate) fn set_flags(&mut self, page: PageIndex, flags: u8) {
        self.flags[page.0] |= flags;
    }

    pub(crate) fn clear_flags(&mut self, page: PageIndex, flags: u8) {
        self.flags[page.0] &= !flags;
    }

    /// Which 64-byte chunks of a page hold decoded instructions.
    pub(crate) fn code_chunks(&mut self, page: PageIndex) -> &mut u64 {
        &mut self.code_chunks[page.0]
    }

    /// Calls `visit` with the physical page number of each page that has any of `flags`, ascending, and clears them.
    pub(crate) fn take_flagged(&mut self, flags: u8, visit: &mut dyn FnMut(u64)) {
        for region in &self.regions {
            let pages = ((region.end - region.start) / PAGE_BYTES) as usize;
            let first = region.start / PAGE_BYTES;
            let region_flags = &mut self.flags[region.first_page..region.first_page + pages];
            for (group, pages) in region_flags.chunks_mut(FLAG_GROUP).enumerate() {
                // Most groups have none: the fold lets the compiler look at them together.
                if pages.iter().fold(0, |all, page| all | page) & flags == 0 {
                    continue;
                }
                for (index, page) in pages.iter_mut().enumerate().filter(|(_, page)| **page & flags != 0) {
                    *page &= !flags;
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
            assert_eq!((page, host), (PageIndex(3), pointer.add(4096)));
            ram.set_flags(page, page_flag::DIRTY);
            let mut seen = Vec::new();
            ram.take_flagged(page_flag::DIRTY, &mut |number| seen.push(number));
            assert_eq!(seen, [0x101]);
            assert_eq!(ram.flags(page), 0);
        }
    }
}
