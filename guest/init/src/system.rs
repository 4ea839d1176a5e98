// SPDX-License-Identifier: Apache-2.0
//! System calls that the standard library lacks, and the one error of this program.

use std::fmt;
use std::io;

/// What could not be done, and why.
#[derive(Debug)]
pub struct Failure {
    what: String,
    why: String,
}

impl Failure {
    pub fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self { what: what.into(), why: why.to_string() }
    }

    /// The last system call failed.
    pub fn last(what: impl Into<String>) -> Self {
        Self::new(what, io::Error::last_os_error())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// Loads every later program at the same addresses in every run: coverage edges are addresses. The kernel's setting covers
/// programs that reset their personality.
pub fn keep_addresses_fixed() {
    // SAFETY: sets a flag of this process, which children inherit.
    unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
    // A kernel without sysctl was booted with `norandmaps` or keeps the personality above.
    let _ = std::fs::write("/proc/sys/kernel/randomize_va_space", "0");
}

/// Powers the machine off; a machine that cannot is halted.
pub fn power_off() -> ! {
    loop {
        // SAFETY: writes buffers out and stops; nothing of this process is needed any more.
        unsafe {
            libc::sync();
            libc::reboot(libc::RB_POWER_OFF);
            libc::pause();
        }
    }
}
