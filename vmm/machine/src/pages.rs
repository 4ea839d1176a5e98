// SPDX-License-Identifier: AGPL-3.0-or-later
//! Page contents that snapshots, forks and disks share.
//!
//! A [`PageMap`] is a persistent map from page numbers to 4 KiB pages: cloning it shares everything, setting a page copies one
//! chunk of pointers. Zero pages are implicit. Two maps that descend from one another differ only where their pointers do, so
//! comparing them costs what changed, not what they hold.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::memory::PAGE_BYTES;

/// Pages in a chunk: a set copies one chunk of this many pointers.
const CHUNK_PAGES: u64 = 256;

/// The BLAKE3 digest of a page's 4,096 bytes.
pub type Digest = [u8; 32];

/// An immutable page.
pub struct Page {
    bytes: [u8; PAGE_BYTES],
    digest: OnceLock<Digest>,
}

impl Page {
    /// A page of these bytes.
    pub fn new(bytes: [u8; PAGE_BYTES]) -> Self {
        Self { bytes, digest: OnceLock::new() }
    }

    /// The contents.
    pub fn bytes(&self) -> &[u8; PAGE_BYTES] {
        &self.bytes
    }

    /// BLAKE3 of the contents, computed at most once.
    pub fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| blake3::hash(&self.bytes).into())
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({})", blake3::Hash::from(self.digest()).to_hex())
    }
}

impl PartialEq for Page {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Page {}

#[derive(Clone)]
struct Chunk([Option<Arc<Page>>; CHUNK_PAGES as usize]);

impl Chunk {
    fn empty() -> Self {
        Self([const { None }; CHUNK_PAGES as usize])
    }
}

/// A persistent map from page number to page; absent pages are zero.
#[derive(Clone, Default)]
pub struct PageMap {
    chunks: BTreeMap<u64, Arc<Chunk>>,
}

impl PageMap {
    /// The map of a flat image: page 0 is its first 4,096 bytes, the last page is padded with zeros.
    pub fn from_bytes(image: &[u8]) -> Self {
        let mut map = Self::default();
        for (index, part) in image.chunks(PAGE_BYTES).enumerate() {
            let mut bytes = [0; PAGE_BYTES];
            bytes[..part.len()].copy_from_slice(part);
            map.set(index as u64, &bytes);
        }
        map
    }

    /// The page at `index`, or none where it is zero.
    pub fn get(&self, index: u64) -> Option<&Arc<Page>> {
        self.chunks.get(&(index / CHUNK_PAGES))?.0[(index % CHUNK_PAGES) as usize].as_ref()
    }

    /// Sets the page at `index` to a copy of `bytes`. Equal contents keep the page that is there, and its digest.
    pub fn set(&mut self, index: u64, bytes: &[u8; PAGE_BYTES]) {
        match self.get(index) {
            Some(page) if page.bytes() == bytes => {}
            None if is_zero(bytes) => {}
            _ => self.insert(index, (!is_zero(bytes)).then(|| Arc::new(Page::new(*bytes)))),
        }
    }

    /// Puts a shared page at `index`, or makes it zero. A page that is all zeros must be given as none.
    pub fn insert(&mut self, index: u64, page: Option<Arc<Page>>) {
        let key = index / CHUNK_PAGES;
        let slot = (index % CHUNK_PAGES) as usize;
        if page.is_none() && self.get(index).is_none() {
            return;
        }
        let chunk = self.chunks.entry(key).or_insert_with(|| Arc::new(Chunk::empty()));
        Arc::make_mut(chunk).0[slot] = page;
        if chunk.0.iter().all(Option::is_none) {
            self.chunks.remove(&key);
        }
    }

    /// Non-zero pages, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Arc<Page>)> {
        self.chunks.iter().flat_map(|(key, chunk)| {
            let pages = chunk.0.iter().enumerate();
            pages.filter_map(move |(slot, page)| Some((key * CHUNK_PAGES + slot as u64, page.as_ref()?)))
        })
    }

    /// Calls `page` with each index, ascending, at which the maps hold different `Arc`s. Equal contents behind different `Arc`s
    /// are reported: the result may be larger than needed, never smaller.
    pub fn differences(&self, other: &Self, page: &mut dyn FnMut(u64)) {
        let keys: std::collections::BTreeSet<u64> = self.chunks.keys().chain(other.chunks.keys()).copied().collect();
        let empty = Chunk::empty();
        for key in keys {
            let (ours, theirs) = (self.chunks.get(&key), other.chunks.get(&key));
            if let (Some(ours), Some(theirs)) = (ours, theirs)
                && Arc::ptr_eq(ours, theirs)
            {
                continue;
            }
            let ours = ours.map_or(&empty.0, |chunk| &chunk.0);
            let theirs = theirs.map_or(&empty.0, |chunk| &chunk.0);
            for (slot, (a, b)) in ours.iter().zip(theirs).enumerate() {
                let same = match (a, b) {
                    (None, None) => true,
                    (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                    _ => false,
                };
                if !same {
                    page(key * CHUNK_PAGES + slot as u64);
                }
            }
        }
    }

    /// BLAKE3 over each non-zero page's index (8 bytes, little-endian) and digest, ascending.
    pub fn hash(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for (index, page) in self.iter() {
            hasher.update(&index.to_le_bytes());
            hasher.update(&page.digest());
        }
        hasher.finalize().into()
    }
}

impl fmt::Debug for PageMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageMap({} pages)", self.iter().count())
    }
}

impl PartialEq for PageMap {
    fn eq(&self, other: &Self) -> bool {
        let mut same = true;
        self.differences(other, &mut |index| same &= self.get(index) == other.get(index));
        same
    }
}

impl Eq for PageMap {}

/// Whether every byte is zero.
pub fn is_zero(bytes: &[u8; PAGE_BYTES]) -> bool {
    bytes.as_chunks::<16>().0.iter().all(|part| u128::from_ne_bytes(*part) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(fill: u8) -> [u8; PAGE_BYTES] {
        [fill; PAGE_BYTES]
    }

    #[test]
    fn zero_pages_are_implicit() {
        let mut map = PageMap::default();
        map.set(3, &page(0));
        assert_eq!(map.iter().count(), 0);
        map.set(3, &page(1));
        map.set(3, &page(0));
        assert_eq!(map, PageMap::default());
        assert_eq!(map.hash(), PageMap::default().hash());
    }

    #[test]
    fn a_clone_shares_what_is_not_set() {
        let mut map = PageMap::default();
        for index in 0..1_000 {
            map.set(index, &page(index as u8 | 1));
        }
        let mut copy = map.clone();
        copy.set(700, &page(0xee));
        let mut changed = Vec::new();
        map.differences(&copy, &mut |index| changed.push(index));
        assert_eq!(changed, [700]);
        assert_eq!(map.get(700).unwrap().bytes()[0], 700u64 as u8 | 1);
        assert!(Arc::ptr_eq(map.get(701).unwrap(), copy.get(701).unwrap()));
    }

    #[test]
    fn equal_contents_keep_their_page() {
        let mut map = PageMap::default();
        map.set(9, &page(4));
        let before = map.get(9).unwrap().clone();
        map.set(9, &page(4));
        assert!(Arc::ptr_eq(&before, map.get(9).unwrap()));
    }

    #[test]
    fn the_hash_depends_on_position_and_contents() {
        let (mut a, mut b, mut c) = (PageMap::default(), PageMap::default(), PageMap::default());
        a.set(1, &page(1));
        b.set(2, &page(1));
        c.set(1, &page(2));
        assert_ne!(a.hash(), b.hash());
        assert_ne!(a.hash(), c.hash());
        let mut image = vec![0; PAGE_BYTES];
        image.extend_from_slice(&page(1));
        assert_eq!(PageMap::from_bytes(&image).hash(), a.hash());
    }
}
