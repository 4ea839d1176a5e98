// SPDX-License-Identifier: AGPL-3.0-or-later
//! Linux in one machine: it boots cheaply, and stopping, snapshots, restores and forks are invisible to it.
//!
//! Each test says loudly that it was skipped where no guest kernel has been built.

mod common;

use std::sync::Arc;

use chaoscontrol_cpu::Config;
use chaoscontrol_machine::exact::Exact;
use chaoscontrol_machine::memory::GuestMemory;
use chaoscontrol_machine::{Firmware, GuestNs, Machine, Stop, VmConfig};
use common::linux::{initrd, kernel, ticking_init};

const MEMORY_BYTES: u64 = 64 << 20;
const SECOND: u64 = 1_000_000_000;
/// The tuned kernel reaches init in fewer instructions.
const BOOT_INSTRUCTIONS_MAX: u64 = 100_000_000;

fn machine(file: &str, change: impl FnOnce(&mut VmConfig)) -> Option<Machine> {
    let mut config = VmConfig::new(MEMORY_BYTES, kernel(file)?.into());
    config.initrd = Some(initrd("init", &ticking_init()).into());
    config.boot_seed = [5; 32];
    change(&mut config);
    let mut machine = Machine::new(Arc::new(config)).expect("a machine");
    machine.load().expect("loads");
    Some(machine)
}

/// Runs on to `deadline` or the guest's end, jumping over idle time.
fn run(machine: &mut Machine, deadline: GuestNs) -> Stop {
    loop {
        match machine.run_until(deadline).expect("runs") {
            Stop::Idle { .. } => machine.skip_to(deadline),
            Stop::Doorbell { .. } | Stop::RestartPoint => {}
            stop => return stop,
        }
    }
}

/// Checks all that a guest or its host could tell apart.
fn same(a: &mut Machine, b: &mut Machine, when: &str) {
    assert_eq!(a.register_hash(), b.register_hash(), "{when}: registers\n{:x?}\n{:x?}", a.cpu(), b.cpu());
    assert_eq!(a.memory_hash(), b.memory_hash(), "{when}: memory");
    // Not assert_eq: the states hold the whole console.
    assert!(a.snapshot().state == b.snapshot().state, "{when}: devices");
}

#[test]
fn linux_reaches_init_in_few_instructions_and_powers_off() {
    let Some(mut machine) = machine("vmlinux", |_| {}) else { return };
    assert_eq!(machine.run_until_serial("reached-init", GuestNs(20 * SECOND)).unwrap(), Stop::SerialMatch);
    eprintln!("init after {} instructions", machine.instructions());
    assert!(machine.instructions() < BOOT_INSTRUCTIONS_MAX);
    let stop = run(&mut machine, GuestNs(20 * SECOND));
    assert_eq!(stop, Stop::PowerOff, "{}", String::from_utf8_lossy(&machine.take_serial()));
}

#[test]
fn two_boots_are_equal_and_a_seed_makes_another_one() {
    let end = GuestNs(SECOND);
    let (Some(mut a), Some(mut b)) = (machine("vmlinux", |_| {}), machine("vmlinux", |_| {})) else { return };
    run(&mut a, end);
    run(&mut b, end);
    same(&mut a, &mut b, "after a second");
    let Some(mut other) = machine("vmlinux", |config| config.boot_seed = [6; 32]) else { return };
    run(&mut other, end);
    assert!(a.take_serial() != other.take_serial(), "random bytes come from the boot seed");
}

#[test]
fn stops_restores_and_forks_are_invisible_to_linux() {
    let end = GuestNs(SECOND);
    let Some(mut straight) = machine("vmlinux", |_| {}) else { return };
    run(&mut straight, end);
    let mut wanted = straight.fork().unwrap();

    let Some(mut stopped) = machine("vmlinux", |_| {}) else { return };
    // A machine that has been elsewhere, and is restored at each stop.
    let mut other = straight;
    let mut at = 0;
    for step in [777_770, 40_000_010, 33_333_330, 50_000_000, 7, 61_234_560, 100_000_000, 13] {
        at += step;
        run(&mut stopped, GuestNs(at));
        let snapshot = stopped.snapshot();
        other.restore(&snapshot).unwrap();
        assert_eq!(other.snapshot().state, snapshot.state, "at {at}");
        assert_eq!(other.memory_hash(), stopped.memory_hash(), "at {at}");
        // Both go on a little; one of them is taken back.
        run(&mut other, GuestNs(at + 5_000_000));
        std::mem::swap(&mut stopped, &mut other);
        run(&mut other, GuestNs(at + 5_000_000));
        same(&mut other, &mut stopped, &format!("5 ms after {at}"));
        stopped.restore(&snapshot).unwrap();
    }
    run(&mut stopped, end);
    same(&mut stopped, &mut wanted, "at the end");

    let snapshot = stopped.snapshot();
    let mut fresh = Machine::new(stopped.config().clone()).unwrap();
    fresh.restore(&snapshot).unwrap();
    let later = GuestNs(end.0 + SECOND / 5);
    run(&mut fresh, later);
    run(&mut stopped, later);
    same(&mut fresh, &mut stopped, "in a fresh machine");
}

#[test]
fn the_engines_caches_are_invisible_to_linux() {
    let Some(mut usual) = machine("vmlinux", |_| {}) else { return };
    let config = usual.config().clone();
    let memory = Arc::new(GuestMemory::new(config.memory_bytes).expect("memory"));
    let caches = Config { tlb_entries: 32, cached_operations: 1024, block_instructions: 4, ..Config::default() };
    let engine = Exact::with_config(memory.clone(), &caches).expect("an engine");
    let mut small = Machine::with_engine(config, memory, Box::new(engine)).expect("a machine");
    small.load().expect("loads");
    for machine in [&mut usual, &mut small] {
        assert_eq!(machine.run_until_serial("reached-init", GuestNs(20 * SECOND)).unwrap(), Stop::SerialMatch);
    }
    same(&mut usual, &mut small, "at init");
}

#[test]
fn linux_boots_on_the_pic_alone() {
    let Some(mut machine) = machine("vmlinux", |config| config.firmware = Firmware::Legacy) else { return };
    let stop = machine.run_until_serial("ticked", GuestNs(20 * SECOND)).unwrap();
    assert_eq!(stop, Stop::SerialMatch, "{}", String::from_utf8_lossy(&machine.take_serial()));
}

#[test]
fn a_bzimage_boots() {
    let Some(mut machine) = machine("bzImage", |_| {}) else { return };
    let stop = machine.run_until_serial("reached-init", GuestNs(20 * SECOND)).unwrap();
    assert_eq!(stop, Stop::SerialMatch, "{}", String::from_utf8_lossy(&machine.take_serial()));
}

#[test]
fn an_initrd_without_init_is_a_panic_that_says_so() {
    let without = |config: &mut VmConfig| config.initrd = Some(initrd("other", &ticking_init()).into());
    let Some(mut machine) = machine("vmlinux", without) else { return };
    match run(&mut machine, GuestNs(20 * SECOND)) {
        Stop::Panic { hint: Some(hint) } => assert!(hint.contains("Kernel panic - not syncing"), "{hint}"),
        stop => panic!("{stop:?}"),
    }
}

#[test]
fn a_new_generation_id_reaches_the_guests_random_pool() {
    let Some(mut machine) = machine("vmlinux", |_| {}) else { return };
    assert_eq!(machine.run_until_serial("ticked", GuestNs(20 * SECOND)).unwrap(), Stop::SerialMatch);
    let mut other = machine.fork().unwrap();
    other.set_generation_id([9; 16]);
    for each in [&mut machine, &mut other] {
        each.take_serial();
        run(each, GuestNs(20 * SECOND));
    }
    let (kept, changed) = (machine.take_serial(), other.take_serial());
    assert!(kept != changed, "the fork draws other random bytes");
}
