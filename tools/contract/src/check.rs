// SPDX-License-Identifier: AGPL-3.0-or-later
//! Many documents, each under the contract of its kind and under the rules that bind it to the others of the batch.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use chaoscontrol_artifact::contract::wire::Item;
use chaoscontrol_artifact::contract::{self, Breach};
use chaoscontrol_artifact::document::Encoding;
use chaoscontrol_artifact::{MediaType, escape, json};
use nickel_lang_core::cache::InputFormat;
use nickel_lang_core::files::FileId;

use crate::evaluate::{Evaluator, Finding};
use crate::place::{path_at, underline};

/// Bytes of a value that a message shows.
const VALUE_MAX: usize = 80;

/// The kinds that have a contract: every one that is a document.
pub fn kinds() -> impl Iterator<Item = MediaType> {
    MediaType::ALL.iter().copied().filter(|media| media.encoding() != Encoding::Raw)
}

/// The kind of this name.
pub fn kind_named(name: &str) -> Option<MediaType> {
    kinds().find(|media| media.schema() == name)
}

/// Every breach of these documents, in their order.
pub fn check(items: &[Item]) -> Vec<Breach> {
    check_with(Evaluator::new(contract::sources().iter().copied()), items)
}

/// As [`check`], with these contracts.
fn check_with(mut evaluator: Evaluator, items: &[Item]) -> Vec<Breach> {
    let mut findings: BTreeMap<usize, (Finding, String)> = BTreeMap::new();
    let mut files: BTreeMap<usize, FileId> = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        match text_of(item) {
            Ok(text) => {
                let file = evaluator.add(&document(index), InputFormat::Json, text);
                files.insert(index, file);
            }
            Err(rule) => {
                findings.insert(index, (Finding { rule, range: None }, String::new()));
            }
        }
    }
    let main = evaluator.add("/main.ncl", InputFormat::Nickel, program(items, &files));
    match evaluator.prepare(main) {
        Ok(program) => {
            for (&index, &file) in &files {
                if let Err(finding) = evaluator.force(&program, &field(index), file) {
                    findings.insert(index, (finding, String::from_utf8_lossy(&items[index].bytes).into_owned()));
                }
            }
        }
        Err(error) => {
            let rule = evaluator.report(*error);
            findings.extend(
                files.keys().map(|&index| (index, (Finding { rule: rule.clone(), range: None }, String::new()))),
            );
        }
    }
    let breach = |(index, (finding, text)): (usize, (Finding, String))| {
        let text = message(&items[index], &finding, &text);
        Breach { index, text }
    };
    findings.into_iter().map(breach).collect()
}

fn document(index: usize) -> String {
    format!("/documents/{index}.json")
}

fn field(index: usize) -> String {
    format!("d{index}")
}

/// The text of a document, if it is JSON with integers only and no larger than its kind may be.
fn text_of(item: &Item) -> Result<String, String> {
    let kind = kind_named(&item.kind).ok_or_else(|| format!("{:?} is no kind of document", item.kind))?;
    if item.bytes.len() as u64 > kind.max_bytes() {
        return Err(format!("must have at most {} bytes, it has {}", kind.max_bytes(), item.bytes.len()));
    }
    let text = String::from_utf8(item.bytes.clone()).map_err(|error| format!("must be UTF-8: {error}"))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| format!("must be JSON: {error}"))?;
    // A view has the 64-bit integers of CBOR as they are.
    if !item.is_view {
        json::to_canonical(&value).map_err(|error| format!("must be JSON of integers: {error}"))?;
    }
    Ok(text)
}

/// A record with a field for each document, under its contract.
fn program(items: &[Item], files: &BTreeMap<usize, FileId>) -> String {
    let mut out = String::new();
    let used: BTreeSet<&str> = files.keys().map(|&index| items[index].kind.as_str()).collect();
    for kind in used {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "let k_{} = import \"/contracts/{kind}.ncl\" in", kind.replace('-', "_"));
    }
    out.push_str("let across = import \"/contracts/lib/across.ncl\" in\nlet known = std.record.from_array [\n");
    let mut seen = BTreeSet::new();
    for &index in files.keys() {
        let Item { kind, digest, .. } = &items[index];
        if seen.insert(digest) && digest.len() == 64 {
            let value = format!("kind = {kind:?}, document = import {:?}", document(index));
            let _ = writeln!(out, "  {{ field = {digest:?}, value = {{ {value} }} }},");
        }
    }
    out.push_str("] in\n{\n");
    for &index in files.keys() {
        let kind = &items[index].kind;
        let _ = write!(out, "  {} = ((import {:?}) | k_{})", field(index), document(index), kind.replace('-', "_"));
        let _ = writeln!(out, " | across.rule {kind:?} known,");
    }
    out.push_str("}\n");
    out
}

/// What people read.
fn message(item: &Item, finding: &Finding, text: &str) -> String {
    let mut out = format!("{}: breaks the contract of kind {}\n", escape::terminal(&item.name), item.kind);
    let rule = escape::terminal_lines(&finding.rule);
    match &finding.range {
        Some(range) => {
            let (line, marks) = underline(text, range.clone());
            let path = path_at(text, range.start);
            let path = if path.is_empty() { "the document".to_owned() } else { path };
            let value = text.get(range.clone()).unwrap_or_default();
            let start = escape::clip(value, VALUE_MAX);
            let dots = if start.len() < value.len() { "..." } else { "" };
            let _ = writeln!(out, "  {line}\n  {marks}");
            let _ = writeln!(out, "  {path} {rule}; it is {}{dots}", escape::terminal(start));
        }
        None => {
            let _ = writeln!(out, "  the document {rule}");
        }
    }
    let stage = if item.stage.is_empty() { "a stage that it does not name" } else { &item.stage };
    let _ = write!(out, "  written by {}", escape::terminal(stage));
    out
}
