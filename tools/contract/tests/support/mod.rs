// SPDX-License-Identifier: AGPL-3.0-or-later
//! The documents of `contracts/tests`, and what judges them.

// Each test takes what it needs.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use chaoscontrol_artifact::contract::{Checker, wire::Item};
use chaoscontrol_artifact::document::Encoding;
use chaoscontrol_artifact::{Digest, MediaType, contract};

/// A document of `contracts/tests`.
pub struct Sample {
    /// What it is.
    pub kind: MediaType,
    /// Its path below `contracts/tests`.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// JSON, or CBOR.
    pub bytes: Vec<u8>,
}

/// The folder of contracts.
pub fn contracts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contracts")
}

/// Every kind that is a document.
pub fn kinds() -> impl Iterator<Item = MediaType> {
    MediaType::ALL.iter().copied().filter(|kind| kind.encoding() != Encoding::Raw)
}

/// The documents below `contracts/tests/GROUP`, in order of names.
pub fn samples(group: &str) -> Vec<Sample> {
    let mut found = Vec::new();
    for kind in kinds() {
        let folder = contracts().join("tests").join(group).join(kind.schema());
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            let name = format!("{group}/{}/{}", kind.schema(), path.file_name().unwrap().to_str().unwrap());
            let text = std::fs::read(&path).unwrap();
            let bytes = match () {
                () if name.ends_with(".json") => text,
                () if name.ends_with(".cbor.hex") => from_hex(&text),
                () if name.ends_with(".expected") => continue,
                () => panic!("{name} is neither a document nor an expected message"),
            };
            found.push(Sample { kind, name, path, bytes });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!found.is_empty());
    found
}

fn from_hex(text: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = text.iter().copied().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks_exact(2).map(pair).collect()
}

/// A document as stages send it.
pub fn item(kind: MediaType, name: &str, bytes: &[u8]) -> Item {
    let is_view = kind.encoding() == Encoding::Cbor;
    Item {
        kind: kind.schema().to_owned(),
        name: name.to_owned(),
        stage: "the stage of this test".to_owned(),
        digest: Digest::of(bytes).to_string(),
        is_view,
        // CBOR without a view is refused as what it is not.
        bytes: if is_view { contract::view(bytes).unwrap_or_default() } else { bytes.to_vec() },
    }
}

/// The binary that this package builds.
pub fn checker() -> Checker {
    Checker::at(PathBuf::from(env!("CARGO_BIN_EXE_chaos-contract")))
}
