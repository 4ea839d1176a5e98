// SPDX-License-Identifier: AGPL-3.0-or-later
//! No stale translation, no stale code: what is in memory now is what counts.

use super::guest::{CODE, DATA, Guest, HANDLERS, LAST_TABLE};
use crate::CoverageFilter;
use iced_x86::code_asm::*;

fn entry_of(address: u64) -> u64 {
    LAST_TABLE + (address >> 12) * 8
}

#[test]
fn a_page_table_store_counts_from_the_next_instruction() {
    let mut guest = Guest::new(|a| {
        a.mov(rax, qword_ptr(DATA)).expect("assembles");
        a.mov(qword_ptr(entry_of(DATA)), (DATA as i32 + 0x1000) | 7).expect("assembles");
        a.mov(rbx, qword_ptr(DATA)).expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.put(DATA, 1u64);
    guest.put(DATA + 0x1000, 2u64);
    let state = guest.run_to_halt();
    assert_eq!((state.gpr[0], state.gpr[3]), (1, 2));
}

#[test]
fn accessed_and_dirty_bits_come_back_after_they_were_cleared() {
    let mut guest = Guest::new(|a| {
        a.mov(qword_ptr(DATA), rax).expect("assembles");
        a.mov(rbx, qword_ptr(entry_of(DATA))).expect("assembles");
        a.and(byte_ptr(entry_of(DATA)), 0x9f).expect("assembles");
        a.mov(rcx, qword_ptr(entry_of(DATA))).expect("assembles");
        a.mov(rdx, qword_ptr(DATA)).expect("assembles");
        a.mov(rsi, qword_ptr(entry_of(DATA))).expect("assembles");
        a.mov(qword_ptr(DATA), rax).expect("assembles");
        a.mov(rdi, qword_ptr(entry_of(DATA))).expect("assembles");
        a.hlt().expect("assembles");
    });
    let gpr = guest.run_to_halt().gpr;
    let bits: Vec<u64> = [3, 1, 6, 7].into_iter().map(|register: usize| gpr[register] & 0x60).collect();
    assert_eq!(bits, [0x60, 0, 0x20, 0x60]);
}

#[test]
fn a_write_permission_taken_away_holds_at_once() {
    let mut guest = Guest::new(|a| {
        a.mov(qword_ptr(DATA), rax).expect("assembles");
        a.and(byte_ptr(entry_of(DATA)), 0xfd).expect("assembles");
        a.mov(qword_ptr(DATA), rax).expect("assembles");
    });
    assert_eq!(guest.fault_taken(), (14, 3));
}

#[test]
fn code_that_writes_the_next_instruction_executes_what_it_wrote() {
    let mut guest = Guest::new(|a| {
        // Eight bytes long, so the next instruction's immediate is at offset 9.
        a.mov(byte_ptr(CODE + 9), 9).expect("assembles");
        a.mov(al, 5).expect("assembles");
        a.hlt().expect("assembles");
    });
    assert_eq!(guest.run_to_halt().gpr[0], 9);
}

#[test]
fn a_code_page_that_is_mapped_elsewhere_fetches_from_there() {
    let other = CODE + 0x1000;
    let mut guest = Guest::new(|a| {
        a.mov(eax, 1).expect("assembles");
        a.mov(qword_ptr(entry_of(CODE)), (other | 7) as i32).expect("assembles");
        a.mov(ebx, 1).expect("assembles");
        a.hlt().expect("assembles");
    });
    let tail = guest.get::<[u8; 64]>(CODE);
    guest.put(other, tail);
    // The copy loads EBX with 2 (its immediate follows an opcode after 5 + 12 bytes).
    let at = (0..60).find(|at| tail[*at..*at + 5] == [0xbb, 1, 0, 0, 0]).expect("the instruction") as u64;
    guest.put(other + at + 1, 2u8);
    assert_eq!(guest.run_to_halt().gpr[3], 2);
}

#[test]
fn an_instruction_across_two_pages_follows_both() {
    let last = CODE + 0xffe;
    let mut guest = Guest::new(|a| a.jmp(last).expect("assembles"));
    // MOV EAX, imm32 with three bytes of its immediate on the second page.
    guest.put(last, [0xb8u8, 0x11, 0x22, 0x33, 0x44, 0xf4]);
    assert_eq!(guest.run_to_halt().gpr[0], 0x4433_2211);
    guest.put(CODE + 0x1000, 0x99u8);
    guest.cpu.memory_changed(CODE + 0x1000, 1);
    guest.change_state(|state| (state.rip, state.halted) = (CODE, false));
    assert_eq!(guest.run_to_halt().gpr[0], 0x4433_9911);
    guest.put(entry_of(CODE + 0x1000), 0u64);
    guest.cpu.memory_changed(LAST_TABLE, 4096);
    guest.change_state(|state| (state.rip, state.halted) = (CODE, false));
    assert_eq!(guest.fault_taken(), (14, 0x10));
    assert_eq!(guest.cpu.state().cr2, CODE + 0x1000);
}

/// Adds the immediate of an instruction across two pages to EAX in each of four rounds; `change` runs after two of them.
fn rounds_across_pages(change: impl FnOnce(&mut CodeAssembler)) -> Guest {
    let (add, second) = (CODE + 0xffe, CODE + 0x1003);
    let mut guest = Guest::new(|a| {
        a.mov(ecx, 4).expect("assembles");
        a.jmp(add - 1).expect("assembles");
    });
    // NOP, and ADD EAX, imm32 with three bytes of its immediate on the second page.
    guest.put(add - 1, [0x90u8, 0x05, 1, 0, 0, 0]);
    guest.assemble(second, |a| {
        let mut on = a.create_label();
        a.dec(ecx).expect("assembles");
        a.cmp(ecx, 2).expect("assembles");
        a.jne(on).expect("assembles");
        change(a);
        a.set_label(&mut on).expect("a label");
        a.test(ecx, ecx).expect("assembles");
        a.jne(add - 1).expect("assembles");
        a.hlt().expect("assembles");
    });
    guest
}

#[test]
fn a_loop_over_an_instruction_across_two_pages_sees_stores_to_the_second() {
    let mut guest = rounds_across_pages(|a| a.mov(byte_ptr(CODE + 0x1000), 1).expect("assembles"));
    assert_eq!(guest.run_to_halt().gpr[0], 2 + 2 * 0x101);
}

#[test]
fn a_loop_over_an_instruction_across_two_pages_follows_the_second_elsewhere() {
    let other = CODE + 0x3000;
    let mut guest = rounds_across_pages(|a| {
        a.mov(dword_ptr(entry_of(CODE + 0x1000)), other as i32 | 7).expect("assembles");
    });
    let copy = guest.get::<[u8; 128]>(CODE + 0x1000);
    guest.put(other, copy);
    guest.put(other, 2u8);
    assert_eq!(guest.run_to_halt().gpr[0], 2 + 2 * 0x201);
}

#[test]
fn dirty_pages_are_those_written_since_the_last_call() {
    let mut guest = Guest::new(|a| {
        a.mov(byte_ptr(DATA), 1).expect("assembles");
        a.nop().expect("assembles");
        a.mov(byte_ptr(DATA + 1), 1).expect("assembles");
        a.hlt().expect("assembles");
    });
    let take = |guest: &mut Guest| {
        let mut pages = Vec::new();
        guest.cpu.take_dirty_pages(&mut |page| pages.push(page));
        pages
    };
    take(&mut guest);
    guest.cpu.run(1);
    let first = take(&mut guest);
    assert!(first.contains(&(DATA >> 12)));
    // Accessed and dirty bits were set in the tables.
    assert!(first.contains(&(LAST_TABLE >> 12)));
    guest.cpu.run(1);
    assert_eq!(take(&mut guest), []);
    guest.run_to_halt();
    assert_eq!(take(&mut guest), [DATA >> 12]);
    guest.cpu.memory_changed(DATA + 0xfff, 2);
    assert_eq!(take(&mut guest), [DATA >> 12, (DATA >> 12) + 1]);
}

#[test]
fn coverage_does_not_depend_on_stops() {
    let program = |a: &mut CodeAssembler| {
        let (mut again, mut over, mut function) = (a.create_label(), a.create_label(), a.create_label());
        a.mov(ecx, 20).expect("assembles");
        a.set_label(&mut again).expect("label");
        a.test(cl, 1).expect("assembles");
        a.je(over).expect("assembles");
        a.call(function).expect("assembles");
        a.set_label(&mut over).expect("label");
        a.int(0x40).expect("assembles");
        a.dec(ecx).expect("assembles");
        a.jne(again).expect("assembles");
        a.hlt().expect("assembles");
        a.set_label(&mut function).expect("label");
        a.inc(eax).expect("assembles");
        a.ret().expect("assembles");
    };
    let run = |chunk: u64| {
        let mut guest = Guest::new(program);
        guest.assemble(HANDLERS + 0x40 * 16, |a| a.iretq().expect("assembles"));
        guest.cpu.set_coverage(Some(CoverageFilter { user_only: false, range: (0, u64::MAX) }));
        while !guest.cpu.state().halted {
            guest.cpu.run(chunk);
        }
        guest.cpu.coverage().expect("coverage is on").to_vec()
    };
    let whole = run(u64::MAX);
    // Taken and not taken of both branches, the call and the return: INT and IRET make none.
    assert_eq!(whole.iter().filter(|count| **count != 0).count(), 6);
    assert_eq!(whole.iter().map(|count| u64::from(*count)).sum::<u64>(), 20 + 20 + 10 + 10);
    for chunk in [1, 2, 3, 7] {
        assert_eq!(run(chunk), whole, "{chunk} at a time");
    }
}

#[test]
fn an_address_space_changed_while_another_was_current_is_seen_changed() {
    let (root, table) = (0x4_0000u64, 0x4_3000u64);
    let mut guest = Guest::new(|a| {
        a.mov(r8, root).expect("assembles");
        a.mov(r9, cr3).expect("assembles");
        a.mov(cr3, r8).expect("assembles");
        a.mov(rax, qword_ptr(DATA)).expect("assembles");
        a.mov(cr3, r9).expect("assembles");
        a.mov(rbx, qword_ptr(DATA)).expect("assembles");
        a.mov(qword_ptr(table + (DATA >> 12) * 8), (DATA as i32 + 0x2000) | 7).expect("assembles");
        a.mov(cr3, r8).expect("assembles");
        a.mov(rcx, qword_ptr(DATA)).expect("assembles");
        a.mov(cr3, r9).expect("assembles");
        a.mov(rdx, qword_ptr(DATA)).expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.put(root, 0x4_1007u64);
    guest.put(0x4_1000, 0x4_2007u64);
    guest.put(0x4_2000, table | 7);
    for page in 0..512 {
        guest.put(table + page * 8, page << 12 | 7);
    }
    guest.put(table + (DATA >> 12) * 8, (DATA + 0x1000) | 7);
    for (index, value) in [1u64, 2, 3].into_iter().enumerate() {
        guest.put(DATA + index as u64 * 0x1000, value);
    }
    let gpr = guest.run_to_halt().gpr;
    assert_eq!([gpr[0], gpr[3], gpr[1], gpr[2]], [2, 1, 3, 1]);
}

#[test]
fn forgotten_memory_is_read_anew_and_nothing_of_it_counts_as_written() {
    let mut guest = Guest::new(|a| {
        a.inc(eax).expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.run_to_halt();
    guest.cpu.take_dirty_pages(&mut |_| {});
    // Behind the CPU's back: DEC in place of INC.
    guest.put(CODE + 1, 0xc8u8);
    guest.cpu.forget_memory();
    guest.change_state(|state| (state.rip, state.halted) = (CODE, false));
    assert_eq!(guest.run_to_halt().gpr[0], 0);
    let mut pages = 0;
    guest.cpu.take_dirty_pages(&mut |_| pages += 1);
    assert_eq!(pages, 0);
}
