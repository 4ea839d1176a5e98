// SPDX-License-Identifier: Apache-2.0
//! What registers and queues hold.

use std::fmt;

/// Bytes of a text value, of a key, or of the name of a process.
pub const TEXT_BYTES_MAX: usize = 256;

/// A value. Two are the same when they are equal; nothing else of them matters.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// Nothing: what a register holds before the first write, and what an empty queue gives.
    #[default]
    Nothing,
    /// A number.
    Number(i64),
    /// A text.
    Text(Box<str>),
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

/// As in JSON, with every character that is not printable escaped.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("null"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "\"{}\"", text.escape_debug()),
        }
    }
}
