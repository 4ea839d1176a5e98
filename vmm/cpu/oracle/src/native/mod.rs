// SPDX-License-Identifier: AGPL-3.0-or-later
//! Runs cases on the host CPU, in a child process that does nothing else.
//!
//! The child needs no system call a case: every case ends in a signal, and the signal handler stores the outcome,
//! writes the next case into the interrupted context and returns into it. So the kernel loads and saves all registers.

mod child;
mod mapping;

use crate::case::{Case, Outcome, Registers};
use crate::host;
use crate::layout::DATA_BYTES;
pub use mapping::Mapping;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Most cases in a batch.
pub const BATCH: usize = 256;
/// Words of memory that can differ in a case: all of the data.
const WORDS: usize = DATA_BYTES / 8;
/// How long a batch may take before the child counts as hung. A batch takes about a millisecond.
const TIMEOUT_MS: i32 = 20_000;

/// Why a case was not run: see [`host::splits_lock`].
pub const SPLIT_LOCK: &str = "it locks two cache lines";

/// What a case did on the host.
pub enum Native {
    /// It ended as it should.
    Done(Box<Outcome>),
    /// The child hung or died in it; the text says how.
    Lost(&'static str),
}

/// A failure to set up or to talk to the child.
#[derive(Debug, thiserror::Error)]
#[error("native runner: {what}: {source}")]
pub struct NativeError {
    what: &'static str,
    source: io::Error,
}

fn failed(what: &'static str) -> NativeError {
    NativeError { what, source: io::Error::last_os_error() }
}

/// Memory shared with the child.
#[repr(C)]
struct Shared {
    count: u32,
    /// The case being run.
    current: std::sync::atomic::AtomicU32,
    /// Words used in `log`.
    logged: u32,
    cases: [Case; BATCH],
    registers: [Registers; BATCH],
    /// Where in `log` each case's words end.
    log_end: [u32; BATCH],
    log: [(u32, u64); BATCH * WORDS],
}

/// Runs cases in a child, which is started again when a case kills it.
pub struct NativeRunner {
    shared: Mapping,
    pages: mapping::TestPages,
    child: Option<Child>,
}

struct Child {
    pid: i32,
    socket: i32,
}

impl NativeRunner {
    /// Maps the shared memory; the child starts with the first batch.
    pub fn new() -> Result<Self, NativeError> {
        let shared = Mapping::shared(size_of::<Shared>()).map_err(|source| NativeError { what: "map", source })?;
        let pages = mapping::TestPages::new().map_err(|source| NativeError { what: "test pages", source })?;
        Ok(Self { shared, pages, child: None })
    }

    /// Runs `cases` one after another, each from the base image, and returns one result for each.
    pub fn run(&mut self, cases: &[Case]) -> Result<Vec<Native>, NativeError> {
        let mut results = Vec::with_capacity(cases.len());
        while results.len() < cases.len() {
            let rest = &cases[results.len()..];
            if host::splits_lock(&rest[0]) {
                results.push(Native::Lost(SPLIT_LOCK));
                continue;
            }
            let batch = &rest[..rest.len().min(BATCH)];
            let batch = &batch[..batch.iter().position(host::splits_lock).unwrap_or(batch.len())];
            let lost = self.run_batch(batch)?;
            let done =
                if lost.is_some() { self.shared().current.load(Ordering::Acquire) as usize } else { batch.len() };
            for index in 0..done.min(batch.len()) {
                results.push(Native::Done(Box::new(self.outcome(index))));
            }
            if let Some(how) = lost {
                results.push(Native::Lost(how));
            }
        }
        Ok(results)
    }

    fn shared(&mut self) -> &mut Shared {
        // SAFETY: the mapping is as large as `Shared`, every bit pattern the child writes is a valid `Shared`, and the
        // child only touches it between the request and the answer, while the parent waits.
        unsafe { &mut *self.shared.address().cast::<Shared>() }
    }

    fn outcome(&mut self, index: usize) -> Outcome {
        let shared = self.shared();
        let start = if index == 0 { 0 } else { shared.log_end[index - 1] as usize };
        let end = shared.log_end[index] as usize;
        Outcome { registers: shared.registers[index], memory: shared.log[start..end].to_vec() }
    }

    /// Returns how the child was lost, if it was.
    fn run_batch(&mut self, cases: &[Case]) -> Result<Option<&'static str>, NativeError> {
        let shared = self.shared();
        shared.cases[..cases.len()].copy_from_slice(cases);
        shared.count = cases.len() as u32;
        shared.current.store(0, Ordering::Release);
        if self.child.is_none() {
            self.child = Some(self.start()?);
        }
        let Some(child) = &self.child else { return Err(failed("no child")) };
        let answer = child.run_batch()?;
        if answer.is_some() {
            self.child = None;
        }
        Ok(answer)
    }

    fn start(&mut self) -> Result<Child, NativeError> {
        // A child forked meanwhile by another thread would hold the other end open, and this one's death would not be seen.
        static STARTING: Mutex<()> = Mutex::new(());
        let _starting = STARTING.lock();
        let mut sockets = [0i32; 2];
        // SAFETY: `sockets` has room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, sockets.as_mut_ptr()) }
            != 0
        {
            return Err(failed("socketpair"));
        }
        self.pages.fill();
        let shared: *mut Shared = self.shared();
        // SAFETY: the child calls only `child::main`, which makes raw system calls and uses no allocator, lock or
        // thread-local storage, as fork in a process with threads demands.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(failed("fork"));
        }
        if pid == 0 {
            // SAFETY: this is the child right after the fork, and both mappings stay for its whole life.
            unsafe { child::main(shared, &self.pages, sockets[1]) }
        }
        // SAFETY: the descriptor is ours and used no more in this process.
        unsafe { libc::close(sockets[1]) };
        Ok(Child { pid, socket: sockets[0] })
    }
}

impl Child {
    fn run_batch(&self) -> Result<Option<&'static str>, NativeError> {
        let mut byte = [1u8];
        // SAFETY: `byte` is one readable byte; MSG_NOSIGNAL turns a dead child into an error.
        if unsafe { libc::send(self.socket, byte.as_ptr().cast(), 1, libc::MSG_NOSIGNAL) } != 1 {
            return Ok(Some("the child had died"));
        }
        let mut poll = libc::pollfd { fd: self.socket, events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: `poll` is one valid entry.
            let ready = unsafe { libc::poll(&mut poll, 1, TIMEOUT_MS) };
            if ready == 0 {
                return Ok(Some("the child hung"));
            }
            if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return Err(failed("poll"));
            }
            if ready > 0 {
                break;
            }
        }
        // SAFETY: `byte` is one writable byte.
        let got = unsafe { libc::recv(self.socket, byte.as_mut_ptr().cast(), 1, 0) };
        Ok((got != 1).then_some("the child died"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child is ours and was not waited for yet, so the process id cannot have been reused.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            libc::close(self.socket);
        }
    }
}
