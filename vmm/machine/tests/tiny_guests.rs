// SPDX-License-Identifier: AGPL-3.0-or-later
//! Guests of a few instructions: exact time, interrupts, idle, ends, snapshots.

mod common;

use chaoscontrol_machine::event_log::{LogConfig, What};
use chaoscontrol_machine::{ClusterNs, GuestNs, Machine, MachineError, MachineSnapshot, Rate, Stop, TimeMap};
use common::{DATA, IDT_POINTER, LAPIC, machine, machine_with, read64, run};
use iced_x86::code_asm::*;

/// Ticks counted by [`ticker`]'s handler.
const TICKS: u64 = DATA;
/// TSC at the last tick.
const LAST_TSC: u64 = DATA + 8;

/// Starts the periodic local APIC timer, then works (`busy`) or halts; each tick is counted, timed and printed.
fn ticker(busy: bool) -> impl FnOnce(&mut CodeAssembler) -> Vec<(u8, CodeLabel)> {
    move |a| {
        let mut handler = a.create_label();
        let mut again = a.create_label();
        a.mov(rbx, LAPIC).unwrap();
        a.mov(rbp, DATA).unwrap();
        a.mov(rax, IDT_POINTER).unwrap();
        a.lidt(qword_ptr(rax)).unwrap();
        a.mov(dword_ptr(rbx + 0x3e0), 0xb).unwrap();
        a.mov(dword_ptr(rbx + 0x320), 0x2_0040).unwrap();
        a.mov(dword_ptr(rbx + 0x380), 50_000).unwrap();
        // SSE on.
        a.mov(rax, cr4).unwrap();
        a.or(eax, 0x600).unwrap();
        a.mov(cr4, rax).unwrap();
        a.fld1().unwrap();
        a.sti().unwrap();
        a.set_label(&mut again).unwrap();
        if busy {
            a.inc(qword_ptr(rbp + 16)).unwrap();
            a.imul_3(rcx, rcx, 77).unwrap();
            a.add(rcx, 1).unwrap();
            a.movq(xmm3, rcx).unwrap();
            a.fld1().unwrap();
            a.faddp(st1, st0).unwrap();
        } else {
            a.hlt().unwrap();
        }
        a.jmp(again).unwrap();
        a.set_label(&mut handler).unwrap();
        a.push(rax).unwrap();
        a.push(rdx).unwrap();
        a.inc(qword_ptr(rbp)).unwrap();
        a.rdtsc().unwrap();
        a.shl(rdx, 32).unwrap();
        a.or(rax, rdx).unwrap();
        a.mov(qword_ptr(rbp + 8), rax).unwrap();
        a.mov(dx, 0x3f8).unwrap();
        a.mov(al, i32::from(b'.')).unwrap();
        a.out(dx, al).unwrap();
        a.mov(dword_ptr(rbx + 0xb0), 0).unwrap();
        a.pop(rdx).unwrap();
        a.pop(rax).unwrap();
        a.iretq().unwrap();
        vec![(0x40, handler)]
    }
}

fn same(a: &MachineSnapshot, b: &MachineSnapshot) {
    assert_eq!(a.state, b.state);
    assert_eq!(a.pages.hash(), b.pages.hash());
    assert_eq!(a.disks, b.disks);
}

#[test]
fn a_busy_guest_stops_at_the_exact_instruction() {
    let mut machine = machine(ticker(true));
    assert_eq!(machine.run_instructions(1_234).unwrap(), Stop::Deadline);
    assert_eq!((machine.instructions(), machine.now()), (1_234, GuestNs(12_340)));
    assert_eq!(machine.run_until(GuestNs(20_001)).unwrap(), Stop::Deadline);
    assert_eq!(machine.now(), GuestNs(20_010), "the first boundary at or after the deadline");
    assert_eq!(machine.run_until(GuestNs(20_005)).unwrap(), Stop::Deadline);
    assert_eq!(machine.now(), GuestNs(20_010), "a deadline in the past changes nothing");
}

#[test]
fn an_idle_guest_jumps_from_tick_to_tick() {
    let mut machine = machine(ticker(false));
    run(&mut machine, 1_000_000_000);
    let ticks = read64(&machine, TICKS);
    assert!((19_999..=20_000).contains(&ticks), "{ticks}");
    assert!(machine.instructions() < 20 * 20_000, "idle time costs no instructions");
    assert_eq!(machine.take_serial(), vec![b'.'; ticks as usize]);
    // The handler reads the TSC a few instructions after the tick.
    let late = machine.now().0 - read64(&machine, LAST_TSC);
    assert!(late < 50_000 + 1_000, "{late}");
}

#[test]
fn a_busy_guest_gets_every_tick_on_time() {
    let mut machine = machine(ticker(true));
    run(&mut machine, 10_000_000);
    assert!((198..=200).contains(&read64(&machine, TICKS)));
}

#[test]
fn stops_anywhere_leave_no_mark() {
    for busy in [false, true] {
        let mut straight = machine(ticker(busy));
        run(&mut straight, 2_000_000);
        let mut stopped = machine(ticker(busy));
        let mut step = 1;
        let mut at = 0;
        while at < 2_000_000 {
            step = step * 7 % 3_001 + 1;
            at = (at + step * 10).min(2_000_000);
            run(&mut stopped, at);
        }
        same(&straight.snapshot(), &stopped.snapshot());
        assert_eq!(straight.register_hash(), stopped.register_hash());
        assert_eq!(straight.memory_hash(), stopped.memory_hash());
    }
}

#[test]
fn restoring_anywhere_is_running_on() {
    for busy in [false, true] {
        let mut straight = machine(ticker(busy));
        let mut other = machine(ticker(busy));
        // Leave the other machine somewhere else, so that everything has to come from the snapshot.
        run(&mut other, 1_777_770);
        for at in [0u64, 50, 90, 120, 49_990, 50_080, 50_110, 333_330] {
            run(&mut straight, at);
            let snapshot = straight.snapshot();
            other.restore(&snapshot).unwrap();
            same(&snapshot, &other.snapshot());
            run(&mut straight, at + 400_000);
            run(&mut other, at + 400_000);
            same(&straight.snapshot(), &other.snapshot());
            straight.restore(&snapshot).unwrap();
        }
    }
}

#[test]
fn a_fresh_machine_goes_on_from_a_snapshot() {
    let mut first = machine(ticker(true));
    run(&mut first, 500_000);
    let snapshot = first.snapshot();
    let mut fresh = Machine::new(first.config().clone()).unwrap();
    fresh.restore(&snapshot).unwrap();
    run(&mut first, 900_000);
    run(&mut fresh, 900_000);
    same(&first.snapshot(), &fresh.snapshot());
}

#[test]
fn forks_go_their_own_way() {
    let mut machine = machine(ticker(true));
    run(&mut machine, 300_000);
    let mut fork = machine.fork().unwrap();
    run(&mut fork, 700_000);
    let later = fork.snapshot();
    run(&mut machine, 300_010);
    assert_ne!(machine.memory_hash(), fork.memory_hash());
    run(&mut machine, 700_000);
    same(&machine.snapshot(), &later);
}

#[test]
fn snapshots_share_the_pages_that_did_not_change() {
    let mut machine = machine(ticker(true));
    run(&mut machine, 300_000);
    let first = machine.snapshot();
    run(&mut machine, 600_000);
    let second = machine.snapshot();
    let mut changed = Vec::new();
    first.pages.differences(&second.pages, &mut |page| changed.push(page));
    // The data page, and the stack that interrupts push to.
    assert_eq!(changed.len(), 2, "{changed:x?}");
    machine.restore(&first).unwrap();
    let again = machine.snapshot();
    let mut changed = 0;
    first.pages.differences(&again.pages, &mut |_| changed += 1);
    assert_eq!(changed, 0, "a restored machine shares every page");
}

#[test]
fn snapshots_of_another_machine_are_refused() {
    let mut machine = machine(ticker(true));
    let snapshot = machine.snapshot();
    let mut slower = machine_with(ticker(true), |config| config.ns_per_instruction = 20);
    let refusal = slower.restore(&snapshot).unwrap_err().to_string();
    assert!(refusal.contains("10 ns an instruction, the machine runs at 20"), "{refusal}");
    let mut larger = machine_with(ticker(true), |config| config.memory_bytes *= 2);
    assert!(matches!(larger.restore(&snapshot), Err(MachineError::Snapshot(_))));
    let mut newer = snapshot.clone();
    newer.state.version += 1;
    assert!(matches!(machine.restore(&newer), Err(MachineError::Snapshot(_))));
    let mut outside = snapshot.clone();
    outside.pages.set(1 << 30, &[1; 4096]);
    assert!(matches!(machine.restore(&outside), Err(MachineError::Snapshot(_))));
    machine.restore(&snapshot).unwrap();
    same(&snapshot, &machine.snapshot());
}

#[test]
fn time_passes_in_proportion_to_ns_per_instruction() {
    for ns in [1, 7, 1_000] {
        let mut machine = machine_with(ticker(true), |config| config.ns_per_instruction = ns);
        machine.run_instructions(1_000).unwrap();
        assert_eq!(machine.now(), GuestNs(1_000 * u64::from(ns)));
    }
}

#[test]
fn a_skewed_clock_runs_at_its_rate_and_never_back() {
    let mut machine = machine(ticker(false));
    run(&mut machine, 1_000_000);
    let map = TimeMap {
        cluster_origin: ClusterNs(1_000_000),
        guest_origin: machine.now(),
        rate: Rate::from_ppm(100_000).unwrap(),
    };
    machine.set_time_map(map);
    let deadline = machine.time_map().to_guest(ClusterNs(2_000_000));
    assert_eq!(deadline.0 - map.guest_origin.0, 1_100_000);
    run(&mut machine, deadline.0);
    assert!(machine.time_map().to_cluster(machine.now()) >= ClusterNs(2_000_000));
}

#[test]
fn a_wall_clock_jump_moves_the_wall_clock_only() {
    let mut machine = machine(ticker(false));
    run(&mut machine, 1_000_000);
    let (now, wall) = (machine.now(), machine.wall_clock_ns());
    machine.set_wall_clock_ns(wall + 3_600_000_000_000);
    assert_eq!((machine.now(), machine.wall_clock_ns() - wall), (now, 3_600_000_000_000));
    machine.set_wall_clock_ns(1_000);
    assert_eq!(machine.wall_clock_ns(), 1_000);
}

#[test]
fn the_pic_alone_interrupts_through_the_virtual_wire() {
    let mut machine = machine(|a| {
        let mut handler = a.create_label();
        let mut again = a.create_label();
        a.mov(rbp, DATA).unwrap();
        a.mov(rax, IDT_POINTER).unwrap();
        a.lidt(qword_ptr(rax)).unwrap();
        // PIC at vectors 0x40 and 0x48, timer unmasked; PIT channel 0 every 1,193 ticks (about 1 ms).
        for (port, value) in [
            (0x20, 0x11),
            (0x21, 0x40),
            (0x21, 4),
            (0x21, 1),
            (0xa0, 0x11),
            (0xa1, 0x48),
            (0xa1, 2),
            (0xa1, 1),
            (0x21, 0xfe),
            (0xa1, 0xff),
            (0x43, 0x34),
            (0x40, 0xa9),
            (0x40, 0x04),
        ] {
            a.mov(al, value).unwrap();
            a.out(port, al).unwrap();
        }
        a.sti().unwrap();
        a.set_label(&mut again).unwrap();
        a.hlt().unwrap();
        a.jmp(again).unwrap();
        a.set_label(&mut handler).unwrap();
        a.inc(qword_ptr(rbp)).unwrap();
        a.mov(al, 0x20).unwrap();
        a.out(0x20, al).unwrap();
        a.iretq().unwrap();
        vec![(0x40, handler)]
    });
    run(&mut machine, 1_000_000_000);
    let ticks = read64(&machine, TICKS);
    assert!((999..=1_000).contains(&ticks), "{ticks}");
}

fn out(a: &mut CodeAssembler, port: i32, value: i32, wide: bool) {
    a.mov(edx, port).unwrap();
    a.mov(eax, value).unwrap();
    if wide { a.out(dx, ax).unwrap() } else { a.out(dx, al).unwrap() }
}

#[test]
fn ends_are_told_apart_and_final() {
    type Guest = fn(&mut CodeAssembler);
    let cases: [(Guest, Stop); 5] = [
        (|a| out(a, 0x604, 0x3400, true), Stop::PowerOff),
        (|a| out(a, 0xcf9, 6, false), Stop::Reset),
        (|a| out(a, 0x64, 0xfe, false), Stop::Reset),
        (|a| a.ud2().unwrap(), Stop::TripleFault),
        (
            |a| {
                for byte in b"Kernel panic - not syncing: because\n" {
                    out(a, 0x3f8, i32::from(*byte), false);
                }
                out(a, 0xcf9, 6, false);
            },
            Stop::Panic { hint: Some("Kernel panic - not syncing: because".to_owned()) },
        ),
    ];
    for (guest, wanted) in cases {
        let mut machine = machine(|a| {
            guest(a);
            a.hlt().unwrap();
            Vec::new()
        });
        assert_eq!(machine.run_until(GuestNs(1_000_000)).unwrap(), wanted);
        let count = machine.instructions();
        assert_eq!(machine.run_until(GuestNs(2_000_000)).unwrap(), wanted, "it does not run on");
        assert_eq!(machine.instructions(), count);
        let snapshot = machine.snapshot();
        let mut other = Machine::new(machine.config().clone()).unwrap();
        other.restore(&snapshot).unwrap();
        assert_eq!(other.ended(), Some(&wanted));
    }
}

#[test]
fn a_guest_that_halts_for_good_is_idle_without_an_event() {
    let mut machine = machine(|a| {
        a.hlt().unwrap();
        Vec::new()
    });
    assert_eq!(machine.run_until(GuestNs(1_000_000)).unwrap(), Stop::Idle { next_event: None });
    assert!(machine.is_halted());
    assert_eq!(machine.now(), GuestNs(10), "idle time passes only when the caller says so");
    machine.skip_to(GuestNs(5_000));
    assert_eq!(machine.now(), GuestNs(5_000));
    machine.skip_to(GuestNs(4_000));
    assert_eq!(machine.now(), GuestNs(5_000));
}

#[test]
fn a_serial_pattern_stops_after_its_last_byte() {
    let mut machine = machine(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        for byte in b"abcd" {
            out(a, 0x3f8, i32::from(*byte), false);
        }
        a.jmp(again).unwrap();
        Vec::new()
    });
    assert_eq!(machine.run_until_serial("bc", GuestNs(1_000_000)).unwrap(), Stop::SerialMatch);
    assert_eq!(machine.take_serial(), b"abc");
    assert_eq!(machine.run_until_serial("xyz", GuestNs(1_000_000)).unwrap(), Stop::Deadline);
}

#[test]
fn a_pause_lets_timers_fall_due_together() {
    let mut machine = machine(ticker(false));
    run(&mut machine, 1_000_000);
    let before = read64(&machine, TICKS);
    machine.skip_to(GuestNs(5_001_000));
    run(&mut machine, 5_040_000);
    assert_eq!(read64(&machine, TICKS), before + 1, "missed periods coalesce");
}

#[test]
fn unknown_registers_fault_and_unknown_places_read_as_ones() {
    let mut machine = machine(|a| {
        let mut fault = a.create_label();
        a.mov(rbp, DATA).unwrap();
        a.mov(rax, IDT_POINTER).unwrap();
        a.lidt(qword_ptr(rax)).unwrap();
        a.mov(rax, 0xe000_0000u64).unwrap();
        a.mov(rcx, qword_ptr(rax)).unwrap();
        a.mov(qword_ptr(rbp), rcx).unwrap();
        a.mov(dx, 0x1234).unwrap();
        a.in_(eax, dx).unwrap();
        a.mov(dword_ptr(rbp + 8), eax).unwrap();
        a.mov(ecx, 0x4b56_4d00).unwrap();
        a.rdmsr().unwrap();
        a.hlt().unwrap();
        a.set_label(&mut fault).unwrap();
        a.mov(qword_ptr(rbp + 16), 13).unwrap();
        a.hlt().unwrap();
        vec![(13, fault)]
    });
    assert_eq!(machine.run_until(GuestNs(1_000_000)).unwrap(), Stop::Idle { next_event: None });
    assert_eq!(read64(&machine, DATA), u64::MAX);
    assert_eq!(read64(&machine, DATA + 8), 0xffff_ffff);
    assert_eq!(read64(&machine, DATA + 16), 13);
}

#[test]
fn a_log_changes_nothing_and_is_the_same_wherever_the_run_is_stopped() {
    const COUNT: u64 = 60_000;
    let config = LogConfig { interval: 997, memory: true, registers: true, ..LogConfig::default() };
    let logged = |stops: &[u64]| {
        let mut machine = machine(ticker(true));
        machine.start_log(config);
        for stop in stops.iter().copied().chain([COUNT - stops.iter().sum::<u64>()]) {
            machine.run_instructions(stop).unwrap();
        }
        (machine.take_log(), machine.snapshot())
    };
    let mut plain = machine(ticker(true));
    plain.run_instructions(COUNT).unwrap();
    let (log, end) = logged(&[]);
    same(&end, &plain.snapshot());
    assert_eq!(logged(&[1, 996, 997, 5_000, 33]).0, log);
    let count = |wanted: fn(&What) -> bool| log.iter().filter(|event| wanted(&event.what)).count() as u64;
    assert_eq!(count(|what| matches!(what, What::Mark { .. })), COUNT / 997 + 2, "from 0 on, and one at the end");
    assert!(count(|what| *what == What::Interrupt(0x40)) > 5);
    assert!(count(|what| matches!(what, What::Exit(..))) > 10);
}

#[test]
fn a_full_log_stops_the_machine_before_anything_is_lost_and_leaves_it_sound() {
    let mut machine = machine(ticker(true));
    machine.start_log(LogConfig { interval: 1, limit: 2_100, ..LogConfig::default() });
    assert!(matches!(machine.run_instructions(60_000), Err(MachineError::LogFull { limit: 2_100 })));
    assert_eq!(machine.poisoned(), None);
    let log = machine.take_log();
    assert!(!log.is_empty() && log.len() < 2_100, "{}", log.len());
    machine.run_instructions(60_000 - machine.instructions()).unwrap();
    let mut plain = common::machine(ticker(true));
    plain.run_instructions(60_000).unwrap();
    same(&machine.snapshot(), &plain.snapshot());
}
