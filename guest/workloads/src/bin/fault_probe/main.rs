// SPDX-License-Identifier: Apache-2.0
//! Measures what faults do to a guest, and reports it in SDK events, one set every 200 ms of the guest's time.
//!
//! | event | when | what it holds |
//! |---|---|---|
//! | `probe_started` | a life begins | `life` (starts so far, counted on the disk), `survivors` and `torn` (see below) |
//! | `probe_link` | each window, for each peer | datagrams sent, heard, echoed, duplicated, reordered, round trips, rate of the peer's clock |
//! | `probe_host` | each window | longest gap between turns, step of the wall clock, checksum errors, disk errors |
//!
//! | parameter (kernel command line) | meaning |
//! |---|---|
//! | `chaos.vm=I` `chaos.vms=N` | which node this is, and how many there are |
//! | `probe_disk=verify` | writes, flushes and reads back a block each window (default where /dev/vda is) |
//! | `probe_disk=unflushed` | writes three blocks without a flush; the next life reports which survived a power cut |
//! | `probe_disk=none` | leaves the disk alone |
//!
//! How each fault shows: latency, jitter and bandwidth in the round trips; loss and partitions in `heard` and `echoed` (a one-way
//! partition in `heard` of one side only); duplication and reordering by their names; corruption in `checksum_errors`; a pause in
//! `gap_us`; a kill and a restart in a new `life`; disk faults by their names, a slow disk in `disk_max_us`; skew and freeze in
//! `rate_ppm` of the others; jump and jitter of the clock in `wall_step_us`; a stalled CPU in `gap_us`, a slow one in `work_max_us`;
//! packets that are too long in `large_heard`; interrupts in `entropy_irqs` and `nmis`; a killed or restarted process in a new `life`, a
//! stopped one in `gap_us`; held memory in `available_kib`.

mod clocks;
mod disk;
mod interrupts;
mod links;

use chaoscontrol_sdk::{SdkError, details, guest, send_event, setup_complete};
use clocks::Clocks;
use disk::Probe;
use interrupts::Interrupts;
use links::Links;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const DISK: &str = "/dev/vda";
const TURN: Duration = Duration::from_millis(20);
/// Turns of a window.
const TURNS: u32 = 10;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("chaos-fault-probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    chaoscontrol_sdk::init().map_err(|error| error.to_string())?;
    let (vm, vms) = (guest::vm().unwrap_or(0), guest::vms().unwrap_or(1));
    let mode = guest::parameter("probe_disk")
        .unwrap_or_else(|| if Path::new(DISK).exists() { "verify".to_owned() } else { "none".to_owned() });
    let mut probe = match mode.as_str() {
        "none" => None,
        "verify" | "unflushed" => Some(Probe::open(Path::new(DISK))?),
        _ => return Err(format!("probe_disk={mode} is unknown: it is verify, unflushed or none")),
    };
    let verify = mode == "verify";
    let life = probe.as_mut().map(|probe| probe.begin_life(!verify));
    let started = match &life {
        Some(life) => send_event(
            "probe_started",
            details! { vm: vm, life: life.number, survivors: life.survivors, torn: life.torn },
        ),
        None => send_event("probe_started", details! { vm: vm, life: None::<u64> }),
    };
    said(started);
    println!("chaos-fault-probe: node {vm} of {vms}, disk {mode}");
    let mut links = Links::open(vm, vms).map_err(|error| format!("cannot open the network: {error}"))?;
    let mut clocks = Clocks::new();
    let mut interrupts = Interrupts::new();
    let mut ready = false;
    loop {
        for _ in 0..TURNS {
            links.send_probes();
            links.receive_for(TURN);
            clocks.turn();
            clocks.work();
        }
        if verify && let Some(probe) = &mut probe {
            probe.verify_one();
        }
        if !ready && links.all_heard() {
            ready = true;
            said(setup_complete(details! { vm: vm }));
        }
        report(vm, &mut links, &mut clocks, &mut interrupts, probe.as_mut());
    }
}

fn report(vm: u32, links: &mut Links, clocks: &mut Clocks, interrupts: &mut Interrupts, probe: Option<&mut Probe>) {
    for window in links.take_windows() {
        said(send_event(
            "probe_link",
            details! {
                vm: vm, peer: window.peer, sent: window.sent, heard: window.heard, echoed: window.echoed,
                large_heard: window.large_heard, duplicated: window.duplicated, reordered: window.reordered, missing: window.missing,
                rtt_min_us: window.rtt_min_us, rtt_max_us: window.rtt_max_us, rate_ppm: window.rate_ppm
            },
        ));
    }
    let clock = clocks.take_window();
    let interrupts = interrupts.take_window();
    let disk = probe.map(Probe::take_window).unwrap_or_default();
    said(send_event(
        "probe_host",
        details! {
            vm: vm, gap_us: clock.gap_us, wall_step_us: clock.wall_step_us, checksum_errors: clock.checksum_errors,
            disk_blocks: disk.blocks, read_errors: disk.read_errors, write_errors: disk.write_errors,
            flush_errors: disk.flush_errors, torn_writes: disk.torn_writes, flipped_reads: disk.flipped_reads,
            lost_blocks: disk.lost_blocks, disk_max_us: disk.max_us, work_max_us: clock.work_max_us,
            entropy_irqs: interrupts.entropy, nmis: interrupts.nmis, available_kib: interrupts::available_kib()
        },
    ));
}

fn said(result: Result<(), SdkError>) {
    if let Err(error) = result {
        println!("chaos-fault-probe: {error}");
    }
}
