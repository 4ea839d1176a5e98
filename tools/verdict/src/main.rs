// SPDX-License-Identifier: AGPL-3.0-or-later
//! Derives the verdict class and the acceptance status.

use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::schema::Class;
use chaoscontrol_artifact::{ExitCode, StageResult};
use chaoscontrol_cli::{FROM, Failure, Failures, Flag, INPUT, STORE, Stage, Tool, stage_main};
use chaoscontrol_evidence::judge;

static TOOL: Tool = Tool {
    name: "chaos-verdict",
    stage: "verdict",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "derive the verdict class and the acceptance status",
    about: "Concludes from the reproductions of a chain: one class a bug, that of the worst bug for the chain, and the \
            acceptance status that follows. With --require any other class ends with code 10; the verdict is written all \
            the same. Classes: no_bug_found, snapshot_backed_reproduced, snapshot_backed_not_reproduced, \
            schedule_only_replay_gap, missing_snapshot_ref, missing_snapshot_artifact, invalid_snapshot_digest, \
            replay_error.",
    reads: "The descriptor of chaos-reproduce, or of an earlier stage; the objects it names.",
    writes: "Objects: the verdict. On stdout: a descriptor.",
    flags: &[Flag::one("require", "CLASS", "The class that must hold").choices(Class::NAMES), INPUT, STORE, FROM],
    positional: None,
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks, ExitCode::RequirementFailed],
    examples: [
        ("Conclude", "chaos-verdict < reproduced.json > verdict.json"),
        ("A gate in CI", "chaos-verdict --require no_bug_found < reproduced.json > verdict.json"),
    ],
};

fn main() -> ProcessCode {
    stage_main(&TOOL, work)
}

fn work(stage: &Stage) -> Failures<StageResult> {
    let required = match stage.context.arguments.text("require")? {
        Some(name) => Some(Class::from_name(&name).ok_or_else(|| {
            let names: Vec<&str> = Class::ALL.iter().map(|class| class.name()).collect();
            Failure::usage(format!("--require is {name:?}, it must be one of {}", names.join(", ")))
        })?),
        None => None,
    };
    stage.before()?;
    let previous = stage.previous.clone().unwrap_or_else(|| unreachable!("checked above"));
    Ok(judge(stage.store, previous, required)?)
}
