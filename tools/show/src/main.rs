// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shows any artifact to people.

use std::io::{IsTerminal, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::schema::{Descriptor, ErrorDescriptor, SnapshotManifest};
use chaoscontrol_artifact::{ExitCode, MediaType, ObjectRef, Store, document};
use chaoscontrol_cli::{
    Context, FROM, Failure, FailureExt, Failures, Flag, Output, Positional, STORE, Tool, read_handed, stores_read,
    tool_main,
};
use chaoscontrol_evidence::report;
use chaoscontrol_explore::snapshots;

/// Largest document that is shown from a file: that of the largest JSON kind.
const BYTES_MAX: u64 = 64 << 20;

static TOOL: Tool = Tool {
    name: "chaos-show",
    stage: "show",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "show any artifact to people",
    about: "Shows a descriptor with what the stage found (bugs with their faults in time, verdicts, receipts), or any object \
            of a store by the beginning of its digest, or any other JSON document in a file. Text that came from a guest is escaped.",
    reads: "A descriptor or another JSON document (file or stdin), or an object of a store.",
    writes: "On stdout: text; with --raw the object's own bytes.",
    flags: &[Flag::switch("raw", "Write the object's bytes as they are"), STORE, FROM],
    positional: Some(Positional {
        name: "ARTIFACT",
        help: "Document file, - for stdin, or 6 digits of a digest at least",
        min: 0,
        max: 1,
        choices: &[],
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
    if path == Path::new("-") && stdin().is_terminal() {
        return Err(Failure::usage(
            "nothing to show: name a file or an object, or pipe a descriptor; see chaos-show --help",
        ));
    }
    let bytes = read_handed(&path, BYTES_MAX)?;
    if context.arguments.is_set("raw") {
        return Ok(Output::new(bytes));
    }
    let name = if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() };
    match document::kind_of_json(&bytes) {
        // Data, as it is for a stage: whoever failed has said so on stderr.
        Some(MediaType::Error) => {
            let error: ErrorDescriptor = document::decode_loose(&bytes).context(&name)?;
            let mut text = String::new();
            report::error(&mut text, &error);
            let code = ExitCode::from_number(error.exit_code).unwrap_or(ExitCode::Internal);
            Ok(Output { bytes: text.into_bytes(), code, note: None })
        }
        None | Some(MediaType::Descriptor) => whole(context, &document::decode_loose(&bytes).context(&name)?),
        Some(media) => {
            let mut text = String::new();
            let canonical = document::canonical(media.schema(), &bytes).context(&name)?;
            report::contents(&mut text, &stores_read(context)?, media, &canonical).context(&name)?;
            Ok(Output::new(text.into_bytes()))
        }
    }
}

/// A descriptor and the outputs that people look at first.
fn whole(context: &Context, descriptor: &Descriptor) -> Failures<Output> {
    let (mut out, mut first_failure) = (String::new(), None);
    report::descriptor(&mut out, descriptor);
    let wanted = ["bug", "minimized-bug", "reproduction", "verdict", "corpus", "assertions", "run", "snapshot"];
    let shown: Vec<ObjectRef> = wanted.iter().flat_map(|role| descriptor.outputs_of(role)).collect();
    if !shown.is_empty() {
        let store = stores_read(context)?;
        for reference in shown {
            out.push('\n');
            match object(&store, &reference) {
                Ok(text) => out.push_str(&text),
                // The others are worth seeing all the same.
                Err(failure) => {
                    out.push_str(&format!("{} {}: cannot be shown\n", reference.media_type.schema(), reference.digest));
                    first_failure = first_failure.or(Some(failure));
                }
            }
        }
    }
    let mut output = Output::new(out.into_bytes());
    if let Some(failure) = first_failure {
        output.code = failure.code;
        output.note = Some(failure.message);
    }
    Ok(output)
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
    let reference = |media_type| ObjectRef { digest: first.digest, size_bytes: first.size_bytes.into(), media_type };
    // Bytes of others' formats do not say what they are.
    let media_type = match first.media_type {
        Some(media_type) => media_type,
        None => guess(&store.read(&reference(MediaType::Disk))?),
    };
    Ok(reference(media_type))
}

/// What raw bytes are: a kernel (ELF, or the boot protocol's `HdrS`), an initrd (newc), console text, or else a disk.
fn guess(bytes: &[u8]) -> MediaType {
    if bytes.starts_with(b"\x7fELF") || bytes.get(0x202..0x206) == Some(b"HdrS") {
        MediaType::Kernel
    } else if bytes.starts_with(b"070701") {
        MediaType::Initrd
    } else if bytes.starts_with(b"CHAOTRN1") {
        MediaType::Turns
    } else if bytes.contains(&0) {
        MediaType::Disk
    } else {
        MediaType::Console
    }
}
