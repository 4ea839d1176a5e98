// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shows any artifact to people.

use std::path::{Path, PathBuf};
use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::schema::{Descriptor, Handoff, SnapshotManifest, read_handoff};
use chaoscontrol_artifact::{ExitCode, MediaType, ObjectRef, Store};
use chaoscontrol_cli::{
    Context, FROM, Failure, FailureExt, Failures, Flag, Output, Positional, STORE, Tool, read_input, stores_read,
    tool_main,
};
use chaoscontrol_evidence::report;
use chaoscontrol_explore::snapshots;

static TOOL: Tool = Tool {
    name: "chaos-show",
    stage: "show",
    summary: "show any artifact to people",
    about: "Shows a descriptor with what the stage found (bugs with their faults in time, verdicts, receipts), or any object \
            of a store by the beginning of its digest. Text that came from a guest is escaped.",
    reads: "A descriptor (file or stdin), or an object of a store.",
    writes: "On stdout: text; with --raw the object's own bytes.",
    flags: &[Flag::switch("raw", "Write the object's bytes as they are"), STORE, FROM],
    positional: Some(Positional {
        name: "ARTIFACT",
        help: "Descriptor file, - for stdin, or 6 digits of a digest at least",
        min: 0,
        max: 1,
    }),
    exit_codes: &[ExitCode::BadInput],
    examples: [("What a round found", "chaos-show round.json"), ("One object", "chaos-show 3f9a2c --store .chaos")],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, show)
}

fn show(context: &Context) -> Failures<Output> {
    let given = context.arguments.positional.first().cloned().unwrap_or_else(|| "-".into());
    let digits = given.to_str().filter(|text| (6..=64).contains(&text.len()));
    let prefix = digits.filter(|text| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
    if let Some(prefix) = prefix.filter(|_| !Path::new(&given).exists()) {
        let store = stores_read(context)?;
        let reference = find(&store, prefix)?;
        if context.arguments.is_set("raw") {
            return Ok(Output::new(store.read(&reference)?));
        }
        return Ok(Output::new(object(&store, &reference)?.into_bytes()));
    }
    let path = PathBuf::from(given);
    let bytes = read_input(&path, MediaType::Descriptor.max_bytes())?;
    match read_handoff(&bytes).context(&path.display().to_string())? {
        Handoff::Error(error) => {
            let code = ExitCode::from_number(error.exit_code).unwrap_or(ExitCode::Internal);
            Err(Failure::new(code, format!("stage {} failed: {}", error.stage, error.message)))
        }
        Handoff::Descriptor(descriptor) => whole(context, &descriptor),
    }
}

/// A descriptor and the outputs that people look at first.
fn whole(context: &Context, descriptor: &Descriptor) -> Failures<Output> {
    let mut out = String::new();
    report::descriptor(&mut out, descriptor);
    let wanted = ["bug", "minimized-bug", "reproduction", "verdict", "corpus", "assertions", "run", "snapshot"];
    let shown: Vec<ObjectRef> = wanted.iter().flat_map(|role| descriptor.outputs_of(role)).collect();
    if !shown.is_empty() {
        let store = stores_read(context)?;
        for reference in shown {
            out.push('\n');
            out.push_str(&object(&store, &reference)?);
        }
    }
    Ok(Output::new(out.into_bytes()))
}

fn object(store: &Store, reference: &ObjectRef) -> Failures<String> {
    let mut text = report::show(store, reference)?;
    if reference.media_type == MediaType::Snapshot {
        let manifest: SnapshotManifest = store.load(reference)?;
        for line in snapshots::describe(&manifest)? {
            text.push_str(&line);
            text.push('\n');
        }
    }
    Ok(text)
}

fn find(store: &Store, prefix: &str) -> Failures<ObjectRef> {
    let listed = store.list_readable()?;
    let mut found = listed.iter().filter(|object| object.digest.to_string().starts_with(prefix));
    let first = found.next().ok_or_else(|| Failure::input(format!("no object begins with {prefix}")))?;
    if let Some(second) = found.next() {
        let what = format!("{} and {} both begin with {prefix}", first.digest, second.digest);
        return Err(Failure::input(what));
    }
    // Bytes that say nothing about themselves are shown as console text would be, which is safe for any bytes.
    let media_type = first.media_type.unwrap_or(MediaType::Console);
    Ok(ObjectRef { digest: first.digest, size_bytes: first.size_bytes.into(), media_type })
}
