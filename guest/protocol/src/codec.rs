// SPDX-License-Identifier: Apache-2.0
//! Bounded little-endian writing and reading. Text is a u16 length and UTF-8 bytes; bytes are the same without the UTF-8.

use core::fmt;

/// Why a record cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// A field is longer than its bound.
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its bytes.
        bytes: usize,
        /// Bytes allowed.
        bytes_max: usize,
    },
    /// The output buffer is too small for the record.
    NoRoom,
    /// A field's value is outside its range.
    OutOfRange {
        /// Which field.
        field: &'static str,
    },
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { field, bytes, bytes_max } => {
                write!(f, "{field} has {bytes} bytes, at most {bytes_max} are allowed")
            }
            Self::NoRoom => f.write_str("the output buffer is too small for the record"),
            Self::OutOfRange { field } => write!(f, "{field} is out of range"),
        }
    }
}

impl core::error::Error for EncodeError {}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The record ends inside a field.
    Truncated {
        /// Which field.
        field: &'static str,
    },
    /// Bytes are left after the last field.
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A field is longer than its bound.
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its bytes.
        bytes: usize,
        /// Bytes allowed.
        bytes_max: usize,
    },
    /// A text is not UTF-8.
    NotText {
        /// Which field.
        field: &'static str,
    },
    /// A field's value is outside its range.
    OutOfRange {
        /// Which field.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// No record has this kind.
    UnknownKind(u8),
    /// The record has another version of the encoding.
    Version(u8),
    /// Reserved bytes are not zero.
    Reserved,
    /// The positions of a ring are impossible: unaligned, or further apart than the ring is long.
    Ring {
        /// Position of the writer.
        head: u32,
        /// Position of the reader.
        tail: u32,
    },
    /// A record reaches past what was written.
    PastHead {
        /// Bytes the record claims.
        bytes: usize,
        /// Bytes that are there.
        available: usize,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { field } => write!(f, "the record ends inside {field}"),
            Self::Trailing { bytes } => write!(f, "{bytes} bytes are left after the last field"),
            Self::TooLong { field, bytes, bytes_max } => {
                write!(f, "{field} has {bytes} bytes, at most {bytes_max} are allowed")
            }
            Self::NotText { field } => write!(f, "{field} is not utf-8"),
            Self::OutOfRange { field, value } => write!(f, "{field} is out of range: {value}"),
            Self::UnknownKind(kind) => write!(f, "no record has kind {kind}"),
            Self::Version(version) => {
                write!(f, "record version {version}, but version {} is expected", crate::VERSION)
            }
            Self::Reserved => f.write_str("reserved bytes are not zero"),
            Self::Ring { head, tail } => write!(f, "impossible ring positions: head {head}, tail {tail}"),
            Self::PastHead { bytes, available } => {
                write!(f, "a record claims {bytes} bytes, but only {available} were written")
            }
        }
    }
}

impl core::error::Error for DecodeError {}

/// Writes fields into a buffer.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    pub(crate) fn written(&self) -> usize {
        self.at
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let end = self.at.checked_add(bytes.len()).ok_or(EncodeError::NoRoom)?;
        self.out.get_mut(self.at..end).ok_or(EncodeError::NoRoom)?.copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }

    pub(crate) fn u8(&mut self, value: u8) -> Result<(), EncodeError> {
        self.raw(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> Result<(), EncodeError> {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> Result<(), EncodeError> {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> Result<(), EncodeError> {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn bytes(&mut self, field: &'static str, bytes: &[u8], bytes_max: usize) -> Result<(), EncodeError> {
        if bytes.len() > bytes_max {
            return Err(EncodeError::TooLong { field, bytes: bytes.len(), bytes_max });
        }
        // Every bound fits a u16: they are all below `PAYLOAD_BYTES_MAX`.
        self.u16(bytes.len() as u16)?;
        self.raw(bytes)
    }
}

/// Reads fields from hostile bytes.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { bytes: self.rest.len() }) }
    }

    fn take(&mut self, field: &'static str, bytes: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(DecodeError::Truncated { field })?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(field, N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::OutOfRange { field, value: value.into() }),
        }
    }

    pub(crate) fn bytes(&mut self, field: &'static str, bytes_max: usize) -> Result<&'a [u8], DecodeError> {
        let bytes = usize::from(self.u16(field)?);
        if bytes > bytes_max {
            return Err(DecodeError::TooLong { field, bytes, bytes_max });
        }
        self.take(field, bytes)
    }

    pub(crate) fn text(&mut self, field: &'static str, bytes_max: usize) -> Result<&'a str, DecodeError> {
        core::str::from_utf8(self.bytes(field, bytes_max)?).map_err(|_| DecodeError::NotText { field })
    }
}
