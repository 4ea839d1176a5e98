// SPDX-License-Identifier: AGPL-3.0-or-later
//! Memory for compiled code: one memfd mapped twice, once to execute and once to write, and data beside it.
//!
//! No page is ever writable and executable through one mapping, and code that has been written is never changed: what has to
//! change later (where a jump leads) is data, in pages of its own, which code reaches relative to RIP.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

/// Both mappings and the data after the executable one. The upper half of the code is for stubs, so that what mostly executes lies
/// close together.
pub(super) struct CodeMemory {
    execute: NonNull<u8>,
    write: NonNull<u8>,
    code_bytes: usize,
    data_bytes: usize,
    /// Bytes used from the start.
    straight: usize,
    /// Where the next stub goes.
    stubs: usize,
}

// SAFETY: the mappings belong to this value alone and are plain memory.
unsafe impl Send for CodeMemory {}

impl CodeMemory {
    /// Maps `code_bytes` of code and `data_bytes` of zeroed data, both multiples of the page size.
    pub fn new(code_bytes: usize, data_bytes: usize) -> std::io::Result<Self> {
        // SAFETY: a constant name, no pointers kept.
        let fd = unsafe { libc::memfd_create(c"compiled".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let memory = Self::map(fd, code_bytes, data_bytes);
        // SAFETY: the descriptor was opened above and is used no more; the mappings keep the file.
        unsafe { libc::close(fd) };
        memory
    }

    fn map(fd: libc::c_int, code_bytes: usize, data_bytes: usize) -> std::io::Result<Self> {
        // SAFETY: `fd` is a memfd of ours.
        if unsafe { libc::ftruncate(fd, code_bytes as libc::off_t) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new mappings where the kernel chooses.
        let (whole, write) = unsafe {
            let whole = map_at(null_mut(), code_bytes + data_bytes, libc::PROT_NONE, private, -1)?;
            let write = map_at(null_mut(), code_bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd);
            (whole, write)
        };
        let write = match write {
            Ok(write) => write,
            Err(error) => {
                // SAFETY: mapped above and not used.
                unsafe { libc::munmap(whole.as_ptr().cast(), code_bytes + data_bytes) };
                return Err(error);
            }
        };
        let memory = Self { execute: whole, write, code_bytes, data_bytes, straight: 0, stubs: code_bytes / 2 };
        // SAFETY: both ranges lie inside the reservation made above, which nothing else uses.
        unsafe {
            let shared = libc::MAP_SHARED | libc::MAP_FIXED;
            map_at(whole.as_ptr(), code_bytes, libc::PROT_READ | libc::PROT_EXEC, shared, fd)?;
            let data = whole.as_ptr().add(code_bytes);
            map_at(data, data_bytes, libc::PROT_READ | libc::PROT_WRITE, private | libc::MAP_FIXED, -1)?;
        }
        Ok(memory)
    }

    /// Where the next code will execute.
    pub fn next(&self) -> u64 {
        self.execute.as_ptr() as u64 + self.straight as u64
    }

    /// Where the next stubs will execute.
    pub fn next_stubs(&self) -> u64 {
        self.execute.as_ptr() as u64 + self.stubs as u64
    }

    /// Bytes of straight code, and of stubs, that still fit.
    pub fn room(&self) -> usize {
        (self.code_bytes / 2 - self.straight).min(self.code_bytes - self.stubs)
    }

    /// Appends straight code and stubs, which were assembled for [`CodeMemory::next`] and [`CodeMemory::next_stubs`], and aligns the
    /// straight code that comes after.
    pub fn append(&mut self, (straight, stubs): (&[u8], &[u8])) {
        let room = self.room();
        assert!(straight.len().max(stubs.len()) <= room, "compiled code was not checked against the room for it");
        // SAFETY: both ranges were checked and lie in the writable mapping, which is read and written only here.
        unsafe {
            let write = self.write.as_ptr();
            std::ptr::copy_nonoverlapping(straight.as_ptr(), write.add(self.straight), straight.len());
            std::ptr::copy_nonoverlapping(stubs.as_ptr(), write.add(self.stubs), stubs.len());
        }
        self.straight = (self.straight + straight.len()).next_multiple_of(16).min(self.code_bytes / 2);
        self.stubs += stubs.len();
    }

    /// Where straight code may be.
    pub fn code(&self) -> std::ops::Range<u64> {
        self.execute.as_ptr() as u64..self.next()
    }

    /// Bytes of straight code so far.
    pub fn used(&self) -> usize {
        self.straight
    }

    /// Forgets all stubs, and all straight code after the first `keep` bytes.
    pub fn truncate(&mut self, keep: usize) {
        self.straight = keep;
        self.stubs = self.code_bytes / 2;
    }

    /// The data area: address of its first byte and its size in bytes.
    pub fn data(&self) -> (*mut u8, usize) {
        // SAFETY: the data follows the code in one reservation.
        (unsafe { self.execute.as_ptr().add(self.code_bytes) }, self.data_bytes)
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        // SAFETY: both mappings are ours and nothing executes or refers to them any more.
        unsafe {
            libc::munmap(self.execute.as_ptr().cast(), self.code_bytes + self.data_bytes);
            libc::munmap(self.write.as_ptr().cast(), self.code_bytes);
        }
    }
}

/// # Safety
/// As `mmap`: with `MAP_FIXED`, the range must be the caller's to replace.
unsafe fn map_at(at: *mut u8, bytes: usize, rights: i32, flags: i32, fd: i32) -> std::io::Result<NonNull<u8>> {
    // SAFETY: by contract.
    let address = unsafe { libc::mmap(at.cast::<c_void>(), bytes, rights, flags, fd, 0) };
    if address == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    NonNull::new(address.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))
}
