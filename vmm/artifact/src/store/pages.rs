// SPDX-License-Identifier: AGPL-3.0-or-later
//! Pages: stored once, in packs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::{Store, StoreError, files};
use crate::Digest;
use crate::pack::{self, Header, PAGE_BYTES, PackIndex, ReadError};

/// What storing pages cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Pages that some pack already had.
    pub known: u64,
    /// Pages written.
    pub written: u64,
}

impl Store {
    /// Stores the pages that no readable pack has, in one new pack. The caller leaves zero pages out.
    pub fn put_pages(&self, pages: &BTreeMap<Digest, &[u8; PAGE_BYTES]>) -> Result<PageCounts, StoreError> {
        let new: BTreeMap<Digest, &[u8; PAGE_BYTES]> = {
            let index = self.index()?;
            pages.iter().filter(|(digest, _)| !index.has(digest)).map(|(digest, page)| (*digest, *page)).collect()
        };
        let counts = PageCounts { known: (pages.len() - new.len()) as u64, written: new.len() as u64 };
        if new.is_empty() {
            return Ok(counts);
        }
        let digests: Vec<Digest> = new.keys().copied().collect();
        let path = self.root().join(format!("packs/{}.pack", Header::name(&digests)));
        let mut temporary = files::Temporary::create(self.root())?;
        pack::write(&new, |bytes| temporary.write(bytes))?;
        temporary.finish(&path)?;
        self.index()?.add(path.clone()).map_err(|error| bad_pack(path, &error))?;
        Ok(counts)
    }

    /// Reads pages by digest, each distinct one once, in no particular order.
    pub fn read_pages(
        &self,
        digests: impl IntoIterator<Item = Digest>,
        page: impl FnMut(Digest, &[u8; PAGE_BYTES]),
    ) -> Result<(), StoreError> {
        self.index()?.read(digests, page).map_err(|error| match error {
            ReadError::Missing(digest) => StoreError::Missing { what: "page", digest },
            ReadError::Pack(path, error) => bad_pack(path, &error),
        })
    }

    /// The index of all readable packs. A pack whose header is damaged has no pages here: what needs them fails and names it, and what
    /// would store them writes them again.
    fn index(&self) -> Result<MutexGuard<'_, PackIndex>, StoreError> {
        if self.index.get().is_none() {
            let mut index = PackIndex::default();
            for store in self.readable() {
                for path in files::packs(store)? {
                    index.add_or_leave(path);
                }
            }
            // Another thread may have been first with the same contents.
            let _ = self.index.set(Mutex::new(index));
        }
        let index = self.index.get().expect("just set");
        Ok(index.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

fn bad_pack(path: std::path::PathBuf, error: &pack::PackError) -> StoreError {
    StoreError::Damaged { path, what: error.to_string() }
}
