// SPDX-License-Identifier: AGPL-3.0-or-later
//! Accesses that the machine answers: ports, MMIO, MSRs.

use super::guest::{CODE, DATA, Guest, HANDLERS, OUTSIDE};
use crate::Exit;
use iced_x86::code_asm::*;

#[test]
fn a_read_modify_write_reads_once_and_writes_once() {
    let mut guest = Guest::new(|a| {
        a.stc().expect("assembles");
        a.adc(dword_ptr(OUTSIDE), 5).expect("assembles");
        a.hlt().expect("assembles");
    });
    assert_eq!(guest.cpu.run(100), Exit::MmioRead { address: OUTSIDE, size: 4 });
    assert!(!guest.cpu.at_instruction_boundary());
    let before = guest.cpu.state();
    assert_eq!((before.rip, before.instructions), (CODE + 1, 1));
    guest.cpu.complete_read(0xffff_fffa);
    assert_eq!(guest.cpu.run(100), Exit::MmioWrite { address: OUTSIDE, size: 4, value: 0 });
    assert_eq!(guest.cpu.state().rflags, before.rflags);
    let state = guest.run_to_halt();
    assert_eq!(state.instructions, 3);
    assert_eq!(state.rflags & 0x8d5, 0x55);
}

#[test]
fn a_wide_store_is_split_at_eight_bytes_and_pages() {
    let mut guest = Guest::new(|a| {
        a.mov(rax, 0x1122_3344_5566_7788u64).expect("assembles");
        a.mov(qword_ptr(OUTSIDE + 5), rax).expect("assembles");
        a.hlt().expect("assembles");
    });
    assert_eq!(guest.cpu.run(100), Exit::MmioWrite { address: OUTSIDE + 5, size: 3, value: 0x66_7788 });
    assert_eq!(guest.cpu.run(100), Exit::MmioWrite { address: OUTSIDE + 8, size: 5, value: 0x11_2233_4455 });
    guest.run_to_halt();
}

#[test]
fn a_push_of_mmio_and_a_store_across_ram_and_mmio_work() {
    let mut guest = Guest::new(|a| {
        a.push(qword_ptr(OUTSIDE)).expect("assembles");
        a.mov(qword_ptr(0xf_fffcu64), rsp).expect("assembles");
        a.hlt().expect("assembles");
    });
    assert_eq!(guest.cpu.run(100), Exit::MmioRead { address: OUTSIDE, size: 8 });
    guest.cpu.complete_read(77);
    assert!(matches!(guest.cpu.run(100), Exit::MmioWrite { address: 0x10_0000, size: 4, .. }));
    let state = guest.run_to_halt();
    assert_eq!(guest.get::<u64>(state.gpr[4]), 77);
    assert_eq!(guest.get::<u32>(0xf_fffc), state.gpr[4] as u32);
}

#[test]
fn string_input_writes_each_value_and_counts_each() {
    let mut guest = Guest::new(|a| {
        a.mov(edx, 0x1f0).expect("assembles");
        a.rep().insw().expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.change_state(|state| {
        state.gpr[1] = 3;
        state.gpr[7] = DATA;
    });
    for value in [0x1111u64, 0x2222, 0x3333] {
        assert_eq!(guest.cpu.run(100), Exit::PortRead { port: 0x1f0, size: 2 });
        guest.cpu.complete_read(value);
    }
    let state = guest.run_to_halt();
    assert_eq!((state.instructions, state.gpr[7]), (5, DATA + 6));
    assert_eq!(guest.get::<u64>(DATA) & 0xffff_ffff_ffff, 0x3333_2222_1111);
}

#[test]
fn moving_mmio_to_mmio_answers_each_access_once() {
    let mut guest = Guest::new(|a| {
        a.rep().movsd().expect("assembles");
        a.hlt().expect("assembles");
    });
    guest.change_state(|state| {
        state.gpr[1] = 2;
        state.gpr[6] = OUTSIDE;
        state.gpr[7] = OUTSIDE + 0x100;
    });
    for index in 0..2 {
        assert_eq!(guest.cpu.run(100), Exit::MmioRead { address: OUTSIDE + index * 4, size: 4 });
        guest.cpu.complete_read(index + 10);
        let write = Exit::MmioWrite { address: OUTSIDE + 0x100 + index * 4, size: 4, value: index + 10 };
        assert_eq!(guest.cpu.run(100), write);
    }
    assert_eq!(guest.run_to_halt().instructions, 3);
}

#[test]
fn a_refused_msr_raises_a_protection_fault() {
    let mut guest = Guest::new(|a| {
        a.mov(ecx, 0x1b).expect("assembles");
        a.rdmsr().expect("assembles");
        a.mov(ecx, 0x5555).expect("assembles");
        a.wrmsr().expect("assembles");
    });
    assert_eq!(guest.cpu.run(100), Exit::MsrRead { index: 0x1b });
    guest.cpu.complete_read(0xfee0_0900);
    assert_eq!(guest.cpu.run(100), Exit::MsrWrite { index: 0x5555, value: 0xfee0_0900 });
    guest.cpu.refuse_msr();
    assert_eq!(guest.fault_taken(), (13, 0));
}

#[test]
fn the_io_bitmap_decides_in_ring_3() {
    for (allowed, expected) in [(false, Exit::Halted), (true, Exit::PortWrite { port: 0x81, size: 1, value: 0 })] {
        let mut guest = Guest::new(|a| a.out(0x81, al).expect("assembles"));
        guest.change_state(|state| state.tr.limit = 0x200);
        guest.put(super::guest::TSS + 0x68 + 0x10, if allowed { 0xfffdu16 } else { 2 });
        guest.enter_user();
        assert_eq!(guest.cpu.run(100), expected);
        if !allowed {
            assert_eq!(guest.cpu.state().rip, HANDLERS + 13 * 16 + 1);
        }
    }
}
