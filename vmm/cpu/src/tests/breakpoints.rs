// SPDX-License-Identifier: AGPL-3.0-or-later
//! Breakpoints in the debug registers, by the manuals: QEMU's stub needs its own while it steps, so lockstep cannot judge.
//! APM 2, 13.1, and SDM 3B, 18.2.

use super::guest::{CODE, DATA, Guest, STACK};
use crate::Exit;
use iced_x86::code_asm::*;

/// DR7 for breakpoint 0: `kind` 1 is writes, 3 is reads and writes; `length` 0, 1, 3 and 2 are 1, 2, 4 and 8 bytes.
fn control(kind: u64, length: u64) -> u64 {
    1 | kind << 16 | length << 18
}

/// The #DB handler was entered: the address it returns to and DR6's breakpoint bits. Otherwise none.
fn trapped(guest: &mut Guest) -> Option<(u64, u64)> {
    let (vector, _) = guest.fault_taken();
    let state = guest.cpu.state();
    (vector == 1).then(|| (guest.get(state.gpr[4]), state.dr6 & 0xf))
}

/// Runs one instruction and UD2 with breakpoint 0 at `at`; whether it was hit.
fn hit(at: u64, control: u64, program: impl FnOnce(&mut CodeAssembler)) -> bool {
    let mut guest = Guest::new(|a| {
        program(a);
        a.ud2().expect("assembles");
    });
    guest.change_state(|state| {
        state.dr[0] = at;
        state.dr7 |= control;
        (state.gpr[3], state.gpr[1], state.gpr[6], state.gpr[7]) = (DATA, 4, DATA, DATA + 0x100);
    });
    trapped(&mut guest).is_some()
}

/// APM 2, 13.1.1.4, table 13-2; the range starts at the address cut to its length.
#[test]
fn ranges_have_their_length_and_alignment() {
    let load = |address: u64| move |a: &mut CodeAssembler| a.mov(al, byte_ptr(address)).expect("assembles");
    for (length, bytes) in [(0, 1), (1, 2), (3, 4), (2, 8)] {
        let range = DATA + 16..DATA + 16 + bytes;
        for address in DATA + 8..DATA + 32 {
            assert_eq!(
                hit(DATA + 16, control(3, length), load(address)),
                range.contains(&address),
                "{bytes} {address:#x}"
            );
        }
        // Low bits of the address are ignored.
        assert!(hit(DATA + 16 + bytes - 1, control(3, length), load(DATA + 16)), "{bytes}");
    }
    // One byte of a wide access is enough.
    for (at, expected) in [(DATA + 7, true), (DATA + 8, false), (DATA, true), (DATA - 1, false)] {
        let wide = |a: &mut CodeAssembler| a.mov(rax, qword_ptr(DATA)).expect("assembles");
        assert_eq!(hit(at, control(3, 0), wide), expected, "{at:#x}");
    }
}

type Program = fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>;

/// SDM 3B, 18.2.4: condition 01 breaks on writes only, 11 on reads and writes but not on fetches.
#[test]
fn conditions_tell_reads_from_writes() {
    let cases: [(&str, Program, u64, bool, bool); 10] = [
        ("load", |a| a.mov(rax, qword_ptr(rbx)), DATA, false, true),
        ("store", |a| a.mov(qword_ptr(rbx), rax), DATA, true, true),
        ("read-modify-write", |a| a.add(qword_ptr(rbx), 1), DATA, true, true),
        ("compare", |a| a.cmp(qword_ptr(rbx), 1), DATA, false, true),
        ("exchange", |a| a.xchg(qword_ptr(rbx), rax), DATA, true, true),
        ("push", |a| a.push(rax), STACK - 8, true, true),
        ("pop", |a| a.pop(rax), STACK, false, true),
        ("address only", |a| a.lea(rax, qword_ptr(rbx)), DATA, false, false),
        ("prefetch", |a| a.prefetcht0(byte_ptr(rbx)), DATA, false, false),
        ("16 bytes", |a| a.movups(xmmword_ptr(rbx - 15), xmm0), DATA, true, true),
    ];
    for (name, program, at, writes, both) in cases {
        for (kind, expected) in [(1, writes), (3, both)] {
            assert_eq!(
                hit(at, control(kind, 0), |a| program(a).expect("assembles")),
                expected,
                "{name}, condition {kind}"
            );
        }
    }
    // A fetch is no read.
    assert!(!hit(CODE, control(3, 0), |a| a.nop().expect("assembles")));
}

/// APM 2, 13.1.3: data breakpoints are traps, reported after the instruction; a repeated string instruction is left after the
/// iteration that hit.
#[test]
fn repeated_instructions_trap_after_the_iteration_that_hit() {
    let mut guest = Guest::new(|a| a.rep().movsb().expect("assembles"));
    guest.change_state(|state| {
        state.dr[0] = DATA + 0x102;
        state.dr7 |= control(1, 0);
        (state.gpr[1], state.gpr[6], state.gpr[7]) = (10, DATA, DATA + 0x100);
    });
    assert_eq!(trapped(&mut guest), Some((CODE, 1)));
    let state = guest.cpu.state();
    assert_eq!((state.gpr[1], state.gpr[7]), (7, DATA + 0x103));
}

/// SDM 3B, 18.2.3: each breakpoint that hit is reported; an access that faults reports none.
#[test]
fn all_hits_are_reported_and_faulting_accesses_hit_nothing() {
    let mut guest = Guest::new(|a| {
        a.mov(qword_ptr(rbx), rax).expect("assembles");
        a.nop().expect("assembles");
    });
    guest.change_state(|state| {
        (state.dr[0], state.dr[1], state.dr[3], state.gpr[3]) = (DATA, DATA + 0x800, DATA + 4, DATA);
        // 0 and 3 on writes, 1 elsewhere, 2 off; L0, L1, G3.
        state.dr7 |= 1 | 1 << 2 | 1 << 7 | 1 << 16 | 1 << 20 | 1 << 28;
    });
    assert_eq!(trapped(&mut guest), Some((CODE + 3, 0b1001)));
    let mut guest = Guest::new(|a| a.mov(rax, qword_ptr(rbx)).expect("assembles"));
    guest.change_state(|state| {
        (state.dr[0], state.gpr[3]) = (0x40_0000, 0x40_0000);
        state.dr7 |= control(3, 0);
    });
    assert_eq!(guest.fault_taken(), (14, 0));
    assert_eq!(guest.cpu.state().dr6 & 0xf, 0);
}

/// APM 2, 13.1.1.4: without L and G bits nothing breaks, whatever the addresses are.
#[test]
fn disabled_breakpoints_do_nothing() {
    for value in [3 << 16, 3 << 16 | 1 << 8 | 1 << 9] {
        assert!(!hit(DATA, value, |a| a.mov(rax, qword_ptr(rbx)).expect("assembles")), "{value:#x}");
    }
}

/// SDM 3B, 18.3.1.1: an instruction breakpoint is a fault before the instruction and the only one that saves RF as it was; the
/// handler sets it to go on past the breakpoint. It has to name the first byte.
#[test]
fn instruction_breakpoints_fault_without_rf_and_match_first_bytes() {
    for (offset, expected) in [(0, None), (1, Some((CODE + 1, 1))), (2, None), (3, None), (6, Some((CODE + 6, 1)))] {
        let mut guest = Guest::new(|a| {
            a.nop().expect("assembles");
            a.mov(eax, 5u32).expect("assembles");
            a.ud2().expect("assembles");
        });
        guest.change_state(|state| {
            state.dr[0] = CODE + offset;
            // The instruction at CODE itself is resumed.
            state.rflags |= 1 << 16;
            state.dr7 |= 1;
        });
        assert_eq!(trapped(&mut guest), expected, "offset {offset}");
        if expected.is_some() {
            let frame = guest.cpu.state().gpr[4];
            assert_eq!(guest.get::<u64>(frame + 16) >> 16 & 1, 0, "offset {offset}");
            let flags = guest.get::<u64>(frame + 16) | 1 << 16;
            guest.change_state(|state| (state.rip, state.rflags, state.halted) = (CODE + offset, flags, false));
            assert_eq!(guest.fault_taken().0, 6, "offset {offset}: goes on to UD2");
        }
    }
}

/// APM 2, 8.5: of an instruction breakpoint and a fault of the same instruction the breakpoint comes first; of a data breakpoint
/// and the next instruction's fault the trap comes first.
#[test]
fn breakpoints_come_before_faults() {
    let mut guest = Guest::new(|a| a.ud2().expect("assembles"));
    guest.change_state(|state| {
        state.dr[0] = CODE;
        state.dr7 |= 1;
    });
    assert_eq!(trapped(&mut guest), Some((CODE, 1)));
    let mut guest = Guest::new(|a| {
        a.mov(qword_ptr(rbx), rax).expect("assembles");
        a.ud2().expect("assembles");
    });
    guest.change_state(|state| {
        (state.dr[0], state.gpr[3]) = (DATA, DATA);
        state.dr7 |= control(1, 0);
    });
    assert_eq!(trapped(&mut guest), Some((CODE + 3, 1)));
}

/// APM 2, 8.2.2, and SDM 3B, 18.3.1.1: MOV SS and POP SS hold debug exceptions until the next instruction is done.
#[test]
fn mov_ss_holds_a_data_breakpoint() {
    let mut guest = Guest::new(|a| {
        a.mov(ss, word_ptr(DATA)).expect("assembles");
        a.nop().expect("assembles");
        a.nop().expect("assembles");
    });
    guest.put(DATA, 0x10u16);
    guest.change_state(|state| {
        state.dr[0] = DATA;
        state.dr7 |= control(3, 0);
    });
    let (at, bits) = trapped(&mut guest).expect("a debug exception");
    assert_eq!((at, bits), (CODE + 8, 1), "behind the instruction after MOV SS");
}

/// General detection (APM 2, 13.1.1.4): with DR7.GD any MOV to or from a debug register faults with DR6.BD, and the handler runs
/// with GD clear.
#[test]
fn general_detection_guards_the_debug_registers() {
    let mut guest = Guest::new(|a| a.mov(rax, dr0).expect("assembles"));
    guest.change_state(|state| state.dr7 |= 1 << 13);
    assert_eq!(trapped(&mut guest), Some((CODE, 0)));
    let state = guest.cpu.state();
    assert_eq!((state.dr6 >> 13 & 1, state.dr7 >> 13 & 1), (1, 0));
}

/// A stop right at a pending breakpoint, stored and loaded, is delivered all the same.
#[test]
fn a_pending_data_breakpoint_survives_a_stop() {
    let mut guest = Guest::new(|a| {
        a.mov(qword_ptr(rbx), rax).expect("assembles");
        a.nop().expect("assembles");
    });
    guest.change_state(|state| {
        (state.dr[0], state.gpr[3]) = (DATA, DATA);
        state.dr7 |= control(1, 0);
    });
    assert_eq!(guest.cpu.run(1), Exit::BudgetUsed);
    let state = guest.cpu.state();
    guest.cpu.set_state(&state).expect("its own state");
    assert_eq!(trapped(&mut guest), Some((CODE + 3, 1)));
}
