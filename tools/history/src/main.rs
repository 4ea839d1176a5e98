// SPDX-License-Identifier: AGPL-3.0-or-later
//! Checks histories of operations that guests reported.

mod lines;
mod show;

use std::path::PathBuf;
use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::ExitCode;
use chaoscontrol_cli::{Context, Failure, Failures, Flag, Output, Positional, Tool, read_input, tool_main};
use chaoscontrol_history::{Budget, Property, check};

/// Bytes of all lines: what a branch may report as events, with room.
const BYTES_MAX: u64 = 256 << 20;
/// Configurations at most; each takes some tens of bytes.
const CONFIGURATIONS_MAX: u64 = 1 << 28;

static TOOL: Tool = Tool {
    name: "chaos-history",
    stage: "history",
    sources: &[
        include_str!("../Cargo.toml"),
        include_str!("lines.rs"),
        include_str!("main.rs"),
        include_str!("show.rs"),
    ],
    summary: "check histories of operations that guests reported",
    about: "Holds what processes called and got against what registers, queues and counters may do: linearizability, \
            read-your-writes, no lost updates. What is broken is shown with the fewest operations that break it and ends with code \
            10; a search that uses up its budget ends with 11. Text that came from a guest is escaped.",
    reads: "JSON lines: the events of a branch, or what the SDK wrote outside a VM.",
    writes: "On stdout: text, or with --json one JSON document.",
    flags: &[
        Flag::many("check", "PROPERTY", "What is checked, all unless it is said").choices(&[
            "linearizable",
            "read-your-writes",
            "no-lost-updates",
        ]),
        Flag::one("configurations", "N", "Configurations that the search for one key may visit").default("1000000"),
        Flag::switch("json", "Write JSON"),
    ],
    positional: Some(Positional { name: "FILE", help: "JSON lines; - is stdin", min: 0, max: 1, choices: &[] }),
    exit_codes: &[ExitCode::BadInput, ExitCode::RequirementFailed, ExitCode::BudgetExhausted],
    examples: [
        ("A bug's history", "chaos-reproduce --bug 1 --events events.jsonl < round.json && chaos-history events.jsonl"),
        ("A run outside a VM", "CHAOS_SDK_LOCAL_OUTPUT=run.jsonl ./my-node && chaos-history run.jsonl"),
    ],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, run)
}

fn run(context: &Context) -> Failures<Output> {
    let arguments = &context.arguments;
    let wanted = arguments.texts("check")?;
    let properties: Vec<Property> = Property::ALL
        .into_iter()
        .filter(|property| wanted.is_empty() || wanted.iter().any(|name| name == property.name()))
        .collect();
    let budget =
        Budget { configurations: arguments.number_within("configurations", 1, CONFIGURATIONS_MAX, 1_000_000)? };
    let path = arguments.positional.first().map_or_else(|| PathBuf::from("-"), PathBuf::from);
    let bytes = read_input(&path, BYTES_MAX)?;
    let input = |error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", path.display()));
    let text = std::str::from_utf8(&bytes).map_err(|error| input(&error))?;
    let parsed = lines::parse(text).map_err(|error| input(&error))?;
    if parsed.history.is_empty() {
        let what = format!(
            "none of {} events is {}, so nothing was checked; the workload reports them (docs/histories.md)",
            parsed.others,
            lines::EVENT
        );
        return Err(input(&what));
    }
    let report = check(&parsed.history, &properties, budget).map_err(|error| input(&error))?;
    let shown = if arguments.is_set("json") { show::json(&parsed, &report) } else { show::text(&parsed, &report) };
    let (code, note) = match (report.violations.is_empty(), report.undecided.is_empty()) {
        (false, _) => (ExitCode::RequirementFailed, Some("the history breaks what it must hold")),
        (true, false) => (ExitCode::BudgetExhausted, Some("a search used up its budget: see --configurations")),
        (true, true) => (ExitCode::Success, None),
    };
    Ok(Output { bytes: shown.into_bytes(), code, note: note.map(str::to_owned) })
}
