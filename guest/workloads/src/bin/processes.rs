// SPDX-License-Identifier: Apache-2.0
//! Many short-lived processes without root that report through the SDK, one after the other and so through the same slot. Each
//! evaluates one assertion `EACH` times and is killed at once, so that nothing but its counters tells how often.
//!
//! `processes=N` on the kernel command line, or as an argument, sets how many (default 50).

use chaoscontrol_sdk::{assert_always, assert_reachable, details, guest, send_event, setup_complete};

const PROCESSES_DEFAULT: u64 = 50;
/// Evaluations of each process: far fewer than fit between two barriers, so that several processes come and go in one round.
const EACH: u64 = 1_000;
/// The user that owns nothing.
const NOBODY: libc::uid_t = 65_534;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    chaoscontrol_sdk::init()?;
    let argument = std::env::args().find_map(|word| word.strip_prefix("processes=").map(str::to_owned));
    let given = argument.or_else(|| guest::parameter("processes"));
    let processes = given.and_then(|text| text.parse().ok()).unwrap_or(PROCESSES_DEFAULT);
    setup_complete(details! { processes: processes })?;
    for number in 0..processes {
        let status = run_one()?;
        if libc::WTERMSIG(status) != libc::SIGKILL {
            return Err(format!("process {number} ended with status {status:#x}").into());
        }
    }
    assert_reachable!("every process came and went");
    send_event("processes_done", details! { processes: processes, each: EACH })?;
    println!("chaos-processes: {processes} processes, {EACH} evaluations each");
    Ok(())
}

/// Forks a process that counts and dies; its wait status.
fn run_one() -> std::io::Result<i32> {
    // SAFETY: this program has one thread, so the child may go on as any program.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => count_and_die(),
        child => {
            let mut status = 0;
            // SAFETY: the status is ours, and nobody else waits for the child.
            if unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(status)
        }
    }
}

fn count_and_die() -> ! {
    // SAFETY: these only change who this process is. The group goes first, while that is still allowed.
    let changed = unsafe { libc::setgid(NOBODY) == 0 && libc::setuid(NOBODY) == 0 };
    // SAFETY: asks, and changes nothing.
    let user = unsafe { libc::geteuid() };
    for _ in 0..EACH {
        assert_always!(changed && user == NOBODY, "a process without root reports", details! { user: user });
    }
    // SAFETY: ends this process; nothing of it runs any more, no handler and no flush.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("a process cannot outlive that")
}
