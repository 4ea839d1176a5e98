// SPDX-License-Identifier: AGPL-3.0-or-later
//! Profiles: Nickel that people write, to canonical JSON.
//!
//! A profile sees the files of its own folder and the contracts for authors, `import "chaos/KIND.ncl"`, and nothing else: all
//! of that is read first, links left out, and then no file can be opened any more.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use chaoscontrol_artifact::contract::{self, wire::Item};
use chaoscontrol_artifact::schema::{ProfileDocument, ProfileSource};
use chaoscontrol_artifact::{Digest, Document, document, escape};
use chaoscontrol_cli::{Failure, FailureExt, Failures};
use nickel_lang_core::cache::InputFormat;

use crate::check::check;
use crate::evaluate::{EVALUATOR, Evaluator};

/// Files of one profile's folder, and bytes of one of them.
const FILES_MAX: usize = 256;
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Folders within folders.
const DEPTH_MAX: usize = 8;
/// Where the files of the profile's folder are for Nickel.
const FOLDER: &str = "/authored/";

/// A profile with the files around it.
#[derive(Debug)]
pub struct Sources {
    /// The profile's file as it was given.
    shown: String,
    /// The profile's name in its folder.
    name: String,
    /// Names relative to the folder, with texts.
    files: BTreeMap<String, String>,
}

impl Sources {
    /// Reads a profile and the files of its folder.
    pub fn read(path: &Path) -> Failures<Self> {
        let shown = path.display().to_string();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if !name.ends_with(".ncl") {
            return Err(Failure::usage(format!("{shown}: a profile is a file whose name ends in .ncl")));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut files = BTreeMap::new();
        collect(folder, "", 0, &mut files)?;
        if !files.contains_key(&name) {
            return Err(Failure::input(format!("{shown}: no such file, or a link, which profiles may not be")));
        }
        Ok(Self { shown, name, files })
    }

    /// Evaluates the profile, and holds its projection against the contract.
    pub fn project(&self) -> Failures<ProfileDocument> {
        let mut evaluator = Evaluator::new(contract::sources().iter().copied());
        evaluator.add_library();
        let mut main = None;
        for (name, text) in &self.files {
            let format = if name.ends_with(".json") { InputFormat::Json } else { InputFormat::Nickel };
            let file = evaluator.add(&format!("{FOLDER}{name}"), format, text.clone());
            main = if *name == self.name { Some(file) } else { main };
        }
        let main = main.ok_or_else(|| Failure::input(format!("{}: no such file", self.shown)))?;
        let json = evaluator.export(main).map_err(|report| {
            let report = escape::terminal_lines(&report.replace(FOLDER, ""));
            Failure::input(format!("{}: the profile does not evaluate\n{report}", self.shown))
        })?;
        let wrong = |error: serde_json::Error| Failure::input(format!("{}: {error}", self.shown));
        let values: serde_json::Value = serde_json::from_str(&json).map_err(wrong)?;
        let imports = evaluator.imports(main);
        let imports = imports.iter().filter_map(|name| name.strip_prefix(FOLDER)).map(|name| self.source(name));
        let imports: Vec<ProfileSource> = imports.collect();
        self.document(&values, imports)
    }

    fn source(&self, name: &str) -> ProfileSource {
        let text = self.files.get(name).map_or("", String::as_str);
        ProfileSource { name: name.to_owned(), digest: Digest::of(text.as_bytes()) }
    }

    fn document(&self, values: &serde_json::Value, imports: Vec<ProfileSource>) -> Failures<ProfileDocument> {
        let canonical = chaoscontrol_artifact::json::to_canonical(values)
            .map_err(|error| Failure::input(format!("{}: its projection: {error}", self.shown)))?;
        let header = serde_json::json!({
            "schema": "chaoscontrol.profile",
            "version": ProfileDocument::VERSION,
            "source": self.source(&self.name),
            "imports": imports,
            "contracts": contract::set_digest(),
            "evaluator": EVALUATOR,
            "projection": Digest::of(&canonical),
            "values": values,
        });
        let bytes = header.to_string().into_bytes();
        let item = Item {
            kind: "profile".to_owned(),
            name: format!("{}, projected", self.shown),
            stage: "its author".to_owned(),
            digest: Digest::of(&bytes).to_string(),
            is_view: false,
            bytes,
        };
        if let Some(breach) = check(std::slice::from_ref(&item)).first() {
            return Err(Failure::input(breach.text.clone()));
        }
        // The contract has nothing against it: whatever the Rust types say now is said in their words.
        document::decode_loose(&item.bytes).context(&self.shown)
    }
}

/// Adds every source file below `folder`: Nickel and JSON. Links and hidden files are left out.
fn collect(folder: &Path, prefix: &str, depth: usize, files: &mut BTreeMap<String, String>) -> Failures<()> {
    let unreadable =
        |path: &Path, error: std::io::Error| Failure::input(format!("reading {}: {error}", path.display()));
    if depth > DEPTH_MAX {
        return Err(Failure::input(format!("{}: folders nest deeper than {DEPTH_MAX}", folder.display())));
    }
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
        let entry = entry.map_err(|error| unreadable(folder, error))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let kind = entry.file_type().map_err(|error| unreadable(folder, error))?;
        let (path, relative) = (entry.path(), format!("{prefix}{name}"));
        if name.starts_with('.') || kind.is_symlink() {
            continue;
        }
        if kind.is_dir() {
            collect(&path, &format!("{relative}/"), depth + 1, files)?;
            continue;
        }
        if !kind.is_file() || !(name.ends_with(".ncl") || name.ends_with(".json")) {
            continue;
        }
        let size = entry.metadata().map_err(|error| unreadable(&path, error))?.len();
        if size > FILE_BYTES_MAX || files.len() == FILES_MAX {
            let what = format!("at most {FILES_MAX} files of at most {FILE_BYTES_MAX} bytes stand beside a profile");
            return Err(Failure::input(format!("{}: {what}", path.display())));
        }
        files.insert(relative, fs::read_to_string(&path).map_err(|error| unreadable(&path, error))?);
    }
    Ok(())
}
