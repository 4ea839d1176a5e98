// SPDX-License-Identifier: Apache-2.0
//! The first process of a guest.
//!
//! In this order: mounts, no address randomization, `/dev/chaos`, network, the restart point, the workload. While the workload
//! runs it reaps orphans, follows the host's steps of the wall clock, and does what the host asks its agent for (kill, pause and
//! restart processes, hold memory); when the workload ends by itself it reports how and powers off.
//!
//! | kernel command line | meaning |
//! |---|---|
//! | `chaos.init=/path` | the workload (default `/workload`); what follows `--` are its arguments |
//! | `chaos.vm=I` | index of this VM: eth0 gets 10.0.0.(I+1)/24 |
//!
//! Only the console and the doorbell tell what went wrong: each error is one line that begins with `chaos-init:`.

mod agent;
mod clock;
mod device;
mod mounts;
mod network;
mod system;
mod workload;

use chaoscontrol_sdk::{Doorbell, Window, guest};
use std::path::Path;
use system::Failure;

const DEFAULT_WORKLOAD: &str = "/workload";

fn main() {
    let mut arguments = std::env::args().skip(1);
    if std::process::id() != 1 && arguments.next().as_deref() == Some(agent::HOLD_MEMORY) {
        let held = agent::hold_memory(&arguments.next().unwrap_or_default());
        std::process::exit(i32::from(held.is_err()));
    }
    if std::process::id() != 1 {
        eprintln!("chaos-init: this is the first process of a guest, not a command: boot it as /init");
        std::process::exit(2);
    }
    let mut window = None;
    let ended = run(&mut window);
    let bell = match &ended {
        Ok(ended) => {
            println!("chaos-init: the workload {ended}");
            ended.doorbell()
        }
        Err(failure) => {
            println!("chaos-init: {failure}");
            Doorbell::InitFailed
        }
    };
    if let Some(window) = &window {
        window.ring(bell);
    }
    system::power_off();
}

fn run(window: &mut Option<Window>) -> Result<workload::Ended, Failure> {
    mounts::mount_all()?;
    system::keep_addresses_fixed();
    device::make_chaos_device();
    *window = chaoscontrol_sdk::open_window().unwrap_or_else(|error| {
        println!("chaos-init: no reports: {error}");
        None
    });
    network::bring_up("lo", None)?;
    // A machine without a network card is fine.
    if let Some(vm) = guest::vm().filter(|_| Path::new("/sys/class/net/eth0").exists()) {
        network::bring_up("eth0", Some(network::address_of(vm)?))?;
    }
    let path = guest::parameter("chaos.init").unwrap_or_else(|| DEFAULT_WORKLOAD.to_string());
    workload::check(&path)?;
    let workload = workload::Workload { path, arguments: guest::arguments() };
    let children = workload::Children::watch()?;
    let mut clock = window.as_ref().map(clock::Follower::new);
    let agent = window.as_ref().map(agent::Agent::new);
    if let Some(window) = window.as_ref() {
        window.ring(Doorbell::RestartPoint);
    }
    // A restarted VM goes on here, possibly at another wall-clock time.
    if let Some(clock) = &mut clock {
        clock.follow();
    }
    let ended = children.run(&workload, clock, agent)?;
    if window.is_some()
        && let Err(error) = chaoscontrol_sdk::process_exit(ended.pid, ended.signalled, ended.code)
    {
        println!("chaos-init: cannot report the workload's end: {error}");
    }
    Ok(ended)
}
