// SPDX-License-Identifier: AGPL-3.0-or-later
//! Near branches with an operand-size prefix in 64-bit mode. AMD's processors honour it, Intel's ignore it (SDM 2, JMP: "in
//! 64-bit mode the operand size is forced to 64 bits"); the model is AMD's, and the host that judges the rest is not. APM 3, 1.2.2
//! and the entries of JMP, CALL, RET, Jcc, LOOP and JrCXZ: with a 16-bit operand size RIP is cut to 16 bits, and CALL and RET move
//! 16-bit return addresses.

use super::guest::{CODE, DATA, Guest, STACK};

/// A page below 64 KiB without other use.
const LOW: u64 = 0x9000;
const HLT: u8 = 0xf4;

/// Runs `bytes` at [`CODE`] and returns where the CPU has halted: behind the branch or at [`LOW`].
fn run(bytes: &[u8], setup: impl FnOnce(&mut Guest)) -> (Guest, u64) {
    let mut guest = Guest::new(|a| a.db(bytes).expect("assembles"));
    guest.put(CODE + bytes.len() as u64, HLT);
    guest.put(LOW, HLT);
    setup(&mut guest);
    let at = guest.run_to_halt().rip - 1;
    (guest, at)
}

/// The displacement to [`LOW`], modulo 64 KiB, for an instruction of `length` bytes.
fn to_low(length: u64) -> [u8; 2] {
    (LOW.wrapping_sub(CODE + length) as u16).to_le_bytes()
}

#[test]
fn relative_jumps_are_cut_to_16_bits() {
    let [low, high] = to_low(4);
    assert_eq!(run(&[0x66, 0xe9, low, high], |_| {}).1, LOW, "jmp rel16");
    // EB with the prefix keeps its 8-bit displacement: here to itself and two bytes on, cut.
    let (_, at) = run(&[0x66, 0xeb, 0x00], |guest| guest.put(0x3u64, HLT));
    assert_eq!(at, 0x3, "jmp rel8");
    let [low, high] = to_low(5);
    for (zero, expected) in [(true, LOW), (false, CODE + 5)] {
        let (_, at) = run(&[0x66, 0x0f, 0x84, low, high], |guest| {
            guest.change_state(|state| state.rflags |= u64::from(zero) << 6);
        });
        assert_eq!(at, expected, "jz rel16, zero flag {zero}");
    }
}

#[test]
fn loops_are_cut_to_16_bits_only_when_taken() {
    for (name, opcode, count, taken) in
        [("loop", 0xe2, 2, true), ("loop", 0xe2, 1, false), ("jrcxz", 0xe3, 0, true), ("jrcxz", 0xe3, 1, false)]
    {
        let (_, at) = run(&[0x66, opcode, 0x10], |guest| {
            guest.put(0x13u64, HLT);
            guest.change_state(|state| state.gpr[1] = count);
        });
        assert_eq!(at, if taken { 0x13 } else { CODE + 3 }, "{name} with rcx {count}");
    }
}

#[test]
fn indirect_jumps_take_16_bits() {
    let target = 0x1111_2222_3333_0000 | LOW;
    let register = run(&[0x66, 0xff, 0xe0], |guest| guest.change_state(|state| state.gpr[0] = target));
    assert_eq!(register.1, LOW);
    let memory = run(&[0x66, 0xff, 0x23], |guest| {
        guest.put(DATA, target);
        guest.change_state(|state| state.gpr[3] = DATA);
    });
    assert_eq!(memory.1, LOW);
}

#[test]
fn calls_push_and_returns_pop_two_bytes() {
    let [low, high] = to_low(4);
    let (guest, at) = run(&[0x66, 0xe8, low, high], |_| {});
    let stack = guest.cpu.state().gpr[4];
    assert_eq!((at, stack), (LOW, STACK - 2));
    assert_eq!(guest.get::<u16>(stack), (CODE + 4) as u16);
    let (guest, at) = run(&[0x66, 0xff, 0xd0], |guest| {
        guest.change_state(|state| state.gpr[0] = 0xffff_0000 | LOW);
    });
    assert_eq!((at, guest.cpu.state().gpr[4]), (LOW, STACK - 2));
    for (bytes, extra) in [(&[0x66u8, 0xc3][..], 0), (&[0x66, 0xc2, 0x10, 0x00], 0x10)] {
        let (guest, at) = run(bytes, |guest| {
            guest.put(STACK - 8, 0xffff_ffff_ffff_0000 | LOW);
            guest.change_state(|state| state.gpr[4] = STACK - 8);
        });
        assert_eq!((at, guest.cpu.state().gpr[4]), (LOW, STACK - 6 + extra), "{bytes:x?}");
    }
}

/// The prefix loses to REX.W (APM 3, 1.2.7), which makes the operand size 64 bits.
#[test]
fn rex_w_overrides_the_prefix() {
    let (guest, at) = run(&[0x66, 0x48, 0xff, 0xd0], |guest| {
        guest.put(DATA, HLT);
        guest.change_state(|state| state.gpr[0] = DATA);
    });
    assert_eq!((at, guest.cpu.state().gpr[4]), (DATA, STACK - 8));
}
