// SPDX-License-Identifier: Apache-2.0
//! Runs the workload and reaps every child.

use crate::clock::Follower;
use crate::system::Failure;
use chaoscontrol_sdk::Doorbell;
use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

/// How the workload ended.
pub struct Ended {
    pub pid: u32,
    pub signalled: bool,
    /// Exit code or signal number.
    pub code: u8,
}

impl Ended {
    /// What the host is told.
    pub fn doorbell(&self) -> Doorbell {
        if self.signalled { Doorbell::WorkloadKilled(self.code) } else { Doorbell::WorkloadExited(self.code) }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.signalled { "was killed by signal" } else { "exited with code" };
        write!(f, "{how} {}", self.code)
    }
}

/// Refuses a workload that is not there or cannot be run, before the restart point promises that it starts.
pub fn check(path: &str) -> Result<(), Failure> {
    let what = format!("cannot run the workload {path}");
    let text = CString::new(path).map_err(|error| Failure::new(&what, error))?;
    // SAFETY: the path is a zero-terminated string.
    if unsafe { libc::access(text.as_ptr(), libc::X_OK) } != 0 { Err(Failure::last(what)) } else { Ok(()) }
}

/// Tells when children end.
pub struct Children {
    signals: OwnedFd,
}

impl Children {
    /// Turns SIGCHLD into something that can be polled.
    pub fn watch() -> Result<Self, Failure> {
        let what = "cannot watch for children";
        // SAFETY: the set lives over the calls; a zeroed set is valid and emptied first.
        let descriptor = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(Failure::last(what));
            }
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if descriptor < 0 {
            return Err(Failure::last(what));
        }
        // SAFETY: the descriptor is open and nobody else's.
        Ok(Self { signals: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    /// Starts the workload and waits for its end. Its orphans are reaped on the way.
    pub fn run(&self, path: &str, arguments: &[String], mut clock: Option<Follower<'_>>) -> Result<Ended, Failure> {
        let workload = Command::new(path)
            .args(arguments)
            .env_clear()
            .env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
            .env("HOME", "/")
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| Failure::new(format!("cannot run the workload {path}"), error))?;
        loop {
            if let Some(ended) = self.reap(workload.id()) {
                return Ok(ended);
            }
            self.wait(Follower::PERIOD_MS);
            if let Some(clock) = &mut clock {
                clock.follow();
            }
        }
    }

    /// Waits for a child to end, or for the timeout.
    fn wait(&self, timeout_ms: i32) {
        let mut poll = libc::pollfd { fd: self.signals.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as stated. An interruption only means looking again.
        if unsafe { libc::poll(&raw mut poll, 1, timeout_ms) } > 0 {
            let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
            // SAFETY: the buffer is as long as stated. What it says is not needed: `reap` asks for every child.
            unsafe { libc::read(self.signals.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) };
        }
    }

    /// Reaps every child that has ended; gives how the workload did if it is among them.
    fn reap(&self, workload: u32) -> Option<Ended> {
        loop {
            let mut status = 0;
            // SAFETY: the pointer is to an integer that lives over the call.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if pid <= 0 {
                return None;
            }
            if pid as u32 == workload {
                return Some(ended(workload, status));
            }
        }
    }
}

fn ended(pid: u32, status: libc::c_int) -> Ended {
    let signalled = libc::WIFSIGNALED(status);
    let code = if signalled { libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) };
    Ended { pid, signalled, code: code as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_status_becomes_code_or_signal() {
        assert_eq!(ended(7, 3 << 8).to_string(), "exited with code 3");
        assert_eq!(ended(7, 11).to_string(), "was killed by signal 11");
        assert_eq!(ended(7, 11).doorbell(), Doorbell::WorkloadKilled(11));
        assert_eq!(ended(7, 0).doorbell(), Doorbell::WorkloadExited(0));
    }

    #[test]
    fn a_workload_that_is_not_there_is_refused_by_name() {
        let failure = check("/no/such/workload").unwrap_err().to_string();
        assert!(failure.starts_with("cannot run the workload /no/such/workload: No such file"), "{failure}");
    }

    #[test]
    fn a_workload_runs_and_its_end_is_told() {
        let children = Children::watch().unwrap();
        let ended = children.run("/bin/sh", &["-c".into(), "exit 5".into()], None).unwrap();
        assert_eq!((ended.signalled, ended.code), (false, 5));
    }
}
