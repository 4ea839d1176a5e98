// SPDX-License-Identifier: AGPL-3.0-or-later
//! What an evaluation may use: no document and no profile can take the host with it.

use std::io;

use chaoscontrol_artifact::ExitCode;

/// CPU seconds; a call takes some hundredths of one.
const CPU_SECONDS: u64 = 120;
/// Address space for evaluating documents, which may be large, stacks included.
pub const DOCUMENTS_BYTES: u64 = 6 << 30;
/// The same for profiles, which people write.
pub const PROFILES_BYTES: u64 = 2 << 30;
/// Stack of the thread that evaluates: documents nest, and so does evaluation.
pub const STACK_BYTES: usize = 1 << 30;
/// stdin, stdout, stderr, and no file more: whatever was needed was read before.
const FILES: u64 = 3;

/// What is said when a limit was hit. An evaluation that never ends is the input's fault, not the host's.
const EXCEEDED: &[u8] =
    b"chaos-contract: the evaluation went beyond its limits of time, memory or depth: is there a recursion \
                          without an end?\n";

/// Ends the process as for bad input.
extern "C" fn exceeded(_: libc::c_int) {
    // SAFETY: both calls are async-signal-safe, and the bytes are static.
    unsafe {
        libc::write(libc::STDERR_FILENO, EXCEEDED.as_ptr().cast(), EXCEEDED.len());
        libc::_exit(i32::from(ExitCode::BadInput.number()));
    }
}

/// Limits this process from here on. Nothing catches an allocation that fails, or a stack that is used up: Rust aborts, and in the
/// signal's handler the reason can still be given.
pub fn apply(memory_bytes: u64) -> io::Result<()> {
    for signal in [libc::SIGABRT, libc::SIGXCPU] {
        // SAFETY: the structure is whole, and the handler does only what a handler may. It runs on the signal stack, which a thread of
        // Rust's has, because the abort may come of a stack without room.
        let set = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = exceeded as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigaction(signal, &action, std::ptr::null_mut())
        };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // The hard limit of CPU time lies above the soft one, whose signal can still say why.
    for (name, resource, most, grace) in [
        ("CPU time", libc::RLIMIT_CPU, CPU_SECONDS, 1),
        ("memory", libc::RLIMIT_AS, memory_bytes, 0),
        ("open files", libc::RLIMIT_NOFILE, FILES, 0),
        ("core dumps", libc::RLIMIT_CORE, 0, 0),
    ] {
        let failed = || io::Error::other(format!("{name}: {}", io::Error::last_os_error()));
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a whole structure that lives through the call, and the resources are real ones.
        if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
            return Err(failed());
        }
        // Whoever started this may have set a narrower one.
        let most = most.min(limit.rlim_cur);
        limit = libc::rlimit { rlim_cur: most, rlim_max: limit.rlim_max.min(most + grace) };
        // SAFETY: as above.
        if unsafe { libc::setrlimit(resource, &limit) } != 0 {
            return Err(failed());
        }
    }
    Ok(())
}
