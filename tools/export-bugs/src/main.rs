// SPDX-License-Identifier: AGPL-3.0-or-later
//! Takes bugs out of a campaign that goes on or was interrupted.

use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::{ExitCode, StageResult};
use chaoscontrol_cli::{FROM, Failures, Flag, INPUT, STORE, Stage, Tool, stage_main};
use chaoscontrol_explore::stages::export::{ExportOptions, export_bugs};

static TOOL: Tool = Tool {
    name: "chaos-export-bugs",
    stage: "export-bugs",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "take bugs out of a campaign that goes on or was interrupted",
    about: "Reads every bug that a campaign found so far, all that each needs to be run again among it, and writes a descriptor \
            of those that were asked for: chaos-minimize, chaos-reproduce and chaos-verdict go on from it. One bug that is \
            damaged, contradicts its campaign or lacks something ends this with code 3 and without an output.",
    reads: "The descriptor of chaos-explore-round or chaos-explore, or the file of --checkpoint; the corpus it names, its bugs, \
            their traces, snapshots and pages.",
    writes: "On stdout: a descriptor.",
    flags: &[
        Flag::many("property", "TEXT", "Only bugs of this property: the assertion's message as a whole"),
        Flag::one(
            "min-replay-depth",
            "N",
            "Only bugs that replay from so deep: 0 cold boot, 1 the campaign's snapshot",
        )
        .default("0"),
        Flag::one("max-bugs", "N", "The first N of those"),
        INPUT,
        STORE,
        FROM,
    ],
    positional: None,
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks],
    examples: [
        (
            "The bugs of a campaign that was killed",
            "chaos-export-bugs --in checkpoint.json | chaos-minimize > minimal.json",
        ),
        (
            "One bug of one property, with its snapshot",
            "chaos-export-bugs --property 'one leader per term' --min-replay-depth 1 --max-bugs 1 < explored.json | chaos-show",
        ),
    ],
};

fn main() -> ProcessCode {
    stage_main(&TOOL, work)
}

fn work(stage: &Stage) -> Failures<StageResult> {
    let arguments = &stage.context.arguments;
    let options = ExportOptions {
        properties: arguments.texts("property")?,
        min_depth: arguments.number("min-replay-depth")?.unwrap_or(0),
        max_bugs: arguments.number("max-bugs")?,
    };
    let progress = &stage.context.progress;
    Ok(export_bugs(stage.store, stage.before()?, &options, &|done, total, note| progress.at(done, total, note))?)
}
