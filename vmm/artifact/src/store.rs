// SPDX-License-Identifier: AGPL-3.0-or-later
//! A content-addressed store in a directory.
//!
//! ```text
//! DIR/
//!   format                    "chaoscontrol store 1\n"
//!   lock                      shared by writers, exclusive for gc
//!   objects/<2 hex>/<64 hex>      an object as it is (JSON)
//!   objects/<2 hex>/<64 hex>.zst  an object as one zstd frame (all others)
//!   packs/<64 hex>.pack       pages (see `pack`)
//!   environment/<64 hex>.json what the host was when the named descriptor was written
//!   tmp/                      files being written
//!   from/*                    links to stores this one builds on
//! ```
//!
//! Every file is written under `tmp/`, synced and renamed, so that a store is valid after a kill at any instant and two
//! writers of the same object do no harm: they write the same bytes. An object that is there but damaged is written again.

mod files;
mod gc;
mod guarded;
mod pages;
mod read;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

pub use gc::{Collected, Roots};
pub use pages::PageCounts;
pub use read::{Listed, Verified};

use crate::Digest;
use crate::contract::{ContractError, Gate};
use crate::document::{self, Document, DocumentError, Encoding, MediaType};
use crate::exit_code::{CodedError, ExitCode};
use crate::pack::PackIndex;
use crate::schema::ObjectRef;

/// What `format` says.
const FORMAT: &str = "chaoscontrol store 1\n";
/// Stores that one store may read from, links of links included: a bound against cycles and accidents.
const FROM_MAX: usize = 256;
/// Compression of objects: fast, and about as small as slower levels for what is stored here.
const ZSTD_LEVEL: i32 = 3;

/// Why the store cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The host refused a file operation.
    #[error("{action} {}: {source}{}", path.display(), hint(action, source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// A directory that is no store.
    #[error("{}: not a store of this version: `format` is {found:?}, expected {FORMAT:?}", path.display())]
    Format {
        /// The directory.
        path: PathBuf,
        /// What its `format` file says.
        found: String,
    },
    /// No store has the object.
    #[error("{what} {digest} is in none of the stores read (--store, --from)")]
    Missing {
        /// What it is.
        what: &'static str,
        /// Its name.
        digest: Digest,
    },
    /// The bytes are not those that the name promises.
    #[error(
        "{}: damaged: {what}; delete it with `chaos-store verify --remove-damaged` and run the stage that wrote it again \
         (a snapshot: boot again)",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file is not what the reference says.
    #[error("{}: {what}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// The object is not what the reference says.
    #[error("object {digest}: {what}")]
    Mismatch {
        /// The object.
        digest: Digest,
        /// What differs.
        what: String,
    },
    /// A document in the store breaks its rules.
    #[error("object {digest}: {source}")]
    Document {
        /// The object.
        digest: Digest,
        /// The rule.
        source: DocumentError,
    },
    /// A document cannot be written.
    #[error("cannot encode: {0}")]
    Encode(DocumentError),
    /// gc while a stage writes, or a stage while gc runs.
    #[error("{}: the store is in use by {by}", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
        /// Whom to wait for.
        by: &'static str,
    },
    /// A document breaks its contract, or contracts cannot be checked.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// More `from/` links than are followed.
    #[error("{}: more than {FROM_MAX} stores are linked by `from/`", path.display())]
    TooManyStores {
        /// The store whose links were being followed.
        path: PathBuf,
    },
}

fn hint(action: &str, error: &io::Error) -> &'static str {
    if is_full(error) {
        " (free some space, then run the stage again: nothing stored was lost)"
    } else if action == files::OPENING && error.kind() == io::ErrorKind::NotFound {
        " (there is no store: look at --store, --from and CHAOS_STORE; chaos-boot makes one)"
    } else {
        ""
    }
}

/// No space, quota or file size left.
fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

impl CodedError for StoreError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Io { action, source, .. } if is_full(source) || *action == files::WRITING => ExitCode::HostLacks,
            Self::Busy { .. } => ExitCode::HostLacks,
            Self::Encode(_) => ExitCode::Internal,
            Self::Contract(error) => error.exit_code(),
            _ => ExitCode::BadInput,
        }
    }
}

/// A store to write to, with the stores it may also read from.
#[derive(Debug)]
pub struct Store {
    /// The store written to; read first.
    root: PathBuf,
    /// All stores read, `root` first.
    readable: Vec<PathBuf>,
    /// Held shared for as long as this value lives; `None` for a store that is only read.
    _lock: Option<File>,
    /// Where each page is, read from the packs when first asked for.
    index: OnceLock<Mutex<PackIndex>>,
    /// What checks documents against their contracts; stages have one.
    gate: Option<Mutex<Gate>>,
}

impl Store {
    /// Opens or creates the store at `root` for writing and reading; `from` are stores that are only read.
    pub fn open(root: &Path, from: &[PathBuf]) -> Result<Self, StoreError> {
        files::create_layout(root, FORMAT)?;
        let lock = files::lock(root, files::Lock::Shared)?;
        Self::assemble(root, from, Some(lock))
    }

    /// Opens existing stores for reading only; nothing is created or locked. The first of them is where [`Self::root`] is.
    pub fn open_read_only(stores: &[PathBuf]) -> Result<Self, StoreError> {
        let Some((root, from)) = stores.split_first() else {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(StoreError::Io { action: "opening", path: PathBuf::from("(no store given)"), source });
        };
        Self::assemble(root, from, None)
    }

    fn assemble(root: &Path, from: &[PathBuf], lock: Option<File>) -> Result<Self, StoreError> {
        let mut readable = Vec::new();
        for store in std::iter::once(root).chain(from.iter().map(PathBuf::as_path)) {
            files::follow(store, FORMAT, FROM_MAX, &mut readable)?;
        }
        Ok(Self { root: root.to_owned(), readable, _lock: lock, index: OnceLock::new(), gate: None })
    }

    /// The directory written to.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Every directory read, in the order of reading.
    pub fn readable(&self) -> &[PathBuf] {
        &self.readable
    }

    /// Stores a document.
    pub fn publish<D: Document>(&self, document: &D) -> Result<ObjectRef, StoreError> {
        let bytes = document::encode(document).map_err(StoreError::Encode)?;
        self.put(D::MEDIA, &bytes)
    }

    /// Reads and checks a document.
    pub fn load<D: Document>(&self, reference: &ObjectRef) -> Result<D, StoreError> {
        let digest = reference.digest;
        if reference.media_type != D::MEDIA {
            let what = format!("is a {}, a {} is needed", reference.media_type.schema(), D::MEDIA.schema());
            return Err(StoreError::Mismatch { digest, what });
        }
        let bytes = self.read(reference)?;
        match document::decode(&bytes) {
            Ok(document) => {
                self.passed(reference, &bytes)?;
                Ok(document)
            }
            Err(source) => {
                let name = format!("{} {}", D::MEDIA.schema(), digest.short());
                match self.explain(D::MEDIA, &name, &bytes) {
                    Some(error) => Err(error.into()),
                    None => Err(StoreError::Document { digest, source }),
                }
            }
        }
    }

    /// Stores bytes that are already canonical for their type. Present and sound in any readable store, they are not written
    /// again.
    pub fn put(&self, media: MediaType, bytes: &[u8]) -> Result<ObjectRef, StoreError> {
        let reference = guarded::reference(media, bytes);
        self.hold_or_write(reference, bytes)?;
        Ok(reference)
    }

    fn write_object(&self, reference: &ObjectRef, bytes: &[u8]) -> Result<(), StoreError> {
        if self.read_stored(reference).is_ok() {
            return Ok(());
        }
        let compressed = reference.media_type.encoding() != Encoding::Json;
        let path = object_path(&self.root, &reference.digest, compressed);
        if !compressed {
            return files::write_atomically(&self.root, &path, bytes);
        }
        let shorter = zstd::bulk::compress(bytes, ZSTD_LEVEL).map_err(|source| StoreError::Io {
            action: "compressing",
            path: path.clone(),
            source,
        })?;
        files::write_atomically(&self.root, &path, &shorter)
    }

    /// Writes what the host was when the descriptor `of` was published. Under no digest; a later run replaces it.
    pub fn put_environment(&self, of: &Digest, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(mut gate) = self.gate() else { return self.write_environment(of, bytes) };
        gate.write_environment(*of, &guarded::reference(MediaType::Environment, bytes), bytes);
        Ok(())
    }

    fn write_environment(&self, of: &Digest, bytes: &[u8]) -> Result<(), StoreError> {
        files::write_atomically(&self.root, &self.root.join(format!("environment/{of}.json")), bytes)
    }

    /// The environment beside the descriptor `of`, if any readable store has one.
    pub fn environment(&self, of: &Digest) -> Option<Vec<u8>> {
        let name = format!("environment/{of}.json");
        self.readable.iter().find_map(|store| fs::read(store.join(&name)).ok())
    }

    /// The objects that `root` itself holds, with whether each is compressed.
    fn own_objects(&self) -> Result<BTreeMap<Digest, bool>, StoreError> {
        files::objects(&self.root)
    }
}

/// Where an object is in a store.
fn object_path(store: &Path, digest: &Digest, compressed: bool) -> PathBuf {
    let name = digest.to_string();
    store.join(format!("objects/{}/{name}{}", &name[..2], if compressed { ".zst" } else { "" }))
}
