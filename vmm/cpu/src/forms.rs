// SPDX-License-Identifier: AGPL-3.0-or-later
//! What an iced `Code` says about its operands, for choosing a handler.

use iced_x86::{Code, OpCodeOperandKind as Kind};

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A register named by the instruction, or implied.
    Register,
    /// A register or memory.
    RegisterOrMemory,
    /// Memory only.
    Memory,
    /// An immediate.
    Immediate,
    /// Anything else (branch targets, segments, other register classes).
    Other,
}

/// Width in bits of a general-purpose operand; 0 for others.
pub(crate) fn bits(code: Code, index: u32) -> u32 {
    match code.op_code().op_kind(index) {
        Kind::r8_or_mem | Kind::r8_reg | Kind::r8_opcode | Kind::al | Kind::cl => 8,
        Kind::r16_or_mem
        | Kind::r16_reg
        | Kind::r16_rm
        | Kind::r16_reg_mem
        | Kind::r16_opcode
        | Kind::ax
        | Kind::dx => 16,
        Kind::r32_or_mem | Kind::r32_reg | Kind::r32_rm | Kind::r32_reg_mem | Kind::r32_opcode | Kind::eax => 32,
        Kind::r64_or_mem | Kind::r64_reg | Kind::r64_rm | Kind::r64_reg_mem | Kind::r64_opcode | Kind::rax => 64,
        _ => 0,
    }
}

/// What kind of operand stands at an index.
pub(crate) fn operand(code: Code, index: u32) -> Operand {
    let info = code.op_code();
    if index >= info.op_count() {
        return Operand::Other;
    }
    match info.op_kind(index) {
        Kind::r8_or_mem | Kind::r16_or_mem | Kind::r32_or_mem | Kind::r64_or_mem => Operand::RegisterOrMemory,
        Kind::mem | Kind::mem_offs => Operand::Memory,
        Kind::imm8
        | Kind::imm8_const_1
        | Kind::imm8sex16
        | Kind::imm8sex32
        | Kind::imm8sex64
        | Kind::imm16
        | Kind::imm32
        | Kind::imm32sex64
        | Kind::imm64 => Operand::Immediate,
        _ if bits(code, index) != 0 => Operand::Register,
        _ => Operand::Other,
    }
}

/// Instantiates a handler for a width in bits.
macro_rules! handler_by_width {
    ($bits:expr, $handler:ident $(, $extra:ty)*) => {
        match $bits {
            8 => $handler::<$($extra,)* u8> as crate::op::Handler,
            16 => $handler::<$($extra,)* u16> as crate::op::Handler,
            32 => $handler::<$($extra,)* u32> as crate::op::Handler,
            _ => $handler::<$($extra,)* u64> as crate::op::Handler,
        }
    };
}
pub(crate) use handler_by_width;
