// SPDX-License-Identifier: Apache-2.0
//! The durable log: an append-only sequence of chunks on a raw disk.
//!
//! A chunk begins at a multiple of 512 bytes:
//!
//! | offset | type | what |
//! |---|---|---|
//! | 0 | u32 | "RAFT" |
//! | 4 | u32 | bytes of the payload |
//! | 8 | u64 | number of the chunk, from 1 |
//! | 16 | u64 | checksum of number and payload |
//! | 24 | bytes | payload: operations, then zeros to the end of the sector |
//!
//! Operations: 1 = term u64, vote u32 plus one or 0; 2 = truncate from u64; 3 = append index u64, entry.
//!
//! A chunk is written and flushed before the next one is begun, and nothing is said to the cluster before that. So after a
//! power cut at most the last chunk is torn, and it was never acknowledged: recovery ends before it. A whole chunk behind a
//! damaged one means that the disk lost acknowledged data; then the node does not start. A write that fails is repeated until it
//! succeeds: the node stands still meanwhile, which the protocol allows. Reads are compared, because a single one may lie.

use crate::bytes::{Reader, checksum};
use crate::core::{Durable, Persist};
use crate::message::{entry, put_entry};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

const SECTOR: usize = 512;
const MAGIC: u32 = u32::from_le_bytes(*b"RAFT");
const CHUNK_HEADER: usize = 24;
/// Bytes of a chunk; a batch of operations that needs more becomes several.
const CHUNK_BYTES_MAX: usize = 32 << 10;
/// Bytes read at once while recovering.
const WINDOW_BYTES: usize = 64 << 10;
const RETRY: Duration = Duration::from_millis(20);
/// How often a chunk that looks torn is read again before that is believed.
const REREADS: u32 = 4;
/// Alignment of buffers for direct I/O.
const ALIGN: usize = 4096;

/// Where durable state goes.
pub trait Storage: Send {
    /// Makes the operations durable, in order, before it returns.
    fn persist(&mut self, operations: &[Persist]);
}

/// Forgets everything when the process ends: for clusters inside one process.
pub struct Memory;

impl Storage for Memory {
    fn persist(&mut self, _operations: &[Persist]) {}
}

/// Why a disk cannot be used.
#[derive(Debug)]
pub enum StorageError {
    /// It cannot be opened.
    Open(io::Error),
    /// Data that was acknowledged is gone.
    Damaged {
        /// Where the first damaged chunk is.
        offset: u64,
    },
}

impl std::fmt::Display for StorageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open(error) => write!(f, "cannot open the disk: {error}"),
            Self::Damaged { offset } => {
                write!(
                    f,
                    "the disk lost data that was flushed: the chunk at byte {offset} is damaged, but a later one is whole"
                )
            }
        }
    }
}

/// A disk with a log.
pub struct Disk {
    file: File,
    bytes: u64,
    position: u64,
    number: u64,
    buffer: Aligned,
}

/// What recovery found.
pub struct Recovered {
    pub disk: Disk,
    pub durable: Durable,
    /// Whether a torn chunk was dropped.
    pub torn: bool,
}

impl Disk {
    /// Opens a disk (or a file of fixed size) and reads its log.
    pub fn open(path: &Path) -> Result<Recovered, StorageError> {
        let is_device = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
        let flags = if is_device { libc::O_DIRECT } else { 0 };
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(StorageError::Open)?;
        let bytes = io::Seek::seek(&mut &file, io::SeekFrom::End(0)).map_err(StorageError::Open)?;
        let mut disk = Self { file, bytes, position: 0, number: 0, buffer: Aligned::new(CHUNK_BYTES_MAX) };
        let (durable, torn) = disk.recover()?;
        Ok(Recovered { disk, durable, torn })
    }

    fn recover(&mut self) -> Result<(Durable, bool), StorageError> {
        let mut durable = Durable::default();
        let mut window = Window::new();
        loop {
            match self.read_chunk(&mut window) {
                Some(payload) => {
                    self.position += chunk_bytes(payload.len()) as u64;
                    self.number += 1;
                    replay(&payload, &mut durable);
                }
                None => {
                    let torn = self.check_the_rest(&mut window)?;
                    return Ok((durable, torn));
                }
            }
        }
    }

    /// The payload of the next chunk, if it is whole. What looks damaged is read again a few times.
    fn read_chunk(&self, window: &mut Window) -> Option<Vec<u8>> {
        for _ in 0..REREADS {
            let bytes = window.at(self, self.position);
            if let Some(payload) = whole_chunk(bytes, self.number + 1) {
                return Some(payload.to_vec());
            }
            if bytes.iter().take(SECTOR).all(|byte| *byte == 0) {
                return None;
            }
            window.forget();
        }
        None
    }

    /// Whether there are remains of a torn chunk; a whole later chunk is an error.
    fn check_the_rest(&self, window: &mut Window) -> Result<bool, StorageError> {
        let rest = window.at(self, self.position);
        let torn = rest.iter().take(CHUNK_BYTES_MAX).any(|byte| *byte != 0);
        let later = (0..rest.len() / SECTOR).any(|sector| {
            let bytes = &rest[sector * SECTOR..];
            let number = header(bytes).map_or(0, |(number, _)| number);
            number > self.number + 1 && whole_chunk(bytes, number).is_some()
        });
        if later { Err(StorageError::Damaged { offset: self.position }) } else { Ok(torn) }
    }

    /// Writes one chunk and flushes it, for as long as it takes.
    fn write_chunk(&mut self, payload: &[u8]) {
        let bytes = chunk_bytes(payload.len());
        let chunk = self.buffer.get(bytes);
        chunk.fill(0);
        chunk[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        chunk[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        chunk[8..16].copy_from_slice(&(self.number + 1).to_le_bytes());
        chunk[16..24].copy_from_slice(&chunk_checksum(self.number + 1, payload).to_le_bytes());
        chunk[CHUNK_HEADER..CHUNK_HEADER + payload.len()].copy_from_slice(payload);
        let mut said = false;
        if self.position + bytes as u64 > self.bytes {
            panic!("the disk is full: its log has {} of {} bytes", self.position, self.bytes);
        }
        while let Err(error) = self.file.write_all_at(chunk, self.position).and_then(|()| self.file.sync_data()) {
            if !said {
                println!("chaos-raft: writing the disk again and again: {error}");
                said = true;
            }
            std::thread::sleep(RETRY);
        }
        self.position += bytes as u64;
        self.number += 1;
    }
}

impl Storage for Disk {
    fn persist(&mut self, operations: &[Persist]) {
        let mut payload = Vec::new();
        for operation in operations {
            let before = payload.len();
            encode(operation, &mut payload);
            if CHUNK_HEADER + payload.len() > CHUNK_BYTES_MAX {
                self.write_chunk(&payload[..before]);
                payload.drain(..before);
            }
        }
        if !payload.is_empty() {
            self.write_chunk(&payload);
        }
    }
}

fn chunk_bytes(payload_bytes: usize) -> usize {
    (CHUNK_HEADER + payload_bytes).next_multiple_of(SECTOR)
}

fn chunk_checksum(number: u64, payload: &[u8]) -> u64 {
    checksum(payload) ^ checksum(&number.to_le_bytes())
}

/// Number and payload length of a chunk's header.
fn header(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut reader = Reader::new(bytes);
    if reader.u32()? != MAGIC {
        return None;
    }
    let length = reader.u32()? as usize;
    Some((reader.u64()?, length))
}

/// The payload of the chunk at the start of `bytes`, if it is whole and has this number.
fn whole_chunk(bytes: &[u8], number: u64) -> Option<&[u8]> {
    let (found, length) = header(bytes)?;
    let sum = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
    if found != number || length > CHUNK_BYTES_MAX {
        return None;
    }
    let payload = bytes.get(CHUNK_HEADER..CHUNK_HEADER + length)?;
    (chunk_checksum(number, payload) == sum).then_some(payload)
}

fn encode(operation: &Persist, out: &mut Vec<u8>) {
    match operation {
        Persist::Vote { term, voted_for } => {
            out.push(1);
            out.extend(term.to_le_bytes());
            out.extend(voted_for.map_or(0, |node| node + 1).to_le_bytes());
        }
        Persist::Truncate { from } => {
            out.push(2);
            out.extend(from.to_le_bytes());
        }
        Persist::Append { index, entry } => {
            out.push(3);
            out.extend(index.to_le_bytes());
            put_entry(out, entry);
        }
    }
}

/// Applies a chunk's operations. Its checksum held, so they are what this program wrote.
fn replay(payload: &[u8], durable: &mut Durable) {
    let mut reader = Reader::new(payload);
    while !reader.is_empty() {
        replay_one(&mut reader, durable).expect("a chunk with a right checksum has whole operations");
    }
}

fn replay_one(r: &mut Reader<'_>, durable: &mut Durable) -> Option<()> {
    match r.u8()? {
        1 => {
            durable.term = r.u64()?;
            durable.voted_for = r.u32()?.checked_sub(1);
        }
        2 => durable.log.truncate(r.u64()?),
        3 => {
            let (_index, entry) = (r.u64()?, entry(r)?);
            durable.log.push(entry);
        }
        _ => return None,
    }
    Some(())
}

/// A piece of the disk, read until two reads agree, or decided by three.
struct Window {
    first: Aligned,
    second: Aligned,
    third: Aligned,
    start: u64,
    filled: usize,
}

impl Window {
    fn new() -> Self {
        let buffer = || Aligned::new(WINDOW_BYTES);
        Self { first: buffer(), second: buffer(), third: buffer(), start: 0, filled: 0 }
    }

    fn forget(&mut self) {
        self.filled = 0;
    }

    /// The bytes from `position` on: a chunk's worth unless the disk ends.
    fn at(&mut self, disk: &Disk, position: u64) -> &[u8] {
        let end = disk.bytes.min(position + CHUNK_BYTES_MAX as u64);
        if self.filled == 0 || position < self.start || end > self.start + self.filled as u64 {
            self.start = position;
            self.filled = (disk.bytes - position).min(WINDOW_BYTES as u64) as usize / SECTOR * SECTOR;
            self.read(disk);
        }
        let from = (position - self.start) as usize;
        &self.first.get(self.filled)[from..]
    }

    fn read(&mut self, disk: &Disk) {
        let (start, bytes) = (self.start, self.filled);
        let (a, b) = (self.first.get(bytes), self.second.get(bytes));
        read_retrying(&disk.file, a, start);
        read_retrying(&disk.file, b, start);
        if a == b {
            return;
        }
        let c = self.third.get(bytes);
        read_retrying(&disk.file, c, start);
        vote(a, b, c);
    }
}

/// Makes each bit of `a` what two of the three say.
fn vote(a: &mut [u8], b: &[u8], c: &[u8]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = (*a & *b) | (*a & *c) | (*b & *c);
    }
}

fn read_retrying(file: &File, into: &mut [u8], offset: u64) {
    let mut said = false;
    while let Err(error) = file.read_exact_at(into, offset) {
        if !said {
            println!("chaos-raft: reading the disk again and again: {error}");
            said = true;
        }
        std::thread::sleep(RETRY);
    }
}

/// A buffer that direct I/O takes.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new(bytes: usize) -> Self {
        let bytes = vec![0; bytes + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start }
    }

    fn get(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Command, Entry};

    fn disk_of(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn append(index: u64) -> Persist {
        let command = Command::Add { client: 1, number: index, value: index * 3 };
        Persist::Append { index, entry: Entry { term: 2, command } }
    }

    /// A log of `chunks` chunks, of growing size.
    fn written(chunks: u64) -> (Vec<u8>, u64) {
        let file = disk_of(&[0; 256 << 10]);
        let mut disk = Disk::open(file.path()).unwrap().disk;
        let mut index = 0;
        for chunk in 1..=chunks {
            let mut operations = vec![Persist::Vote { term: chunk, voted_for: Some(chunk as u32 % 3) }];
            for _ in 0..chunk * 10 {
                index += 1;
                operations.push(append(index));
            }
            disk.persist(&operations);
        }
        (std::fs::read(file.path()).unwrap(), disk.position)
    }

    #[test]
    fn what_was_written_is_recovered() {
        let (bytes, _) = written(6);
        let file = disk_of(&bytes);
        let recovered = Disk::open(file.path()).unwrap();
        assert_eq!((recovered.durable.term, recovered.durable.voted_for), (6, Some(0)));
        assert_eq!(recovered.durable.log.last_index(), 210);
        assert!(!recovered.torn);
        let mut disk = recovered.disk;
        disk.persist(&[Persist::Truncate { from: 101 }, append(101)]);
        let again = Disk::open(file.path()).unwrap();
        assert_eq!(again.durable.log.last_index(), 101);
    }

    #[test]
    fn a_torn_last_chunk_is_dropped_wherever_it_is_torn() {
        let (bytes, end) = written(5);
        let (_, before) = written(4);
        for sector in (before..end).step_by(SECTOR) {
            let mut torn = bytes.clone();
            torn[sector as usize..end as usize].fill(0);
            let file = disk_of(&torn);
            let recovered = Disk::open(file.path()).unwrap();
            assert_eq!(recovered.durable.log.last_index(), 100, "torn at {sector}");
            assert_eq!(recovered.disk.position, before);
            // The next chunk takes the torn one's place.
            let mut disk = recovered.disk;
            disk.persist(&[append(101)]);
            assert_eq!(Disk::open(file.path()).unwrap().durable.log.last_index(), 101);
        }
    }

    #[test]
    fn damage_before_a_whole_chunk_is_refused() {
        let (mut bytes, _) = written(5);
        bytes[40] ^= 1;
        let file = disk_of(&bytes);
        assert!(matches!(Disk::open(file.path()), Err(StorageError::Damaged { offset: 0 })));
    }

    #[test]
    fn an_empty_disk_is_a_fresh_node() {
        let file = disk_of(&[0; 8192]);
        let recovered = Disk::open(file.path()).unwrap();
        assert_eq!((recovered.durable.term, recovered.durable.log.last_index()), (0, 0));
    }

    #[test]
    fn three_reads_outvote_one_flipped_bit_each() {
        let mut window = Window::new();
        let file = disk_of(&[0x5a; WINDOW_BYTES]);
        let disk = Disk {
            file: File::options().read(true).open(file.path()).unwrap(),
            bytes: WINDOW_BYTES as u64,
            position: 0,
            number: 0,
            buffer: Aligned::new(CHUNK_BYTES_MAX),
        };
        window.filled = WINDOW_BYTES;
        window.read(&disk);
        for (copy, bit) in [(&mut window.first, 3), (&mut window.second, 900), (&mut window.third, 77)] {
            copy.get(WINDOW_BYTES)[bit] ^= 4;
        }
        let (a, b, c) =
            (window.first.get(WINDOW_BYTES), window.second.get(WINDOW_BYTES), window.third.get(WINDOW_BYTES));
        vote(a, b, c);
        assert!(a.iter().all(|byte| *byte == 0x5a));
    }
}
