// SPDX-License-Identifier: AGPL-3.0-or-later
//! The JSON view of a CBOR document: what a contract can say something about, and small however large the document is.
//!
//! A byte string becomes `{"bytes": length}`, with its digits in `hex` up to 32 bytes. A list becomes `{"items": length,
//! "shown": [...]}` with at most the first and the last 32 items. Everything else is as it is.

use ciborium::Value as Cbor;
use serde_json::{Map, Value as Json, json};

use crate::cbor::{self, CborError};

/// Items shown at each end of a list.
const SHOWN: usize = 32;
/// Bytes whose digits are shown.
const HEX: usize = 32;

/// The view of canonical CBOR, as JSON bytes.
pub fn view(bytes: &[u8]) -> Result<Vec<u8>, CborError> {
    let value = cbor::value_from_canonical(bytes)?;
    let json = show(&value)?;
    serde_json::to_vec(&json).map_err(|error| CborError::Shape(error.to_string()))
}

fn show(value: &Cbor) -> Result<Json, CborError> {
    Ok(match value {
        Cbor::Null => Json::Null,
        Cbor::Bool(switch) => Json::Bool(*switch),
        Cbor::Text(text) => Json::String(text.clone()),
        Cbor::Integer(integer) => {
            let wide = i128::from(*integer);
            match (u64::try_from(wide), i64::try_from(wide)) {
                (Ok(number), _) => json!(number),
                (_, Ok(number)) => json!(number),
                _ => return Err(CborError::Shape(format!("integer {wide} is out of range"))),
            }
        }
        Cbor::Bytes(bytes) if bytes.len() <= HEX => {
            json!({"bytes": bytes.len(), "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()})
        }
        Cbor::Bytes(bytes) => json!({"bytes": bytes.len()}),
        Cbor::Array(items) => {
            let tail = items.len().saturating_sub(SHOWN).max(SHOWN.min(items.len()));
            let shown = items[..SHOWN.min(items.len())].iter().chain(&items[tail..]);
            json!({"items": items.len(), "shown": shown.map(show).collect::<Result<Vec<Json>, _>>()?})
        }
        Cbor::Map(fields) => {
            let mut map = Map::new();
            for (key, item) in fields {
                let key = key.as_text().ok_or_else(|| CborError::Shape("a key is no text".to_owned()))?;
                // No document has such fields, and a view with them could not be told from one of bytes or of a list.
                if key == "bytes" || key == "items" {
                    return Err(CborError::Shape(format!("no document has a field {key}")));
                }
                map.insert(key.to_owned(), show(item)?);
            }
            Json::Object(map)
        }
        _ => return Err(CborError::Shape("a tag or a float".to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_parts_are_shown_by_their_length_and_their_ends() {
        let list: Vec<Cbor> = (0..100u32).map(Cbor::from).collect();
        let value = Cbor::Map(vec![
            ("a".into(), Cbor::Array(list)),
            ("b".into(), Cbor::Bytes(vec![7; 33])),
            ("c".into(), Cbor::Bytes(vec![255, 0])),
            ("d".into(), u64::MAX.into()),
        ]);
        let json: Json = serde_json::from_slice(&view(&cbor::to_canonical(&value).unwrap()).unwrap()).unwrap();
        assert_eq!(json["a"]["items"], 100);
        let shown: Vec<u64> =
            json["a"]["shown"].as_array().unwrap().iter().map(|item| item.as_u64().unwrap()).collect();
        assert_eq!(shown, (0..32).chain(68..100).collect::<Vec<u64>>());
        assert_eq!(json["b"], json!({"bytes": 33}));
        assert_eq!(json["c"], json!({"bytes": 2, "hex": "ff00"}));
        assert_eq!(json["d"], json!(u64::MAX));
    }

    #[test]
    fn short_lists_are_shown_whole() {
        for length in [0u32, 1, 31, 32, 33, 63, 64] {
            let list = Cbor::Array((0..length).map(Cbor::from).collect());
            let json = show(&list).unwrap();
            let shown: Vec<u64> = json["shown"].as_array().unwrap().iter().map(|i| i.as_u64().unwrap()).collect();
            assert_eq!(shown, (0..u64::from(length)).collect::<Vec<u64>>());
        }
    }
}
