// SPDX-License-Identifier: AGPL-3.0-or-later
//! Exceptions: error codes, what a fault leaves unchanged, double and triple faults.

use super::guest::{CODE, DATA, Guest, IDT, IST1, LAST_TABLE};
use crate::Exit;
use iced_x86::code_asm::*;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;
const NO_EXECUTE: u64 = 1 << 63;

/// Sets the last-level entry of a page.
fn map(guest: &mut Guest, address: u64, flags: u64) {
    guest.put(LAST_TABLE + (address >> 12) * 8, (address & !0xfff) | flags);
    guest.cpu.memory_changed(LAST_TABLE, 4096);
}

#[test]
fn page_fault_error_codes_name_the_reason() {
    type Setup = fn(&mut Guest);
    let cases: [(&str, bool, u64, Setup, u64); 7] = [
        ("read of a missing page", false, 0, |_| {}, 0),
        ("write to a read-only page in ring 0", false, PRESENT | USER, |guest| store(guest), 3),
        ("user read of a supervisor page", true, PRESENT | WRITABLE, |_| {}, 5),
        ("user write to a missing page", true, 0, |guest| store(guest), 6),
        ("reserved bit", false, PRESENT | 1 << 45, |_| {}, 9),
        ("SMAP", false, PRESENT | USER, |guest| guest.change_state(|state| state.cr4 |= 1 << 21), 1),
        ("fetch from a page without execution", false, PRESENT | NO_EXECUTE, |guest| jump(guest), 0x11),
    ];
    for (name, user, flags, setup, error) in cases {
        let mut guest = Guest::new(|a| a.mov(rax, qword_ptr(DATA)).expect("assembles"));
        map(&mut guest, DATA, flags);
        if user {
            guest.enter_user();
        }
        setup(&mut guest);
        // SMAP must not hit the guest's own pages.
        if name == "SMAP" {
            for page in (0..0x40u64).filter(|page| *page != DATA >> 12) {
                map(&mut guest, page << 12, PRESENT | WRITABLE);
            }
        }
        assert_eq!(guest.fault_taken(), (14, error), "{name}");
        assert_eq!(guest.cpu.state().cr2, DATA, "{name}");
    }
}

fn store(guest: &mut Guest) {
    guest.assemble(CODE, |a| a.mov(qword_ptr(DATA), rax).expect("assembles"));
}

fn jump(guest: &mut Guest) {
    guest.assemble(CODE, |a| a.jmp(DATA).expect("assembles"));
}

#[test]
fn smep_forbids_fetching_user_pages() {
    let mut guest = Guest::new(|a| a.jmp(DATA).expect("assembles"));
    for page in (0..0x40u64).filter(|page| *page != DATA >> 12) {
        map(&mut guest, page << 12, PRESENT | WRITABLE);
    }
    guest.change_state(|state| state.cr4 |= 1 << 20);
    assert_eq!(guest.fault_taken(), (14, 0x11));
}

#[test]
fn a_store_across_a_fault_writes_nothing() {
    let mut guest = Guest::new(|a| {
        a.mov(rax, -1i64).expect("assembles");
        a.add(qword_ptr(DATA + 0xffc), rax).expect("assembles");
    });
    map(&mut guest, DATA + 0x1000, PRESENT | USER);
    let flags = guest.cpu.state().rflags;
    assert_eq!(guest.fault_taken(), (14, 3));
    assert_eq!(guest.cpu.state().cr2, DATA + 0x1000);
    assert_eq!(guest.get::<u32>(DATA + 0xffc), 0);
    let frame = guest.cpu.state().gpr[4];
    assert_eq!(guest.get::<u64>(frame + 24) & 0x8d5, flags & 0x8d5);
}

#[test]
fn a_fault_inside_a_repetition_keeps_the_iterations_done() {
    let mut guest = Guest::new(|a| a.rep().stosq().expect("assembles"));
    map(&mut guest, DATA + 0x1000, 0);
    guest.change_state(|state| {
        state.gpr[0] = 9;
        state.gpr[1] = 100;
        state.gpr[7] = DATA + 0xfc0;
    });
    assert_eq!(guest.fault_taken(), (14, 2));
    let state = guest.cpu.state();
    assert_eq!((state.gpr[1], state.gpr[7]), (92, DATA + 0x1000));
    assert_eq!(guest.get::<u64>(state.gpr[4] + 8), CODE);
    // Eight iterations, the delivery, HLT.
    assert_eq!(state.instructions, 10);
}

#[test]
fn non_canonical_addresses_raise_gp_or_ss() {
    for (stack, expected) in [(false, 13), (true, 12)] {
        let mut guest = Guest::new(|a| {
            let pointer = if stack { rbp } else { rbx };
            a.mov(pointer, 0x8000_0000_0000_0000u64).expect("assembles");
            a.mov(rax, qword_ptr(pointer)).expect("assembles");
        });
        assert_eq!(guest.fault_taken(), (expected, 0));
    }
}

#[test]
fn a_missing_handler_is_reported_by_idt_index() {
    let mut guest = Guest::new(|a| a.ud2().expect("assembles"));
    guest.set_gate(6, 0x0e, 0);
    // Not present, index 6, in the IDT, and external because an exception was being delivered.
    assert_eq!(guest.fault_taken(), (11, 6 * 8 + 3));
}

#[test]
fn contributory_faults_double_and_then_shut_down() {
    let mut guest = Guest::new(|a| a.mov(ds, eax).expect("assembles"));
    guest.change_state(|state| state.gpr[0] = 0x777);
    guest.set_gate(13, 0x0e, 0);
    guest.set_gate(8, 0x8e, 1);
    assert_eq!(guest.fault_taken(), (8, 0));
    assert_eq!(guest.cpu.state().gpr[4], IST1 - 48);

    let mut guest = Guest::new(|a| a.mov(ds, eax).expect("assembles"));
    guest.change_state(|state| state.gpr[0] = 0x777);
    guest.set_gate(13, 0x0e, 0);
    guest.set_gate(8, 0x0e, 0);
    assert_eq!(guest.cpu.run(100), Exit::Shutdown);
    assert_eq!(guest.cpu.run(100), Exit::Shutdown);
}

#[test]
fn an_idt_outside_ram_ends_the_run() {
    let mut guest = Guest::new(|a| a.ud2().expect("assembles"));
    guest.change_state(|state| state.idtr.base = super::guest::OUTSIDE);
    assert!(matches!(guest.cpu.run(100), Exit::GuestError(crate::GuestError::DeliveryOutsideRam { vector: 6, .. })));
}

#[test]
fn an_instruction_that_is_too_long_raises_gp() {
    let mut guest = Guest::new(|a| a.db(&[0x66; 20]).expect("assembles"));
    assert_eq!(guest.fault_taken(), (13, 0));
}

#[test]
fn software_interrupts_check_the_gate_in_ring_3() {
    let mut guest = Guest::new(|a| a.int(0x21).expect("assembles"));
    guest.enter_user();
    assert_eq!(guest.fault_taken(), (13, 0x21 * 8 + 2));
    let mut guest = Guest::new(|a| a.int(0x21).expect("assembles"));
    guest.set_gate(0x21, 0xee, 0);
    guest.enter_user();
    assert_eq!(guest.fault_taken(), (0x21, CODE + 2));
    assert_eq!(guest.cpu.progress(), 2);
    assert!(guest.get::<u64>(IDT) != 0);
}
