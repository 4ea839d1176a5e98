// SPDX-License-Identifier: Apache-2.0
//! Carries out what the host asks: kills, pauses and restarts processes, and holds memory.
//!
//! Requests are looked at when a child ends and at least every [`crate::clock::Follower::PERIOD_MS`]; each is answered through
//! the doorbell. Times are the guest's own.

use chaoscontrol_sdk::{AGENT_DONE, AgentAction, Doorbell, Window};
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How this program is called to hold memory: with this argument and a number of bytes.
pub const HOLD_MEMORY: &str = "--hold-memory";
/// An error without a number of the system.
const OTHER_ERROR: u8 = 255;
/// The kernel's own threads descend from this process.
const KERNEL_THREADS: i32 = 2;

/// A process, or with a negative number a group, that stands still.
struct Paused {
    target: i32,
    until: Instant,
}

/// A child that holds memory.
struct Holder {
    child: Child,
    until: Option<Instant>,
}

/// What the supervisor is to do about the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    None,
    /// It was killed: its end is not the guest's, and it starts again at this time, if at one.
    Killed(Option<Instant>),
    /// It starts now, if it is not there.
    Start,
}

/// The agent.
pub struct Agent<'a> {
    window: &'a Window,
    seen: u32,
    paused: Vec<Paused>,
    holders: Vec<Holder>,
}

impl<'a> Agent<'a> {
    /// Starts with the next request.
    pub fn new(window: &'a Window) -> Self {
        Self { window, seen: window.agent_requests(), paused: Vec::new(), holders: Vec::new() }
    }

    /// Carries out one request that is new, if there is one; `workload` is the running workload's process.
    pub fn next(&mut self, workload: Option<u32>) -> Option<Order> {
        let (number, request) = self.window.next_agent_request(&mut self.seen)?;
        let done = match request {
            Some(request) => self.carry_out(request.action, workload),
            None => Err(io::ErrorKind::InvalidData.into()),
        };
        let code = match &done {
            Ok(_) => AGENT_DONE,
            Err(error) => {
                println!("chaos-init: request {number} of the host: {error}");
                error.raw_os_error().and_then(|code| u8::try_from(code).ok()).unwrap_or(OTHER_ERROR)
            }
        };
        self.window.ring(Doorbell::AgentAnswer { number: number as u16, code });
        Some(done.unwrap_or(Order::None))
    }

    fn carry_out(&mut self, action: AgentAction, workload: Option<u32>) -> io::Result<Order> {
        let now = Instant::now();
        match action {
            AgentAction::KillProcess { process, down_ns } => {
                let (target, is_workload) = self.target(process, workload)?;
                signal(target, libc::SIGKILL)?;
                let again = (down_ns > 0).then(|| now + Duration::from_nanos(down_ns));
                Ok(if is_workload { Order::Killed(again) } else { Order::None })
            }
            AgentAction::PauseProcess { process, lasts_ns } => {
                let (target, _) = self.target(process, workload)?;
                signal(target, libc::SIGSTOP)?;
                self.paused.push(Paused { target, until: now + Duration::from_nanos(lasts_ns) });
                Ok(Order::None)
            }
            AgentAction::RestartWorkload => match workload {
                Some(pid) => {
                    signal(-(pid as i32), libc::SIGKILL)?;
                    Ok(Order::Killed(Some(now)))
                }
                None => Ok(Order::Start),
            },
            AgentAction::HoldMemory { part_ppm, lasts_ns } => {
                let until = (lasts_ns > 0).then(|| now + Duration::from_nanos(lasts_ns));
                let child = hold(available_bytes()? / 1_000_000 * u64::from(part_ppm))?;
                self.holders.push(Holder { child, until });
                Ok(Order::None)
            }
            AgentAction::EndAll => {
                self.end(|_| true, |_| true);
                Ok(Order::Start)
            }
        }
    }

    /// Ends what has lasted long enough.
    pub fn end_due(&mut self) {
        let now = Instant::now();
        self.end(|paused| paused.until <= now, |holder| holder.until.is_some_and(|until| until <= now));
    }

    fn end(&mut self, pause_ends: impl Fn(&Paused) -> bool, holder_ends: impl Fn(&Holder) -> bool) {
        for paused in self.paused.extract_if(.., |paused| pause_ends(paused)) {
            // Who was killed meanwhile needs no signal.
            let _ = signal(paused.target, libc::SIGCONT);
        }
        for mut holder in self.holders.extract_if(.., |holder| holder_ends(holder)) {
            let _ = holder.child.kill();
            let _ = holder.child.wait();
        }
    }

    /// When [`Agent::end_due`] has something to do next.
    pub fn next_end(&self) -> Option<Instant> {
        let paused = self.paused.iter().map(|paused| paused.until);
        paused.chain(self.holders.iter().filter_map(|holder| holder.until)).min()
    }

    /// A child was reaped.
    pub fn reaped(&mut self, pid: u32) {
        self.holders.retain(|holder| holder.child.id() != pid);
    }

    /// What to signal for the process with this number, and whether it is the workload.
    fn target(&self, process: u32, workload: Option<u32>) -> io::Result<(i32, bool)> {
        let own = |pid: i32| self.holders.iter().any(|holder| holder.child.id() as i32 == pid);
        let workload = workload.map(|pid| pid as i32);
        let mut others: Vec<i32> =
            processes()?.into_iter().filter(|pid| !own(*pid) && Some(*pid) != workload).collect();
        others.sort_unstable();
        let all: Vec<i32> = workload.into_iter().chain(others).collect();
        if all.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let pid = all[process as usize % all.len()];
        Ok(if Some(pid) == workload { (-pid, true) } else { (pid, false) })
    }
}

fn signal(target: i32, signal: i32) -> io::Result<()> {
    // SAFETY: sends a signal; nothing of this process is touched.
    if unsafe { libc::kill(target, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Every process but this one and the kernel's threads.
fn processes() -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let user = parent_of(&stat).is_some_and(|parent| parent != KERNEL_THREADS);
        if user && pid != KERNEL_THREADS && pid as u32 != std::process::id() {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The parent in a line of `/proc/PID/stat`; none for a process that has ended and was not reaped. The name before it is in
/// brackets and may hold anything.
fn parent_of(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| state != "Z" && state != "X")
}

/// Memory that programs could get.
fn available_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    available_in(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Starts a child that holds so much memory, and waits until it does.
fn hold(bytes: u64) -> io::Result<Child> {
    let mut child =
        Command::new("/proc/self/exe").args([HOLD_MEMORY, &bytes.to_string()]).stdout(Stdio::piped()).spawn()?;
    let mut word = [0];
    let said = child.stdout.take().map(|mut stdout| stdout.read(&mut word));
    match said {
        Some(Ok(1)) => Ok(child),
        _ => {
            let _ = child.kill();
            let _ = child.wait();
            Err(io::Error::from_raw_os_error(libc::ENOMEM))
        }
    }
}

/// The child: takes the memory, says so, and waits to be killed. The kernel kills it first when memory runs out.
pub fn hold_memory(bytes: &str) -> io::Result<()> {
    use std::io::Write;
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let bytes: usize = bytes.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut memory: Vec<u8> = Vec::new();
    memory.try_reserve_exact(bytes).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
    // Bytes that are not zero, so that no page is shared.
    memory.resize(bytes, 1);
    std::hint::black_box(&memory);
    let mut stdout = io::stdout();
    stdout.write_all(b"h")?;
    stdout.flush()?;
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_read_behind_a_name_with_brackets_and_spaces() {
        assert_eq!(parent_of("12 (a) b (c) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of("12 (gone) Z 7 12 12 0"), None);
        assert_eq!(parent_of(""), None);
    }

    #[test]
    fn available_memory_is_in_bytes() {
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:     40 kB\n"), Some(40_960));
        assert_eq!(available_in("MemTotal: 9 kB\n"), None);
    }

    #[test]
    fn this_test_sees_other_processes_but_not_itself() {
        let mut child = Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let found = processes().unwrap();
        assert!(found.contains(&(child.id() as i32)) && !found.contains(&(std::process::id() as i32)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
