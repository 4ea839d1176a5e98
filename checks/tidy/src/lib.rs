// SPDX-License-Identifier: AGPL-3.0-or-later
//! Reads the repository as text, for the rules in `tests/`.

use std::path::{Path, PathBuf};

/// One tracked kind of file: its path relative to the root of the repository, with `/`, and its text.
#[derive(Debug)]
pub struct Source {
    /// Relative path.
    pub path: String,
    /// Content.
    pub text: String,
}

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file below the root whose name ends in one of `endings`, in path order. Build outputs and hidden folders are left out.
#[must_use]
pub fn sources(endings: &[&str]) -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries {
            let path = entry.expect("a directory entry can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && !name.starts_with("target") && !name.starts_with("result") {
                    folders.push(path);
                }
            } else if endings.iter().any(|end| name.ends_with(end)) {
                let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                let path = path.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no {endings:?} below {}", root.display());
    found
}
