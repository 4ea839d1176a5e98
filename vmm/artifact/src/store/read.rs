// SPDX-License-Identifier: AGPL-3.0-or-later
//! Reading: bounded decompression, then the hash, then the bytes are handed out.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{Store, StoreError, files, object_path};
use crate::Digest;
use crate::document::{self, Encoding, MediaType};
use crate::pack;
use crate::schema::ObjectRef;

/// Bytes read at once while an object streams through the hash.
const CHUNK_BYTES: usize = 1 << 16;

/// An object as `ls` shows it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub digest: Digest,
    /// What it says it is; `None` for bytes of someone else's format.
    pub media_type: Option<MediaType>,
    /// Uncompressed bytes.
    pub size_bytes: u64,
    /// Bytes on disk.
    pub stored_bytes: u64,
}

/// What `verify` found.
#[derive(Debug, Default)]
pub struct Verified {
    /// Sound objects.
    pub objects: u64,
    /// Sound packs.
    pub packs: u64,
    /// Pages in sound packs.
    pub pages: u64,
    /// Each damaged file and what is wrong with it.
    pub damaged: Vec<(PathBuf, String)>,
}

impl Store {
    /// The bytes of an object: found in the first readable store that has it, decompressed as a stream of at most the stated
    /// size, and hashed before anyone sees them.
    pub fn read(&self, reference: &ObjectRef) -> Result<Vec<u8>, StoreError> {
        match self.held(&reference.digest) {
            Some((held, bytes)) if held == *reference => Ok(bytes),
            _ => self.read_stored(reference),
        }
    }

    /// As [`Self::read`], past what is held back.
    pub(super) fn read_stored(&self, reference: &ObjectRef) -> Result<Vec<u8>, StoreError> {
        let ObjectRef { digest, size_bytes, media_type } = *reference;
        if size_bytes.0 > media_type.max_bytes() {
            let what = format!("stated size {size_bytes} is above the bound {}", media_type.max_bytes());
            return Err(StoreError::Mismatch { digest, what });
        }
        let compressed = media_type.encoding() != Encoding::Json;
        for store in self.readable() {
            let path = object_path(store, &digest, compressed);
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(files::io_error("reading", &path)(error)),
            };
            let mut bytes = Vec::new();
            let found = stream(file, compressed, size_bytes.0, &path, |chunk| bytes.extend_from_slice(chunk))?;
            return match found {
                (hash, size) if hash == digest && size == size_bytes.0 => Ok(bytes),
                (hash, size) if hash == digest => {
                    let what = format!("has {size} bytes, {size_bytes} are stated");
                    Err(StoreError::Mismatch { digest, what })
                }
                (hash, size) => Err(damaged(&path, &hash, size, size_bytes.0)),
            };
        }
        Err(StoreError::Missing { what: media_type.schema(), digest })
    }

    /// Whether some readable store has a file for this object; its bytes are not looked at.
    pub fn has(&self, reference: &ObjectRef) -> bool {
        let compressed = reference.media_type.encoding() != Encoding::Json;
        self.held(&reference.digest).is_some()
            || self.readable().iter().any(|store| object_path(store, &reference.digest, compressed).exists())
    }

    /// The JSON object with this digest, whatever its kind: how people name things on a command line.
    pub fn read_json(&self, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        for store in self.readable() {
            let path = object_path(store, digest, false);
            let Ok(file) = File::open(&path) else { continue };
            let mut bytes = Vec::new();
            let bound = MediaType::Corpus.max_bytes();
            let (hash, size) = stream(file, false, bound, &path, |chunk| bytes.extend_from_slice(chunk))?;
            return if hash == *digest { Ok(bytes) } else { Err(damaged(&path, &hash, size, size)) };
        }
        Err(StoreError::Missing { what: "document", digest: *digest })
    }

    /// Every object of the store written to, in order of digests. Damaged ones are listed as they are.
    pub fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let mut found = Vec::new();
        for (digest, compressed) in self.own_objects()? {
            found.push(listed(digest, &object_path(self.root(), &digest, compressed), compressed)?);
        }
        Ok(found)
    }

    /// Every object of all readable stores, each once.
    pub fn list_readable(&self) -> Result<Vec<Listed>, StoreError> {
        let mut found = std::collections::BTreeMap::new();
        for store in self.readable() {
            for (digest, compressed) in files::objects(store)? {
                found.entry(digest).or_insert_with(|| (object_path(store, &digest, compressed), compressed));
            }
        }
        let listed = found.into_iter().map(|(digest, (path, compressed))| listed(digest, &path, compressed));
        listed.collect()
    }

    /// Reads every object and pack of the store written to and names what is damaged.
    pub fn verify(&self) -> Result<Verified, StoreError> {
        let mut result = Verified::default();
        for (digest, compressed) in self.own_objects()? {
            let path = object_path(self.root(), &digest, compressed);
            let file = File::open(&path).map_err(files::io_error("reading", &path))?;
            let bound = if compressed { MediaType::Disk.max_bytes() } else { MediaType::Corpus.max_bytes() };
            match stream(file, compressed, bound, &path, |_| ()) {
                Ok((hash, _)) if hash == digest => result.objects += 1,
                Ok((hash, size)) => {
                    result.damaged.push((path.clone(), what_is_wrong(damaged(&path, &hash, size, size))))
                }
                Err(error) => result.damaged.push((path.clone(), what_is_wrong(error))),
            }
        }
        for path in files::packs(self.root())? {
            match pack::verify(&path) {
                Ok(pages) => {
                    result.packs += 1;
                    result.pages += pages;
                }
                Err(error) => result.damaged.push((path, error.to_string())),
            }
        }
        Ok(result)
    }
}

fn listed(digest: Digest, path: &Path, compressed: bool) -> Result<Listed, StoreError> {
    let stored_bytes = fs::metadata(path).map_err(files::io_error("reading", path))?.len();
    let (media_type, size_bytes) = describe(path, compressed);
    Ok(Listed { digest, media_type, size_bytes, stored_bytes })
}

/// Streams a file through decompression and the hash, at most `bound` bytes and one. Gives the digest and the size.
fn stream(
    file: File,
    compressed: bool,
    bound: u64,
    path: &Path,
    mut sink: impl FnMut(&[u8]),
) -> Result<(Digest, u64), StoreError> {
    let bad = |error: io::Error| StoreError::Damaged { path: path.to_owned(), what: error.to_string() };
    let mut reader: Box<dyn Read> =
        if compressed { Box::new(zstd::stream::read::Decoder::new(file).map_err(bad)?) } else { Box::new(file) };
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut size = 0u64;
    loop {
        let got = match reader.read(&mut chunk) {
            Ok(0) => return Ok((Digest(*hasher.finalize().as_bytes()), size)),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if compressed => return Err(bad(error)),
            Err(error) => return Err(files::io_error("reading", path)(error)),
        };
        size += got as u64;
        if size > bound {
            let what = format!("holds more than the {bound} bytes that are stated: it, or what names it, is damaged");
            return Err(StoreError::Wrong { path: path.to_owned(), what });
        }
        hasher.update(&chunk[..got]);
        sink(&chunk[..got]);
    }
}

fn damaged(path: &Path, hash: &Digest, size: u64, stated: u64) -> StoreError {
    let what = if size == stated {
        format!("its bytes hash to {hash}, which is not its name")
    } else {
        format!("{size} bytes that hash to {hash}, {stated} are stated")
    };
    StoreError::Damaged { path: path.to_owned(), what }
}

/// What is wrong with a file whose path is told beside it.
fn what_is_wrong(error: StoreError) -> String {
    match error {
        StoreError::Damaged { what, .. } | StoreError::Wrong { what, .. } => what,
        other => other.to_string(),
    }
}

/// Kind and uncompressed size, as far as the file tells.
fn describe(path: &Path, compressed: bool) -> (Option<MediaType>, u64) {
    if !compressed {
        let bytes = fs::read(path).unwrap_or_default();
        return (document::kind_of_json(&bytes), bytes.len() as u64);
    }
    let Ok(file) = File::open(path) else { return (None, 0) };
    let mut first = Vec::new();
    let bound = MediaType::Snapshot.max_bytes();
    let mut keep = |chunk: &[u8]| {
        if first.len() as u64 + chunk.len() as u64 <= bound {
            first.extend_from_slice(chunk);
        }
    };
    let Ok((_, size)) = stream(file, true, MediaType::Disk.max_bytes(), path, &mut keep) else { return (None, 0) };
    (document::kind_of_cbor(&first), size)
}
