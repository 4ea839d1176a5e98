// SPDX-License-Identifier: AGPL-3.0-or-later
//! Canonical CBOR: the core deterministic encoding of RFC 8949, 4.2.1.
//!
//! Shortest integers and lengths, definite lengths, map keys sorted by their encoded bytes, no floats. `ciborium` writes the
//! first two of its own; the keys are sorted here. Readers check by encoding again what they decoded.

use ciborium::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::json::first_difference;

/// Nesting that a document may have.
const DEPTH_MAX: usize = 64;

/// Why a value has no canonical form, or why bytes are not canonical.
#[derive(Debug, thiserror::Error)]
pub enum CborError {
    /// Not CBOR, or not the expected shape.
    #[error("{0}")]
    Shape(String),
    /// A float somewhere.
    #[error("a floating-point value, which no document has")]
    Float,
    /// Bytes after the end of the value.
    #[error("{0} bytes follow the end of the document")]
    Trailing(usize),
    /// The bytes decode, but are not the canonical spelling of what they say.
    #[error("not canonical: byte {offset} differs from the canonical form (RFC 8949, 4.2.1)")]
    NotCanonical {
        /// First byte that differs.
        offset: usize,
    },
}

/// The canonical bytes of a value.
pub fn to_canonical<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CborError> {
    let mut value = Value::serialized(value).map_err(|error| CborError::Shape(error.to_string()))?;
    sort(&mut value)?;
    let mut out = Vec::new();
    ciborium::into_writer(&value, &mut out).map_err(|error| CborError::Shape(error.to_string()))?;
    Ok(out)
}

/// Decodes `bytes` and checks that they are the canonical form.
pub fn from_canonical<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CborError> {
    value_from_canonical(bytes)?.deserialized().map_err(|error| CborError::Shape(error.to_string()))
}

/// As [`from_canonical`], for a value of no particular shape.
pub fn value_from_canonical(mut bytes: &[u8]) -> Result<Value, CborError> {
    let whole = bytes;
    let decoded: Result<Value, _> = ciborium::de::from_reader_with_recursion_limit(&mut bytes, DEPTH_MAX);
    let mut value = decoded.map_err(|error| CborError::Shape(error.to_string()))?;
    if !bytes.is_empty() {
        return Err(CborError::Trailing(bytes.len()));
    }
    sort(&mut value)?;
    let mut again = Vec::with_capacity(whole.len());
    ciborium::into_writer(&value, &mut again).map_err(|error| CborError::Shape(error.to_string()))?;
    match first_difference(whole, &again) {
        None => Ok(value),
        Some(offset) => Err(CborError::NotCanonical { offset }),
    }
}

/// Sorts the keys of every map by their encoded bytes and refuses floats.
pub(crate) fn sort(value: &mut Value) -> Result<(), CborError> {
    match value {
        Value::Float(_) => Err(CborError::Float),
        Value::Array(items) => items.iter_mut().try_for_each(sort),
        Value::Tag(_, inner) => sort(inner),
        Value::Map(fields) => {
            for (key, item) in fields.iter_mut() {
                sort(key)?;
                sort(item)?;
            }
            fields.sort_by_cached_key(|(key, _)| {
                let mut bytes = Vec::new();
                // Writing to memory cannot fail.
                let _ = ciborium::into_writer(key, &mut bytes);
                bytes
            });
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        zeta: u64,
        b: Vec<u8>,
        alpha: Option<u128>,
        map: BTreeMap<u64, String>,
    }

    fn sample() -> Sample {
        let map = [(500, "x".to_owned()), (3, "y".to_owned())].into();
        Sample { zeta: 23, b: vec![1, 24], alpha: Some(1 << 70), map }
    }

    #[test]
    fn keys_are_sorted_by_their_encoding() {
        let bytes = to_canonical(&sample()).unwrap();
        // A map of four; "b" (length 1) first, then "map", "zeta", "alpha".
        let expected =
            b"\xa4\x61b\x82\x01\x18\x18\x63map\xa2\x03\x61y\x19\x01\xf4\x61x\x64zeta\x17\x65alpha\xc2\x49\x40";
        assert_eq!(&bytes[..expected.len()], expected);
        assert_eq!(from_canonical::<Sample>(&bytes).unwrap(), sample());
    }

    #[test]
    fn other_spellings_floats_and_trailing_bytes_are_refused() {
        let bytes = to_canonical(&7u64).unwrap();
        assert_eq!(bytes, [7]);
        assert!(matches!(from_canonical::<u64>(&[0x18, 7]), Err(CborError::NotCanonical { offset: 0 })));
        assert!(matches!(from_canonical::<u64>(&[7, 7]), Err(CborError::Trailing(1))));
        assert!(matches!(to_canonical(&1.5f64), Err(CborError::Float)));
        // An indefinite-length array.
        assert!(from_canonical::<Vec<u64>>(&[0x9f, 1, 0xff]).is_err());
        let swapped = b"\xa2\x61b\x01\x61a\x02";
        assert!(from_canonical::<BTreeMap<String, u64>>(swapped).is_err());
    }

    #[test]
    fn a_huge_stated_length_allocates_nothing() {
        assert!(from_canonical::<Vec<u64>>(&[0x9b, 0x7f, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(from_canonical::<crate::Bytes>(&[0x5b, 0x7f, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(from_canonical::<String>(&[0x7b, 0x7f, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(from_canonical::<Vec<u64>>(&[0x81; 100_000]).is_err());
    }
}
