// SPDX-License-Identifier: AGPL-3.0-or-later
//! What stages are given: descriptors, documents that people write, profiles; each under its contract before it is used.

use std::fs::File;
use std::io::{IsTerminal, stdin};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use chaoscontrol_artifact::schema::{Descriptor, ErrorDescriptor, Handoff, ProfileDocument, read_handoff};
use chaoscontrol_artifact::{Document, ExitCode, MediaType, ObjectRef, Store, document};

use crate::failure::{Failure, FailureExt, Failures};
use crate::run::{Context, Output, read_input};
use crate::stage::{Stage, checker};

/// Bytes that a stage was given, and how messages call them.
pub(crate) struct Given {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn read_descriptor(context: &Context) -> Failures<Given> {
    let path = context.arguments.path("in").unwrap_or_else(|| PathBuf::from("-"));
    let is_stdin = path.as_os_str() == "-";
    if is_stdin && stdin().is_terminal() {
        let what = "no descriptor: pipe the stage before into this one, or name a file with --in";
        return Err(Failure::usage(format!("{what}; see {} --help", context.tool.name)));
    }
    let name = if is_stdin { "stdin".to_owned() } else { path.display().to_string() };
    let bytes = read_handed(&path, MediaType::Descriptor.max_bytes())?;
    Ok(Given { name, bytes })
}

/// Reads what a stage before wrote, at most `max` bytes of it. That it wrote nothing is said as such.
pub fn read_handed(path: &Path, max: u64) -> Failures<Vec<u8>> {
    let bytes = read_input(path, max)?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        let name = if path.as_os_str() == "-" { "stdin".into() } else { path.to_string_lossy() };
        return Err(Failure::input(format!("{name}: empty: the stage before wrote no descriptor")));
    }
    Ok(bytes)
}

/// What was given, once it and the chain behind it are under their contracts.
pub fn admit(store: &Store, name: &str, bytes: &[u8]) -> Failures<Handoff> {
    let handoff = register(store, name, bytes)?;
    store.release()?;
    Ok(handoff)
}

/// As [`admit`], but the contracts are checked when the store is released.
fn register(store: &Store, name: &str, bytes: &[u8]) -> Failures<Handoff> {
    match read_handoff(bytes) {
        Ok(Handoff::Descriptor(descriptor)) => {
            store.admit(name, &descriptor, bytes)?;
            Ok(Handoff::Descriptor(descriptor))
        }
        Ok(Handoff::Error(error)) => {
            store.admit_file(MediaType::Error, name, &document::encode(&error)?, bytes);
            Ok(Handoff::Error(error))
        }
        Err(error) => {
            let is_error = document::kind_of_json(bytes) == Some(MediaType::Error);
            let media = if is_error { MediaType::Error } else { MediaType::Descriptor };
            Err(match store.explain(media, name, bytes) {
                Some(breach) => breach.into(),
                None => Err::<(), _>(error).context(name).unwrap_err(),
            })
        }
    }
}

/// Reads a document that people write, with any white space. Its contract is checked with what the stage writes.
pub fn read_document<D: Document>(store: &Store, path: &Path) -> Failures<D> {
    let name = path.display().to_string();
    let bytes = read_input(path, D::MEDIA.max_bytes())?;
    match document::decode_loose::<D>(&bytes) {
        Ok(document) => {
            store.admit_file(D::MEDIA, &name, &document::encode(&document)?, &bytes);
            Ok(document)
        }
        Err(error) => Err(match store.explain(D::MEDIA, &name, &bytes) {
            Some(breach) => breach.into(),
            None => Err::<(), _>(error).context(&name).unwrap_err(),
        }),
    }
}

/// Reads a profile: a projection, or Nickel (a name that ends in `.ncl`), which `chaos-contract` evaluates.
pub fn read_profile(store: &Store, path: &Path) -> Failures<ProfileDocument> {
    if path.extension().is_none_or(|extension| extension != "ncl") {
        return read_document(store, path);
    }
    let projected = checker()?.ask(&["project".as_ref(), path.as_os_str()], Vec::new())?;
    document::decode(projected.trim_ascii_end()).context(&path.display().to_string())
}

/// For stages that read several descriptors: those that the arguments without a flag name, published where they are in no store.
pub fn descriptors_given(stage: &Stage) -> Failures<Vec<(Descriptor, ObjectRef)>> {
    let mut given = Vec::new();
    for path in &stage.context.arguments.positional {
        let path = Path::new(path);
        let name = path.display().to_string();
        let bytes = read_handed(path, MediaType::Descriptor.max_bytes())?;
        match register(stage.store, &name, &bytes)? {
            Handoff::Descriptor(descriptor) => {
                let reference = stage.store.publish(&*descriptor)?;
                given.push((*descriptor, reference));
            }
            Handoff::Error(error) => {
                let what = format!("{name}: stage {} failed: {}", error.stage, error.message);
                return Err(Failure::new(code_of(&error), what));
            }
        }
    }
    stage.store.release()?;
    Ok(given)
}

/// For tools that are no stage: the descriptor at `--in` or on stdin. An error descriptor ends the tool with its code, as it
/// would end a stage.
pub fn descriptor_before(context: &Context, store: &Store) -> Failures<Descriptor> {
    let Given { name, bytes } = read_descriptor(context)?;
    match admit(store, &name, &bytes)? {
        Handoff::Descriptor(descriptor) => Ok(*descriptor),
        Handoff::Error(error) => Err(Failure::new(code_of(&error), said_again(context, &error).unwrap_or_default())),
    }
}

/// An earlier stage failed and said so: nothing to add, unless nobody can have heard it.
pub(crate) fn pass_on(context: &Context, error: &ErrorDescriptor) -> Failures<Output> {
    let mut output = written(error)?;
    output.note = said_again(context, error);
    Ok(output)
}

/// The message of an earlier stage's failure, if it was kept in a file: through a pipe it was said a moment ago.
fn said_again(context: &Context, error: &ErrorDescriptor) -> Option<String> {
    let path = context.arguments.path("in").filter(|path| path.as_os_str() != "-");
    let name = match path {
        Some(path) => path.display().to_string(),
        None if is_file(&stdin()) => "stdin".to_owned(),
        None => return None,
    };
    Some(format!("{name}: stage {} failed: {}", error.stage, error.message))
}

fn is_file(stream: &impl AsFd) -> bool {
    let owned = stream.as_fd().try_clone_to_owned();
    owned.map(File::from).and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.is_file())
}

fn code_of(error: &ErrorDescriptor) -> ExitCode {
    ExitCode::from_number(error.exit_code).unwrap_or(ExitCode::Internal)
}

/// An error descriptor as output, with its code.
pub(crate) fn written(error: &ErrorDescriptor) -> Failures<Output> {
    let mut bytes = document::encode(error)?;
    bytes.push(b'\n');
    Ok(Output { bytes, code: code_of(error), note: None })
}
