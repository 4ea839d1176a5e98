// SPDX-License-Identifier: AGPL-3.0-or-later
//! How the KVM engine can fail.

/// A failure of KVM or of the host, never of the guest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvmError {
    /// The host does not have what was asked for. Nothing has run.
    #[error("{0}")]
    HostLacks(String),
    /// This KVM does not behave like a CPU, and nobody said that it may be used all the same.
    #[error("this host's kvm is not faithful: {}; --allow-unfaithful-kvm uses it all the same", .0.join("; "))]
    Unfaithful(Vec<String>),
    /// A call to KVM failed.
    #[error("kvm: {call}: {why}")]
    Call {
        /// Which.
        call: &'static str,
        /// The host's reason.
        why: String,
    },
    /// KVM left the guest for a reason that this engine never asked for.
    #[error("kvm: unexpected exit {what} at {rip:#x}")]
    UnexpectedExit {
        /// Its name or number.
        what: String,
        /// Where the guest stood.
        rip: u64,
    },
    /// The guest may have progressed in a way that was not counted.
    #[error("kvm: progress without exact evidence at {rip:#x}: {why}")]
    Inexact {
        /// Where the step began.
        rip: u64,
        /// What was seen.
        why: String,
    },
    /// This KVM runs next to nothing of what the guest executes.
    #[error(
        "kvm: {instructions} instructions in a row up to {rip:#x} are none that this host's kvm knows; --engine exact runs them"
    )]
    NotEmulated {
        /// Where the guest stood.
        rip: u64,
        /// How many.
        instructions: u32,
    },
    /// The guest ran for too long without an exit. It says nothing about the guest: only that nobody waited longer.
    #[error("the watchdog ended a run without an exit after {seconds} s; by exits, a busy guest is never preempted")]
    Watchdog {
        /// How long was waited, at least.
        seconds: u64,
    },
}

/// Names the call of a failed ioctl.
pub(super) fn call<T>(call: &'static str, result: Result<T, kvm_ioctls::Error>) -> Result<T, KvmError> {
    result.map_err(|error| KvmError::Call { call, why: error.to_string() })
}
