// SPDX-License-Identifier: Apache-2.0
//! What nodes say to each other, and how it travels: length u32, checksum u64 of the payload, payload; little-endian.

use crate::bytes::{Reader, checksum};
use crate::log::{Command, Entry, Index, NodeId, Term};

/// Bytes before a payload.
pub const HEADER_BYTES: usize = 12;
/// Bytes of a payload: a full `Append` has about 2 KiB.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 16;
/// Entries in one `Append`.
pub const ENTRIES_MAX: usize = 64;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first on a connection: who called.
    Hello { node: NodeId },
    /// A candidate asks for a vote.
    RequestVote { term: Term, last_index: Index, last_term: Term },
    /// The answer.
    Vote { term: Term, granted: bool },
    /// A leader's entries, or none as a heartbeat.
    Append { term: Term, previous_index: Index, previous_term: Term, commit: Index, entries: Vec<Entry> },
    /// The answer: up to where the logs match, or where the leader should look for a match.
    Appended { term: Term, success: bool, index: Index },
    /// A client's command, on its way to the leader.
    Forward { command: Command },
}

impl Message {
    /// Appends the framed message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + HEADER_BYTES, 0);
        self.encode_payload(out);
        let payload = &out[start + HEADER_BYTES..];
        let (bytes, sum) = (payload.len() as u32, checksum(payload));
        out[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
        out[start + 4..start + HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    }

    fn encode_payload(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { node } => {
                out.push(1);
                out.extend(node.to_le_bytes());
            }
            Self::RequestVote { term, last_index, last_term } => {
                out.push(2);
                put_words(out, &[*term, *last_index, *last_term]);
            }
            Self::Vote { term, granted } => {
                out.push(3);
                put_words(out, &[*term]);
                out.push((*granted).into());
            }
            Self::Append { term, previous_index, previous_term, commit, entries } => {
                out.push(4);
                put_words(out, &[*term, *previous_index, *previous_term, *commit]);
                out.push(entries.len() as u8);
                entries.iter().for_each(|entry| put_entry(out, entry));
            }
            Self::Appended { term, success, index } => {
                out.push(5);
                put_words(out, &[*term, *index]);
                out.push((*success).into());
            }
            Self::Forward { command } => {
                out.push(6);
                put_command(out, command);
            }
        }
    }

    /// Takes the first whole message off `bytes`: `Ok(None)` when more bytes are needed, `Err` when they are no message.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Garbled> {
        let mut header = Reader::new(bytes);
        let (Some(length), Some(sum)) = (header.u32(), header.u64()) else { return Ok(None) };
        let length = length as usize;
        if length > PAYLOAD_BYTES_MAX {
            return Err(Garbled);
        }
        let Some(payload) = bytes.get(HEADER_BYTES..HEADER_BYTES + length) else { return Ok(None) };
        if checksum(payload) != sum {
            return Err(Garbled);
        }
        let mut reader = Reader::new(payload);
        let message = Self::decode_payload(&mut reader).filter(|_| reader.is_empty()).ok_or(Garbled)?;
        Ok(Some((message, HEADER_BYTES + length)))
    }

    fn decode_payload(r: &mut Reader<'_>) -> Option<Self> {
        Some(match r.u8()? {
            1 => Self::Hello { node: r.u32()? },
            2 => Self::RequestVote { term: r.u64()?, last_index: r.u64()?, last_term: r.u64()? },
            3 => Self::Vote { term: r.u64()?, granted: r.bool()? },
            4 => {
                let (term, previous_index, previous_term, commit) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
                let count = usize::from(r.u8()?);
                if count > ENTRIES_MAX {
                    return None;
                }
                let entries = (0..count).map(|_| entry(r)).collect::<Option<_>>()?;
                Self::Append { term, previous_index, previous_term, commit, entries }
            }
            5 => Self::Appended { term: r.u64()?, index: r.u64()?, success: r.bool()? },
            6 => Self::Forward { command: command(r)? },
            _ => return None,
        })
    }
}

/// The bytes are no message: the connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbled;

fn put_words(out: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
}

/// Writes an entry as it also stands on disk.
pub fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    out.extend(entry.term.to_le_bytes());
    put_command(out, &entry.command);
}

fn put_command(out: &mut Vec<u8>, command: &Command) {
    match *command {
        Command::Nothing => out.push(0),
        Command::Add { client, number, value } => {
            out.push(1);
            out.extend(client.to_le_bytes());
            put_words(out, &[number, value]);
        }
    }
}

/// Reads an entry.
pub fn entry(r: &mut Reader<'_>) -> Option<Entry> {
    Some(Entry { term: r.u64()?, command: command(r)? })
}

fn command(r: &mut Reader<'_>) -> Option<Command> {
    match r.u8()? {
        0 => Some(Command::Nothing),
        1 => Some(Command::Add { client: r.u32()?, number: r.u64()?, value: r.u64()? }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Message> {
        let add = Command::Add { client: 1, number: 7, value: u64::MAX };
        let entries = vec![Entry { term: 1, command: Command::Nothing }, Entry { term: 2, command: add }];
        vec![
            Message::Hello { node: 2 },
            Message::RequestVote { term: 3, last_index: 9, last_term: 2 },
            Message::Vote { term: 3, granted: true },
            Message::Append { term: 3, previous_index: 4, previous_term: 2, commit: 1, entries },
            Message::Appended { term: 3, success: false, index: 12 },
            Message::Forward { command: add },
        ]
    }

    #[test]
    fn messages_survive_a_stream_cut_anywhere() {
        let mut stream = Vec::new();
        samples().iter().for_each(|message| message.encode(&mut stream));
        let mut decoded = Vec::new();
        let mut buffer = Vec::new();
        for byte in stream {
            buffer.push(byte);
            while let Some((message, bytes)) = Message::decode(&buffer).unwrap() {
                buffer.drain(..bytes);
                decoded.push(message);
            }
        }
        assert_eq!(decoded, samples());
        assert!(buffer.is_empty());
    }

    #[test]
    fn every_flipped_bit_of_a_payload_is_noticed() {
        for message in samples() {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            for bit in HEADER_BYTES * 8..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Message::decode(&flipped), Err(Garbled), "{message:?} bit {bit}");
            }
        }
    }
}
