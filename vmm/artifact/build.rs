// SPDX-License-Identifier: AGPL-3.0-or-later
//! Compiles the contracts in: their texts for the one binary that evaluates them, and their digest for every tool that asks
//! it to, so that both can tell whether they mean the same set.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Folders with contracts, relative to `contracts/`. Tests and profiles lie in others.
const FOLDERS: &[&str] = &["", "lib", "profile"];

fn main() {
    // Cargo runs this in the package's folder. No path that it is told is absolute: checkouts that share a target directory share what this
    // prints, too, and each must look at its own files.
    let root = Path::new("../..");
    let contracts = root.join("contracts");
    let mut names: Vec<String> = FOLDERS.iter().flat_map(|folder| names_in(&contracts, folder)).collect();
    names.sort();
    let mut hasher = blake3::Hasher::new();
    let mut out = String::from("pub(super) const SOURCES: &[(&str, &str)] = &[\n");
    for name in &names {
        let path = contracts.join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
        // Lengths keep two different sets from giving one stream of bytes.
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        let _ = writeln!(out, "    ({name:?}, {text:?}),");
    }
    let _ = writeln!(out, "];\npub(super) const SET: [u8; 32] = {:?};", hasher.finalize().as_bytes());
    let target = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("contracts.rs");
    fs::write(&target, out).unwrap_or_else(|error| panic!("writing {}: {error}", target.display()));
}

fn names_in(contracts: &Path, folder: &str) -> Vec<String> {
    let path = contracts.join(folder);
    println!("cargo::rerun-if-changed={}", path.display());
    let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
    let name = |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let contracts = entries.filter_map(name).filter(|name| name.ends_with(".ncl"));
    contracts.map(|name| if folder.is_empty() { name } else { format!("{folder}/{name}") }).collect()
}
