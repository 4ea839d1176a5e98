// SPDX-License-Identifier: AGPL-3.0-or-later
//! What counts as a bug.

use serde::{Deserialize, Serialize};

/// What went wrong. Text that came from a guest is kept as it is and must be escaped where it is shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ViolationKind {
    /// An `always`, `always_or_unreachable` or `unreachable` assertion failed.
    Assertion {
        /// The property's message.
        message: String,
        /// Where: `package/file:line`.
        site: String,
        /// JSON text from the guest, or empty.
        details: String,
    },
    /// Two values were reported for one key of an `assert_agree!`.
    Disagreement {
        /// The assertion's namespace.
        namespace: String,
        /// The key, as hexadecimal digits.
        key: String,
        /// The VM that bound the key.
        first_vm: u16,
        /// The beginning of the value that was bound, as hexadecimal digits.
        first_value: String,
        /// The beginning of the other value, as hexadecimal digits.
        value: String,
    },
    /// The guest kernel panicked.
    GuestPanic {
        /// The console line that says so, or empty.
        hint: String,
    },
    /// The workload ended with a code other than 0, or by a signal.
    WorkloadExited {
        /// Exit code, or the signal's number.
        code: u8,
        /// Whether it was a signal.
        signalled: bool,
    },
    /// The VM ended although nobody asked it to: triple fault, reset, power-off without a word from the workload, or
    /// something this CPU model does not define.
    GuestShutdown {
        /// How.
        how: String,
    },
}

/// A violation and its moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// What.
    pub kind: ViolationKind,
    /// Which VM reported it.
    pub vm: u16,
    /// Guest ns of the VM when it was reported.
    pub guest_ns: u64,
    /// The same moment in cluster ns.
    pub cluster_ns: u64,
    /// The VM's instructions at that moment.
    pub instructions: u64,
}

impl ViolationKind {
    /// Name of the kind.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Assertion { .. } => "assertion",
            Self::Disagreement { .. } => "disagreement",
            Self::GuestPanic { .. } => "guest_panic",
            Self::WorkloadExited { .. } => "workload_exited",
            Self::GuestShutdown { .. } => "guest_shutdown",
        }
    }

    /// What makes two violations the same bug: the property, without values, VMs or times.
    #[must_use]
    pub fn signature(&self) -> String {
        match self {
            Self::Assertion { message, .. } => format!("assertion: {message}"),
            Self::Disagreement { namespace, .. } => format!("disagreement: {namespace}"),
            Self::GuestPanic { .. } => "guest_panic".to_owned(),
            Self::WorkloadExited { code, signalled: false } => format!("workload_exited: code {code}"),
            Self::WorkloadExited { code, signalled: true } => format!("workload_exited: signal {code}"),
            Self::GuestShutdown { how } => format!("guest_shutdown: {how}"),
        }
    }
}
