// SPDX-License-Identifier: AGPL-3.0-or-later
//! `docs/faults.md` ends with the fault table as the code has it. `CHAOS_UPDATE_DOCS=1` writes it anew.

use std::fmt::Write;

use chaoscontrol_fault::{Category, Role, SPECS, Width};

const START: &str = "## Kinds\n";

/// The table in Markdown.
fn kinds() -> String {
    let mut text = String::from(START);
    writeln!(text, "\n{} kinds in {} categories.", SPECS.len(), Category::ALL.len()).unwrap();
    for category in Category::ALL {
        let of_it = || SPECS.iter().filter(|spec| spec.category == category);
        let names: Vec<String> = of_it().map(|spec| format!("`{}`", spec.name)).collect();
        let (name, names) = (category.name(), names.join(", "));
        writeln!(text, "- {name} ({}): {names}", of_it().count()).unwrap();
    }
    for spec in Category::ALL.into_iter().flat_map(|category| SPECS.iter().filter(move |s| s.category == category)) {
        let (name, doc, observed) = (spec.name, spec.doc.trim(), spec.observed);
        let (category, weight) = (spec.category.name(), spec.weight);
        writeln!(
            text,
            "\n### `{name}`\n\n{doc}\n\nCategory: {category}. Planned with weight {weight}. Observed: {observed}."
        )
        .unwrap();
        if spec.parameters.is_empty() {
            continue;
        }
        text.push_str("\n| parameter | type | from | to | |\n|---|---|---|---|---|\n");
        for parameter in spec.parameters {
            let domain = parameter.domain;
            let kind = match (domain.role, parameter.width) {
                (Role::Vm, _) => "VM",
                (Role::VmSet, _) => "set of VMs",
                (Role::Disk, _) => "disk",
                (Role::Cpu, _) => "CPU",
                (_, Width::Wide) => "string",
                (_, Width::Small) => "number",
            };
            let doc = parameter.doc.trim();
            writeln!(text, "| `{}` | {kind} | {} | {} | {doc} |", parameter.name, domain.min, domain.max).unwrap();
        }
    }
    text
}

#[test]
fn the_faults_page_has_the_table_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/faults.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (head, found) = page.split_at(page.find(START).expect("the page has the section"));
    if std::env::var_os("CHAOS_UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{head}{}", kinds())).unwrap();
        return;
    }
    assert!(found == kinds(), "docs/faults.md is not up to date: run this test with CHAOS_UPDATE_DOCS=1");
}
