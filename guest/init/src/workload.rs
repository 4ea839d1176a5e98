// SPDX-License-Identifier: Apache-2.0
//! Runs the workload, again if the host asks for it, and reaps every child.

use crate::agent::{Agent, Order};
use crate::clock::Follower;
use crate::system::Failure;
use chaoscontrol_sdk::Doorbell;
use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

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

/// The program that the guest is for.
pub struct Workload {
    /// Its file.
    pub path: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl Workload {
    /// Starts it as the leader of a process group of its own.
    fn start(&self) -> Result<u32, Failure> {
        let started = Command::new(&self.path)
            .args(&self.arguments)
            .env_clear()
            .env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
            .env("HOME", "/")
            .stdin(Stdio::null())
            .process_group(0)
            .spawn();
        let child = started.map_err(|error| Failure::new(format!("cannot run the workload {}", self.path), error))?;
        Ok(child.id())
    }
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

    /// Starts the workload and waits for its end, unless the host's agent ended it. Orphans are reaped on the way.
    pub fn run(
        &self,
        workload: &Workload,
        mut clock: Option<Follower<'_>>,
        mut agent: Option<Agent<'_>>,
    ) -> Result<Ended, Failure> {
        let mut running = Some(workload.start()?);
        let mut killed = false;
        let mut start_at: Option<Instant> = None;
        loop {
            while let Some((pid, ended)) = self.reap() {
                if let Some(agent) = &mut agent {
                    agent.reaped(pid);
                }
                if Some(pid) == running {
                    if !killed {
                        return Ok(ended);
                    }
                    (running, killed) = (None, false);
                }
            }
            while let Some(order) = agent.as_mut().and_then(|agent| agent.next(running.filter(|_| !killed))) {
                match order {
                    Order::None => {}
                    Order::Killed(again) => (killed, start_at) = (true, again),
                    Order::Start => {
                        start_at = start_at.or(Some(Instant::now())).filter(|_| running.is_none() || killed)
                    }
                }
            }
            if let Some(agent) = &mut agent {
                agent.end_due();
            }
            if running.is_none() && start_at.is_some_and(|at| at <= Instant::now()) {
                start_at = None;
                running = Some(workload.start()?);
            }
            let next = agent.as_ref().and_then(Agent::next_end).into_iter().chain(start_at).min();
            self.wait(timeout_ms(next));
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

    /// Reaps a child that has ended, if there is one.
    fn reap(&self) -> Option<(u32, Ended)> {
        let mut status = 0;
        // SAFETY: the pointer is to an integer that lives over the call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        u32::try_from(pid).ok().filter(|pid| *pid > 0).map(|pid| (pid, ended(pid, status)))
    }
}

/// How long to wait: no longer than the clock's follower may, and not past `next`.
fn timeout_ms(next: Option<Instant>) -> i32 {
    let Some(next) = next else { return Follower::PERIOD_MS };
    let left = next.saturating_duration_since(Instant::now());
    i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX).min(Follower::PERIOD_MS)
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
        let workload = Workload { path: "/bin/sh".into(), arguments: vec!["-c".into(), "exit 5".into()] };
        let ended = children.run(&workload, None, None).unwrap();
        assert_eq!((ended.signalled, ended.code), (false, 5));
    }
}
