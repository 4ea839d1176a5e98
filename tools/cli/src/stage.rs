// SPDX-License-Identifier: AGPL-3.0-or-later
//! The shape of every stage: a descriptor in, one thing done, a descriptor out.

use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode as ProcessCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use chaoscontrol_artifact::schema::{Descriptor, Environment, ErrorDescriptor, Handoff, Link, read_handoff};
use chaoscontrol_artifact::{Digest, ExitCode, MediaType, ObjectRef, StageResult, Store, U64, document};

use crate::failure::{Failure, FailureExt, Failures};
use crate::run::{Context, Output, identity, read_input, run_tool};
use crate::table::Tool;

/// A stage at work.
pub struct Stage<'a> {
    /// Arguments and progress.
    pub context: &'a Context,
    /// Where to read and write.
    pub store: &'a Store,
    /// What the stage before wrote, unless this is the first.
    pub previous: Option<(Descriptor, ObjectRef)>,
}

impl Stage<'_> {
    /// The descriptor of the stage before. Only for tools that have `--in`.
    pub fn before(&self) -> Failures<&Descriptor> {
        let missing = || Failure::new(ExitCode::Internal, "this stage was given no descriptor");
        self.previous.as_ref().map(|(descriptor, _)| descriptor).ok_or_else(missing)
    }

    /// The one output of the stage before with this role.
    pub fn input(&self, role: &str) -> Failures<ObjectRef> {
        let descriptor = self.before()?;
        let missing = || {
            let have: Vec<&str> = descriptor.outputs.iter().map(|link| link.role.as_str()).collect();
            let have = if have.is_empty() { "nothing".to_owned() } else { have.join(", ") };
            Failure::input(format!("stage {} wrote no {role}; it wrote {have}", descriptor.stage))
        };
        descriptor.output(role).ok_or_else(missing)
    }

    /// `--seed`, else the seed of the stage before, else 0.
    pub fn seed(&self) -> Failures<u64> {
        let given = self.context.arguments.number("seed")?;
        let inherited = self.previous.as_ref().and_then(|(descriptor, _)| descriptor.number("seed"));
        Ok(given.or(inherited).unwrap_or(0))
    }
}

/// The store that `--store` and `--from` name.
pub fn store_of(context: &Context) -> Failures<Store> {
    let root = context.arguments.path("store").unwrap_or_else(|| PathBuf::from(".chaos"));
    let from: Vec<PathBuf> = context.arguments.all("from").iter().map(PathBuf::from).collect();
    Ok(Store::open(&root, &from)?)
}

/// The stores that `--store` (where it exists) and `--from` name, for reading only: nothing is created or locked.
pub fn stores_read(context: &Context) -> Failures<Store> {
    let root = context.arguments.path("store").unwrap_or_else(|| PathBuf::from(".chaos"));
    let given = context.arguments.is_set("store");
    let from = context.arguments.all("from").iter().map(PathBuf::from);
    let root = Some(root).filter(|root| given || root.join("format").exists());
    let stores: Vec<PathBuf> = root.into_iter().chain(from).collect();
    if stores.is_empty() {
        return Err(Failure::usage("no store: name one with --store or --from, or set CHAOS_STORE"));
    }
    Ok(Store::open_read_only(&stores)?)
}

/// A stage's work.
pub type Work = fn(&Stage) -> Failures<StageResult>;

/// Runs a stage: reads the descriptor (tools with `--in`), does `work`, publishes and writes the descriptor. A failure of
/// this stage, wrong usage and panics included, becomes an error descriptor; one of an earlier stage is passed on as it is,
/// silently, with its code.
pub fn stage_main(tool: &'static Tool, work: Work) -> ProcessCode {
    run_tool(tool, move |context| run_stage(context, work), |failure| fail(tool, failure))
}

fn run_stage(context: &Context, work: Work) -> Failures<Output> {
    let started = (SystemTime::now(), Instant::now());
    let reads = context.tool.flags.iter().any(|flag| flag.long == "in");
    let handoff = if reads { Some(read_descriptor(context)?) } else { None };
    let descriptor = match handoff {
        Some(Handoff::Error(error)) => return pass_on(context, &error),
        Some(Handoff::Descriptor(descriptor)) => Some(*descriptor),
        None => None,
    };
    let store = store_of(context)?;
    let previous = match descriptor {
        // Published again where it is in no store, so that a chain can always be walked back.
        Some(descriptor) => {
            let reference = store.publish(&descriptor)?;
            Some((descriptor, reference))
        }
        None => None,
    };
    let stage = Stage { context, store: &store, previous };
    let result = work(&stage)?;
    publish(&stage, result, started)
}

fn publish(stage: &Stage, result: StageResult, started: (SystemTime, Instant)) -> Failures<Output> {
    let tool = identity(stage.context.tool);
    let mut inputs = result.inputs;
    if let Some((_, reference)) = &stage.previous {
        inputs.insert(0, Link::new("previous", *reference));
    }
    let descriptor = Descriptor {
        stage: stage.context.tool.stage.to_owned(),
        tool: tool.clone(),
        parameters: result.parameters,
        inputs,
        outputs: result.outputs,
        receipt: result.receipt,
    };
    let reference = stage.store.publish(&descriptor)?;
    let executable = std::env::current_exe().ok().and_then(|path| std::fs::read(path).ok());
    let environment = Environment {
        tool,
        executable: executable.map(|bytes| Digest::of(&bytes)),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        platform: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        engine: result.engine,
        kvm: result.kvm,
        started_ns: U64(started.0.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)),
        wall_ns: U64(started.1.elapsed().as_nanos() as u64),
        jobs: result.jobs,
    };
    stage.store.put_environment(&reference.digest, &document::encode(&environment)?)?;
    let mut bytes = document::encode(&descriptor)?;
    bytes.push(b'\n');
    Ok(Output { bytes, code: result.code, note: result.note })
}

/// What the stage before wrote, at `--in` or on stdin.
fn read_descriptor(context: &Context) -> Failures<Handoff> {
    let path = context.arguments.path("in").unwrap_or_else(|| PathBuf::from("-"));
    let is_stdin = path.as_os_str() == "-";
    if is_stdin && stdin().is_terminal() {
        let what = "no descriptor: pipe the stage before into this one, or name a file with --in";
        return Err(Failure::usage(format!("{what}; see {} --help", context.tool.name)));
    }
    let bytes = read_input(&path, MediaType::Descriptor.max_bytes())?;
    let name = if is_stdin { "stdin".to_owned() } else { path.display().to_string() };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Failure::input(format!("{name}: empty: the stage before wrote no descriptor")));
    }
    read_handoff(&bytes).context(&name)
}

/// For stages that read several descriptors: those that the arguments without a flag name, published where they are in no store.
pub fn descriptors_given(stage: &Stage) -> Failures<Vec<(Descriptor, ObjectRef)>> {
    let mut given = Vec::new();
    for path in &stage.context.arguments.positional {
        let path = PathBuf::from(path);
        let name = path.display().to_string();
        let bytes = read_input(&path, MediaType::Descriptor.max_bytes())?;
        match read_handoff(&bytes).context(&name)? {
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
    Ok(given)
}

/// For tools that are no stage: the descriptor at `--in` or on stdin. An error descriptor ends the tool with its code, as it
/// would end a stage.
pub fn descriptor_before(context: &Context) -> Failures<Descriptor> {
    match read_descriptor(context)? {
        Handoff::Descriptor(descriptor) => Ok(*descriptor),
        Handoff::Error(error) => Err(Failure::new(code_of(&error), said_again(context, &error).unwrap_or_default())),
    }
}

/// An earlier stage failed and said so: nothing to add, unless nobody can have heard it.
fn pass_on(context: &Context, error: &ErrorDescriptor) -> Failures<Output> {
    let mut output = error_output(error)?;
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

fn error_output(error: &ErrorDescriptor) -> Failures<Output> {
    let mut bytes = document::encode(error)?;
    bytes.push(b'\n');
    Ok(Output { bytes, code: code_of(error), note: None })
}

/// Says what went wrong on stderr and, for the stages behind a pipe, on stdout.
fn fail(tool: &Tool, failure: Failure) -> Failures<Output> {
    if stdout().is_terminal() {
        return Err(failure);
    }
    let error = ErrorDescriptor {
        stage: tool.stage.to_owned(),
        tool: identity(tool),
        exit_code: failure.code.number(),
        message: failure.message.clone(),
    };
    let mut output = error_output(&error)?;
    output.note = Some(failure.message);
    Ok(output)
}
