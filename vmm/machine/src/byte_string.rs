// SPDX-License-Identifier: AGPL-3.0-or-later
//! `#[serde(with = "crate::byte_string")]` for a `Vec<u8>`: one byte string where the format has them (CBOR), a list of numbers
//! where it has not (JSON). Without it every byte is an item of its own, which makes disk and frame contents large and slow.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserializer, Serializer};

/// Most bytes that are allocated before any of them was read.
const PREALLOCATED_BYTES_MAX: usize = 1 << 16;

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_byte_buf(Bytes)
}

struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a byte string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<u8>, A::Error> {
        let mut bytes = Vec::with_capacity(items.size_hint().unwrap_or(0).min(PREALLOCATED_BYTES_MAX));
        while let Some(byte) = items.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "crate::byte_string")]
        data: Vec<u8>,
    }

    #[test]
    fn bytes_survive_a_text_format() {
        let holder = Holder { data: vec![0, 7, 255] };
        let text = serde_json::to_string(&holder).unwrap();
        assert_eq!(text, r#"{"data":[0,7,255]}"#);
        assert_eq!(serde_json::from_str::<Holder>(&text).unwrap(), holder);
        assert!(serde_json::from_str::<Holder>(r#"{"data":[256]}"#).is_err());
        assert!(serde_json::from_str::<Holder>(r#"{"data":7}"#).is_err());
    }

    #[test]
    fn bytes_survive_a_binary_format_as_one_string() {
        let holder = Holder { data: vec![200; 1000] };
        let mut encoded = Vec::new();
        ciborium::into_writer(&holder, &mut encoded).unwrap();
        assert!(encoded.len() < 1020, "{} bytes", encoded.len());
        assert_eq!(ciborium::from_reader::<Holder, _>(encoded.as_slice()).unwrap(), holder);
    }
}
