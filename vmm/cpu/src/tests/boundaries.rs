// SPDX-License-Identifier: AGPL-3.0-or-later
//! Interrupts, windows, shadows, NMI, HLT.

use super::guest::{CODE, Guest, HANDLERS, STACK};
use crate::Exit;
use iced_x86::code_asm::*;

#[test]
fn sti_holds_interrupts_for_one_instruction() {
    let mut guest = Guest::new(|a| {
        a.sti().expect("assembles");
        a.nop().expect("assembles");
        a.nop().expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.cpu.request_interrupt_window(true);
    assert_eq!(guest.cpu.run(1), Exit::BudgetUsed);
    assert!(!guest.cpu.interrupt_ready());
    assert_eq!(guest.cpu.run(100), Exit::InterruptWindow);
    assert_eq!((guest.cpu.state().rip, guest.cpu.progress()), (CODE + 2, 2));
    guest.cpu.inject_interrupt(0x51);
    assert_eq!(guest.cpu.progress(), 3);
    let state = guest.cpu.state();
    assert_eq!((state.rip, state.rflags & 0x200), (HANDLERS + 0x51 * 16, 0));
    assert_eq!(guest.get::<u64>(state.gpr[4]), CODE + 2);
    assert_eq!(guest.get::<u64>(state.gpr[4] + 24), STACK);
}

#[test]
fn a_shadow_ends_with_whatever_counts_next_wherever_a_run_stops() {
    let loops = || {
        Guest::new(|a| {
            let mut top = a.create_label();
            a.mov(ecx, 30).expect("assembles");
            a.set_label(&mut top).expect("assembles");
            a.sti().expect("assembles");
            a.inc(eax).expect("assembles");
            a.cli().expect("assembles");
            a.dec(ecx).expect("assembles");
            a.jnz(top).expect("assembles");
            a.hlt().expect("assembles");
        })
    };
    // Five bytes of MOV, one of STI.
    const BEHIND_STI: u64 = CODE + 6;
    for budget in 1..150 {
        let mut guest = loops();
        assert_eq!(guest.cpu.run(budget), Exit::BudgetUsed);
        let state = guest.cpu.state();
        assert_eq!(state.interrupt_shadow, state.rip == BEHIND_STI, "after {budget}");
        let mut restored = loops();
        restored.cpu.set_state(&state).expect("a state it gave");
        assert_eq!(restored.cpu.state(), state, "after {budget}");
        for guest in [&mut guest, &mut restored] {
            guest.cpu.request_interrupt_window(true);
            let open = state.rip == BEHIND_STI + 2;
            let why = guest.cpu.run(100);
            let expected = if budget > 148 { Exit::Halted } else { Exit::InterruptWindow };
            assert_eq!(why, expected, "after {budget}");
            assert!(why == Exit::Halted || guest.cpu.state().rip == BEHIND_STI + 2, "after {budget}");
            assert!(!open || guest.cpu.progress() == budget, "after {budget}");
        }
    }
}

#[test]
fn a_window_opens_when_flags_are_popped() {
    let mut guest = Guest::new(|a| {
        a.push(0x202).expect("assembles");
        a.popfq().expect("assembles");
        a.nop().expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.cpu.request_interrupt_window(true);
    assert_eq!(guest.cpu.run(100), Exit::InterruptWindow);
    assert_eq!(guest.cpu.progress(), 2);
}

#[test]
fn an_interrupt_wakes_a_halted_cpu_after_the_hlt() {
    let mut guest = Guest::new(|a| {
        a.sti().expect("assembles");
        a.hlt().expect("assembles");
        a.mov(eax, 7).expect("assembles");
        a.cli().expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.assemble(HANDLERS + 0x51 * 16, |a| a.iretq().expect("assembles"));
    assert_eq!(guest.cpu.run(100), Exit::Halted);
    assert_eq!(guest.cpu.run(100), Exit::Halted);
    assert_eq!(guest.cpu.progress(), 2);
    guest.cpu.inject_interrupt(0x51);
    assert_eq!(guest.run_to_halt().gpr[0], 7);
}

#[test]
fn nmi_is_held_until_iret() {
    let mut guest = Guest::new(|a| {
        a.nop().expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.assemble(HANDLERS + 2 * 16, |a| {
        a.nop().expect("assembles");
        a.iretq().expect("assembles");
    });
    assert!(guest.cpu.inject_nmi());
    assert!(!guest.cpu.inject_nmi());
    assert_eq!(guest.cpu.run(1), Exit::BudgetUsed);
    assert!(!guest.cpu.inject_nmi());
    assert_eq!(guest.cpu.run(1), Exit::BudgetUsed);
    assert!(guest.cpu.inject_nmi());
}

#[test]
fn mov_ss_holds_interrupts_and_traps() {
    let mut guest = Guest::new(|a| {
        a.mov(eax, 0x10).expect("assembles");
        a.mov(ss, eax).expect("assembles");
        a.nop().expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.change_state(|state| state.rflags |= 0x200);
    assert_eq!(guest.cpu.run(2), Exit::BudgetUsed);
    assert!(!guest.cpu.interrupt_ready());
    assert!(!guest.cpu.inject_nmi());
    assert_eq!(guest.cpu.run(1), Exit::BudgetUsed);
    assert!(guest.cpu.interrupt_ready());
}

#[test]
fn a_write_of_cr8_is_reported_after_it_retired() {
    let mut guest = Guest::new(|a| {
        a.mov(eax, 9).expect("assembles");
        a.mov(cr8, rax).expect("assembles");
        a.hlt().expect("assembles");
    });
    assert_eq!(guest.cpu.run(100), Exit::TprWrite);
    assert_eq!((guest.cpu.tpr(), guest.cpu.progress()), (9, 2));
    guest.cpu.set_tpr(3);
    assert_eq!(guest.run_to_halt().cr8, 3);
}
