// SPDX-License-Identifier: AGPL-3.0-or-later
//! One call: a child, a request on its stdin, a response on its stdout.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::{Breach, set_digest, wire};
use crate::Digest;
use crate::exit_code::{CodedError, ExitCode};

/// How long a call may take. The child bounds its own CPU time well below; this is for one that is stopped or starved.
const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of the child's answers that are read.
const ANSWER_MAX: u64 = 1 << 28;
/// Bytes of what it says on stderr that are shown.
const TALK_MAX: u64 = 1 << 12;

/// Why documents cannot be checked, or that one breaks its contract.
#[derive(Debug, thiserror::Error)]
pub enum ContractError {
    /// The binary is not there.
    #[error(
        "the host lacks chaos-contract: it is neither beside {} nor on PATH; build it (cargo build --release -p chaos-contract) and put it there",
        near.display()
    )]
    Missing {
        /// The binary beside which it was looked for.
        near: PathBuf,
    },
    /// It was built with other contracts.
    #[error(
        "{} checks contract set {}, this tool was built with {}: build both from one source",
        program.display(), theirs.short(), ours.short()
    )]
    OtherSet {
        /// The binary.
        program: PathBuf,
        /// Its set.
        theirs: Digest,
        /// Ours.
        ours: Digest,
    },
    /// It did not answer.
    #[error("{}: {what}", program.display())]
    Failed {
        /// The binary.
        program: PathBuf,
        /// What happened.
        what: String,
    },
    /// A document that was read breaks its contract.
    #[error("{0}")]
    Input(String),
    /// A document that this stage wrote breaks its contract.
    #[error("{0}\nthis stage wrote it: that is a bug in the tool")]
    Output(String),
}

impl CodedError for ContractError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Missing { .. } | Self::OtherSet { .. } | Self::Failed { .. } => ExitCode::HostLacks,
            Self::Input(_) => ExitCode::BadInput,
            Self::Output(_) => ExitCode::Internal,
        }
    }
}

/// The binary that checks.
#[derive(Clone, Debug)]
pub struct Checker {
    program: PathBuf,
}

impl Checker {
    /// The binary's name.
    pub const NAME: &'static str = "chaos-contract";

    /// The binary beside the running one, else the first on `search`, the value of PATH.
    pub fn find(search: Option<&OsStr>) -> Result<Self, ContractError> {
        let near = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("this tool"));
        let beside = near.parent().map(|folder| folder.join(Self::NAME));
        let on_path = search.into_iter().flat_map(std::env::split_paths).map(|folder| folder.join(Self::NAME));
        let mut candidates = beside.into_iter().chain(on_path);
        let program = candidates.find(|path| path.is_file()).ok_or(ContractError::Missing { near })?;
        Ok(Self { program })
    }

    /// This binary.
    pub fn at(program: PathBuf) -> Self {
        Self { program }
    }

    /// Checks documents; every one that breaks its contract is in the answer.
    pub fn check(&self, items: &[wire::Item]) -> Result<Vec<Breach>, ContractError> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let answer = self.ask(&["serve".as_ref()], wire::request(set_digest(), items))?;
        let read = wire::read_response(&mut &answer[..], items.len());
        let (theirs, breaches) = read.map_err(|error| self.failed(format!("its answer: {error}")))?;
        if theirs != set_digest() {
            let program = self.program.clone();
            return Err(ContractError::OtherSet { program, theirs, ours: set_digest() });
        }
        Ok(breaches)
    }

    /// Runs the binary with nothing of the environment, `input` on stdin, and gives its stdout.
    pub fn ask(&self, arguments: &[&OsStr], input: Vec<u8>) -> Result<Vec<u8>, ContractError> {
        let mut command = Command::new(&self.program);
        command.args(arguments).env_clear();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| self.failed(format!("starting it: {error}")))?;
        let answer = converse(&mut child, input);
        if answer.is_err() {
            // Ended already, or stuck: either way nothing more is wanted of it.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|error| self.failed(format!("waiting for it: {error}")))?;
        let (answer, talk) = answer.map_err(|error| self.failed(error.to_string()))?;
        if status.success() || !answer.is_empty() {
            return Ok(answer);
        }
        let talk = String::from_utf8_lossy(&talk);
        let talk = talk.trim().strip_prefix("chaos-contract: ").unwrap_or(talk.trim());
        if status.code() == Some(i32::from(ExitCode::BadInput.number())) {
            return Err(ContractError::Input(talk.to_owned()));
        }
        let why = if talk.is_empty() { "it said nothing, a limit of time or memory may have been hit" } else { talk };
        Err(self.failed(format!("{status}: {why}")))
    }

    fn failed(&self, what: String) -> ContractError {
        ContractError::Failed { program: self.program.clone(), what }
    }
}

/// Writes, and reads both outputs, each on its own thread so that no pipe can fill up.
fn converse(child: &mut Child, input: Vec<u8>) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let gone = || io::Error::other("its pipes are not there");
    let mut stdin = child.stdin.take().ok_or_else(gone)?;
    let stdout = child.stdout.take().ok_or_else(gone)?;
    let stderr = child.stderr.take().ok_or_else(gone)?;
    // A child that ends early closes the pipe: its status says why.
    thread::spawn(move || drop(stdin.write_all(&input)));
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let talk = thread::spawn(move || read(stderr, TALK_MAX));
        let answer = read(stdout, ANSWER_MAX);
        let talk = talk.join().unwrap_or_else(|_| Ok(Vec::new()));
        let _ = send.send(answer.and_then(|answer| Ok((answer, talk?))));
    });
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", PATIENCE.as_secs()));
    receive.recv_timeout(PATIENCE).map_err(late)?
}

fn read(from: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}
