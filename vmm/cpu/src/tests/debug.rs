// SPDX-License-Identifier: AGPL-3.0-or-later
//! Single step and breakpoints.

use super::guest::{CODE, DATA, Guest};
use crate::Exit;
use iced_x86::code_asm::*;

#[test]
fn single_step_traps_after_each_instruction_and_iteration() {
    let mut guest = Guest::new(|a| {
        a.nop().expect("assembles");
        a.rep().stosb().expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.change_state(|state| {
        state.rflags |= 0x100;
        state.gpr[1] = 3;
        state.gpr[7] = DATA;
    });
    assert_eq!(guest.fault_taken().0, 1);
    let state = guest.cpu.state();
    assert_eq!(guest.get::<u64>(state.gpr[4]), CODE + 1);
    assert_eq!(state.dr6 & 0x4000, 0x4000);
    let saved = guest.get::<u64>(state.gpr[4] + 16);
    guest.change_state(|state| (state.rip, state.rflags, state.halted) = (CODE + 1, saved, false));
    assert_eq!(guest.fault_taken().0, 1);
    assert_eq!(guest.cpu.state().gpr[1], 2);
}

#[test]
fn a_pending_single_step_survives_a_stop() {
    let mut guest = Guest::new(|a| {
        a.nop().expect("assembles");
        a.nop().expect("assembles");
    });
    guest.change_state(|state| state.rflags |= 0x100);
    assert_eq!(guest.cpu.run(1), Exit::BudgetUsed);
    let state = guest.cpu.state();
    assert_eq!(state.pending_debug, 0x4000);
    guest.cpu.set_state(&state).expect("its own state");
    assert_eq!(guest.fault_taken(), (1, CODE + 1));
}

#[test]
fn an_execution_breakpoint_faults_before_and_resumes_with_rf() {
    let mut guest = Guest::new(|a| {
        a.nop().expect("assembles");
        a.inc(eax).expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.change_state(|state| {
        state.dr[1] = CODE + 1;
        state.dr7 |= 4;
    });
    assert_eq!(guest.fault_taken(), (1, CODE + 1));
    assert_eq!(guest.cpu.state().dr6 & 0xf, 2);
    guest.change_state(|state| (state.rip, state.rflags, state.halted) = (CODE + 1, 0x1_0002, false));
    let state = guest.run_to_halt();
    assert_eq!((state.gpr[0], state.rip, state.rflags & 0x1_0000), (1, CODE + 4, 0));
}

#[test]
fn a_data_breakpoint_traps_after_the_access() {
    let mut guest = Guest::new(|a| {
        a.mov(eax, dword_ptr(DATA + 4)).expect("assembles");
        a.mov(dword_ptr(DATA + 4), 1).expect("assembles");
        a.nop().expect("assembles");
    });
    guest.change_state(|state| {
        state.dr[0] = DATA + 6;
        // Two bytes, on writes.
        state.dr7 |= 1 | 0b0101 << 16;
    });
    assert_eq!(guest.fault_taken().0, 1);
    let state = guest.cpu.state();
    assert_eq!(state.dr6 & 0xf, 1);
    assert_eq!(guest.get::<u32>(DATA + 4), 1);
    assert_eq!(state.instructions, 4);
}
