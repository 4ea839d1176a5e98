// SPDX-License-Identifier: AGPL-3.0-or-later
//! No kind of document without its contract, its good and bad documents, and its field table; no field without a sentence.

mod support;

use std::collections::BTreeSet;

use chaoscontrol_artifact::contract;
use support::{contracts, kinds, samples};

fn artifacts_page() -> String {
    std::fs::read_to_string(contracts().join("../docs/artifacts.md")).unwrap()
}

/// The part of a page below a heading.
fn section<'a>(page: &'a str, heading: &str) -> Option<&'a str> {
    let start = page.find(&format!("\n### {heading}"))? + 1;
    let rest = &page[start..];
    Some(rest[3..].find("\n### ").map_or(rest, |end| &rest[..end + 3]))
}

/// The fields of a contract's outermost record: its file is laid out with one field a line, its rules on the lines below.
fn fields(text: &str) -> Vec<&str> {
    let start = text.rfind("    | base.Is \"chaoscontrol.").expect("a contract begins with its schema");
    let head = text[..start].trim_end();
    let indent = head.lines().last().unwrap().len() - "schema".len();
    let body = &text[head.rfind('\n').unwrap() + 1..];
    let is_field = |line: &&str| {
        line.len() > indent
            && line[..indent].trim().is_empty()
            && line[indent..].bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    };
    body.lines()
        .take_while(|line| !line.starts_with('}') && !line.starts_with("  }"))
        .filter(is_field)
        .map(str::trim)
        .collect()
}

#[test]
fn every_kind_has_a_contract_tests_and_a_field_table() {
    let page = artifacts_page();
    let names: BTreeSet<&str> = contract::sources().iter().map(|(name, _)| *name).collect();
    let (good, bad) = (samples("good"), samples("bad"));
    let mut missing = Vec::new();
    for kind in kinds() {
        let name = kind.schema();
        let has = |samples: &[support::Sample]| samples.iter().any(|sample| sample.kind == kind);
        if !names.contains(format!("{name}.ncl").as_str()) {
            missing.push(format!("contracts/{name}.ncl"));
        }
        if !has(&good) {
            missing.push(format!("a document in contracts/tests/good/{name}"));
        }
        if !has(&bad) {
            missing.push(format!("a document in contracts/tests/bad/{name}"));
        }
        let Some(table) = section(&page, name) else {
            missing.push(format!("a section {name} in docs/artifacts.md"));
            continue;
        };
        let text =
            contract::sources().iter().find(|(file, _)| *file == format!("{name}.ncl")).map_or("", |(_, text)| text);
        for field in fields(text).into_iter().filter(|field| !["schema", "version"].contains(field)) {
            if !table.contains(&format!("`{field}`")) {
                missing.push(format!("`{field}` in the table of {name} in docs/artifacts.md"));
            }
        }
    }
    assert!(missing.is_empty(), "missing:\n{}", missing.join("\n"));
}

#[test]
fn every_contract_is_of_a_kind() {
    let kinds: BTreeSet<String> = kinds().map(|kind| format!("{}.ncl", kind.schema())).collect();
    let files: BTreeSet<String> =
        contract::sources().iter().map(|(name, _)| (*name).to_owned()).filter(|name| !name.contains('/')).collect();
    assert_eq!(files, kinds);
}

#[test]
fn every_field_of_every_contract_has_a_sentence() {
    let mut bare = Vec::new();
    for (name, text) in contract::sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let word = line.trim();
            let is_field = !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            let has_contract = lines.get(number + 1).is_some_and(|next| next.trim_start().starts_with("| "));
            if !is_field || !has_contract {
                continue;
            }
            // A nested record's own fields come before the outer field's sentence.
            let indent = line.len() - line.trim_start().len() + 2;
            let has_doc =
                lines[number + 1..].iter().take_while(|next| next.len() - next.trim_start().len() >= indent).any(
                    |next| next.len() - next.trim_start().len() == indent && next.trim_start().starts_with("| doc \""),
                );
            if !has_doc {
                bare.push(format!("contracts/{name}:{}: {word}", number + 1));
            }
        }
    }
    assert!(bare.is_empty(), "fields without a sentence:\n{}", bare.join("\n"));
}
