// SPDX-License-Identifier: AGPL-3.0-or-later
//! Addresses that are not canonical where only ring 0 can put them: stacks, gates, the TSS. QEMU checks none of these, so the
//! manuals judge. APM is the AMD64 Architecture Programmer's Manual, SDM Intel's Software Developer's Manual.

use super::guest::{CODE, DATA, Guest, HANDLERS, IDT, IST1, STACK, TSS};
use crate::Exit;
use iced_x86::code_asm::*;

/// One past the lower canonical half.
const EDGE: u64 = 0x8000_0000_0000;
/// In the middle of nowhere.
const OUTSIDE: u64 = 0x1234_5678_9abc_def0;
const SS_FAULT: u64 = 12;
const GP_FAULT: u64 = 13;
const DOUBLE_FAULT: u64 = 8;

/// A guest whose #SS, #GP and #DF have a stack of their own, since the one in use cannot take a frame.
fn guest(program: impl FnOnce(&mut CodeAssembler)) -> Guest {
    let mut guest = Guest::new(program);
    for vector in [DOUBLE_FAULT, SS_FAULT, GP_FAULT] {
        guest.set_gate(vector, 0x8e, 1);
    }
    guest
}

type Program = fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>;

/// APM 2, 8.2.13, and SDM 2, the "64-Bit Mode Exceptions" of each instruction: a reference through RSP or RBP, explicit or not,
/// to an address that is not canonical raises #SS(0).
#[test]
fn stack_references_that_are_not_canonical_raise_ss() {
    let cases: [(&str, Program); 16] = [
        ("push register", |a| a.push(rax)),
        ("push immediate", |a| a.push(7i32)),
        ("push memory", |a| a.push(qword_ptr(DATA))),
        ("push segment", |a| a.push(fs)),
        ("pop register", |a| a.pop(rax)),
        ("pop memory", |a| a.pop(qword_ptr(DATA))),
        ("pop segment", |a| a.pop(fs)),
        ("pushfq", |a| a.pushfq()),
        ("popfq", |a| a.popfq()),
        ("call", |a| a.call(CODE)),
        ("call through memory", |a| a.call(qword_ptr(DATA))),
        ("ret", |a| a.ret()),
        ("iretq", |a| a.iretq()),
        ("enter", |a| a.enter(16, 0)),
        ("load through rsp", |a| a.mov(rax, qword_ptr(rsp))),
        ("store through rsp", |a| a.mov(qword_ptr(rsp), rax)),
    ];
    for (name, program) in cases {
        for stack in [OUTSIDE, EDGE + 0x100, !EDGE - 0x100] {
            let mut guest = guest(|a| program(a).expect("assembles"));
            guest.put(DATA, CODE);
            guest.change_state(|state| state.gpr[4] = stack);
            assert_eq!(guest.fault_taken(), (SS_FAULT, 0), "{name} with rsp {stack:#x}");
            let state = guest.cpu.state();
            let frame = state.gpr[4];
            assert_eq!(frame, IST1 - 48, "{name}");
            assert_eq!(guest.get::<u64>(frame + 8), CODE, "{name}: rip is that of the instruction");
            assert_eq!(guest.get::<u64>(frame + 32), stack, "{name}: rsp has not moved");
        }
    }
}

/// As above, for RBP.
#[test]
fn frame_pointers_that_are_not_canonical_raise_ss() {
    let cases: [(&str, Program); 3] = [
        ("leave", |a| a.leave()),
        ("load", |a| a.mov(rax, qword_ptr(rbp + 8))),
        ("compare", |a| a.cmp(dword_ptr(rbp - 4), 5)),
    ];
    for (name, program) in cases {
        let mut guest = guest(|a| program(a).expect("assembles"));
        guest.change_state(|state| state.gpr[5] = OUTSIDE);
        assert_eq!(guest.fault_taken(), (SS_FAULT, 0), "{name}");
        assert_eq!(guest.get::<u64>(guest.cpu.state().gpr[4] + 32), STACK, "{name}");
    }
}

/// APM 2, 1.1.3 and 5.3.1: every byte of a reference has to be canonical, so one that runs over the edge is refused whole.
#[test]
fn a_reference_over_the_edge_of_the_canonical_half_is_refused() {
    for (address, vector) in [(EDGE - 4, SS_FAULT), (EDGE - 7, SS_FAULT), (EDGE - 1, SS_FAULT)] {
        let mut guest = guest(|a| a.pop(rax).expect("assembles"));
        guest.change_state(|state| state.gpr[4] = address);
        assert_eq!(guest.fault_taken(), (vector, 0), "{address:#x}");
    }
    // The last eight bytes of the half are canonical, only not mapped.
    let mut guest = guest(|a| a.pop(rax).expect("assembles"));
    guest.change_state(|state| state.gpr[4] = EDGE - 8);
    guest.set_gate(14, 0x8e, 1);
    assert_eq!(guest.fault_taken(), (14, 0));
    assert_eq!(guest.cpu.state().cr2, EDGE - 8);
}

/// SDM 2, INT n, "inter-privilege" and "intra-privilege": a stack that is not canonical raises #SS with only the EXT bit, which
/// is 1 when an exception or interrupt is being delivered (APM 2, 8.4.1) and 0 for INT n.
#[test]
fn delivery_on_a_stack_that_is_not_canonical_raises_ss() {
    let mut exception = guest(|a| a.ud2().expect("assembles"));
    exception.change_state(|state| state.gpr[4] = OUTSIDE);
    assert_eq!(exception.fault_taken(), (SS_FAULT, 1));
    let mut software = guest(|a| a.int(0x30).expect("assembles"));
    software.change_state(|state| state.gpr[4] = OUTSIDE);
    assert_eq!(software.fault_taken(), (SS_FAULT, 0));
    // From ring 3, with the stack that the TSS names.
    let mut user = guest(|a| a.ud2().expect("assembles"));
    user.put(TSS + 4, OUTSIDE);
    user.enter_user();
    assert_eq!(user.fault_taken(), (SS_FAULT, 1));
    // An IST stack.
    let mut ist = guest(|a| a.ud2().expect("assembles"));
    ist.set_gate(6, 0x8e, 2);
    ist.put(TSS + 44, OUTSIDE);
    assert_eq!(ist.fault_taken(), (SS_FAULT, 1));
}

/// APM 2, 8.2.9, table 8-2: #SS after a contributory exception or #PF is a double fault; without a stack for that, shutdown.
#[test]
fn a_stack_fault_while_delivering_a_contributory_fault_doubles() {
    let fault = |a: &mut CodeAssembler| a.mov(qword_ptr(rbx), rax).expect("assembles");
    let mut general = guest(fault);
    general.set_gate(GP_FAULT, 0x8e, 0);
    general.change_state(|state| (state.gpr[3], state.gpr[4]) = (OUTSIDE, OUTSIDE));
    assert_eq!(general.fault_taken(), (DOUBLE_FAULT, 0));
    let mut page = guest(fault);
    page.change_state(|state| (state.gpr[3], state.gpr[4]) = (0x40_0000, OUTSIDE));
    assert_eq!(page.fault_taken(), (DOUBLE_FAULT, 0));
    let mut lost = Guest::new(fault);
    lost.change_state(|state| (state.gpr[3], state.gpr[4]) = (OUTSIDE, OUTSIDE));
    assert_eq!(lost.cpu.run(100), Exit::Shutdown);
}

/// SDM 2, INT n: a gate's target that is not canonical raises #GP(EXT); APM 2, 8.9.1, has the same check.
#[test]
fn gates_to_targets_that_are_not_canonical_raise_gp() {
    for (name, software, error) in [("exception", false, 1), ("software interrupt", true, 0)] {
        let mut guest = guest(|a| if software { a.int(6) } else { a.ud2() }.expect("assembles"));
        guest.put(IDT + 6 * 16 + 8, 0x1234_5678u64);
        assert_eq!(guest.fault_taken(), (GP_FAULT, error), "{name}");
        let frame = guest.cpu.state().gpr[4];
        assert_eq!((guest.get::<u64>(frame + 8), guest.get::<u64>(frame + 32)), (CODE, STACK), "{name}");
    }
    // The edge itself, and its counterpart above, which is canonical.
    let mut edge = guest(|a| a.ud2().expect("assembles"));
    edge.put(IDT + 6 * 16 + 8, EDGE >> 32);
    assert_eq!(edge.fault_taken(), (GP_FAULT, 1));
    let mut upper = guest(|a| a.ud2().expect("assembles"));
    upper.put(IDT + 6 * 16 + 8, 0xffff_8000u64);
    // The handler's page is not mapped: delivery succeeds, and the fetch faults there.
    assert_eq!(upper.fault_taken(), (14, 0x10));
    assert_eq!(upper.cpu.state().cr2, 0xffff_8000_0000_0000 | (HANDLERS + 6 * 16));
}

/// SDM 2, JMP, CALL, RET: a near target that is not canonical raises #GP(0), and nothing has been pushed or popped.
#[test]
fn near_targets_that_are_not_canonical_raise_gp() {
    let cases: [(&str, Program); 5] = [
        ("jmp register", |a| a.jmp(rax)),
        ("jmp memory", |a| a.jmp(qword_ptr(DATA))),
        ("call register", |a| a.call(rax)),
        ("call memory", |a| a.call(qword_ptr(DATA))),
        ("ret", |a| a.ret()),
    ];
    for (name, program) in cases {
        let mut guest = guest(|a| program(a).expect("assembles"));
        guest.put(DATA, OUTSIDE);
        guest.put(STACK - 8, OUTSIDE);
        guest.change_state(|state| (state.gpr[0], state.gpr[4]) = (OUTSIDE, STACK - 8));
        assert_eq!(guest.fault_taken(), (GP_FAULT, 0), "{name}");
        let frame = guest.cpu.state().gpr[4];
        assert_eq!((guest.get::<u64>(frame + 8), guest.get::<u64>(frame + 32)), (CODE, STACK - 8), "{name}");
        assert_eq!(guest.get::<u64>(STACK - 16), 0, "{name}: nothing was pushed");
    }
}
