// SPDX-License-Identifier: AGPL-3.0-or-later
//! Privilege and mode changes.

use super::guest::{CODE, DATA, Guest, HANDLERS, RSP0, STACK};
use crate::state::seg;
use crate::{CpuState, Exit, GuestError};
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

/// A CPU that a start-up message sent to `CODE`, which 16-bit code fills.
fn started(program: impl FnOnce(&mut CodeAssembler)) -> Guest {
    let mut guest = Guest::new(|_| {});
    // Addresses of the assembler are offsets in the segment, and no program here names one.
    guest.assemble_for(16, CODE, program);
    for vector in 0..32u64 {
        // One HLT a vector, at 0xa00:(16 * vector).
        guest.put(vector * 4, ((HANDLERS as u32) << 12) | (vector as u32 * 16));
    }
    let state = CpuState::never_started().after_start_up((CODE >> 12) as u8);
    guest.cpu.set_state(&state).expect("a valid state");
    guest.change_state(|state| state.gpr[4] = 0x8000);
    guest
}

fn stopped_at(guest: &mut Guest) -> (u16, u64) {
    let state = guest.run_to_halt();
    (state.segments[seg::CS].selector, state.rip - 1)
}

#[test]
fn a_start_up_message_starts_real_mode_at_its_page() {
    let mut guest = started(|a| {
        a.mov(ax, cs).expect("assembles");
        a.mov(ds, ax).expect("assembles");
        a.mov(bx, word_ptr(0)).expect("assembles");
        a.hlt().expect("assembles");
    });
    let state = guest.run_to_halt();
    assert_eq!((state.gpr[0], state.segments[seg::DS].base), (CODE >> 4, CODE));
    assert_eq!(state.gpr[3], u64::from(guest.get::<u16>(CODE)));
    assert_eq!(state.instructions, 4);
}

#[test]
fn init_keeps_what_it_must_and_forgets_the_rest() {
    let mut guest = Guest::new(|_| {});
    guest.change_state(|state| {
        state.xmm[3] = 7;
        state.msrs.tsc_offset = 5;
        state.instructions = 9;
        state.halted = true;
    });
    let state = guest.cpu.state().after_init();
    assert_eq!((state.xmm[3], state.msrs.tsc_offset, state.instructions), (7, 5, 9));
    assert_eq!((state.halted, state.cr0, state.cr4, state.msrs.efer), (false, 0x10, 0, 0));
    assert_eq!((state.rip, state.segments[seg::CS].base), (0xfff0, 0xffff_0000));
}

#[test]
fn real_mode_has_the_limits_of_its_segments() {
    // A word at offset 0xffff, then the same in a segment with protected mode's limit.
    for (limit, expected) in [(0xffffu32, ((HANDLERS >> 4) as u16, 13 * 16)), (0xffff_ffff, ((CODE >> 4) as u16, 4))] {
        let mut guest = started(|a| {
            a.mov(ax, word_ptr(0xffffu32).fs()).expect("assembles");
            a.hlt().expect("assembles");
        });
        guest.change_state(|state| state.segments[seg::FS].limit = limit);
        assert_eq!(stopped_at(&mut guest), expected);
    }
}

#[test]
fn a_vector_table_that_ends_too_early_shuts_the_cpu_down() {
    let mut guest = started(|a| a.ud2().expect("assembles"));
    guest.change_state(|state| state.idtr.limit = 3);
    assert_eq!(guest.cpu.run(10), Exit::Shutdown);
}

#[test]
fn long_mode_needs_pae_and_a_code_segment_without_l() {
    for (control, attributes) in [(0u64, 0x009bu16), (0x20, 0x209b)] {
        let mut guest = started(|a| {
            a.mov(cr0, eax).expect("assembles");
        });
        guest.change_state(|state| {
            state.cr0 |= 1;
            state.cr4 = control;
            state.msrs.efer = 0x100;
            state.segments[seg::CS].attributes = attributes;
            state.gpr[0] = 0x8000_0011;
            state.idtr.limit = 0;
        });
        // #GP, and no table to deliver it through.
        assert_eq!(guest.cpu.run(10), Exit::Shutdown);
        assert_eq!(guest.cpu.state().cr0 >> 31, 0);
    }
}

#[test]
fn a_task_gate_is_an_error_of_the_guest() {
    let mut guest = started(|a| a.int(5).expect("assembles"));
    guest.put(5 * 8, 0x8500_0000_0000u64);
    guest.change_state(|state| state.cr0 |= 1);
    let exit = guest.cpu.run(10);
    assert!(matches!(exit, Exit::GuestError(GuestError::UnsupportedMode { .. })), "{exit:?}");
}

#[test]
fn reserved_bits_of_a_state_are_refused() {
    let mut guest = Guest::new(|_| {});
    let mut state = guest.cpu.state();
    state.cr4 |= 1 << 18;
    let error = guest.cpu.set_state(&state).expect_err("OSXSAVE is not offered");
    assert_eq!(error.to_string(), format!("cr4 has reserved bits set: {:#x}", state.cr4));
}
