// SPDX-License-Identifier: AGPL-3.0-or-later
//! Binds a chain by digest, and checks such a receipt against a store.

use std::path::PathBuf;
use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::schema::Handoff;
use chaoscontrol_artifact::{ExitCode, MediaType, StageResult};
use chaoscontrol_cli::{
    Context, FROM, Failure, FailureExt, Failures, Flag, INPUT, Output, Positional, STORE, Stage, Tool, admit,
    read_handed, stage_main, stores_checked, tool_main,
};
use chaoscontrol_evidence::{check, derive};

static TOOL: Tool = Tool {
    name: "chaos-receipt",
    stage: "receipt",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "bind a chain by digest, or check such a receipt against a store",
    about: "Writes a descriptor that binds kernel, initrd, tool identities, parameters and every artifact of the chain \
            behind a verdict. The same inputs give the same receipt. With --check it reads a receipt, every object and \
            page that it binds, and derives it again: one flipped byte anywhere is refused.",
    reads: "The descriptor of chaos-verdict and all objects of its chain; with --check a receipt.",
    writes: "On stdout: the receipt, which is a descriptor; with --check one line.",
    flags: &[Flag::switch("check", "Check the receipt in RECEIPT, --in or stdin"), INPUT, STORE, FROM],
    positional: Some(Positional {
        name: "RECEIPT",
        help: "Receipt to check; only with --check",
        min: 0,
        max: 1,
        choices: &[],
    }),
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks, ExitCode::RequirementFailed],
    examples: [
        ("At the end of a pipeline", "chaos-verdict < reproduced.json | chaos-receipt > receipt.json"),
        ("Check it later, or elsewhere", "chaos-receipt --check receipt.json --from .chaos"),
    ],
};

fn main() -> ProcessCode {
    // Only the arguments say whether this is a stage or a check.
    if std::env::args_os().any(|argument| argument == "--check") {
        return tool_main(&TOOL, check_receipt);
    }
    stage_main(&TOOL, work)
}

fn work(stage: &Stage) -> Failures<StageResult> {
    if !stage.context.arguments.positional.is_empty() {
        return Err(Failure::usage("an argument is for --check; a descriptor is named with --in"));
    }
    stage.before()?;
    let previous = stage.previous.clone().unwrap_or_else(|| unreachable!("checked above"));
    Ok(derive(stage.store, previous)?)
}

fn check_receipt(context: &Context) -> Failures<Output> {
    let given = context.arguments.positional.first().map(PathBuf::from);
    let path = given.or_else(|| context.arguments.path("in")).unwrap_or_else(|| PathBuf::from("-"));
    let bytes = read_handed(&path, MediaType::Descriptor.max_bytes())?;
    let name = path.display().to_string();
    let store = stores_checked(context)?;
    let descriptor = match admit(&store, &name, &bytes)? {
        Handoff::Descriptor(descriptor) => descriptor,
        Handoff::Error(error) => {
            let what = format!("{name}: not a receipt: stage {} failed: {}", error.stage, error.message);
            return Err(Failure::input(what));
        }
    };
    let checked = check(&store, &descriptor).context(&name)?;
    store.release()?;
    let line =
        format!("receipt holds: {} stages, {} objects, {} pages\n", checked.stages, checked.objects, checked.pages);
    Ok(Output::new(line.into_bytes()))
}
