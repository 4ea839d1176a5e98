// SPDX-License-Identifier: AGPL-3.0-or-later
//! The file operations under a store: layout, locks, atomic writes, links.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::StoreError;
use crate::Digest;

/// The action of errors while writing: the host's fault, not an input's.
pub const WRITING: &str = "writing";
/// The action of errors while looking for a store: what was named may not be one.
pub const OPENING: &str = "opening store";

/// How a store is locked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// A stage that reads and writes.
    Shared,
    /// gc, which deletes.
    Exclusive,
}

/// Turns a host error into ours.
pub fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}

/// Creates what is missing of a store's directories. A directory that holds something else is refused.
pub fn create_layout(root: &Path, format: &str) -> Result<(), StoreError> {
    fs::create_dir_all(root).map_err(io_error(WRITING, root))?;
    let marker = root.join("format");
    if !marker.exists() {
        let mut entries = fs::read_dir(root).map_err(io_error("reading", root))?;
        let foreign =
            entries.any(|entry| entry.is_ok_and(|entry| !OWN_NAMES.iter().any(|own| entry.file_name() == **own)));
        if foreign {
            let found = "missing in a directory that is not empty".to_owned();
            return Err(StoreError::Format { path: root.to_owned(), found });
        }
    }
    for directory in ["objects", "packs", "environment", "tmp"] {
        let path = root.join(directory);
        fs::create_dir_all(&path).map_err(io_error(WRITING, &path))?;
    }
    if !marker.exists() {
        write_atomically(root, &marker, format.as_bytes())?;
    }
    Ok(())
}

/// What a store that is just being created may already hold.
const OWN_NAMES: &[&str] = &["objects", "packs", "environment", "tmp", "from", "format", "lock"];

/// Takes the store's lock without waiting.
pub fn lock(root: &Path, how: Lock) -> Result<File, StoreError> {
    let path = root.join("lock");
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io_error(WRITING, &path))?;
    let operation = if how == Lock::Shared { libc::LOCK_SH } else { libc::LOCK_EX };
    // SAFETY: flock on a descriptor that `file` owns has no memory effects.
    let result = unsafe { libc::flock(file.as_raw_fd(), operation | libc::LOCK_NB) };
    if result == 0 {
        return Ok(file);
    }
    let source = io::Error::last_os_error();
    if source.kind() == io::ErrorKind::WouldBlock {
        let by = if how == Lock::Shared { "chaos-store gc" } else { "a running stage" };
        return Err(StoreError::Busy { path: root.to_owned(), by });
    }
    Err(StoreError::Io { action: "locking", path, source })
}

/// Adds `store` and every store it links to under `from/` to `found`, each once, nearest first.
pub fn follow(store: &Path, format: &str, max: usize, found: &mut Vec<PathBuf>) -> Result<(), StoreError> {
    let mut waiting = vec![store.to_owned()];
    while let Some(path) = waiting.pop() {
        let canonical = fs::canonicalize(&path).map_err(io_error(OPENING, &path))?;
        if found.contains(&canonical) {
            continue;
        }
        let marker = canonical.join("format");
        let text = fs::read_to_string(&marker).map_err(io_error(OPENING, &marker))?;
        if text != format {
            return Err(StoreError::Format { path, found: text.chars().take(80).collect() });
        }
        if found.len() == max {
            return Err(StoreError::TooManyStores { path });
        }
        let links = canonical.join("from");
        found.push(canonical);
        if let Ok(entries) = fs::read_dir(&links) {
            let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            entries.sort();
            waiting.extend(entries.into_iter().rev());
        }
    }
    Ok(())
}

/// A file being written under `tmp/`. Dropped without [`Self::finish`], it is deleted.
pub struct Temporary {
    path: PathBuf,
    file: Option<io::BufWriter<File>>,
}

impl Temporary {
    /// Creates a file that no one else writes.
    pub fn create(root: &Path) -> Result<Self, StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            // Neither part reaches an artifact; they only keep writers apart. Another PID namespace may repeat them, hence
            // `create_new`.
            let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = root.join("tmp").join(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Self { path, file: Some(io::BufWriter::with_capacity(1 << 20, file)) }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error(WRITING, &path)(error)),
            }
        }
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let file = self.file.as_mut().expect("open until finished");
        file.write_all(bytes).map_err(io_error(WRITING, &self.path))
    }

    /// Syncs the file and gives it its name; the rename is synced too.
    pub fn finish(mut self, path: &Path) -> Result<(), StoreError> {
        let fail = |source| StoreError::Io { action: WRITING, path: path.to_owned(), source };
        let mut file = self.file.take().expect("open until finished");
        file.flush().map_err(fail)?;
        file.get_ref().sync_all().map_err(fail)?;
        let directory = path.parent().expect("store paths have a parent");
        fs::create_dir_all(directory).map_err(fail)?;
        fs::rename(&self.path, path).map_err(fail)?;
        self.path = PathBuf::new();
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(fail)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // A writer that failed leaves nothing behind where it can be helped; gc removes the rest.
            drop(self.file.take());
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes a whole file: temporary, sync, rename.
pub fn write_atomically(root: &Path, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut temporary = Temporary::create(root)?;
    temporary.write(bytes)?;
    temporary.finish(path)
}

/// The objects in one store, with whether each is compressed. Names that are no digests are left alone.
pub fn objects(store: &Path) -> Result<BTreeMap<Digest, bool>, StoreError> {
    let mut found = BTreeMap::new();
    let top = store.join("objects");
    for directory in fs::read_dir(&top).map_err(io_error("reading", &top))?.flatten() {
        let Ok(entries) = fs::read_dir(directory.path()) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let (hex, compressed) = name.strip_suffix(".zst").map_or((name, false), |hex| (hex, true));
            if let Ok(digest) = hex.parse() {
                found.insert(digest, compressed);
            }
        }
    }
    Ok(found)
}

/// The packs in one store, by name.
pub fn packs(store: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let top = store.join("packs");
    let entries = fs::read_dir(&top).map_err(io_error("reading", &top))?;
    let pack = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "pack");
    let mut packs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(pack).collect();
    packs.sort();
    Ok(packs)
}
