// SPDX-License-Identifier: AGPL-3.0-or-later
//! The workspace keeps the rules, and the rules can see.

use std::path::{Path, PathBuf};

use chaoscontrol_policy::{Advisory, Rules, Workspace, advisories, problems};

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    let path = here().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn workspace() -> Workspace {
    let root: &Path = &here().join("../..");
    Workspace::read(root).unwrap()
}

fn data() -> Vec<Advisory> {
    advisories(&read("advisories.json")).unwrap()
}

#[test]
fn dependencies_keep_the_rules() {
    let found = problems(&workspace(), &Rules::parse(&read("rules.json")).unwrap(), &data());
    assert!(found.is_empty(), "{} problem(s):\n{}", found.len(), found.join("\n"));
}

#[test]
fn every_kind_of_rule_can_see() {
    let strict = r#"{"host_licences": ["MIT"], "guest_licences": [], "banned": {"serde": "planted"},
        "several_versions": {"libc": "planted"}, "accepted_advisories": {"RUSTSEC-0000-0000": "planted"}}"#;
    let planted = r#"{"advisories": [
        {"id": "RUSTSEC-0000-0001", "crate": "blake3", "kind": "vulnerability", "patched": [">= 99"], "unaffected": ["< 0.1"]},
        {"id": "RUSTSEC-0000-0002", "crate": "blake3", "kind": "vulnerability", "patched": [">= 0.1"], "unaffected": []}]}"#;
    let found = problems(&workspace(), &Rules::parse(strict).unwrap(), &advisories(planted).unwrap()).join("\n");
    for expected in [
        "blake3 1.",
        "licence CC0-1.0 OR Apache-2.0",
        "is not allowed in host tools",
        "is not allowed in guest programs",
        "banned: planted",
        "several_versions names libc, which has one version",
        "RUSTSEC-0000-0001 (vulnerability)",
        "accepted_advisories names RUSTSEC-0000-0000",
    ] {
        assert!(found.contains(expected), "no {expected:?} in:\n{found}");
    }
    assert!(!found.contains("RUSTSEC-0000-0002"), "{found}");
}

#[test]
fn every_exception_has_a_reason() {
    let rules: serde_json::Value = serde_json::from_str(&read("rules.json")).unwrap();
    for group in ["banned", "several_versions", "accepted_advisories"] {
        for (name, reason) in rules[group].as_object().unwrap() {
            assert!(reason.as_str().is_some_and(|reason| reason.len() >= 20), "{group}: {name}: say why");
        }
    }
}
