// SPDX-License-Identifier: Apache-2.0
//! The durable log: records one behind the other on a raw disk, each durable when its write returns.
//!
//! A record begins at a multiple of 512 bytes: its number (u64, from 1), the payload's length (u32), a checksum of both and the payload (u64),
//! then the payload: a list of protobuf messages, each behind a tag (1 hard state, 2 entry) and its length (u32). Recovery takes records
//! until one is not whole: that one was never acknowledged. Without a disk (a dry run) nothing is kept.

use chaoscontrol_workload::Failure;
use protobuf::Message as _;
use raft::prelude::{Entry, HardState};
use raft::storage::MemStorage;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const SECTOR: usize = 512;
const HEADER: usize = 20;
const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// `O_DSYNC` on Linux: a write is durable when it returns (open(2), asm-generic/fcntl.h).
const O_DSYNC: i32 = 0o10000;
const HARD_STATE: u8 = 1;
const ENTRY: u8 = 2;

pub struct Log {
    disk: Option<File>,
    position: u64,
    number: u64,
    entries: u64,
}

impl Log {
    /// Opens the disk and gives the storage what it holds.
    pub fn open(path: Option<&str>, storage: &MemStorage) -> Result<Self, Failure> {
        let open = |path| File::options().read(true).write(true).custom_flags(O_DSYNC).open(path);
        let disk = path.map(open).transpose()?;
        let mut log = Self { disk, position: 0, number: 0, entries: 0 };
        while let Some(payload) = log.next_record() {
            log.number += 1;
            log.position += record_bytes(payload.len());
            log.entries += replay(&payload, storage)?;
        }
        Ok(log)
    }

    /// Entries that were found.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Makes entries and hard state durable, and gives them to the storage.
    pub fn persist(
        &mut self,
        storage: &MemStorage,
        entries: &[Entry],
        hard_state: Option<&HardState>,
    ) -> Result<(), Failure> {
        let mut payload = Vec::new();
        for entry in entries {
            put(&mut payload, ENTRY, &entry.write_to_bytes()?);
        }
        if let Some(hard_state) = hard_state {
            put(&mut payload, HARD_STATE, &hard_state.write_to_bytes()?);
        }
        if payload.is_empty() {
            return Ok(());
        }
        self.write(&payload)?;
        let mut storage = storage.wl();
        storage.append(entries)?;
        if let Some(hard_state) = hard_state {
            storage.set_hardstate(hard_state.clone());
        }
        Ok(())
    }

    fn write(&mut self, payload: &[u8]) -> Result<(), Failure> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let number = self.number + 1;
        let mut record = Vec::with_capacity(record_bytes(payload.len()) as usize);
        record.extend(number.to_le_bytes());
        record.extend((payload.len() as u32).to_le_bytes());
        record.extend(checksum(number, payload).to_le_bytes());
        record.extend(payload);
        record.resize(record_bytes(payload.len()) as usize, 0);
        disk.write_all_at(&record, self.position)?;
        self.number = number;
        self.position += record.len() as u64;
        Ok(())
    }

    fn next_record(&self) -> Option<Vec<u8>> {
        let disk = self.disk.as_ref()?;
        let mut header = [0; HEADER];
        disk.read_exact_at(&mut header, self.position).ok()?;
        let number = u64::from_le_bytes(header[..8].try_into().ok()?);
        let length = u32::from_le_bytes(header[8..12].try_into().ok()?) as usize;
        let sum = u64::from_le_bytes(header[12..].try_into().ok()?);
        if number != self.number + 1 || length > PAYLOAD_BYTES_MAX {
            return None;
        }
        let mut payload = vec![0; length];
        disk.read_exact_at(&mut payload, self.position + HEADER as u64).ok()?;
        (checksum(number, &payload) == sum).then_some(payload)
    }
}

fn replay(mut payload: &[u8], storage: &MemStorage) -> Result<u64, Failure> {
    let mut entries = 0;
    let mut storage = storage.wl();
    while let Some((tag, bytes)) = take(&mut payload) {
        match tag {
            ENTRY => {
                storage.append(&[Entry::parse_from_bytes(bytes)?])?;
                entries += 1;
            }
            _ => storage.set_hardstate(HardState::parse_from_bytes(bytes)?),
        }
    }
    Ok(entries)
}

fn put(payload: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    payload.push(tag);
    payload.extend((bytes.len() as u32).to_le_bytes());
    payload.extend(bytes);
}

fn take<'a>(payload: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (tag, rest) = payload.split_first()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *payload = rest;
    Some((*tag, bytes))
}

fn record_bytes(payload: usize) -> u64 {
    (HEADER + payload).next_multiple_of(SECTOR) as u64
}

fn checksum(number: u64, payload: &[u8]) -> u64 {
    crate::hash(crate::hash(number, &(payload.len() as u64).to_le_bytes()), payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use raft::Storage as _;

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, data: vec![7; 3].into(), ..Entry::default() }
    }

    #[test]
    fn what_was_persisted_is_there_again_and_a_torn_record_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let path = file.path().to_str().unwrap();
        let storage = || MemStorage::new_with_conf_state((vec![1, 2, 3], vec![]));
        let first = storage();
        let mut log = Log::open(Some(path), &first).unwrap();
        let state = HardState { term: 2, vote: 3, commit: 1, ..HardState::default() };
        log.persist(&first, &[entry(1, 1), entry(2, 1)], Some(&state)).unwrap();
        let torn_at = log.position;
        log.persist(&first, &[entry(2, 2), entry(3, 2)], None).unwrap();
        let second = storage();
        assert_eq!(Log::open(Some(path), &second).unwrap().entries(), 4);
        assert_eq!((second.last_index().unwrap(), second.term(2).unwrap()), (3, 2));
        assert_eq!(second.initial_state().unwrap().hard_state.vote, 3);
        file.as_file().write_all_at(&[9], torn_at + HEADER as u64 + 2).unwrap();
        let third = storage();
        assert_eq!(Log::open(Some(path), &third).unwrap().entries(), 2);
        assert_eq!(third.term(2).unwrap(), 1);
    }
}
