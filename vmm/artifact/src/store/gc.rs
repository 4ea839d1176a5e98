// SPDX-License-Identifier: AGPL-3.0-or-later
//! Collecting what nothing refers to.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use super::{FORMAT, Store, StoreError, files, object_path};
use crate::Digest;
use crate::document::{self, MediaType};
use crate::pack::Header;
use crate::schema::{ObjectRef, SnapshotManifest};

/// What keeps an object.
#[derive(Clone, Debug)]
pub enum Roots {
    /// Every descriptor in the store.
    AllDescriptors,
    /// These objects only (descriptors, usually), named by digest.
    Digests(Vec<Digest>),
}

/// What gc did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Objects kept.
    pub kept_objects: u64,
    /// Objects deleted, or that would be.
    pub objects: u64,
    /// Packs deleted, or that would be: those of which no page is reachable.
    pub packs: u64,
    /// Left-over temporary files deleted, or that would be.
    pub temporary: u64,
    /// Bytes on disk freed, or that would be.
    pub bytes: u64,
}

impl Store {
    /// Deletes every object and pack of the store at `root` that no root reaches, and every left-over temporary file. With
    /// `dry_run` only counts. No stage may be running: `Busy` otherwise.
    pub fn gc(root: &Path, from: &[std::path::PathBuf], roots: &Roots, dry_run: bool) -> Result<Collected, StoreError> {
        files::create_layout(root, FORMAT)?;
        let lock = files::lock(root, files::Lock::Exclusive)?;
        let store = Self::assemble(root, from, Some(lock))?;
        let (objects, pages) = store.reachable(roots)?;
        let mut collected = Collected::default();
        let mut remove = |path: &Path, count: &mut u64| -> Result<(), StoreError> {
            collected.bytes += fs::metadata(path).map_or(0, |metadata| metadata.len());
            *count += 1;
            if dry_run { Ok(()) } else { fs::remove_file(path).map_err(files::io_error("deleting", path)) }
        };
        let (mut kept, mut gone, mut packs, mut temporary) = (0, 0, 0, 0);
        for (digest, compressed) in store.own_objects()? {
            if objects.contains(&digest) {
                kept += 1;
            } else {
                remove(&object_path(root, &digest, compressed), &mut gone)?;
            }
        }
        for path in files::packs(root)? {
            let header = File::open(&path).ok().and_then(|mut file| Header::read(&mut file).ok());
            // A pack with a damaged header serves no one.
            if header.is_none_or(|header| !header.digests.iter().any(|digest| pages.contains(digest))) {
                remove(&path, &mut packs)?;
            }
        }
        let directory = root.join("tmp");
        for entry in fs::read_dir(&directory).map_err(files::io_error("reading", &directory))?.flatten() {
            // A folder is none of ours.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            remove(&entry.path(), &mut temporary)?;
        }
        Ok(Collected { kept_objects: kept, objects: gone, packs, temporary, bytes: collected.bytes })
    }

    /// Every object and page that the roots reach. What is missing reaches nothing further. What is damaged could have reached
    /// anything, and a root that is not there is a mistake: nothing is collected then.
    fn reachable(&self, roots: &Roots) -> Result<(BTreeSet<Digest>, BTreeSet<Digest>), StoreError> {
        let (mut objects, mut pages) = (BTreeSet::new(), BTreeSet::new());
        let mut waiting: Vec<ObjectRef> = Vec::new();
        for listed in self.list()? {
            let media_type = listed.media_type.unwrap_or(MediaType::Disk);
            let root = match roots {
                Roots::AllDescriptors => media_type == MediaType::Descriptor,
                Roots::Digests(digests) => digests.contains(&listed.digest),
            };
            if root {
                waiting.push(ObjectRef { digest: listed.digest, size_bytes: listed.size_bytes.into(), media_type });
            }
        }
        if let Roots::Digests(digests) = roots
            && let Some(absent) = digests.iter().find(|digest| waiting.iter().all(|root| root.digest != **digest))
        {
            return Err(StoreError::Missing { what: "object to keep", digest: *absent });
        }
        while let Some(reference) = waiting.pop() {
            if !objects.insert(reference.digest) {
                continue;
            }
            let bytes = match self.read(&reference) {
                Ok(bytes) => bytes,
                Err(StoreError::Missing { .. }) => continue,
                Err(error) => return Err(error),
            };
            waiting.extend(document::references(reference.media_type, &bytes));
            if reference.media_type == MediaType::Snapshot
                && let Ok(manifest) = document::decode::<SnapshotManifest>(&bytes)
            {
                pages.extend(manifest.page_digests());
            }
        }
        Ok((objects, pages))
    }
}
