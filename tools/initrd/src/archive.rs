// SPDX-License-Identifier: AGPL-3.0-or-later
//! A newc archive with fixed owners, times and inode numbers, sorted by path. (Linux: buffer-format)

use cpio::newc::{Builder, trailer};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_FILE: u32 = 0o100_000;
const TYPE_LINK: u32 = 0o120_000;
const TYPE_CHARACTER: u32 = 0o020_000;
/// Entries of an archive: a guest is a program and some files, not a distribution.
const ENTRIES_MAX: usize = 100_000;
/// Directories that `chaos-init` mounts on, and where programs expect to write.
const DIRECTORIES: [&str; 7] = ["dev", "etc", "proc", "root", "run", "sys", "tmp"];

/// Why an archive cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A path in the archive is relative, or climbs.
    #[error("{0}: a destination is an absolute path without . and .. components")]
    Destination(String),
    /// Two things want one path.
    #[error("/{0} is added twice, as different things")]
    Twice(String),
    /// A source cannot be read.
    #[error("reading {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A source is a device, a socket or the like.
    #[error("{0}: only files, directories and symbolic links can be added")]
    Kind(PathBuf),
    /// A name is not UTF-8.
    #[error("{0}: the name is not utf-8")]
    Name(PathBuf),
    /// The format's sizes have 32 bits.
    #[error("/{0} is larger than 4 GiB")]
    TooLarge(String),
    /// Too many entries.
    #[error("more than {ENTRIES_MAX} entries")]
    TooMany,
    /// The archive cannot be written.
    #[error("writing the archive")]
    Write(#[source] io::Error),
}

#[derive(Debug, PartialEq, Eq)]
enum Node {
    Directory(u32),
    File(u32, Vec<u8>),
    Link(String),
    Character { mode: u32, major: u32, minor: u32 },
}

/// What goes into an initrd.
pub struct Archive {
    nodes: BTreeMap<String, Node>,
}

impl Archive {
    /// The directories and the console that every guest needs.
    pub fn new() -> Self {
        let mut nodes = BTreeMap::new();
        for name in DIRECTORIES {
            nodes.insert(name.to_owned(), Node::Directory(0o755));
        }
        // The kernel opens it for init before anything is mounted.
        nodes.insert("dev/console".to_owned(), Node::Character { mode: 0o600, major: 5, minor: 1 });
        Self { nodes }
    }

    /// Adds one file and the directories above it.
    pub fn add_file(&mut self, destination: &str, mode: u32, bytes: Vec<u8>) -> Result<(), ArchiveError> {
        self.add(destination, Node::File(mode, bytes))
    }

    /// Adds a file, a link, or a directory with everything in it. `mode` replaces the files' own.
    pub fn add_tree(&mut self, source: &Path, destination: &str, mode: Option<u32>) -> Result<(), ArchiveError> {
        let failed = |error| ArchiveError::Read { path: source.to_owned(), source: error };
        let metadata = std::fs::symlink_metadata(source).map_err(failed)?;
        if metadata.is_symlink() {
            let target = std::fs::read_link(source).map_err(failed)?;
            let target = target.into_os_string().into_string().map_err(|_| ArchiveError::Name(source.to_owned()))?;
            return self.add(destination, Node::Link(target));
        }
        if metadata.is_file() {
            let own = metadata.permissions().mode() & 0o7777;
            return self.add_file(destination, mode.unwrap_or(own), std::fs::read(source).map_err(failed)?);
        }
        if !metadata.is_dir() {
            return Err(ArchiveError::Kind(source.to_owned()));
        }
        self.add(destination, Node::Directory(0o755))?;
        for entry in std::fs::read_dir(source).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.ok_or_else(|| ArchiveError::Name(path.clone()))?;
            self.add_tree(&path, &format!("{}/{name}", destination.trim_end_matches('/')), mode)?;
        }
        Ok(())
    }

    fn add(&mut self, destination: &str, node: Node) -> Result<(), ArchiveError> {
        let wrong = || ArchiveError::Destination(destination.to_owned());
        let name = destination.strip_prefix('/').ok_or_else(wrong)?.trim_end_matches('/');
        if name.is_empty() && matches!(node, Node::Directory(_)) {
            return Ok(());
        }
        if name.split('/').any(|part| part.is_empty() || part == "." || part == ".." || part.contains('\0')) {
            return Err(wrong());
        }
        for (slash, _) in name.match_indices('/') {
            self.insert(&name[..slash], Node::Directory(0o755))?;
        }
        self.insert(name, node)
    }

    fn insert(&mut self, name: &str, node: Node) -> Result<(), ArchiveError> {
        match self.nodes.get(name) {
            Some(there) if *there == node => Ok(()),
            Some(_) => Err(ArchiveError::Twice(name.to_owned())),
            None if self.nodes.len() >= ENTRIES_MAX => Err(ArchiveError::TooMany),
            None => {
                self.nodes.insert(name.to_owned(), node);
                Ok(())
            }
        }
    }

    /// The archive's bytes.
    pub fn bytes(&self) -> Result<Vec<u8>, ArchiveError> {
        let mut out = Vec::new();
        for (ino, (name, node)) in (1u32..).zip(&self.nodes) {
            let entry = Builder::new(name).ino(ino).uid(0).gid(0).mtime(0).dev_major(0).dev_minor(0);
            let (entry, content): (Builder, &[u8]) = match node {
                Node::Directory(mode) => (entry.mode(TYPE_DIRECTORY | mode).nlink(2), &[]),
                Node::File(mode, bytes) => (entry.mode(TYPE_FILE | mode).nlink(1), bytes),
                Node::Link(target) => (entry.mode(TYPE_LINK | 0o777).nlink(1), target.as_bytes()),
                Node::Character { mode, major, minor } => {
                    (entry.mode(TYPE_CHARACTER | mode).nlink(1).rdev_major(*major).rdev_minor(*minor), &[])
                }
            };
            let bytes = u32::try_from(content.len()).map_err(|_| ArchiveError::TooLarge(name.clone()))?;
            let mut writer = entry.write(&mut out, bytes);
            writer.write_all(content).and_then(|()| writer.finish().map(|_| ())).map_err(ArchiveError::Write)?;
        }
        trailer(&mut out).map_err(ArchiveError::Write)?;
        // Archives may follow one another; the kernel looks for the next one at a multiple of four.
        out.resize(out.len().next_multiple_of(512), 0);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and modes as another reader sees them.
    fn listing(archive: &Archive) -> Vec<(String, u32, u32)> {
        let bytes = archive.bytes().unwrap();
        let mut rest = bytes.as_slice();
        let mut out = Vec::new();
        loop {
            let reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                return out;
            }
            let entry = reader.entry();
            out.push((entry.name().to_owned(), entry.mode(), entry.mtime()));
            rest = reader.finish().unwrap();
        }
    }

    #[test]
    fn entries_are_sorted_and_directories_come_before_what_is_in_them() {
        let mut archive = Archive::new();
        archive.add_file("/usr/share/z", 0o644, vec![1]).unwrap();
        archive.add_file("/init", 0o755, vec![2]).unwrap();
        let listing = listing(&archive);
        let names: Vec<_> = listing.iter().map(|(name, _, _)| name.as_str()).collect();
        let expected = [
            "dev",
            "dev/console",
            "etc",
            "init",
            "proc",
            "root",
            "run",
            "sys",
            "tmp",
            "usr",
            "usr/share",
            "usr/share/z",
        ];
        assert_eq!(names, expected);
        assert!(listing.iter().all(|(_, _, mtime)| *mtime == 0));
        assert_eq!(listing[3].1, TYPE_FILE | 0o755);
        assert_eq!(listing[1].1, TYPE_CHARACTER | 0o600);
    }

    #[test]
    fn the_order_and_time_of_adding_do_not_show() {
        let pack = |reverse: bool| {
            let directory = tempfile::tempdir().unwrap();
            let mut names: Vec<_> = (0..20).map(|i| format!("file{i}")).collect();
            if reverse {
                names.reverse();
            }
            for name in &names {
                std::fs::write(directory.path().join(name), name).unwrap();
            }
            std::os::unix::fs::symlink("file3", directory.path().join("link")).unwrap();
            let mut archive = Archive::new();
            archive.add_tree(directory.path(), "/data", Some(0o600)).unwrap();
            archive.bytes().unwrap()
        };
        assert_eq!(pack(false), pack(true));
    }

    #[test]
    fn conflicts_and_climbing_paths_are_refused() {
        let mut archive = Archive::new();
        archive.add_file("/a", 0o644, vec![1]).unwrap();
        assert!(matches!(archive.add_file("/a", 0o644, vec![2]), Err(ArchiveError::Twice(_))));
        assert!(matches!(archive.add_file("/a/b", 0o644, vec![2]), Err(ArchiveError::Twice(_))));
        for wrong in ["relative", "/../up", "/a//b", "/./x", "/"] {
            assert!(matches!(archive.add_file(wrong, 0o644, vec![]), Err(ArchiveError::Destination(_))), "{wrong}");
        }
        assert!(matches!(archive.add_tree(Path::new("/no/such"), "/x", None), Err(ArchiveError::Read { .. })));
        assert!(matches!(archive.add_tree(Path::new("/dev/null"), "/x", None), Err(ArchiveError::Kind(_))));
    }
}
