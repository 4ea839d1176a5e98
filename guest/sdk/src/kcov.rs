// SPDX-License-Identifier: Apache-2.0
//! KCOV: what the kernel executes on behalf of this program's threads, where the kernel was built to say so.
//!
//! The kernel writes the address of each block that it executes in a system call or page fault of a thread into a buffer of that thread.
//! At each report the SDK counts the pairs of successive addresses in the [coverage map](crate::coverage) and empties the buffer. What
//! does not fit until then is lost, which is said. A thread is followed from its first report on.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::coverage::{MAP, add, slot_of};

/// Where the kernel offers it; `chaos-init` mounts the file system.
const DEVICE: &str = "/sys/kernel/debug/kcov";
/// Words of a thread's buffer: 256 KiB. A system call executes some hundred blocks.
const WORDS: usize = 1 << 15;
/// `_IOR('c', 1, unsigned long)`: sets the number of words.
const INIT_TRACE: libc::c_ulong = 0x8008_6301;
/// `_IO('c', 100)`: from now on the calling thread is followed.
const ENABLE: libc::c_ulong = 0x6364;
/// Argument of `ENABLE`: addresses of blocks.
const TRACE_PC: libc::c_ulong = 0;

/// How often a buffer of this process was found full.
static FULL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static FOLLOWED: Followed = const { Followed(RefCell::new(Follow::NotYet)) };
}

/// Of one thread. When it ends, what it did since its last report is counted too.
struct Followed(RefCell<Follow>);

enum Follow {
    /// It has not reported yet.
    NotYet,
    /// The kernel offers nothing.
    Without,
    /// It is followed.
    By(Buffer),
}

/// A thread's buffer: a count, and as many addresses behind it. The kernel follows for as long as the file is open.
struct Buffer {
    words: *mut u64,
    _file: File,
}

/// Counts what the kernel executed for the calling thread since its last report, or begins to follow it. Returns how often a buffer was
/// full by now, if one just was and that is to be said: each time it doubles.
pub(crate) fn collect() -> Option<u64> {
    // A thread that is about to end has no variables any more.
    let full = FOLLOWED.try_with(|followed| match &mut *followed.0.borrow_mut() {
        Follow::Without => None,
        Follow::By(buffer) => buffer.empty(),
        follow @ Follow::NotYet => {
            *follow = Buffer::open().map_or(Follow::Without, Follow::By);
            None
        }
    });
    full.ok().flatten().filter(|times| times.is_power_of_two())
}

/// In a forked child: the kernel does not follow it, and the buffer is the parent's.
pub(crate) fn forget_in_child() {
    let _ = FOLLOWED.try_with(|followed| followed.0.replace(Follow::NotYet));
}

impl Drop for Followed {
    fn drop(&mut self) {
        if let Follow::By(buffer) = self.0.get_mut() {
            // There is nobody left to say it to.
            let _ = buffer.empty();
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is this buffer's, and nothing uses it any more.
        unsafe { libc::munmap(self.words.cast(), WORDS * size_of::<u64>()) };
    }
}

impl Buffer {
    fn open() -> Option<Self> {
        // A kernel without it is asked once a process.
        static OFFERED: OnceLock<bool> = OnceLock::new();
        if !OFFERED.get_or_init(|| std::path::Path::new(DEVICE).exists()) {
            return None;
        }
        let file = File::options().read(true).write(true).open(DEVICE).ok()?;
        let descriptor = file.as_raw_fd();
        // SAFETY: plain numbers; a kernel that does not know the request refuses it.
        if unsafe { libc::ioctl(descriptor, INIT_TRACE, WORDS as libc::c_ulong) } != 0 {
            return None;
        }
        let (bytes, access) = (WORDS * size_of::<u64>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a fresh shared mapping at an address the kernel chooses touches no memory of ours.
        let words = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, descriptor, 0) };
        if words == libc::MAP_FAILED {
            return None;
        }
        let buffer = Self { words: words.cast(), _file: file };
        // SAFETY: plain numbers. Refused where the thread is followed already, for somebody else.
        (unsafe { libc::ioctl(descriptor, ENABLE, TRACE_PC) } == 0).then_some(buffer)
    }

    /// Counts what is there. Returns how often a buffer of this process was full by now, if this one was.
    fn empty(&mut self) -> Option<u64> {
        // SAFETY: the mapping has `WORDS` words. Only this thread and the kernel on its behalf write there, so nobody while this runs.
        let words = unsafe { std::slice::from_raw_parts_mut(self.words, WORDS) };
        let full = count(words, MAP.load(Ordering::Acquire));
        full.then(|| FULL.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Counts the pairs of successive addresses in `map`, unless that is null, empties the buffer, and says whether it was full.
fn count(words: &mut [u64], map: *mut u8) -> bool {
    let Some((count, addresses)) = words.split_first_mut() else { return false };
    let executed = usize::try_from(*count).unwrap_or(usize::MAX).min(addresses.len());
    if !map.is_null() {
        let mut before = 0;
        for address in &addresses[..executed] {
            add(map, slot_of(before, *address), 1);
            before = *address;
        }
    }
    *count = 0;
    executed == addresses.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::SLOTS;

    #[test]
    fn pairs_of_addresses_are_counted_once_and_a_full_buffer_is_told() {
        let mut map = [0u8; SLOTS];
        let mut words = [0; 9];
        words[..5].copy_from_slice(&[4, 0x10, 0x20, 0x10, 0x20]);
        assert!(!count(&mut words, map.as_mut_ptr()));
        let hits = |before, address| slot_of(before, address);
        assert_eq!((map[hits(0, 0x10)], map[hits(0x10, 0x20)], map[hits(0x20, 0x10)]), (1, 2, 1));
        assert!(!count(&mut words, map.as_mut_ptr()), "the buffer was emptied");
        assert_eq!(map.iter().map(|count| u32::from(*count)).sum::<u32>(), 4);
        for more in [8, 9, u64::MAX] {
            words[0] = more;
            assert!(count(&mut words, std::ptr::null_mut()), "no room is left after {more} addresses");
            assert_eq!(words[0], 0);
        }
    }

    #[test]
    fn a_kernel_without_it_is_no_trouble() {
        if !std::path::Path::new(DEVICE).exists() {
            assert_eq!((collect(), collect()), (None, None));
        }
    }
}
