// SPDX-License-Identifier: AGPL-3.0-or-later
//! Lists, verifies and collects a store.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::store::Roots;
use chaoscontrol_artifact::{Digest, ExitCode, Store};
use chaoscontrol_cli::{Context, FROM, Failure, Failures, Flag, Output, Positional, STORE, Tool, tool_main};

/// What it can do.
const COMMANDS: [&str; 3] = ["ls", "verify", "gc"];

static TOOL: Tool = Tool {
    name: "chaos-store",
    stage: "store",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "list, verify and collect a store",
    about: "ls lists every object with its kind, uncompressed and stored size. verify reads everything and names what is \
            damaged; nothing is changed unless --remove-damaged is given. gc deletes objects and packs that no descriptor \
            reaches, and what killed writers left behind; it refuses to run beside a stage.",
    reads: "The store of --store.",
    writes: "On stdout: a table (ls) or a line (verify, gc).",
    flags: &[
        Flag::many("keep", "DIGEST", "gc: keep what these objects reach, in place of all descriptors"),
        Flag::switch("dry-run", "gc: only count"),
        Flag::switch("remove-damaged", "verify: delete what is damaged, so that stages write it again"),
        STORE,
        FROM,
    ],
    positional: Some(Positional { name: "ls|verify|gc", help: "What to do", min: 1, max: 1, choices: &COMMANDS }),
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks],
    examples: [
        ("What is in it", "chaos-store ls --store .chaos"),
        ("Keep one chain only", "chaos-store gc --keep $(jq -r '.inputs[0].object.digest' receipt.json)"),
    ],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, |context| {
        let command = context.arguments.positional.first().and_then(|command| command.to_str()).unwrap_or_default();
        let root = context.arguments.path("store").unwrap_or_else(|| PathBuf::from(".chaos"));
        match command {
            "ls" => list(&root),
            "verify" => verify(context, &root),
            "gc" => collect(context, &root),
            other => unreachable!("{other:?} is none of {COMMANDS:?}"),
        }
    })
}

fn list(root: &PathBuf) -> Failures<Output> {
    let mut out = String::new();
    for object in Store::open_read_only(std::slice::from_ref(root))?.list()? {
        let kind = object.media_type.map_or("data", |media| media.schema());
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{} {kind:14} {:>12} {:>12}", object.digest, object.size_bytes, object.stored_bytes);
    }
    Ok(Output::new(out.into_bytes()))
}

fn verify(context: &Context, root: &PathBuf) -> Failures<Output> {
    let verified = Store::open_read_only(std::slice::from_ref(root))?.verify()?;
    let summary = format!("{} objects, {} packs, {} pages sound\n", verified.objects, verified.packs, verified.pages);
    if verified.damaged.is_empty() {
        return Ok(Output::new(summary.into_bytes()));
    }
    for (path, what) in &verified.damaged {
        context.progress.say(&format!("{}: {what}", path.display()));
        if context.arguments.is_set("remove-damaged") {
            let removed = std::fs::remove_file(path);
            removed.map_err(|error| Failure::input(format!("deleting {}: {error}", path.display())))?;
        }
    }
    let damaged = verified.damaged.len();
    let note = Some(if context.arguments.is_set("remove-damaged") {
        format!("{damaged} damaged and deleted; run the stages that wrote them again (a snapshot: boot again)")
    } else {
        format!("{damaged} damaged; --remove-damaged deletes them, so that stages write them again")
    });
    Ok(Output { bytes: summary.into_bytes(), code: ExitCode::BadInput, note })
}

fn collect(context: &Context, root: &Path) -> Failures<Output> {
    let from: Vec<PathBuf> = context.arguments.all("from").iter().map(PathBuf::from).collect();
    let keep = context.arguments.texts("keep")?;
    let digests: Result<Vec<Digest>, _> = keep.iter().map(|text| text.parse()).collect();
    let digests = digests.map_err(|error| Failure::usage(format!("--keep: {error}")))?;
    let roots = if keep.is_empty() { Roots::AllDescriptors } else { Roots::Digests(digests) };
    let dry_run = context.arguments.is_set("dry-run");
    let collected = Store::gc(root, &from, &roots, dry_run)?;
    let line = format!(
        "{} {} objects, {} packs, {} temporary files, {} bytes; {} objects kept\n",
        if dry_run { "would delete" } else { "deleted" },
        collected.objects,
        collected.packs,
        collected.temporary,
        collected.bytes,
        collected.kept_objects
    );
    Ok(Output::new(line.into_bytes()))
}
