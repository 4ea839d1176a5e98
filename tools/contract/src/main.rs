// SPDX-License-Identifier: AGPL-3.0-or-later
//! Checks documents against their Nickel contracts. The only binary that links Nickel.

mod check;
mod command;
mod evaluate;
mod limits;
mod place;
mod project;

use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::ExitCode;
use chaoscontrol_cli::{Positional, Tool, tool_main};

static TOOL: Tool = Tool {
    name: "chaos-contract",
    stage: "contract",
    sources: &[
        include_str!("../Cargo.toml"),
        include_str!("check.rs"),
        include_str!("command.rs"),
        include_str!("evaluate.rs"),
        include_str!("limits.rs"),
        include_str!("main.rs"),
        include_str!("place.rs"),
        include_str!("project.rs"),
    ],
    summary: "check documents against their contracts",
    about: "Holds documents against the Nickel contracts that are compiled in. `check KIND FILE...` says which field breaks \
            which rule; KIND any takes the kind from each document, and then rules across the given documents hold too. \
            `filter [KIND]` passes stdin to stdout unchanged, so that it can stand in a pipeline; a breach becomes an error \
            descriptor. `project FILE...` evaluates profiles to canonical JSON, one line each; a profile sees the files of its \
            folder and nothing else. `kinds` lists the kinds. `serve` is what stages call.",
    reads: "Documents, on stdin or in files: JSON, and CBOR as the store has it once decompressed; - is stdin.",
    writes: "On stdout: one line a document (check), the document (filter), projections (project), names (kinds).",
    flags: &[],
    positional: Some(Positional {
        name: "COMMAND",
        help: "check KIND FILE..., filter [KIND], project FILE..., kinds, or serve",
        min: 1,
        max: 1 << 16,
        choices: &["check", "filter", "project", "kinds", "serve"],
    }),
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks],
    examples: [
        ("Check a schedule before a campaign uses it", "chaos-contract check schedule faults.json"),
        (
            "Look at every handoff of a pipeline",
            "chaos-minimize < round.json | chaos-contract filter | chaos-reproduce",
        ),
    ],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, command::run)
}
