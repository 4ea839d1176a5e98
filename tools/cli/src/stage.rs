// SPDX-License-Identifier: AGPL-3.0-or-later
//! The shape of every stage: a descriptor in, one thing done, a descriptor out.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::process::ExitCode as ProcessCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use chaoscontrol_artifact::contract::{Checker, Gate};
use chaoscontrol_artifact::schema::{Descriptor, Environment, ErrorDescriptor, Handoff, Link};
use chaoscontrol_artifact::{Digest, ExitCode, ObjectRef, StageResult, Store, U64, document};

use crate::failure::{Failure, Failures};
use crate::handoff::{Given, admit, pass_on, read_descriptor, written};
use crate::run::{Context, Output, identity, run_tool};
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

    /// The descriptor of this stage, if it left this.
    pub fn descriptor(&self, result: &StageResult) -> Descriptor {
        let mut inputs = result.inputs.clone();
        if let Some((_, reference)) = &self.previous {
            inputs.insert(0, Link::new("previous", *reference));
        }
        Descriptor {
            stage: self.context.tool.stage.to_owned(),
            tool: identity(self.context.tool),
            parameters: result.parameters.clone(),
            inputs,
            outputs: result.outputs.clone(),
            receipt: result.receipt.clone(),
        }
    }

    /// `--seed`, else the seed of the stage before, else 0.
    pub fn seed(&self) -> Failures<u64> {
        let given = self.context.arguments.number("seed")?;
        let inherited = self.previous.as_ref().and_then(|(descriptor, _)| descriptor.number("seed"));
        Ok(given.or(inherited).unwrap_or(0))
    }
}

/// The binary that checks documents: beside this one, else on PATH.
pub fn checker() -> Failures<Checker> {
    Ok(Checker::find(std::env::var_os("PATH").as_deref())?)
}

/// The store that `--store` and `--from` name, with every document under its contract.
pub fn store_of(context: &Context) -> Failures<Store> {
    let root = context.arguments.path("store").unwrap_or_else(|| PathBuf::from(".chaos"));
    let from: Vec<PathBuf> = context.arguments.all("from").iter().map(PathBuf::from).collect();
    let gate = Gate::new(checker()?, context.tool.stage);
    Ok(Store::open(&root, &from)?.guarded(gate))
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

/// As [`stores_read`], with every document under its contract.
pub fn stores_checked(context: &Context) -> Failures<Store> {
    Ok(stores_read(context)?.guarded(Gate::new(checker()?, context.tool.stage)))
}

/// A stage's work.
pub type Work = fn(&Stage) -> Failures<StageResult>;

/// Runs a stage: reads the descriptor (tools with `--in`), does `work`, publishes and writes the descriptor. A failure of
/// this stage, wrong usage and panics included, becomes an error descriptor; one of an earlier stage is passed on as it is,
/// silently, with its code.
pub fn stage_main(tool: &'static Tool, work: Work) -> ProcessCode {
    run_tool(tool, move |context| run_stage(context, work), |failure| error_output(tool, failure))
}

fn run_stage(context: &Context, work: Work) -> Failures<Output> {
    let started = (SystemTime::now(), Instant::now());
    let reads = context.tool.flags.iter().any(|flag| flag.long == "in");
    let given = if reads { Some(read_descriptor(context)?) } else { None };
    let store = store_of(context)?;
    let previous = match given {
        Some(Given { name, bytes }) => match admit(&store, &name, &bytes)? {
            Handoff::Error(error) => return pass_on(context, &error),
            // Published again where it is in no store, so that a chain can always be walked back.
            Handoff::Descriptor(descriptor) => Some((store.publish(&*descriptor)?, *descriptor)),
        },
        None => None,
    };
    let previous = previous.map(|(reference, descriptor)| (descriptor, reference));
    let stage = Stage { context, store: &store, previous };
    let result = work(&stage)?;
    publish(&stage, result, started)
}

fn publish(stage: &Stage, result: StageResult, started: (SystemTime, Instant)) -> Failures<Output> {
    let descriptor = stage.descriptor(&result);
    let reference = stage.store.publish(&descriptor)?;
    let executable = std::env::current_exe().ok().and_then(|path| std::fs::read(path).ok());
    let environment = Environment {
        tool: descriptor.tool.clone(),
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
    stage.store.release()?;
    let mut bytes = document::encode(&descriptor)?;
    bytes.push(b'\n');
    Ok(Output { bytes, code: result.code, note: result.note })
}

/// Says what went wrong on stderr and, for the stages behind a pipe, on stdout.
pub fn error_output(tool: &Tool, failure: Failure) -> Failures<Output> {
    if stdout().is_terminal() {
        return Err(failure);
    }
    let error = ErrorDescriptor {
        stage: tool.stage.to_owned(),
        tool: identity(tool),
        exit_code: failure.code.number(),
        message: failure.message.clone(),
    };
    let mut output = written(&error)?;
    output.note = Some(failure.message);
    Ok(output)
}
