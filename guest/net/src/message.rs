// SPDX-License-Identifier: Apache-2.0
//! Frames and what they hold.
//!
//! A frame is its payload's length (u32), the payload's checksum (u64) and the payload; all numbers are little-endian. A request:
//! `life` u64, `client` u64, `number` u64, call u8, register u8, two i64. An answer: `number` u64, status u8, `life`, `version`, `applied` u64,
//! value i64. A stream is announced by a request and follows it as raw bytes.

use std::io::{self, Read, Write};

/// Bytes of a payload; ours are shorter.
const PAYLOAD_BYTES_MAX: u32 = 256;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Who are you? Answers with the server's life.
    Hello,
    Read,
    Write(i64),
    CompareAndSet {
        expected: i64,
        new: i64,
    },
    /// So many bytes follow, made from this seed.
    Stream {
        seed: i64,
        bytes: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The server's life that the client means; 0 with a hello.
    pub life: u64,
    /// The client's own number, another one at each start.
    pub client: u64,
    /// Counts the client's requests; one that is sent again has the number it had.
    pub number: u64,
    pub register: u8,
    pub call: Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Done = 1,
    /// A compare-and-set that found another value.
    Refused = 2,
    /// The server is another one than the client meant; nothing was done.
    OtherLife = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub number: u64,
    pub status: Status,
    pub life: u64,
    /// How often the register was written.
    pub version: u64,
    /// What the register holds; of a stream the sum of its bytes.
    pub value: i64,
    /// Requests of this client that the server has applied.
    pub applied: u64,
}

impl Request {
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (call, a, b) = match self.call {
            Call::Hello => (0, 0, 0),
            Call::Read => (1, 0, 0),
            Call::Write(value) => (2, value, 0),
            Call::CompareAndSet { expected, new } => (3, expected, new),
            Call::Stream { seed, bytes } => (4, seed, i64::from(bytes)),
        };
        let numbers = [self.life, self.client, self.number].map(u64::to_le_bytes).concat();
        write_frame(to, &[&numbers[..], &[call, self.register], &a.to_le_bytes(), &b.to_le_bytes()].concat())
    }

    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let payload = read_frame(from)?;
        let mut rest = Fields(&payload);
        let (life, client, number) = (rest.u64()?, rest.u64()?, rest.u64()?);
        let (call, register, a, b) = (rest.u8()?, rest.u8()?, rest.u64()? as i64, rest.u64()? as i64);
        let call = match call {
            0 => Call::Hello,
            1 => Call::Read,
            2 => Call::Write(a),
            3 => Call::CompareAndSet { expected: a, new: b },
            4 => Call::Stream { seed: a, bytes: u32::try_from(b).map_err(|_| bad("a stream that is too long"))? },
            _ => return Err(bad("no such call")),
        };
        Ok(Self { life, client, number, register, call })
    }
}

impl Answer {
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let numbers = [self.life, self.version, self.applied].map(u64::to_le_bytes).concat();
        let head = self.number.to_le_bytes();
        write_frame(to, &[&head[..], &[self.status as u8], &numbers, &self.value.to_le_bytes()].concat())
    }

    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let payload = read_frame(from)?;
        let mut rest = Fields(&payload);
        let number = rest.u64()?;
        let status = match rest.u8()? {
            1 => Status::Done,
            2 => Status::Refused,
            3 => Status::OtherLife,
            _ => return Err(bad("no such status")),
        };
        let (life, version, applied, value) = (rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()? as i64);
        Ok(Self { number, status, life, version, value, applied })
    }
}

/// Byte `index` of the stream of this seed.
pub fn stream_byte(seed: i64, index: u32) -> u8 {
    let mixed = (seed as u64 ^ u64::from(index / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (8 * (index % 8))) as u8
}

fn write_frame(to: &mut impl Write, payload: &[u8]) -> io::Result<()> {
    let length = (payload.len() as u32).to_le_bytes();
    // One write a frame: half a frame is what a connection that breaks leaves, nothing else.
    to.write_all(&[&length[..], &checksum(payload).to_le_bytes(), payload].concat())
}

fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = [0; 12];
    from.read_exact(&mut head)?;
    let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes"));
    if length > PAYLOAD_BYTES_MAX {
        return Err(bad("a frame that is too long"));
    }
    let mut payload = vec![0; length as usize];
    from.read_exact(&mut payload)?;
    if checksum(&payload).to_le_bytes() != head[4..] {
        return Err(bad("a frame with a wrong checksum"));
    }
    Ok(payload)
}

/// FNV-1a, 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u8(&mut self) -> io::Result<u8> {
        let (first, rest) = self.0.split_first().ok_or_else(|| bad("a frame that is too short"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn u64(&mut self) -> io::Result<u64> {
        let (first, rest) = self.0.split_first_chunk().ok_or_else(|| bad("a frame that is too short"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*first))
    }
}
