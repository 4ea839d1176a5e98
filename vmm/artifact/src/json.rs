// SPDX-License-Identifier: AGPL-3.0-or-later
//! Canonical JSON: RFC 8785 restricted to integers.
//!
//! No white space, object keys sorted by UTF-16 code units (RFC 8785, 3.2.3), strings escaped minimally (3.2.2.2), numbers
//! only as integers of at most 2^53 - 1 in magnitude. Wider values are text (see [`crate::U64`]), fractions do not exist.

use serde::Serialize;
use serde_json::Value;

/// The largest integer that every JSON reader holds exactly: 2^53 - 1 (RFC 8785, 3.2.2.3).
pub const INTEGER_MAX: u64 = (1 << 53) - 1;

/// Nesting that a document may have; deeper ones are refused before anything recurses into them.
pub const DEPTH_MAX: usize = 64;

/// Why a value has no canonical form, or why bytes are not canonical.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Not JSON, or not the expected shape.
    #[error("{0}")]
    Shape(#[from] serde_json::Error),
    /// A number that is not an integer within +-(2^53 - 1).
    #[error("number {0} is not an integer within 2^53 - 1: 64-bit values are written as text")]
    Number(String),
    /// Nested too deeply.
    #[error("nested deeper than {DEPTH_MAX} levels")]
    Depth,
    /// The bytes parse, but are not the canonical spelling of what they say.
    #[error("not canonical: byte {offset} differs from the canonical form (RFC 8785, integers only)")]
    NotCanonical {
        /// First byte that differs.
        offset: usize,
    },
}

/// The canonical bytes of a value.
pub fn to_canonical<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, JsonError> {
    let value = serde_json::to_value(value)?;
    let mut out = Vec::new();
    write(&value, &mut out, 0)?;
    Ok(out)
}

/// Checks that `bytes` are canonical and returns the value they hold.
pub fn from_canonical(bytes: &[u8]) -> Result<Value, JsonError> {
    let value: Value = serde_json::from_slice(bytes)?;
    let mut again = Vec::with_capacity(bytes.len());
    write(&value, &mut again, 0)?;
    match first_difference(bytes, &again) {
        None => Ok(value),
        Some(offset) => Err(JsonError::NotCanonical { offset }),
    }
}

/// The first offset at which two byte strings differ.
pub(crate) fn first_difference(left: &[u8], right: &[u8]) -> Option<usize> {
    match left.iter().zip(right).position(|(a, b)| a != b) {
        Some(offset) => Some(offset),
        None if left.len() == right.len() => None,
        None => Some(left.len().min(right.len())),
    }
}

fn write(value: &Value, out: &mut Vec<u8>, depth: usize) -> Result<(), JsonError> {
    if depth > DEPTH_MAX {
        return Err(JsonError::Depth);
    }
    match value {
        Value::Null | Value::Bool(_) => out.extend_from_slice(value.to_string().as_bytes()),
        Value::String(text) => write_text(text, out)?,
        Value::Number(number) => {
            let small = number.as_i64().map(i64::unsigned_abs).or(number.as_u64());
            if small.is_none_or(|magnitude| magnitude > INTEGER_MAX) {
                return Err(JsonError::Number(number.to_string()));
            }
            out.extend_from_slice(number.to_string().as_bytes());
        }
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(item, out, depth + 1)?;
            }
            out.push(b']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.push(b'{');
            for (index, (key, item)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_text(key, out)?;
                out.push(b':');
                write(item, out, depth + 1)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

/// `serde_json` escapes exactly what RFC 8785 asks for: the two-character escapes and lower-case `\u00xx` for the other
/// controls, nothing else.
fn write_text(text: &str, out: &mut Vec<u8>) -> Result<(), JsonError> {
    serde_json::to_writer(&mut *out, text)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_sort_by_utf16_code_units() {
        // U+FB33 sorts before U+1F600 by scalar value, but after it by UTF-16 code unit (RFC 8785, 3.2.3).
        let value = json!({"\u{fb33}": 1, "\u{1f600}": 2, "\r": 3, "1": 4, "\u{80}": 5, "\u{f6}": 6, "\u{20ac}": 7});
        let text = String::from_utf8(to_canonical(&value).unwrap()).unwrap();
        assert_eq!(text, "{\"\\r\":3,\"1\":4,\"\u{80}\":5,\"\u{f6}\":6,\"\u{20ac}\":7,\"\u{1f600}\":2,\"\u{fb33}\":1}");
    }

    #[test]
    fn strings_escape_as_rfc_8785_says() {
        let text = "\u{20ac}$\u{f}\u{a}A'\u{42}\u{22}\u{5c}\\\"/\u{7f}";
        let bytes = to_canonical(text).unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), "\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\u{7f}\"");
    }

    #[test]
    fn fractions_wide_integers_and_loose_spellings_are_refused() {
        assert!(matches!(to_canonical(&json!(1.5)), Err(JsonError::Number(_))));
        assert!(matches!(to_canonical(&json!(1u64 << 53)), Err(JsonError::Number(_))));
        assert!(matches!(to_canonical(&json!(-(1i64 << 53))), Err(JsonError::Number(_))));
        assert_eq!(to_canonical(&json!(-(1i64 << 53) + 1)).unwrap(), b"-9007199254740991");
        for loose in ["{\"b\":1,\"a\":2}", "[1, 2]", "{\"a\":1,\"a\":1}", "[1.0]", "\"\\u0041\"", " 1"] {
            assert!(from_canonical(loose.as_bytes()).is_err(), "{loose}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_exhausting_the_stack() {
        let deep = "[".repeat(100_000);
        assert!(from_canonical(deep.as_bytes()).is_err());
        let deep = format!("{}{}", "[".repeat(DEPTH_MAX + 2), "]".repeat(DEPTH_MAX + 2));
        assert!(matches!(from_canonical(deep.as_bytes()), Err(JsonError::Depth)));
    }
}
