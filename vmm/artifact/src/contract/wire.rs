// SPDX-License-Identifier: AGPL-3.0-or-later
//! How documents travel to `chaos-contract` and breaches back.
//!
//! ```text
//! request   "CHAOCON1"  32 bytes contract set  u32 documents
//!           each: 5 texts (kind, name, stage, digest, form), each u32 length and UTF-8; u64 length and bytes
//! response  "CHAOCON1"  32 bytes contract set  u32 breaches
//!           each: u32 index of the document, u32 length and UTF-8
//! ```
//!
//! Numbers are little-endian. Every length is held against a bound before anything is allocated for it.

use std::io::{self, Read};

use super::Breach;
use crate::Digest;
use crate::escape::clip;

const MAGIC: &[u8; 8] = b"CHAOCON1";
/// Documents of one call: far above what a stage sends.
pub const DOCUMENTS_MAX: u32 = 1 << 20;
/// Bytes of all documents of one call.
pub const BYTES_MAX: u64 = 1 << 29;
/// Bytes of one of the short texts.
const TEXT_MAX: u32 = 1 << 16;
/// Bytes of one breach's text.
pub const BREACH_MAX: u32 = 1 << 20;

/// One document on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its kind, for instance `bug`.
    pub kind: String,
    /// How messages call it: a file, `stdin`, or kind and digest.
    pub name: String,
    /// The stage that wrote it, for messages.
    pub stage: String,
    /// Its digest, by which other documents name it.
    pub digest: String,
    /// Whether the bytes are a view of CBOR.
    pub is_view: bool,
    /// JSON.
    pub bytes: Vec<u8>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, clip(text, TEXT_MAX as usize));
}

fn put_bytes(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn take<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn take_bytes(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if from.take(length).read_to_end(&mut bytes)? as u64 == length { Ok(bytes) } else { Err(bad("cut short")) }
}

fn take_text(from: &mut impl Read, max: u32) -> io::Result<String> {
    let length = u32::from_le_bytes(take(from)?);
    if length > max {
        return Err(bad("a text is too long"));
    }
    String::from_utf8(take_bytes(from, u64::from(length))?).map_err(|_| bad("a text is not UTF-8"))
}

fn take_head(from: &mut impl Read, max: u32) -> io::Result<(Digest, u32)> {
    if take::<8>(from)? != *MAGIC {
        return Err(bad("not this protocol"));
    }
    let set = Digest(take(from)?);
    let count = u32::from_le_bytes(take(from)?);
    if count > max { Err(bad("too many")) } else { Ok((set, count)) }
}

/// The bytes of a request.
pub fn request(set: Digest, items: &[Item]) -> Vec<u8> {
    let mut out = [&MAGIC[..], &set.0[..], &(items.len() as u32).to_le_bytes()[..]].concat();
    for item in items {
        let form = if item.is_view { "view" } else { "json" };
        for text in [&item.kind, &item.name, &item.stage, &item.digest, form] {
            put_text(&mut out, text);
        }
        out.extend_from_slice(&(item.bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(&item.bytes);
    }
    out
}

/// Reads a request.
pub fn read_request(from: &mut impl Read) -> io::Result<(Digest, Vec<Item>)> {
    let (set, count) = take_head(from, DOCUMENTS_MAX)?;
    let (mut items, mut left) = (Vec::new(), BYTES_MAX);
    for _ in 0..count {
        let [kind, name, stage, digest, form] = [(); 5].map(|()| take_text(from, TEXT_MAX));
        let length = u64::from_le_bytes(take(from)?);
        left = left.checked_sub(length).ok_or_else(|| bad("more bytes than one call may carry"))?;
        let bytes = take_bytes(from, length)?;
        let is_view = form? == "view";
        items.push(Item { kind: kind?, name: name?, stage: stage?, digest: digest?, is_view, bytes });
    }
    Ok((set, items))
}

/// The bytes of a response.
pub fn response(set: Digest, breaches: &[Breach]) -> Vec<u8> {
    let mut out = [&MAGIC[..], &set.0[..], &(breaches.len() as u32).to_le_bytes()[..]].concat();
    for breach in breaches {
        out.extend_from_slice(&(breach.index as u32).to_le_bytes());
        put_bytes(&mut out, clip(&breach.text, BREACH_MAX as usize));
    }
    out
}

/// Reads a response to a request of `documents` documents.
pub fn read_response(from: &mut impl Read, documents: usize) -> io::Result<(Digest, Vec<Breach>)> {
    let (set, count) = take_head(from, documents.min(DOCUMENTS_MAX as usize) as u32)?;
    let mut breaches = Vec::new();
    for _ in 0..count {
        let index = u32::from_le_bytes(take(from)?) as usize;
        if index >= documents {
            return Err(bad("a breach of a document that was not sent"));
        }
        breaches.push(Breach { index, text: take_text(from, BREACH_MAX)? });
    }
    Ok((set, breaches))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items() -> Vec<Item> {
        let item = |kind: &str, is_view, bytes: &[u8]| Item {
            kind: kind.into(),
            name: "stdin".into(),
            stage: "boot".into(),
            digest: Digest::of(bytes).to_string(),
            is_view,
            bytes: bytes.to_vec(),
        };
        vec![item("bug", false, b"{}"), item("trace", true, b"[1]")]
    }

    #[test]
    fn requests_and_responses_survive_the_pipe() {
        let set = Digest::of(b"set");
        assert_eq!(read_request(&mut &request(set, &items())[..]).unwrap(), (set, items()));
        let breaches = vec![Breach { index: 1, text: "vms\n ^".into() }];
        assert_eq!(read_response(&mut &response(set, &breaches)[..], 2).unwrap(), (set, breaches.clone()));
        assert!(read_response(&mut &response(set, &breaches)[..], 1).is_err(), "an index past the request");
    }

    #[test]
    fn every_cut_and_every_forged_length_is_an_error() {
        let whole = request(Digest::of(b"set"), &items());
        for end in 0..whole.len() {
            assert!(read_request(&mut &whole[..end]).is_err(), "cut at {end}");
        }
        for at in 40..whole.len().min(80) {
            let mut forged = whole.clone();
            forged[at] = 0xff;
            // Whatever it reads as, it ends; most are refused.
            let _ = read_request(&mut &forged[..]);
        }
    }
}
