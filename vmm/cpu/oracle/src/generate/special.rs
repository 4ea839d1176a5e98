// SPDX-License-Identifier: AGPL-3.0-or-later
//! Instructions whose operands need more than a random value to be worth running.

use super::place::{Fixed, data_offset, general};
use crate::case::Case;
use crate::layout::{CODE, CODE_BYTES, USER_CS32, USER_CS64, USER_DS};
use crate::random::{Stream, below, one_in, pick};
use crate::values;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};
use rand_core::Rng;

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RSP: usize = 4;

/// An address in the code pages where INT3 waits and no case's code ever is, or rarely anything.
fn code_target(rng: &mut Stream) -> u64 {
    let end = CODE + CODE_BYTES as u64;
    if one_in(rng, 12) { values::integer(rng) } else { end - 0x800 + rng.next_u64() % 0x700 }
}

/// Registers that must be set before memory operands are placed.
pub fn before_memory(rng: &mut Stream, case: &mut Case, instruction: &Instruction, fixed: &mut Fixed) {
    use Mnemonic::*;
    if instruction.has_rep_prefix() || instruction.has_repne_prefix() {
        let count = if one_in(rng, 8) { values::integer(rng) } else { u64::from(below(rng, 40)) };
        fixed.set(case, RCX, count);
    }
    match instruction.mnemonic() {
        Bt | Bts | Btr | Btc if instruction.op0_kind() == OpKind::Memory && !one_in(rng, 3) => {
            if let Some(register) = general(instruction.op1_register()) {
                fixed.set(case, register, u64::from(below(rng, 2048)).wrapping_sub(1024));
            }
        }
        Div | Idiv if !one_in(rng, 3) => {
            let low = values::integer(rng);
            fixed.set(case, RAX, low);
            fixed.set(case, RDX, if one_in(rng, 2) { u64::from(below(rng, 4)) } else { (low as i64 >> 63) as u64 });
        }
        Pcmpestri | Pcmpestrm | Pcmpestri64 | Pcmpestrm64 => {
            fixed.set(case, RAX, u64::from(below(rng, 40)).wrapping_sub(20));
            fixed.set(case, RDX, u64::from(below(rng, 40)).wrapping_sub(20));
        }
        _ => {}
    }
    if matches!(instruction.flow_control(), FlowControl::IndirectBranch | FlowControl::IndirectCall)
        && let Some(register) = general(instruction.op0_register())
    {
        fixed.set(case, register, code_target(rng));
    }
}

/// Whether random bytes in the operand would nearly always end in the same fault.
pub fn always_patches(code: Code) -> bool {
    use Mnemonic::*;
    matches!(
        code.mnemonic(),
        Ret | Retf
            | Iret
            | Iretd
            | Iretq
            | Jmp
            | Call
            | Ldmxcsr
            | Fldcw
            | Fldenv
            | Frstor
            | Fxrstor
            | Fxrstor64
            | Popf
            | Popfd
            | Popfq
    )
}

/// The bytes of a memory operand that has its own layout.
pub fn operand_bytes(rng: &mut Stream, case: &Case, instruction: &Instruction) -> Option<Vec<u8>> {
    use Mnemonic::*;
    let words =
        |words: &[u64], size: usize| Some(words.iter().flat_map(|word| word.to_le_bytes()[..size].to_vec()).collect());
    let size = operand_size(instruction);
    match instruction.mnemonic() {
        Ret | Jmp | Call => words(&[code_target(rng), u64::from(far_selector(rng, case))], size.max(2)),
        Retf => words(
            &[code_target(rng), u64::from(far_selector(rng, case)), values::integer(rng), u64::from(USER_DS)],
            size,
        ),
        Iret | Iretd | Iretq => {
            let flags = values::rflags(rng);
            let ss = if one_in(rng, 8) { far_selector(rng, case) } else { USER_DS };
            words(
                &[code_target(rng), u64::from(far_selector(rng, case)), flags, values::integer(rng), u64::from(ss)],
                size,
            )
        }
        Ldmxcsr => {
            let reserved = if one_in(rng, 12) { 0x1_0000 << below(rng, 16) } else { 0 };
            Some((values::mxcsr(rng) | reserved).to_le_bytes().to_vec())
        }
        Fldcw => Some(values::control_word(rng).to_le_bytes().to_vec()),
        Popf | Popfd | Popfq => {
            let reserved = if one_in(rng, 4) { rng.next_u64() & !0x4000 } else { 0 };
            words(&[values::rflags(rng) | reserved], size)
        }
        Fldenv | Frstor => {
            let mut bytes = vec![0u8; size * 7];
            rng.fill_bytes(&mut bytes);
            bytes[..2].copy_from_slice(&values::control_word(rng).to_le_bytes());
            Some(bytes)
        }
        Fxrstor | Fxrstor64 => {
            let mut bytes = vec![0u8; 32];
            rng.fill_bytes(&mut bytes);
            bytes[..2].copy_from_slice(&values::control_word(rng).to_le_bytes());
            bytes[24..28].copy_from_slice(&values::mxcsr(rng).to_le_bytes());
            Some(bytes)
        }
        _ => None,
    }
}

fn far_selector(rng: &mut Stream, case: &Case) -> u16 {
    let same = if case.bits == 64 { USER_CS64 } else { USER_CS32 };
    match below(rng, 8) {
        0..=4 => same,
        5 => pick(rng, &[USER_CS64, USER_CS32]),
        6 => pick(rng, &[0, 3, 0x10, 0x13, 0x18, USER_DS, 0x30, 0x20, 0xfff8, 0xffff]),
        _ => same & !3 | below(rng, 4) as u16,
    }
}

/// Bytes in each slot of a stack frame, or in the offset part of a far pointer, of a control transfer.
fn operand_size(instruction: &Instruction) -> usize {
    let from_table = instruction.op_code().operand_size() as usize / 8;
    let memory = instruction.memory_size().size();
    match instruction.mnemonic() {
        Mnemonic::Jmp | Mnemonic::Call if memory % 8 == 2 && memory > 2 => memory - 2,
        Mnemonic::Jmp | Mnemonic::Call if memory == 6 || memory == 4 => memory,
        Mnemonic::Fldenv | Mnemonic::Frstor => {
            if from_table == 2 {
                2
            } else {
                4
            }
        }
        _ if from_table != 0 => from_table,
        _ => 8,
    }
}

/// Data that depends on registers, after both are placed.
pub fn after_memory(rng: &mut Stream, case: &mut Case, instruction: &Instruction, fixed: &mut Fixed) {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Cmpxchg | Cmpxchg8b | Cmpxchg16b if one_in(rng, 2) => equal_accumulator(case, instruction),
        Loop | Loope | Loopne | Jcxz | Jecxz | Jrcxz if one_in(rng, 2) => {
            fixed.set(case, RCX, u64::from(below(rng, 3)) | if one_in(rng, 2) { rng.next_u64() << 32 } else { 0 });
        }
        _ => {}
    }
    // The stack is usable unless the instruction placed it elsewhere.
    let stack = super::place::target(rng, 16, case.bits == 32) & !7;
    fixed.set(case, RSP, if case.bits == 64 { stack } else { stack & 0xffff_ffff });
}

/// Makes the memory operand of a compare-and-exchange equal to the accumulator.
fn equal_accumulator(case: &mut Case, instruction: &Instruction) {
    let address = instruction.virtual_address(0, 0, |register, _, _| {
        Some(match register {
            iced_x86::Register::FS => crate::layout::FS_BASE,
            iced_x86::Register::GS => crate::layout::GS_BASE,
            _ => match general(register) {
                Some(index) if register.size() == 8 => case.gpr[index],
                Some(index) => case.gpr[index] & 0xffff_ffff,
                None => 0,
            },
        })
    });
    let Some(offset) = address.and_then(data_offset) else { return };
    let (low, high) = (case.gpr[RAX], case.gpr[RDX]);
    let bytes = match instruction.memory_size().size() {
        16 => (u128::from(low) | u128::from(high) << 64).to_le_bytes().to_vec(),
        8 if instruction.mnemonic() == Mnemonic::Cmpxchg8b => (low & 0xffff_ffff | high << 32).to_le_bytes().to_vec(),
        size => low.to_le_bytes()[..size.min(8)].to_vec(),
    };
    case.patch(offset, &bytes);
}
