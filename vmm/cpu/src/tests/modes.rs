// SPDX-License-Identifier: AGPL-3.0-or-later
//! Privilege and mode changes.

use super::guest::{CODE, DATA, Guest, HANDLERS, RSP0, STACK};
use crate::state::seg;
use crate::{Exit, GuestError};
use iced_x86::code_asm::*;

#[test]
fn syscall_and_sysret_go_there_and_back() {
    let mut guest = Guest::new(|a| {
        a.syscall().expect("assembles");
        a.mov(eax, 0x77).expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.assemble(DATA, |a| {
        a.mov(rbx, rcx).expect("assembles");
        a.sysretq().expect("assembles");
    });
    guest.enter_user();
    guest.change_state(|state| {
        state.msrs.lstar = DATA;
        state.msrs.star = 8 << 32 | 0x1b << 48;
        state.msrs.sfmask = 0x200;
        state.rflags |= 0x200;
    });
    assert_eq!(guest.cpu.run(2), Exit::BudgetUsed);
    let state = guest.cpu.state();
    assert_eq!((state.segments[seg::CS].selector, state.segments[seg::SS].selector), (8, 0x10));
    assert_eq!((state.gpr[3], state.rflags & 0x200), (CODE + 2, 0));
    // HLT in ring 3 raises #GP.
    assert_eq!(guest.fault_taken(), (13, 0));
    let state = guest.cpu.state();
    assert_eq!((state.gpr[0], guest.get::<u64>(state.gpr[4] + 16)), (0x77, 0x2b));
    assert_eq!(guest.get::<u64>(state.gpr[4] + 24) & 0x200, 0x200);
    assert_eq!(state.gpr[4], RSP0 - 48);
    assert_eq!(guest.get::<u64>(state.gpr[4] + 32), STACK);
}

#[test]
fn compatibility_mode_runs_32_bit_code_with_segments() {
    let mut guest = Guest::new(|_| {});
    guest.assemble_for(32, CODE, |a| {
        a.mov(eax, 0x99).expect("assembles");
        a.pushad().expect("assembles");
        a.daa().expect("assembles");
        a.inc(ebx).expect("assembles");
        a.mov(dword_ptr(DATA as u32), esp).expect("assembles");
        a.mov(eax, dword_ptr(DATA as u32).ds()).expect("assembles");
        a.int(0x80).expect("assembles");
    });
    guest.set_gate(0x80, 0xee, 0);
    guest.enter_compatibility();
    let state = guest.run_to_halt();
    assert_eq!(state.rip, HANDLERS + 0x80 * 16 + 1);
    assert_eq!((state.gpr[0], state.gpr[3]), (STACK - 32, 1));
    assert_eq!(guest.get::<u32>(STACK - 4), 0x99);
    assert_eq!(state.segments[seg::CS].selector, 8);
}

#[test]
fn segment_limits_hold_in_compatibility_mode_only() {
    for (compatibility, expected) in [(true, 13), (false, 14)] {
        let mut guest = Guest::new(|_| {});
        guest.assemble_for(32, CODE, |a| {
            a.mov(al, byte_ptr(0x3000_0000u32)).expect("assembles");
        });
        if !compatibility {
            guest.assemble(CODE, |a| a.mov(al, byte_ptr(0x3000_0000u64)).expect("assembles"));
        }
        guest.enter_user();
        if compatibility {
            guest.enter_compatibility();
        }
        guest.change_state(|state| state.segments[seg::DS].limit = 0xf_ffff);
        assert_eq!(guest.fault_taken().0, expected);
    }
}

#[test]
fn a_far_return_leaves_long_mode_code_and_comes_back() {
    let mut guest = Guest::new(|a| {
        let mut back = a.create_label();
        a.push(0x23).expect("assembles");
        a.push(STACK as i32 - 0x100).expect("assembles");
        a.push(0x1b).expect("assembles");
        a.push(DATA as i32).expect("assembles");
        a.db(&[0x48, 0xcb]).expect("assembles");
        a.set_label(&mut back).expect("label");
        a.nop().expect("assembles");
    });
    guest.assemble_for(32, DATA, |a| {
        a.inc(ecx).expect("assembles");
        a.db(&[0xea, 0x00, 0x30, 0x02, 0x00, 0x2b, 0x00]).expect("assembles");
    });
    guest.assemble(DATA + 0x3000, |a| {
        a.mov(r9d, 5).expect("assembles");
        a.hlt().expect("assembles");
    });
    assert_eq!(guest.fault_taken(), (13, 0));
    let state = guest.cpu.state();
    assert_eq!((state.gpr[1], state.gpr[9]), (1, 5));
    assert_eq!(guest.get::<u64>(state.gpr[4] + 32), STACK - 0x100);
}

#[test]
fn swapgs_and_bases_reach_memory() {
    let mut guest = Guest::new(|a| {
        a.swapgs().expect("assembles");
        a.mov(rax, qword_ptr(8).gs()).expect("assembles");
        a.mov(ecx, 0xc000_0100u32).expect("assembles");
        a.mov(eax, DATA as u32).expect("assembles");
        a.xor(edx, edx).expect("assembles");
        a.wrmsr().expect("assembles");
        a.mov(rbx, qword_ptr(16).fs()).expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.put(DATA + 8, 0x11u64);
    guest.put(DATA + 16, 0x22u64);
    guest.change_state(|state| state.msrs.kernel_gs_base = DATA);
    assert_eq!(guest.cpu.run(2), Exit::BudgetUsed);
    assert_eq!(guest.cpu.state().gpr[0], 0x11);
    let state = guest.run_to_halt();
    assert_eq!((state.gpr[3], state.segments[seg::GS].base), (0x22, DATA));
}

#[test]
fn leaving_long_mode_is_an_error_of_the_guest() {
    let mut guest = Guest::new(|_| {});
    guest.change_state(|state| state.msrs.efer = 0);
    assert_eq!(guest.cpu.run(10), Exit::GuestError(GuestError::UnsupportedMode { rip: CODE }));
}

#[test]
fn reserved_bits_of_a_state_are_refused() {
    let mut guest = Guest::new(|_| {});
    let mut state = guest.cpu.state();
    state.cr4 |= 1 << 18;
    let error = guest.cpu.set_state(&state).expect_err("OSXSAVE is not offered");
    assert_eq!(error.to_string(), format!("cr4 has reserved bits set: {:#x}", state.cr4));
}
