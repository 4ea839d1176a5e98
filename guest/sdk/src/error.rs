// SPDX-License-Identifier: Apache-2.0
//! Why a report was refused.

use chaoscontrol_protocol::EncodeError;
use core::fmt;

/// Why the SDK refused something. Nothing of what was refused reaches the host, except that an assertion's evaluation still
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SdkError {
    /// A field is longer than its bound.
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its bytes.
        bytes: usize,
        /// Bytes allowed.
        bytes_max: usize,
    },
    /// A field's value is outside its range, for instance an empty name.
    OutOfRange {
        /// Which field.
        field: &'static str,
    },
    /// The program has more assertion sites than the protocol has room for; those past the bound are not watched.
    TooManySites {
        /// Sites in the program.
        sites: usize,
        /// Sites allowed.
        sites_max: usize,
    },
    /// Every slot is held by a living process.
    NoSlot,
    /// The memory at the window's place is not a window.
    NotAWindow,
    /// The window speaks another version of the protocol.
    Version {
        /// The version found.
        found: u32,
    },
    /// The host does not answer the doorbell.
    HostSilent,
}

impl fmt::Display for SdkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { field, bytes, bytes_max } => {
                write!(f, "{field} has {bytes} bytes, at most {bytes_max} are allowed")
            }
            Self::OutOfRange { field } => write!(f, "{field} is out of range"),
            Self::TooManySites { sites, sites_max } => {
                write!(f, "the program has {sites} assertion sites, at most {sites_max} are watched")
            }
            Self::NoSlot => f.write_str("every sdk slot is held by a living process"),
            Self::NotAWindow => f.write_str("there is no sdk window at its place in memory"),
            Self::Version { found } => write!(
                f,
                "the sdk window has protocol version {found}, this program speaks {}",
                chaoscontrol_protocol::VERSION
            ),
            Self::HostSilent => f.write_str("the host does not answer the doorbell"),
        }
    }
}

impl core::error::Error for SdkError {}

impl From<EncodeError> for SdkError {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::TooLong { field, bytes, bytes_max } => Self::TooLong { field, bytes, bytes_max },
            EncodeError::OutOfRange { field } => Self::OutOfRange { field },
            // The SDK always encodes into a buffer for the longest record.
            EncodeError::NoRoom => Self::OutOfRange { field: "record" },
        }
    }
}
