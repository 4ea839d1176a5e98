// SPDX-License-Identifier: AGPL-3.0-or-later
//! Merges the shards of one exploration round.

use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::{ExitCode, StageResult};
use chaoscontrol_cli::{FROM, Failures, Positional, STORE, Stage, Tool, descriptors_given, stage_main};
use chaoscontrol_explore::stages::merge::merge;

static TOOL: Tool = Tool {
    name: "chaos-merge",
    stage: "merge",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "merge the shards of one exploration round",
    about: "Puts together what chaos-explore-round --shard 1/N to N/N wrote: corpora, coverage, assertions and bugs, each bug \
            once. The order of the arguments does not matter. The next round, or any other stage, goes on from it. A round \
            that was not divided is passed on as it is.",
    reads: "The descriptors of all shards of one round; the objects they name.",
    writes: "Objects: corpus, coverage map, assertions. On stdout: a descriptor.",
    flags: &[STORE, FROM],
    positional: Some(Positional { name: "DESCRIPTOR", help: "Descriptor of a shard", min: 1, max: 128, choices: &[] }),
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks],
    examples: [
        (
            "A round in two shards, each on any machine",
            "chaos-explore-round --shard 1/2 < boot.json > one.json\nchaos-explore-round --shard 2/2 < boot.json > two.json\n\
             chaos-merge one.json two.json > round.json",
        ),
        (
            "Shards from other stores",
            "chaos-merge one.json two.json --from one-store --from two-store | chaos-minimize",
        ),
    ],
};

fn main() -> ProcessCode {
    stage_main(&TOOL, work)
}

fn work(stage: &Stage) -> Failures<StageResult> {
    let shards = descriptors_given(stage)?;
    let progress = &stage.context.progress;
    Ok(merge(stage.store, shards, &|done, total, note| progress.at(done, total, note))?)
}
