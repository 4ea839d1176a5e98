// SPDX-License-Identifier: Apache-2.0
//! Writes blocks whose content can be told, and looks at what became of them.
//!
//! Block 0 counts lives. Blocks 1 to 3 are written once a life, without a flush, when asked to: after a power cut they show which
//! unflushed writes survived. Blocks from 8 on are written, flushed and read back in turn. Content: each 8-byte word is a mix of
//! the block, the version and the word's place, so that any mixture of two versions is seen.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

const BLOCK: usize = 4096;
const UNFLUSHED: [u64; 3] = [1, 2, 3];
const FIRST_VERIFIED: u64 = 8;
const VERIFIED: u64 = 64;
/// How often a read that fails is repeated where the content is needed.
const READ_TRIES: u32 = 200;

/// What happened in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Blocks written and read back.
    pub blocks: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub flush_errors: u64,
    /// Failed writes that left a mixture.
    pub torn_writes: u64,
    /// Reads that differed from the next read.
    pub flipped_reads: u64,
    /// Blocks whose successful write was not there.
    pub lost_blocks: u64,
    /// Longest time of a write with its flush.
    pub max_us: u64,
}

/// How a life of the guest began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Counts from 1.
    pub number: u64,
    /// Bit i: the last life's unflushed write i survived whole.
    pub survivors: u64,
    /// Bit i: it survived in part.
    pub torn: u64,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Blank,
    Whole(u64),
    Mixed,
}

/// A disk under observation.
pub struct Probe {
    file: File,
    buffer: Vec<u8>,
    start: usize,
    life: u64,
    written: u64,
    window: Window,
}

impl Probe {
    /// Opens the disk.
    pub fn open(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot open {}: {error}", path.display());
        let is_device = std::fs::metadata(path).map_err(failed)?.file_type().is_block_device();
        let flags = if is_device { libc::O_DIRECT } else { 0 };
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(failed)?;
        let buffer = vec![0; 2 * BLOCK];
        let start = buffer.as_ptr().align_offset(BLOCK);
        Ok(Self { file, buffer, start, life: 0, written: 0, window: Window::default() })
    }

    /// Looks at what the last life left and begins a new one; `unflushed` leaves three writes without a flush.
    pub fn begin_life(&mut self, unflushed: bool) -> Life {
        let last = match self.content_of(0) {
            Some(Content::Whole(version)) => version,
            _ => 0,
        };
        let mut life = Life { number: last + 1, ..Life::default() };
        for (bit, block) in UNFLUSHED.into_iter().enumerate().filter(|_| last > 0) {
            match self.content_of(block) {
                Some(Content::Whole(version)) if version == last => life.survivors |= 1 << bit,
                Some(Content::Mixed) => life.torn |= 1 << bit,
                _ => {}
            }
        }
        self.life = life.number;
        // Both are repeated until they succeed: a life that is not counted would be mistaken for the last one.
        while self.write(0, life.number).is_err() || self.file.sync_data().is_err() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if unflushed {
            for block in UNFLUSHED {
                self.window.write_errors += u64::from(self.write(block, life.number).is_err());
            }
        }
        life
    }

    /// Writes, flushes and reads back one block.
    pub fn verify_one(&mut self) {
        let block = FIRST_VERIFIED + self.written % VERIFIED;
        self.written += 1;
        let version = self.life << 32 | self.written;
        let start = Instant::now();
        let wrote = self.write(block, version).is_ok();
        self.window.blocks += 1;
        self.window.write_errors += u64::from(!wrote);
        self.window.flush_errors += u64::from(self.file.sync_data().is_err());
        self.window.max_us = self.window.max_us.max(start.elapsed().as_micros() as u64);
        let first = self.content_of(block);
        let second = self.content_of(block);
        if first != second && first.is_some() && second.is_some() {
            self.window.flipped_reads += 1;
            return;
        }
        match second {
            Some(Content::Whole(found)) if found == version => {}
            Some(Content::Mixed) if !wrote => self.window.torn_writes += 1,
            Some(_) if wrote => self.window.lost_blocks += 1,
            _ => {}
        }
    }

    /// What happened since the last call.
    pub fn take_window(&mut self) -> Window {
        std::mem::take(&mut self.window)
    }

    fn write(&mut self, block: u64, version: u64) -> io::Result<()> {
        let bytes = &mut self.buffer[self.start..self.start + BLOCK];
        for (place, word) in (0..).zip(bytes.chunks_exact_mut(8)) {
            word.copy_from_slice(&word_of(block, version, place).to_le_bytes());
        }
        self.file.write_all_at(bytes, block * BLOCK as u64)
    }

    /// Reads a block, more than once if reads fail; a block that looks mixed is read again, because a read may lie.
    fn content_of(&mut self, block: u64) -> Option<Content> {
        let mut mixed = false;
        for _ in 0..READ_TRIES {
            let bytes = &mut self.buffer[self.start..self.start + BLOCK];
            if self.file.read_exact_at(bytes, block * BLOCK as u64).is_err() {
                self.window.read_errors += 1;
                if mixed || self.window.read_errors > u64::from(READ_TRIES) {
                    break;
                }
                continue;
            }
            match content(block, bytes) {
                Content::Mixed if !mixed => mixed = true,
                Content::Mixed => return Some(Content::Mixed),
                whole => {
                    self.window.flipped_reads += u64::from(mixed);
                    return Some(whole);
                }
            }
        }
        None
    }
}

/// The first word is the version; the others depend on it.
fn word_of(block: u64, version: u64, place: u64) -> u64 {
    if place == 0 {
        return version;
    }
    let mut mixed = version ^ block.rotate_left(40) ^ place.rotate_left(20);
    mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn content(block: u64, bytes: &[u8]) -> Content {
    if bytes.iter().all(|byte| *byte == 0) {
        return Content::Blank;
    }
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let version = word(&bytes[..8]);
    let whole = (0..).zip(bytes.chunks_exact(8)).all(|(place, bytes)| word(bytes) == word_of(block, version, place));
    if whole { Content::Whole(version) } else { Content::Mixed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(file: &tempfile::NamedTempFile) -> Probe {
        Probe::open(file.path()).unwrap()
    }

    fn blank() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![0; 128 * BLOCK]).unwrap();
        file
    }

    fn overwrite(file: &tempfile::NamedTempFile, block: u64, bytes: &[u8]) {
        let disk = File::options().write(true).open(file.path()).unwrap();
        disk.write_all_at(bytes, block * BLOCK as u64).unwrap();
    }

    #[test]
    fn lives_are_counted_and_survivors_told() {
        let file = blank();
        assert_eq!(probe(&file).begin_life(true), Life { number: 1, survivors: 0, torn: 0 });
        // The second write is lost, the third is torn.
        overwrite(&file, 2, &[0; BLOCK]);
        overwrite(&file, 3, &[0; 512]);
        assert_eq!(probe(&file).begin_life(true), Life { number: 2, survivors: 0b001, torn: 0b100 });
        assert_eq!(probe(&file).begin_life(false), Life { number: 3, survivors: 0b111, torn: 0 });
    }

    #[test]
    fn a_sound_disk_shows_no_faults() {
        let file = blank();
        let mut probe = probe(&file);
        probe.begin_life(false);
        (0..200).for_each(|_| probe.verify_one());
        let window = probe.take_window();
        assert_eq!(window, Window { blocks: 200, max_us: window.max_us, ..Window::default() });
    }

    #[test]
    fn failing_writes_and_reads_are_counted() {
        let file = blank();
        let mut probe = probe(&file);
        probe.begin_life(false);
        probe.file = File::options().read(true).open(file.path()).unwrap();
        probe.verify_one();
        assert_eq!(probe.take_window().write_errors, 1);
        std::fs::write(file.path(), []).unwrap();
        probe.verify_one();
        assert!(probe.take_window().read_errors > 0);
    }
}
