// SPDX-License-Identifier: AGPL-3.0-or-later
//! What all tools share of their identity: a digest of the libraries' sources and of Cargo.lock, never of an executable. Each tool adds
//! its own sources, so that a change in one leaves the others what they were.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose sources are part of every host tool, relative to the workspace.
const FOLDERS: &[&str] = &["vmm", "tools/cli", "guest/protocol"];

fn main() {
    // Cargo runs this in the package's folder. No path that it is told is absolute: checkouts that share a target directory share what this
    // prints, too, and each must look at its own files.
    let root = Path::new("../..");
    let mut files = vec![PathBuf::from("Cargo.lock"), PathBuf::from("Cargo.toml")];
    for folder in FOLDERS {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
        collect(root, Path::new(folder), &mut files);
    }
    println!("cargo::rerun-if-changed={}", root.join("Cargo.lock").display());
    println!("cargo::rerun-if-changed={}", root.join("Cargo.toml").display());
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for file in &files {
        let bytes = fs::read(root.join(file)).unwrap_or_else(|error| panic!("reading {}: {error}", file.display()));
        let name = file.to_str().expect("source files have plain names");
        // Lengths keep two different trees from giving one stream of bytes.
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes);
    }
    println!("cargo::rustc-env=CHAOS_SOURCE_DIGEST={}", hasher.finalize().to_hex());
}

/// Adds every Rust source, style sheet and manifest below `folder`; tests and fixtures do not change what a tool is.
fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return };
    for entry in entries.flatten() {
        let path = folder.join(entry.file_name());
        let name = entry.file_name();
        if entry.path().is_dir() {
            if !["target", "tests", "benches", "examples", "fuzz", "oracle"].iter().any(|skipped| name == *skipped) {
                collect(root, &path, files);
            }
        } else if name == "Cargo.toml"
            || path.extension().is_some_and(|extension| extension == "rs" || extension == "css")
        {
            files.push(path);
        }
    }
}
