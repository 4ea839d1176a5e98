// SPDX-License-Identifier: AGPL-3.0-or-later
//! Guest RAM of the oracles, and builders for what lies in it: page tables, descriptor tables.

use chaoscontrol_cpu::{GuestRam, RamRegion};
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Bytes in a page.
pub const PAGE: u64 = 0x1000;
/// Page table entry: present.
pub const P: u64 = 1;
/// Page table entry: writable.
pub const W: u64 = 2;
/// Page table entry: user.
pub const U: u64 = 4;
/// Page table entry: no execute.
pub const NX: u64 = 1 << 63;

/// RAM from physical address 0 on.
pub struct Ram {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory that belongs to this value alone.
unsafe impl Send for Ram {}

impl Ram {
    /// Zeroed RAM of `pages` pages.
    pub fn new(pages: usize) -> Self {
        let bytes = pages * PAGE as usize;
        // SAFETY: the layout is not empty.
        let pointer = unsafe { alloc_zeroed(Self::layout(bytes)) };
        assert!(!pointer.is_null(), "no memory for {bytes} bytes of guest ram");
        Self { pointer, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes.max(1), PAGE as usize).expect("a few pages")
    }

    /// The view for a CPU.
    ///
    /// # Safety
    /// This value must outlive the result and the CPU it moves into, and must not be used while that CPU runs.
    pub unsafe fn view(&self) -> GuestRam {
        let region = RamRegion { address: 0, bytes: self.bytes as u64, pointer: self.pointer };
        // SAFETY: passed on to the caller.
        unsafe { GuestRam::new(&[region]) }.expect("one aligned region")
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `pointer` is valid for `bytes`, and no CPU runs while `self` is used (contract of `view`).
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }

    /// All of it, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }

    /// Reads eight bytes.
    pub fn read(&self, at: u64) -> u64 {
        let at = at as usize;
        u64::from_le_bytes(self.bytes()[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Writes eight bytes.
    pub fn write(&mut self, at: u64, value: u64) {
        self.write_bytes(at, &value.to_le_bytes());
    }

    /// Writes bytes.
    pub fn write_bytes(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.pointer, Self::layout(self.bytes)) }
    }
}

/// Builds 4-level page tables in RAM, taking pages one after another.
pub struct PageTables {
    root: u64,
    next: u64,
}

impl PageTables {
    /// Tables from the page at physical `start` on; that page becomes the root.
    pub fn new(start: u64) -> Self {
        Self { root: start, next: start + PAGE }
    }

    /// Value for CR3.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// First page not taken.
    pub fn end(&self) -> u64 {
        self.next
    }

    /// Maps the page of `virtual_address` to `physical` with `flags`; upper levels allow everything.
    pub fn map(&mut self, ram: &mut Ram, virtual_address: u64, physical: u64, flags: u64) {
        let slot = self.slot(ram, virtual_address);
        ram.write(slot, physical & !(PAGE - 1) | flags);
    }

    /// Maps `pages` pages.
    pub fn map_range(&mut self, ram: &mut Ram, virtual_address: u64, physical: u64, pages: u64, flags: u64) {
        for page in 0..pages {
            self.map(ram, virtual_address + page * PAGE, physical + page * PAGE, flags);
        }
    }

    /// Physical address of the last-level entry for a virtual address; makes the tables above it.
    pub fn slot(&mut self, ram: &mut Ram, virtual_address: u64) -> u64 {
        let mut table = self.root;
        for level in (1..4).rev() {
            let slot = table + (virtual_address >> (12 + 9 * level) & 511) * 8;
            if ram.read(slot) & P == 0 {
                ram.write(slot, self.next | P | W | U);
                self.next += PAGE;
            }
            table = ram.read(slot) & 0x000f_ffff_ffff_f000;
        }
        table + (virtual_address >> 12 & 511) * 8
    }
}

/// A code or data segment descriptor with base 0 (AMD64 APM vol. 2, 4.8).
pub const fn segment_descriptor(access: u8, flags: u8) -> u64 {
    0x0000_ffff | (access as u64) << 40 | 0xf << 48 | ((flags & 0xf) as u64) << 52
}

/// The two words of a 16-byte TSS or LDT descriptor.
pub const fn system_descriptor(base: u64, limit: u16, access: u8) -> [u64; 2] {
    let low = limit as u64 | (base & 0xff_ffff) << 16 | (access as u64) << 40 | (base >> 24 & 0xff) << 56;
    [low, base >> 32]
}

/// The two words of a 16-byte gate: `kind` is the access byte (type, DPL, present).
pub const fn gate(selector: u16, offset: u64, ist: u8, kind: u8) -> [u64; 2] {
    let low = offset & 0xffff
        | (selector as u64) << 16
        | (ist as u64) << 32
        | (kind as u64) << 40
        | (offset >> 16 & 0xffff) << 48;
    [low, offset >> 32]
}
