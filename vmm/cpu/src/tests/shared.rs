// SPDX-License-Identifier: AGPL-3.0-or-later
//! CPUs of one machine: what one of them stores into code, page tables or anything else holds for the others at once, also for
//! code they have compiled.

use super::guest::{CODE, DATA, Guest, LAST_TABLE, config};
use crate::state::CpuState;
use crate::{Config, Cpu, Exit, Tier};
use iced_x86::code_asm::*;

/// Where the second CPU's program is.
const OTHER: u64 = CODE + 0x800;
const ROUNDS: u64 = 1000;
/// `add rax, 1`; its last byte is the addend.
const ADD_RAX: [u8; 4] = [0x48, 0x83, 0xc0, 1];

fn entry_of(address: u64) -> u64 {
    LAST_TABLE + (address >> 12) * 8
}

/// RCX rounds of `body`, which counts 1, then HLT.
fn rounds(a: &mut CodeAssembler, body: impl FnOnce(&mut CodeAssembler)) {
    let mut again = a.create_label();
    a.set_label(&mut again).expect("assembles");
    body(a);
    a.dec(rcx).expect("assembles");
    a.jne(again).expect("assembles");
    a.hlt().expect("assembles");
}

/// Two CPUs: the guest's runs `first`, the other one `second`.
fn two(first: impl FnOnce(&mut CodeAssembler), second: impl FnOnce(&mut CodeAssembler)) -> (Guest, Cpu) {
    let (mut guest, mut others) = Guest::with_cpus(&config(), 2, |a| rounds(a, first));
    guest.assemble(OTHER, second);
    guest.change_state(|state| state.gpr[1] = ROUNDS);
    let mut other = others.remove(0);
    change(&mut other, |state| state.rip = OTHER);
    (guest, other)
}

fn change(cpu: &mut Cpu, change: impl FnOnce(&mut CpuState)) {
    let mut state = cpu.state();
    change(&mut state);
    cpu.set_state(&state).expect("a valid state");
}

#[test]
fn a_store_of_another_cpu_into_code_that_runs_often_holds_at_once() {
    for before in [1, 2, 40, 999] {
        let (mut guest, mut other) = two(
            |a| a.db(&ADD_RAX).expect("assembles"),
            |a| {
                a.mov(byte_ptr(CODE + 3), 3).expect("assembles");
                a.hlt().expect("assembles");
            },
        );
        assert_eq!(guest.cpu.run(3 * before), Exit::BudgetUsed);
        assert_eq!(other.run(100), Exit::Halted);
        assert_eq!(guest.run_to_halt().gpr[0], before + 3 * (ROUNDS - before));
    }
}

#[test]
fn a_page_table_store_of_another_cpu_holds_at_once() {
    for before in [1, 2, 40, 999] {
        let (mut guest, mut other) = two(
            |a| a.add(rax, qword_ptr(DATA)).expect("assembles"),
            |a| {
                a.mov(qword_ptr(entry_of(DATA)), (DATA as i32 + 0x1000) | 7).expect("assembles");
                a.hlt().expect("assembles");
            },
        );
        guest.put(DATA, 1u64);
        guest.put(DATA + 0x1000, 3u64);
        assert_eq!(guest.cpu.run(3 * before), Exit::BudgetUsed);
        assert_eq!(other.run(100), Exit::Halted);
        assert_eq!(guest.run_to_halt().gpr[0], before + 3 * (ROUNDS - before));
    }
}

#[test]
fn a_page_that_one_cpu_writes_all_the_time_may_become_code_of_another() {
    let (mut guest, mut other) =
        two(|a| a.mov(byte_ptr(DATA + 3), dl).expect("assembles"), |a| a.hlt().expect("assembles"));
    guest.assemble(DATA, |a| rounds(a, |a| a.db(&ADD_RAX).expect("assembles")));
    guest.change_state(|state| state.gpr[2] = 1);
    assert_eq!(guest.cpu.run(300), Exit::BudgetUsed);
    change(&mut other, |state| (state.rip, state.gpr[1]) = (DATA, ROUNDS));
    assert_eq!(other.run(300), Exit::BudgetUsed);
    guest.change_state(|state| state.gpr[2] = 5);
    assert_eq!(guest.cpu.run(3), Exit::BudgetUsed);
    assert_eq!(other.run(10_000), Exit::Halted);
    assert_eq!(other.state().gpr[0], 100 + 5 * (ROUNDS - 100));
}

#[test]
fn pages_written_by_any_cpu_are_told_by_each_and_only_once() {
    let (mut guest, mut other) = two(
        |a| a.mov(byte_ptr(DATA), dl).expect("assembles"),
        |a| {
            a.mov(byte_ptr(DATA + 0x1000), dl).expect("assembles");
            a.hlt().expect("assembles");
        },
    );
    let taken = |cpu: &mut Cpu| {
        let mut pages = Vec::new();
        cpu.take_dirty_pages(&mut |page| pages.push(page));
        pages.retain(|page| (DATA >> 12..(DATA >> 12) + 2).contains(page));
        pages
    };
    taken(&mut other);
    for _ in 0..3 {
        assert_eq!(guest.cpu.run(30), Exit::BudgetUsed);
        assert_eq!(taken(&mut other), [DATA >> 12]);
        assert_eq!(taken(&mut guest.cpu), []);
    }
    assert_eq!(other.run(100), Exit::Halted);
    assert_eq!(taken(&mut guest.cpu), [(DATA >> 12) + 1]);
}

/// Both CPUs run this: sums in memory that they share, an addend in the code that either changes, and a page that either maps
/// elsewhere. Everything follows from RSI and R9.
fn mixed(a: &mut CodeAssembler) {
    const WINDOW: u64 = DATA + 0x2000;
    let (mut again, mut patched, mut stay) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(r8, 0x5851_f42d_4c95_7f2du64).expect("assembles");
    a.lea(r10, qword_ptr(patched)).expect("assembles");
    a.set_label(&mut again).expect("assembles");
    a.imul_2(rsi, r8).expect("assembles");
    a.add(rsi, r9).expect("assembles");
    a.mov(rdi, rsi).expect("assembles");
    a.shr(rdi, 52).expect("assembles");
    a.and(edi, 0xff8).expect("assembles");
    a.add(qword_ptr(rdi + DATA as i32), rsi).expect("assembles");
    a.mov(rdx, rsi).expect("assembles");
    a.shr(rdx, 40).expect("assembles");
    a.test(edx, 31).expect("assembles");
    a.jne(patched).expect("assembles");
    a.mov(byte_ptr(r10 + 3), dl).expect("assembles");
    a.set_label(&mut patched).expect("assembles");
    a.db(&ADD_RAX).expect("assembles");
    a.test(edx, 0x1f00).expect("assembles");
    a.jne(stay).expect("assembles");
    a.xor(qword_ptr(entry_of(WINDOW)), 0x1000).expect("assembles");
    a.set_label(&mut stay).expect("assembles");
    a.add(qword_ptr(rdi + WINDOW as i32), rax).expect("assembles");
    a.dec(rcx).expect("assembles");
    a.jne(again).expect("assembles");
    a.hlt().expect("assembles");
}

/// Runs two CPUs in turns of random lengths and returns what they and memory came to.
fn outcome(config: &Config, seed: u64) -> (Vec<CpuState>, Vec<u64>) {
    let (mut guest, mut others) = Guest::with_cpus(config, 2, mixed);
    let mut draw = seed;
    let mut next = |below: u64| {
        draw = draw.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (draw >> 33) % below
    };
    let mut cpus = [&mut guest.cpu, &mut others[0]];
    for (number, cpu) in (1u64..).zip(&mut cpus) {
        change(cpu, |state| (state.gpr[1], state.gpr[6], state.gpr[9]) = (3 * ROUNDS, seed ^ number, 2 * number + 1));
    }
    let mut halted = [false; 2];
    while halted != [true; 2] {
        let cpu = next(2) as usize;
        if !halted[cpu] {
            halted[cpu] = cpus[cpu].run(1 + next(400)) == Exit::Halted;
        }
    }
    let states = cpus.iter().map(|cpu| cpu.state()).collect();
    (states, guest.memory().to_vec())
}

#[test]
fn two_cpus_that_change_code_and_tables_of_each_other_come_to_the_same_on_each_tier_and_with_any_caches() {
    for seed in 1..=6 {
        let small = Config { tlb_entries: 16, cached_operations: 256, ..config() };
        let reference = Config { tier: Tier::Reference, ..config() };
        let expected = outcome(&reference, seed);
        for config in [config(), small, Config { hot_executions: 7, ..config() }] {
            assert!(outcome(&config, seed) == expected, "seed {seed}, {config:?}");
        }
    }
}
