// SPDX-License-Identifier: AGPL-3.0-or-later
//! Memory of the native runner: what it shares with its child, and the pages under test.

use crate::layout::{CODE, CODE_BYTES, DATA, DATA_BYTES, HIGH, PAGE, READABLE_BYTES};
use std::io;

/// A mapping that is unmapped when dropped.
pub struct Mapping {
    address: *mut u8,
    bytes: usize,
    /// Offset of the first byte that can be used.
    usable: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Zeroed memory that a forked child shares.
    pub fn shared(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address the kernel picks.
        unsafe {
            Self::map(0, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
        }
    }

    /// Zeroed memory of `bytes`, a multiple of the page size, between two pages without access.
    pub fn guarded(bytes: usize) -> io::Result<Self> {
        let guard = PAGE as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address the kernel picks.
        let mut all = unsafe { Self::map(0, bytes + 2 * guard, libc::PROT_NONE, flags, -1, 0)? };
        all.usable = guard;
        let inner = all.address();
        // SAFETY: the middle of the mapping that was just made.
        if unsafe { libc::mprotect(inner.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(all)
    }

    /// Its first byte that can be used.
    pub fn address(&self) -> *mut u8 {
        self.address.wrapping_add(self.usable)
    }

    /// # Safety
    /// As for `mmap`: a fixed address must not hold anything.
    unsafe fn map(at: u64, bytes: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> io::Result<Self> {
        // SAFETY: the caller promises that the place is free.
        let address = unsafe { libc::mmap(at as *mut _, bytes, prot, flags, fd, offset) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { address: address.cast(), bytes, usable: 0 })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody holds a pointer into the mapping beyond its owner's life.
        unsafe { libc::munmap(self.address.cast(), self.bytes) };
    }
}

/// The pages under test: one file in memory, its pages in order code, data, read-only data.
pub struct TestPages {
    fd: i32,
    /// The whole file, writable: how the child loads and restores it.
    alias: Mapping,
}

impl TestPages {
    /// Creates the file; the pages get their addresses in the child, with `map_fixed`.
    pub fn new() -> io::Result<Self> {
        let bytes = CODE_BYTES + READABLE_BYTES;
        // SAFETY: the name is a valid C string.
        let fd = unsafe { libc::memfd_create(c"cpu-oracle".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: `ftruncate` takes any descriptor.
        if fd < 0 || unsafe { libc::ftruncate(fd, bytes as i64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new mapping at an address the kernel picks.
        let alias = unsafe { Mapping::map(0, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)? };
        Ok(Self { fd, alias })
    }

    /// Fills the pages as cases find them. A child that died may have left a case's data behind.
    pub fn fill(&mut self) {
        // SAFETY: the alias has this many bytes, and no child runs that could use them.
        let all = unsafe { std::slice::from_raw_parts_mut(self.alias.address(), CODE_BYTES + READABLE_BYTES) };
        all[..CODE_BYTES].fill(crate::layout::FILLER);
        all[CODE_BYTES..].copy_from_slice(&crate::layout::base_image());
    }

    /// The writable view of the code pages.
    pub fn code(&self) -> *mut u8 {
        self.alias.address()
    }

    /// The writable view of the data pages.
    pub fn data(&self) -> *mut u8 {
        self.alias.address().wrapping_add(CODE_BYTES)
    }

    /// Maps the pages at their addresses and makes sure that their neighbours are free. Returns false on failure.
    ///
    /// # Safety
    /// Only in the child: it takes fixed addresses without asking.
    pub unsafe fn map_fixed(&self) -> bool {
        use libc::{PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE};
        let data_at = CODE_BYTES as u64;
        let read_only_at = data_at + DATA_BYTES as u64;
        // SAFETY: the child owns its address space, and these addresses are far from what the loader picks.
        unsafe {
            self.fixed(CODE, CODE_BYTES, PROT_READ | PROT_EXEC, 0)
                && self.fixed(DATA, DATA_BYTES, PROT_READ | PROT_WRITE, data_at)
                && self.fixed(DATA + DATA_BYTES as u64, PAGE as usize, PROT_READ, read_only_at)
                && self.fixed(HIGH, DATA_BYTES, PROT_READ | PROT_WRITE, data_at)
                && [CODE - PAGE, CODE + CODE_BYTES as u64, DATA - PAGE, DATA + READABLE_BYTES as u64]
                    .iter()
                    .all(|&gap| libc::mprotect(gap as *mut _, PAGE as usize, PROT_NONE) != 0)
        }
    }

    /// # Safety
    /// As for `map_fixed`.
    unsafe fn fixed(&self, at: u64, bytes: usize, prot: i32, offset: u64) -> bool {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE;
        // SAFETY: the flags refuse to replace a mapping.
        let got = unsafe { libc::mmap(at as *mut _, bytes, prot, flags, self.fd, offset as i64) };
        got as u64 == at
    }
}

impl Drop for TestPages {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { libc::close(self.fd) };
    }
}
