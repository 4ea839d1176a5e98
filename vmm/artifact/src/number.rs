// SPDX-License-Identifier: AGPL-3.0-or-later
//! Values that JSON cannot carry as they are: 64-bit integers (text in JSON) and byte strings (hexadecimal in JSON).

use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::nibble;

/// An unsigned 64-bit value: a decimal text in JSON, whose numbers are exact only up to 2^53 (RFC 8785, 3.2.2.3), and an
/// integer in CBOR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct U64(pub u64);

impl fmt::Display for U64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u64> for U64 {
    fn from(value: u64) -> Self {
        Self(value)
    }
}

impl From<usize> for U64 {
    fn from(value: usize) -> Self {
        Self(value as u64)
    }
}

/// Reads the one canonical spelling: digits only, no leading zero.
pub fn parse_u64(text: &str) -> Option<u64> {
    let canonical = text == "0" || (!text.starts_with('0') && text.bytes().all(|digit| digit.is_ascii_digit()));
    if canonical { text.parse().ok() } else { None }
}

impl Serialize for U64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(&self.0) } else { serializer.serialize_u64(self.0) }
    }
}

impl<'de> Deserialize<'de> for U64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl Visitor<'_> for Seen {
            type Value = U64;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an unsigned 64-bit value as decimal text")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<U64, E> {
                let bad =
                    || E::custom(format_args!("{text:?} is not an unsigned 64-bit value in plain decimal digits"));
                parse_u64(text).map(U64).ok_or_else(bad)
            }
        }
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(Seen)
        } else {
            u64::deserialize(deserializer).map(U64)
        }
    }
}

/// A byte string: hexadecimal text in JSON, a byte string in CBOR.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.0.len())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&self.0);
        }
        let mut text = String::with_capacity(self.0.len() * 2);
        for byte in &self.0 {
            text.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
            text.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl Visitor<'_> for Seen {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a byte string")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bytes, E> {
                let bad = || E::custom("a byte string in JSON is an even number of lower-case hexadecimal digits");
                if !text.len().is_multiple_of(2) {
                    return Err(bad());
                }
                let pair = |pair: &[u8]| Some(nibble(pair[0])? << 4 | nibble(pair[1])?);
                let bytes: Option<Vec<u8>> = text.as_bytes().chunks_exact(2).map(pair).collect();
                bytes.map(Bytes).ok_or_else(bad)
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
        }
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(Seen)
        } else {
            deserializer.deserialize_byte_buf(Seen)
        }
    }
}
