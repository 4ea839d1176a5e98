// SPDX-License-Identifier: AGPL-3.0-or-later
//! Page packs: the pages of one snapshot that were not stored before, in one file.
//!
//! ```text
//! offset  bytes
//!      0      8  "CHAOPAK1"
//!      8      4  number of pages P, little-endian
//!     12      4  pages a frame, little-endian (64)
//!     16   P*32  the pages' digests, ascending
//!      .    F*8  end of each of the F = ceil(P / 64) frames, from the start of the frames, little-endian
//!      .     32  BLAKE3 of everything before
//!      .      .  F zstd frames, each 64 pages of 4,096 bytes, the last one fewer
//! ```
//!
//! The file is named by the BLAKE3 of the digests (P*32 bytes), which fix the pages: equal contents have equal names, however
//! they were compressed. Every page is hashed when it is read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::Digest;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Pages compressed together: large enough to compress well, small enough to read a few pages cheaply.
const FRAME_PAGES: usize = 64;
/// Pages in one pack: 64 GiB, a bound against hostile counts.
const PAGES_MAX: usize = 1 << 24;
const MAGIC: &[u8; 8] = b"CHAOPAK1";
const FIXED_BYTES: usize = 16;
/// Compression of pages: fast.
const ZSTD_LEVEL: i32 = 1;

/// Why a pack cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The host refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Not a pack, or a damaged one.
    #[error("damaged pack: {0}")]
    Damaged(String),
}

fn damaged(what: impl Into<String>) -> PackError {
    PackError::Damaged(what.into())
}

/// The header of a pack: which pages it has and where its frames are.
#[derive(Debug)]
pub struct Header {
    /// Digests of its pages, ascending.
    pub digests: Vec<Digest>,
    frame_ends: Vec<u64>,
    frames_at: u64,
}

impl Header {
    /// Reads and checks the header of an open pack. Counts are held against the file's size before anything is allocated.
    pub fn read(file: &mut File) -> Result<Self, PackError> {
        let file_bytes = file.metadata()?.len();
        let mut fixed = [0; FIXED_BYTES];
        file.read_exact(&mut fixed).map_err(|_| damaged("shorter than its header"))?;
        if &fixed[..8] != MAGIC {
            return Err(damaged("it does not begin as a pack does"));
        }
        let word = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]) as usize;
        let (pages, frame_pages) = (word(8), word(12));
        if pages == 0 || pages > PAGES_MAX || frame_pages != FRAME_PAGES {
            return Err(damaged(format!("{pages} pages in frames of {frame_pages}")));
        }
        let frames = pages.div_ceil(FRAME_PAGES);
        let rest_bytes = pages * Digest::BYTES + frames * 8 + Digest::BYTES;
        let frames_at = (FIXED_BYTES + rest_bytes) as u64;
        if file_bytes < frames_at {
            return Err(damaged(format!("{file_bytes} bytes cannot hold {pages} pages")));
        }
        let mut rest = vec![0; rest_bytes];
        file.read_exact(&mut rest)?;
        let (body, sum) = rest.split_at(rest_bytes - Digest::BYTES);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&fixed).update(body);
        if hasher.finalize().as_bytes() != sum {
            return Err(damaged("its header does not match its checksum"));
        }
        let (digests, ends) = body.split_at(pages * Digest::BYTES);
        let digests: Vec<Digest> = digests.as_chunks().0.iter().copied().map(Digest).collect();
        let frame_ends: Vec<u64> = ends.as_chunks().0.iter().copied().map(u64::from_le_bytes).collect();
        if !digests.is_sorted_by(|a, b| a < b) || !frame_ends.is_sorted_by(|a, b| a < b) {
            return Err(damaged("its pages or frames are out of order"));
        }
        if frame_ends.last().is_none_or(|end| frames_at.checked_add(*end) != Some(file_bytes)) {
            return Err(damaged("truncated, or with bytes after its end"));
        }
        Ok(Self { digests, frame_ends, frames_at })
    }

    /// The name that a pack of these pages has.
    pub fn name(digests: &[Digest]) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for digest in digests {
            hasher.update(&digest.0);
        }
        Digest(*hasher.finalize().as_bytes())
    }

    fn frames(&self) -> usize {
        self.frame_ends.len()
    }

    /// The pages of one frame, decompressed and checked.
    pub fn frame(&self, file: &File, frame: usize) -> Result<Vec<u8>, PackError> {
        let begin = if frame == 0 { 0 } else { self.frame_ends[frame - 1] };
        // Both ends lie within the file, which `read` checked, so that this allocates no more than the file has.
        let mut compressed = vec![0; (self.frame_ends[frame] - begin) as usize];
        file.read_exact_at(&mut compressed, self.frames_at + begin)?;
        let digests = self.frame_digests(frame);
        let expected = digests.len() * PAGE_BYTES;
        let pages = zstd::bulk::decompress(&compressed, expected)
            .map_err(|error| damaged(format!("frame {frame}: {error}")))?;
        if pages.len() != expected {
            return Err(damaged(format!("frame {frame} has {} bytes, expected {expected}", pages.len())));
        }
        for (page, digest) in pages.chunks_exact(PAGE_BYTES).zip(digests) {
            if Digest::of(page) != *digest {
                return Err(damaged(format!("page {digest} is not what its name says")));
            }
        }
        Ok(pages)
    }

    fn frame_digests(&self, frame: usize) -> &[Digest] {
        let begin = frame * FRAME_PAGES;
        &self.digests[begin..self.digests.len().min(begin + FRAME_PAGES)]
    }
}

/// The bytes of a pack: `pages` by ascending digest, handed to `write` piece by piece.
pub fn write<E>(
    pages: &BTreeMap<Digest, &[u8; PAGE_BYTES]>,
    mut write: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    assert!(!pages.is_empty() && pages.len() <= PAGES_MAX, "callers write packs of at least one page");
    let digests: Vec<Digest> = pages.keys().copied().collect();
    let contents: Vec<&[u8; PAGE_BYTES]> = pages.values().copied().collect();
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&(digests.len() as u32).to_le_bytes());
    header.extend_from_slice(&(FRAME_PAGES as u32).to_le_bytes());
    for digest in &digests {
        header.extend_from_slice(&digest.0);
    }
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut end = 0u64;
    for pages in contents.chunks(FRAME_PAGES) {
        let plain: Vec<u8> = pages.iter().flat_map(|page| page.iter().copied()).collect();
        let frame = zstd::bulk::compress(&plain, ZSTD_LEVEL).expect("compressing to memory");
        end += frame.len() as u64;
        header.extend_from_slice(&end.to_le_bytes());
        frames.push(frame);
    }
    let sum = blake3::hash(&header);
    header.extend_from_slice(sum.as_bytes());
    write(&header)?;
    frames.iter().try_for_each(|frame| write(frame))
}

/// Reads every page of the pack at `path` and checks its name. Gives the number of pages.
pub fn verify(path: &Path) -> Result<u64, PackError> {
    let mut file = File::open(path)?;
    let header = Header::read(&mut file)?;
    for frame in 0..header.frames() {
        header.frame(&file, frame)?;
    }
    let name = Header::name(&header.digests).to_string();
    if path.file_stem().and_then(|stem| stem.to_str()) != Some(name.as_str()) {
        return Err(damaged(format!("its pages give the name {name}")));
    }
    Ok(header.digests.len() as u64)
}

/// Where every page of some packs is.
#[derive(Debug, Default)]
pub struct PackIndex {
    packs: Vec<(PathBuf, File, Header)>,
    /// A pack that could not be added, with the reason: pages that no other has may be in it.
    damaged: Option<(PathBuf, String)>,
    pages: BTreeMap<Digest, (u32, u32)>,
    /// The frame read last, which the next page asked for is often in.
    last: Option<(u32, usize, Vec<u8>)>,
}

impl PackIndex {
    /// Adds the pages of a pack. One that is already known stays where it is.
    pub fn add(&mut self, path: PathBuf) -> Result<(), PackError> {
        let mut file = File::open(&path)?;
        let header = Header::read(&mut file)?;
        let pack = self.packs.len() as u32;
        for (slot, digest) in header.digests.iter().enumerate() {
            self.pages.entry(*digest).or_insert((pack, slot as u32));
        }
        self.packs.push((path, file, header));
        Ok(())
    }

    /// Adds a pack, or remembers that it is damaged: it has no pages here.
    pub fn add_or_leave(&mut self, path: PathBuf) {
        let what = match self.add(path.clone()) {
            Ok(()) => return,
            Err(PackError::Damaged(what)) => what,
            Err(PackError::Io(error)) => error.to_string(),
        };
        self.damaged.get_or_insert((path, what));
    }

    /// Whether some pack has the page.
    pub fn has(&self, digest: &Digest) -> bool {
        self.pages.contains_key(digest)
    }

    /// Reads pages, each once, frame by frame. `Err` carries the pack, or the digest of a page that no pack has.
    pub fn read(
        &mut self,
        digests: impl IntoIterator<Item = Digest>,
        mut page: impl FnMut(Digest, &[u8; PAGE_BYTES]),
    ) -> Result<(), ReadError> {
        let mut wanted = Vec::new();
        for digest in digests {
            let Some((pack, slot)) = self.pages.get(&digest) else {
                return Err(match &self.damaged {
                    None => ReadError::Missing(digest),
                    Some((path, what)) => {
                        let what = format!("{what}; page {digest} is in no other pack");
                        ReadError::Pack(path.clone(), PackError::Damaged(what))
                    }
                });
            };
            wanted.push((*pack, *slot, digest));
        }
        wanted.sort_unstable();
        wanted.dedup();
        for (pack, slot, digest) in wanted {
            let (frame, within) = (slot as usize / FRAME_PAGES, slot as usize % FRAME_PAGES);
            if self.last.as_ref().is_none_or(|(p, f, _)| (*p, *f) != (pack, frame)) {
                let (path, file, header) = &self.packs[pack as usize];
                let pages = header.frame(file, frame).map_err(|error| ReadError::Pack(path.clone(), error))?;
                self.last = Some((pack, frame, pages));
            }
            let (_, _, pages) = self.last.as_ref().expect("just read");
            page(digest, &pages.as_chunks::<PAGE_BYTES>().0[within]);
        }
        Ok(())
    }
}

/// Why pages cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// No pack has it.
    Missing(Digest),
    /// A pack is damaged.
    Pack(PathBuf, PackError),
}
