// SPDX-License-Identifier: AGPL-3.0-or-later
//! Guest-physical memory: RAM and the SDK window, with every write by a device recorded.
//!
//! Two parties write guest memory. The engine does it directly and reports its pages itself; devices, loaders and restores go
//! through `vm-memory`, whose dirty-tracking hook is [`DirtyLog`]: it lists each page once until the machine drains the list
//! into the engine's `memory_changed` and the snapshot's dirty set. There is no other way to write, but for restoring a snapshot's
//! pages, which tells the engine itself and leaves nothing dirty.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vm_memory::bitmap::{Bitmap, BitmapSlice, NewBitmap, WithBitmapSlice};
use vm_memory::{
    Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

use chaoscontrol_protocol::{DOORBELL_BYTES, REGION_ADDRESS, WINDOW_BYTES};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Where low RAM ends at the latest; the rest of a larger memory starts at 4 GiB.
pub const LOW_RAM_END: u64 = 3 << 30;
/// Where high RAM starts.
pub const HIGH_RAM_START: u64 = 4 << 30;
/// Smallest RAM: page tables, ACPI tables and a small kernel.
pub const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// Largest RAM.
pub const MEMORY_BYTES_MAX: u64 = 64 << 30;

/// The underlying `vm-memory` type, for virtqueues.
pub type Mmap = GuestMemoryMmap<DirtyLog>;

/// Pages of one region written since the log was last drained, each listed once. A slice of it shares the log.
#[derive(Clone, Debug, Default)]
pub struct DirtyLog {
    shared: Arc<Shared>,
    /// Bytes from the region's start to this slice's.
    offset: usize,
}

#[derive(Debug, Default)]
struct Shared {
    bits: Vec<AtomicU64>,
    listed: Mutex<Vec<u32>>,
}

impl Shared {
    fn list(&self, page: usize) {
        let bit = 1u64 << (page % 64);
        // Pages past the end come from arithmetic on a region's edge and do not exist.
        let Some(word) = self.bits.get(page / 64) else { return };
        if word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.listed.lock().unwrap_or_else(PoisonError::into_inner).push(page as u32);
        }
    }

    fn drain(&self, page: &mut dyn FnMut(u32)) {
        for index in self.listed.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            self.bits[index as usize / 64].fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
            page(index);
        }
    }
}

impl WithBitmapSlice<'_> for DirtyLog {
    type S = Self;
}

impl BitmapSlice for DirtyLog {}

impl Bitmap for DirtyLog {
    fn mark_dirty(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let first = self.offset.saturating_add(offset);
        for page in first / PAGE_BYTES..=first.saturating_add(len - 1) / PAGE_BYTES {
            self.shared.list(page);
        }
    }

    fn dirty_at(&self, offset: usize) -> bool {
        let page = self.offset.saturating_add(offset) / PAGE_BYTES;
        self.shared.bits.get(page / 64).is_some_and(|word| word.load(Ordering::Relaxed) >> (page % 64) & 1 == 1)
    }

    fn slice_at(&self, offset: usize) -> Self {
        Self { shared: self.shared.clone(), offset: self.offset.saturating_add(offset) }
    }
}

impl NewBitmap for DirtyLog {
    fn with_len(len: usize) -> Self {
        let words = len.div_ceil(PAGE_BYTES).div_ceil(64);
        let bits = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { shared: Arc::new(Shared { bits, listed: Mutex::default() }), offset: 0 }
    }
}

/// An access outside guest memory, or memory that the host cannot give.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The size is not offered.
    #[error("memory of {bytes} bytes: must be a multiple of 4096 from {MEMORY_BYTES_MIN} to {MEMORY_BYTES_MAX}")]
    Size {
        /// What was asked for.
        bytes: u64,
    },
    /// The host refused to map it.
    #[error("cannot map {bytes} bytes of guest memory: {why}")]
    Map {
        /// What was asked for.
        bytes: u64,
        /// The host's reason.
        why: String,
    },
    /// The range is not wholly inside guest memory.
    #[error("guest address {address:#x}, {bytes} bytes: not in guest memory")]
    Range {
        /// First byte.
        address: u64,
        /// Length.
        bytes: u64,
    },
}

/// Guest-physical memory.
pub struct GuestMemory {
    mmap: Mmap,
    ram_bytes: u64,
}

impl GuestMemory {
    /// Maps `ram_bytes` of zeroed RAM and the SDK window.
    pub fn new(ram_bytes: u64) -> Result<Self, MemoryError> {
        if !(MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&ram_bytes) || !ram_bytes.is_multiple_of(PAGE_BYTES as u64) {
            return Err(MemoryError::Size { bytes: ram_bytes });
        }
        let mut ranges = vec![(0, ram_bytes.min(LOW_RAM_END)), (REGION_ADDRESS + DOORBELL_BYTES, WINDOW_BYTES)];
        if ram_bytes > LOW_RAM_END {
            ranges.push((HIGH_RAM_START, ram_bytes - LOW_RAM_END));
        }
        let refused = |why: String| MemoryError::Map { bytes: ram_bytes, why };
        let mut regions = Vec::with_capacity(ranges.len());
        for (start, bytes) in ranges {
            let mapping = MmapRegion::new(bytes as usize).map_err(|error| refused(error.to_string()))?;
            // Fewer misses of the host's translation cache. Where the host has no huge pages, nothing changes.
            // SAFETY: advice about a mapping made above, which changes no byte of it.
            unsafe { libc::madvise(mapping.as_ptr().cast(), bytes as usize, libc::MADV_HUGEPAGE) };
            let region = GuestRegionMmap::new(mapping, GuestAddress(start))
                .ok_or_else(|| refused(format!("a region at {start:#x} overflows")))?;
            regions.push(region);
        }
        let mmap = GuestMemoryMmap::from_regions(regions).map_err(|error| refused(error.to_string()))?;
        Ok(Self { mmap, ram_bytes })
    }

    /// Bytes of RAM, without the SDK window.
    pub fn ram_bytes(&self) -> u64 {
        self.ram_bytes
    }

    /// The `vm-memory` view, for `virtio-queue`. Writes through it are recorded.
    pub fn mmap(&self) -> &Mmap {
        &self.mmap
    }

    /// Each region's guest address, length and host pointer, ascending: RAM up to 3 GiB, the SDK window, RAM from 4 GiB.
    pub fn regions(&self) -> Vec<(u64, u64, *mut u8)> {
        self.mmap.iter().map(|region| (region.start_addr().raw_value(), region.len(), region.as_ptr())).collect()
    }

    /// Reads all of `data` at `address`.
    pub fn read(&self, address: u64, data: &mut [u8]) -> Result<(), MemoryError> {
        // Devices and barriers read a few bytes very often: straight from the region that holds them all, if one does.
        if let Ok(slice) = self.mmap.get_slice(GuestAddress(address), data.len()) {
            slice.copy_to(data);
            return Ok(());
        }
        let range = MemoryError::Range { address, bytes: data.len() as u64 };
        self.mmap.read_slice(data, GuestAddress(address)).map_err(|_| range)
    }

    /// Writes all of `data` at `address`. A range that is not wholly inside is refused before anything is written.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<(), MemoryError> {
        if !self.contains(address, data.len() as u64) {
            return Err(MemoryError::Range { address, bytes: data.len() as u64 });
        }
        self.mmap
            .write_slice(data, GuestAddress(address))
            .map_err(|_| MemoryError::Range { address, bytes: data.len() as u64 })
    }

    /// Replaces a page without listing it as written: the caller tells the engine. False if there is no such page.
    pub(crate) fn replace_page(&self, page: u64, bytes: &[u8; PAGE_BYTES]) -> bool {
        let address = page.saturating_mul(PAGE_BYTES as u64);
        let Ok(slice) = self.mmap.get_slice(GuestAddress(address), PAGE_BYTES) else { return false };
        let guard = slice.ptr_guard_mut();
        // SAFETY: the guard keeps a mapped slice of a page's length alive. Nobody else uses it: the engine does not run while a
        // machine is restored, and `bytes` is memory of the host's own.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), guard.as_ptr(), PAGE_BYTES) };
        true
    }

    /// Whether `[address, address + bytes)` is wholly inside guest memory.
    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        self.mmap.check_range(GuestAddress(address), bytes as usize)
    }

    /// Calls `page` with the guest-physical page number of each page written through this type since the last call, in the
    /// order of the first write, and forgets them.
    pub fn take_written_pages(&self, page: &mut dyn FnMut(u64)) {
        for region in self.mmap.iter() {
            let first = region.start_addr().raw_value() / PAGE_BYTES as u64;
            region.bitmap().shared.drain(&mut |index| page(first + u64::from(index)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(memory: &GuestMemory) -> Vec<u64> {
        let mut pages = Vec::new();
        memory.take_written_pages(&mut |page| pages.push(page));
        pages
    }

    #[test]
    fn writes_are_listed_once_per_page_until_taken() {
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).unwrap();
        memory.write(0x1fff, &[1, 2]).unwrap();
        memory.write(0x1000, &[3]).unwrap();
        memory.write(REGION_ADDRESS + DOORBELL_BYTES, &[4]).unwrap();
        assert_eq!(written(&memory), [1, 2, (REGION_ADDRESS + DOORBELL_BYTES) >> 12]);
        assert_eq!(written(&memory), [0u64; 0]);
        memory.write(0x1000, &[3]).unwrap();
        assert_eq!(written(&memory), [1]);
    }

    #[test]
    fn writes_through_vm_memory_are_listed() {
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).unwrap();
        memory.mmap().write_obj(7u64, GuestAddress(0x5ffc)).unwrap();
        memory.mmap().store(7u16, GuestAddress(0x9000), Ordering::Release).unwrap();
        assert_eq!(written(&memory), [5, 6, 9]);
    }

    #[test]
    fn replaced_pages_are_not_listed() {
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).unwrap();
        assert!(memory.replace_page(3, &[7; PAGE_BYTES]));
        assert!(!memory.replace_page(MEMORY_BYTES_MIN >> 12, &[7; PAGE_BYTES]));
        assert!(!memory.replace_page(u64::MAX, &[7; PAGE_BYTES]));
        assert_eq!(written(&memory), [0u64; 0]);
        let mut around = [0; PAGE_BYTES + 2];
        memory.read(0x2fff, &mut around).unwrap();
        assert_eq!((around[0], around[1], around[PAGE_BYTES], around[PAGE_BYTES + 1]), (0, 7, 7, 0));
    }

    #[test]
    fn ranges_outside_are_refused_whole() {
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).unwrap();
        assert!(memory.write(MEMORY_BYTES_MIN - 1, &[1, 2]).is_err());
        assert!(memory.read(u64::MAX, &mut [0, 0]).is_err());
        assert_eq!(written(&memory), [0u64; 0]);
        let mut last = [9];
        memory.read(MEMORY_BYTES_MIN - 1, &mut last).unwrap();
        assert_eq!(last, [0]);
    }

    #[test]
    fn memory_above_three_gib_continues_at_four() {
        let memory = GuestMemory::new(LOW_RAM_END + (1 << 20)).unwrap();
        assert!(memory.contains(HIGH_RAM_START, 1 << 20));
        assert!(!memory.contains(LOW_RAM_END, 1));
    }

    #[test]
    fn sizes_out_of_bounds_are_refused() {
        for bytes in [0, 4095, MEMORY_BYTES_MIN + 1, MEMORY_BYTES_MAX + 4096] {
            assert!(matches!(GuestMemory::new(bytes), Err(MemoryError::Size { .. })), "{bytes}");
        }
    }
}
