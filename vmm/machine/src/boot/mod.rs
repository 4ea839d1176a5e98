// SPDX-License-Identifier: AGPL-3.0-or-later
//! Placing a kernel in memory and the CPU at its 64-bit entry point.

/// Why a guest cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The file is not a kernel that this machine boots.
    #[error("kernel: {found}: expected an x86-64 ELF vmlinux or a bzImage with a 64-bit entry point")]
    NotAKernel {
        /// What the file is.
        found: String,
    },
    /// Kernel, initrd or command line do not fit.
    #[error("{what}: {bytes} bytes do not fit: {limit}")]
    TooLarge {
        /// Which part.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The limit it breaks.
        limit: String,
    },
}
