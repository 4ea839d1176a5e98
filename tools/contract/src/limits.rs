// SPDX-License-Identifier: AGPL-3.0-or-later
//! What an evaluation may use: no document and no profile can take the host with it.

use std::io;

/// CPU seconds; a call takes some hundredths of one.
const CPU_SECONDS: u64 = 120;
/// Address space, stacks included.
const MEMORY_BYTES: u64 = 6 << 30;
/// Stack of the thread that evaluates: documents nest, and so does evaluation.
pub const STACK_BYTES: usize = 1 << 30;
/// stdin, stdout, stderr, and no file more: whatever was needed was read before.
const FILES: u64 = 3;

/// Limits this process from here on.
pub fn apply() -> io::Result<()> {
    for (name, resource, most) in [
        ("CPU time", libc::RLIMIT_CPU, CPU_SECONDS),
        ("memory", libc::RLIMIT_AS, MEMORY_BYTES),
        ("open files", libc::RLIMIT_NOFILE, FILES),
        ("core dumps", libc::RLIMIT_CORE, 0),
    ] {
        let failed = || io::Error::other(format!("{name}: {}", io::Error::last_os_error()));
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a whole structure that lives through the call, and the resources are real ones.
        if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
            return Err(failed());
        }
        // Whoever started this may have set a narrower one, which cannot be raised.
        let most = most.min(limit.rlim_max);
        limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: as above.
        if unsafe { libc::setrlimit(resource, &limit) } != 0 {
            return Err(failed());
        }
    }
    Ok(())
}
