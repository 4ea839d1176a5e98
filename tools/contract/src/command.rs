// SPDX-License-Identifier: AGPL-3.0-or-later
//! The commands: each reads what it needs, gives up the right to open files, and evaluates.

use std::path::Path;

use chaoscontrol_artifact::contract::{set_digest, view, wire};
use chaoscontrol_artifact::document::{self, Encoding};
use chaoscontrol_artifact::schema::{ErrorDescriptor, ProfileDocument};
use chaoscontrol_artifact::{Digest, ExitCode, MediaType};
use chaoscontrol_cli::{Context, Failure, Failures, Output, error_output, nearest, read_handed, read_input};

use crate::check::{check, kind_named, kinds};
use crate::limits;
use crate::project::Sources;

/// The word for "the kind that the document itself names".
const ANY: &str = "any";

/// Runs the command that the arguments name.
pub fn run(context: &Context) -> Failures<Output> {
    let words: Vec<String> =
        context.arguments.positional.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["check", kind, ref files @ ..] if !files.is_empty() => check_files(kind, files),
        ["filter"] => filter(context, ANY),
        ["filter", kind] => filter(context, kind),
        ["kinds"] => {
            Ok(Output::new(kinds().map(|kind| format!("{}\n", kind.schema())).collect::<String>().into_bytes()))
        }
        ["project", ref files @ ..] if !files.is_empty() => project(files),
        ["serve"] => serve(),
        _ => Err(Failure::usage("the commands are: check KIND FILE..., filter [KIND], project FILE..., kinds, serve")),
    }
}

/// Evaluates on a thread with a stack of its own size, under limits.
fn confined<T: Send>(memory_bytes: u64, work: impl FnOnce() -> T + Send) -> Failures<T> {
    let lacks = |error: std::io::Error| Failure::new(ExitCode::HostLacks, format!("setting limits: {error}"));
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(limits::STACK_BYTES);
        let limited = move || limits::apply(memory_bytes).map(|()| work());
        let thread = builder.spawn_scoped(scope, limited).map_err(lacks)?;
        let ended = thread.join().map_err(|_| Failure::new(ExitCode::Internal, "the evaluator panicked, see above"))?;
        ended.map_err(lacks)
    })
}

fn kind_of(word: &str, name: &str, bytes: &[u8]) -> Failures<MediaType> {
    if word == ANY {
        let kind = document::kind_of_json(bytes).or_else(|| document::kind_of_cbor(bytes));
        return kind.ok_or_else(|| Failure::input(format!("{name}: names no kind of document in its field schema")));
    }
    kind_named(word).ok_or_else(|| {
        let names: Vec<&str> = kinds().map(MediaType::schema).collect();
        let meant =
            nearest(word, names.iter().copied()).map_or(String::new(), |name| format!("; did you mean {name}?"));
        Failure::usage(format!("{word:?} is no kind of document; there are any, {}{meant}", names.join(", ")))
    })
}

fn item(kind: MediaType, name: &str, bytes: Vec<u8>) -> Failures<wire::Item> {
    let digest = Digest::of(&bytes).to_string();
    let is_view = kind.encoding() == Encoding::Cbor;
    let bytes = if is_view {
        view(&bytes).map_err(|error| Failure::input(format!("{name}: {} document: {error}", kind.schema())))?
    } else {
        bytes
    };
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let stage = value.get("stage").and_then(|stage| stage.as_str()).unwrap_or_default().to_owned();
    Ok(wire::Item { kind: kind.schema().to_owned(), name: name.to_owned(), stage, digest, is_view, bytes })
}

fn check_files(word: &str, files: &[&str]) -> Failures<Output> {
    let mut items = Vec::new();
    for name in files {
        let known = if word == ANY { None } else { Some(kind_of(word, name, b"")?) };
        let max = known.map_or(MediaType::Snapshot.max_bytes(), MediaType::max_bytes);
        let bytes = read_input(Path::new(name), max)?;
        items.push(item(kind_of(word, name, &bytes)?, name, bytes)?);
    }
    let breaches = confined(limits::DOCUMENTS_BYTES, || check(&items))?;
    if breaches.is_empty() {
        let lines: String = items.iter().map(|item| format!("{}: a sound {}\n", item.name, item.kind)).collect();
        return Ok(Output::new(lines.into_bytes()));
    }
    let texts: Vec<&str> = breaches.iter().map(|breach| breach.text.as_str()).collect();
    Err(Failure::input(texts.join("\n")))
}

/// Stands in a pipeline: what comes in goes out as it is, unless it breaks its contract.
fn filter(context: &Context, word: &str) -> Failures<Output> {
    filtered(word).or_else(|failure| error_output(context.tool, failure))
}

fn filtered(word: &str) -> Failures<Output> {
    let max = if word == ANY { MediaType::Corpus.max_bytes() } else { kind_of(word, "stdin", b"")?.max_bytes() };
    let bytes = read_handed(Path::new("-"), max)?;
    // What a stage before says of its failure is no document of the kind asked for, and passes.
    let failed = document::kind_of_json(&bytes) == Some(MediaType::Error);
    let kind = if failed { MediaType::Error } else { kind_of(word, "stdin", &bytes)? };
    let items = [item(kind, "stdin", bytes.clone())?];
    if let Some(breach) = confined(limits::DOCUMENTS_BYTES, || check(&items))?.first() {
        return Err(Failure::input(breach.text.clone()));
    }
    let mut output = Output::new(bytes);
    if failed {
        let error: ErrorDescriptor = document::decode_loose(&output.bytes)?;
        output.code = ExitCode::from_number(error.exit_code).unwrap_or(ExitCode::Internal);
    }
    Ok(output)
}

/// One line of canonical JSON a profile.
fn project(files: &[&str]) -> Failures<Output> {
    let sources = files.iter().map(|file| Sources::read(Path::new(file))).collect::<Failures<Vec<Sources>>>()?;
    let project = || sources.iter().map(Sources::project).collect::<Failures<Vec<ProfileDocument>>>();
    let projected = confined(limits::PROFILES_BYTES, project)??;
    let mut bytes = Vec::new();
    for document in &projected {
        bytes.extend(document::encode(document)?);
        bytes.push(b'\n');
    }
    Ok(Output::new(bytes))
}

/// One request on stdin, one response on stdout.
fn serve() -> Failures<Output> {
    let mut stdin = std::io::stdin().lock();
    let (theirs, items) = wire::read_request(&mut stdin).map_err(|error| Failure::input(format!("stdin: {error}")))?;
    let ours = set_digest();
    if theirs != ours {
        // The answer says which set this is; what to make of it is the caller's.
        let output = Output::new(wire::response(ours, &[]));
        return Ok(Output { code: ExitCode::HostLacks, ..output });
    }
    let breaches = confined(limits::DOCUMENTS_BYTES, || check(&items))?;
    Ok(Output::new(wire::response(ours, &breaches)))
}
