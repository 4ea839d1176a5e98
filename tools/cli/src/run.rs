// SPDX-License-Identifier: AGPL-3.0-or-later
//! The shape of every tool: arguments, one call, output, exit code.

use std::io::{self, IsTerminal, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::schema::ToolIdentity;
use chaoscontrol_artifact::{Digest, ExitCode};

use crate::colour::{complain, wanted};
use crate::failure::{Failure, Failures};
use crate::generate::generate;
use crate::help::help;
use crate::parse::Arguments;
use crate::progress::Progress;
use crate::table::Tool;

/// The digest of what all tools share, which the build script found.
const SOURCE: &str = env!("CHAOS_SOURCE_DIGEST");

/// What a tool is given.
pub struct Context {
    /// Its table.
    pub tool: &'static Tool,
    /// Its arguments.
    pub arguments: Arguments,
    /// Where it talks.
    pub progress: Progress,
}

/// What a tool leaves: bytes for stdout and how it ended.
pub struct Output {
    /// Data.
    pub bytes: Vec<u8>,
    /// The exit code; a tool may have data and still end with another code than 0.
    pub code: ExitCode,
    /// A line for stderr that explains the code.
    pub note: Option<String>,
}

impl Output {
    /// Data of a tool that did its work.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, code: ExitCode::Success, note: None }
    }
}

impl Context {
    /// `--jobs`, else the number of cores.
    pub fn jobs(&self) -> Failures<u32> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        Ok(self.arguments.number_within("jobs", 1, 1024, cores.min(1024))? as u32)
    }
}

/// Who this tool is.
pub fn identity(tool: &Tool) -> ToolIdentity {
    // Each text behind its length: no two sets of files give one stream of bytes.
    let mut all = SOURCE.as_bytes().to_vec();
    for text in tool.sources {
        all.extend_from_slice(&(text.len() as u64).to_le_bytes());
        all.extend_from_slice(text.as_bytes());
    }
    let source = Digest::of(&all);
    ToolIdentity { name: tool.name.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), source }
}

/// Runs a tool: parse, call, write, exit code. A panic is an internal error.
pub fn tool_main(tool: &'static Tool, run: impl FnOnce(&Context) -> Failures<Output>) -> ProcessCode {
    run_tool(tool, run, Err)
}

/// As [`tool_main`]; `failed` may make data of a failure, whether in the arguments, in `run` or by a panic.
pub(crate) fn run_tool(
    tool: &'static Tool,
    run: impl FnOnce(&Context) -> Failures<Output>,
    failed: impl FnOnce(Failure) -> Failures<Output>,
) -> ProcessCode {
    prepare_signals();
    // Whatever a panic leaves half done, the process ends right after.
    let result = panic::catch_unwind(AssertUnwindSafe(|| parse_and_run(tool, run)));
    let internal = |_| Err(Failure::new(ExitCode::Internal, "internal error: a panic, see above"));
    let (code, note) = match result.unwrap_or_else(internal).or_else(failed) {
        Ok(output) => match write_out(&output.bytes) {
            Ok(()) => (output.code, output.note),
            Err(failure) => (failure.code, Some(failure.message)),
        },
        Err(failure) => (failure.code, Some(failure.message)),
    };
    if let Some(note) = note.filter(|note| !note.is_empty()) {
        complain(tool, &note);
    }
    ProcessCode::from(code.number())
}

fn parse_and_run(tool: &'static Tool, run: impl FnOnce(&Context) -> Failures<Output>) -> Failures<Output> {
    let arguments = Arguments::parse(tool, std::env::args_os().skip(1), |name| std::env::var_os(name))?;
    if arguments.is_set("help") {
        return Ok(Output::new(help(tool, wanted(io::stdout().is_terminal())).into_bytes()));
    }
    if arguments.is_set("version") {
        let identity = identity(tool);
        let text = format!("{} {} (source {})\n", identity.name, identity.version, identity.source);
        return Ok(Output::new(text.into_bytes()));
    }
    if let Some(what) = arguments.text("generate")? {
        return Ok(Output::new(generate(tool, &what).into_bytes()));
    }
    let progress = Progress::new(tool.name, arguments.is_set("quiet"));
    let context = Context { tool, arguments, progress };
    let output = run(&context);
    context.progress.finish();
    output
}

/// A file that may not grow further is an error of the write, not the end of the process.
fn prepare_signals() {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Writes to stdout. A reader that went away has what it wanted.
fn write_out(bytes: &[u8]) -> Failures<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::new(ExitCode::HostLacks, format!("writing stdout: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Reads a whole input of at most `max` bytes; `-` is stdin.
pub fn read_input(path: &Path, max: u64) -> Failures<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(max + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(max + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| Failure::input(format!("reading {}: {error}", path.display())))?;
    if bytes.len() as u64 > max {
        return Err(Failure::input(format!("reading {}: more than {max} bytes", path.display())));
    }
    Ok(bytes)
}

/// Writes a whole file: beside its place first, then renamed, so that nobody sees half of it.
pub fn write_file(path: &Path, bytes: &[u8]) -> Failures<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let done = std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path));
    if done.is_err() {
        // What is left of the attempt is of no use; failing to remove it changes nothing for the caller.
        let _ = std::fs::remove_file(&temporary);
    }
    done.map_err(|error| Failure::new(ExitCode::HostLacks, format!("writing {}: {error}", path.display())))
}
