// SPDX-License-Identifier: AGPL-3.0-or-later
//! What counts, and that budgets are kept to the instruction.

use super::guest::{CODE, DATA, Guest, HANDLERS, config};
use crate::{Config, Exit, TscBase};
use iced_x86::code_asm::*;

/// A program with loops, calls, strings, faults, software interrupts and code that changes itself.
fn busy(a: &mut CodeAssembler) {
    let (mut again, mut function, mut patched) = (a.create_label(), a.create_label(), a.create_label());
    let mut build = |a: &mut CodeAssembler| -> Result<(), IcedError> {
        a.mov(rdi, DATA)?;
        a.mov(ecx, 3)?;
        a.set_label(&mut again)?;
        a.push(rcx)?;
        a.call(function)?;
        a.int(0x40)?;
        a.ud2()?;
        a.rdtsc()?;
        a.add(rbx, rax)?;
        a.lea(r9, ptr(patched))?;
        a.add(byte_ptr(r9 + 1), 1)?;
        a.set_label(&mut patched)?;
        a.mov(dl, 5)?;
        a.add(bl, dl)?;
        a.pop(rcx)?;
        a.dec(ecx)?;
        a.jne(again)?;
        a.hlt()?;
        a.set_label(&mut function)?;
        a.mov(ecx, 37)?;
        a.mov(eax, 0x5a5a)?;
        a.rep().stosq()?;
        a.lea(rsi, qword_ptr(DATA))?;
        a.mov(ecx, 21)?;
        a.rep().movsb()?;
        a.mov(ecx, 9)?;
        a.lea(rsi, qword_ptr(DATA))?;
        a.repe().cmpsb()?;
        a.ret()
    };
    build(a).expect("the program assembles");
}

fn busy_guest(config: &Config) -> Guest {
    let mut guest = Guest::with_config(config, busy);
    guest.assemble(HANDLERS + 0x40 * 16, |a| {
        a.add(r8, 1).and_then(|()| a.iretq()).expect("assembles");
    });
    guest.assemble(HANDLERS + 6 * 16, |a| {
        a.add(qword_ptr(rsp), 2).and_then(|()| a.iretq()).expect("assembles");
    });
    guest
}

fn straight() -> Guest {
    let mut guest = busy_guest(&config());
    guest.run_to_halt();
    guest
}

#[test]
fn stopping_anywhere_and_any_cache_size_give_the_same_run() {
    let expected = straight();
    let configs = [
        Config::default(),
        Config { tlb_entries: 16, cached_operations: 64, block_instructions: 1, ..config() },
        Config { tlb_entries: 16, cached_operations: 70, block_instructions: 3, ..config() },
    ];
    for config in configs {
        for chunk in [1, 2, 3, 5, 7, 11] {
            let mut guest = busy_guest(&config);
            loop {
                let before = guest.cpu.progress();
                match guest.cpu.run(chunk) {
                    Exit::BudgetUsed => assert_eq!(guest.cpu.progress(), before + chunk),
                    exit => {
                        assert_eq!(exit, Exit::Halted);
                        break;
                    }
                }
                let state = guest.cpu.state();
                guest.cpu.set_state(&state).expect("its own state");
            }
            assert_eq!(guest.cpu.state(), expected.cpu.state(), "{config:?}, {chunk} at a time");
            assert_eq!(guest.memory(), expected.memory(), "{config:?}, {chunk} at a time");
        }
    }
}

#[test]
fn iterations_count_one_each_and_an_empty_repetition_counts_one() {
    for (count, expected) in [(0u32, 1), (1, 1), (1000, 1000)] {
        let mut guest = Guest::new(|a| {
            a.rep().stosb().and_then(|()| a.hlt()).expect("assembles");
        });
        guest.change_state(|state| {
            state.gpr[1] = count.into();
            state.gpr[7] = DATA;
        });
        guest.run_to_halt();
        assert_eq!(guest.cpu.progress(), expected + 1);
    }
}

#[test]
fn a_delivered_exception_counts_one() {
    let mut guest = Guest::new(|a| {
        a.nop().and_then(|()| a.ud2()).expect("assembles");
    });
    guest.run_to_halt();
    // NOP, the delivery of #UD (which did not retire), HLT.
    assert_eq!(guest.cpu.progress(), 3);
}

#[test]
fn a_fault_loop_uses_up_the_budget() {
    let mut guest = Guest::new(|a| a.ud2().expect("assembles"));
    guest.assemble(HANDLERS + 6 * 16, |a| a.iretq().expect("assembles"));
    assert_eq!(guest.cpu.run(100_001), Exit::BudgetUsed);
    assert_eq!(guest.cpu.progress(), 100_001);
}

#[test]
fn the_tsc_follows_the_count_inside_a_block() {
    let mut guest = Guest::new(|a| {
        a.nop().expect("assembles");
        a.nop().expect("assembles");
        a.rdtsc().expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.cpu.set_tsc_base(TscBase { base_instructions: 0, base_tsc: 1000, numerator: 7, denominator: 2 });
    let state = guest.run_to_halt();
    assert_eq!(state.gpr[0], 1000 + 7);
    assert_eq!(state.rip, CODE + 5);
}
