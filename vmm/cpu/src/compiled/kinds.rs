// SPDX-License-Identifier: AGPL-3.0-or-later
//! What the compiler knows about each instruction: how it is compiled, and what it does to the status flags.

use super::asm::{alu, shift};
use super::vector_kinds::vector;
use crate::forms::{Operand, bits, operand};
use crate::int::cond::condition_of;
use crate::op::{Op, attr};
use crate::table::{self, Entry};
use iced_x86::{Code, EncodingKind, Instruction, Mnemonic};
use std::sync::OnceLock;

/// Which operands a two-operand instruction has; r/m is memory if the operation has a memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    RmReg,
    RegRm,
    RmImm,
}

/// How an instruction is compiled. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// By a call of its reference handler, which may read or write status flags or not.
    Handler {
        flags: bool,
    },
    Nop,
    Alu {
        op: u8,
        size: u8,
        form: Form,
    },
    Test {
        size: u8,
        form: Form,
    },
    Not {
        size: u8,
    },
    Neg {
        size: u8,
    },
    /// INC (0) or DEC (1).
    Step {
        kind: u8,
        size: u8,
    },
    Mov {
        size: u8,
        form: Form,
    },
    Extend {
        signed: bool,
        to: u8,
        from: u8,
    },
    Lea {
        size: u8,
    },
    PushReg,
    PushImm,
    PopReg,
    Leave,
    ShiftImm {
        kind: u8,
        size: u8,
    },
    /// A shift by CL: flags are kept if the count is zero.
    ShiftCl {
        kind: u8,
        size: u8,
    },
    /// ROL (0) or ROR (1): only CF and OF change.
    RotateImm {
        kind: u8,
        size: u8,
    },
    RotateCl {
        kind: u8,
        size: u8,
    },
    /// BT (4), BTS (5), BTR (6), BTC (7): only CF changes.
    BitImm {
        kind: u8,
        size: u8,
    },
    BitReg {
        kind: u8,
        size: u8,
    },
    /// BSF (0), BSR (1).
    Scan {
        kind: u8,
        size: u8,
    },
    Xchg {
        size: u8,
    },
    Cmpxchg {
        size: u8,
    },
    Xadd {
        size: u8,
    },
    /// MUL (4), IMUL (5) of the accumulator.
    Multiply {
        kind: u8,
        size: u8,
    },
    /// DIV (6), IDIV (7).
    Divide {
        kind: u8,
        size: u8,
    },
    /// MOVZX from AH, CH, DH or BH.
    ExtendHigh {
        to: u8,
    },
    Imul2 {
        size: u8,
    },
    Imul3 {
        size: u8,
    },
    Set {
        cc: u8,
    },
    Cmov {
        cc: u8,
        size: u8,
    },
    /// CBW, CWDE, CDQE.
    SignAx {
        to: u8,
    },
    /// CWD, CDQ, CQO.
    SignDx {
        size: u8,
    },
    Bswap {
        size: u8,
    },
    /// XMM from XMM or memory; see [`super::vector_kinds::care`].
    Vector {
        code: u32,
        bytes: u8,
        care: u8,
    },
    VectorStore {
        code: u32,
        bytes: u8,
        aligned: bool,
    },
    /// Shifts of lanes by an immediate.
    VectorShift {
        code: u32,
        group: u8,
    },
    /// MOVD, MOVQ.
    VectorFromGeneral {
        size: u8,
    },
    VectorToGeneral {
        size: u8,
    },
    /// Sign bits to a general register.
    VectorMask {
        code: u32,
    },
    /// COMISx, UCOMISx.
    VectorCompare {
        code: u32,
        bytes: u8,
    },
    IntegerToFloat {
        code: u32,
        size: u8,
    },
    FloatToInteger {
        code: u32,
        size: u8,
        bytes: u8,
    },
    /// CLI, STI.
    Interrupts {
        on: bool,
    },
    Jcc {
        cc: u8,
    },
    Jmp,
    Call,
    Ret,
    JmpRm,
    CallRm,
}

/// Status flags as sets.
pub(super) mod flag {
    pub const C: u8 = 1;
    pub const P: u8 = 2;
    pub const Z: u8 = 4;
    pub const S: u8 = 8;
    pub const O: u8 = 16;
    pub const ALL: u8 = 31;
}

/// The flags a condition looks at.
pub(super) fn needs(condition: u8) -> u8 {
    match condition >> 1 {
        0 => flag::O,
        1 => flag::C,
        2 => flag::Z,
        3 => flag::C | flag::Z,
        4 => flag::S,
        5 => flag::P,
        6 => flag::S | flag::O,
        _ => flag::Z | flag::S | flag::O,
    }
}

/// The kind of an operation in 64-bit code.
pub(super) fn kind(op: &Op) -> Kind {
    static TABLE: OnceLock<Vec<(Kind, bool)>> = OnceLock::new();
    let table = TABLE.get_or_init(|| Code::values().map(|code| (find(code), uses_flags(code))).collect());
    let (kind, flags) = table[op.code as usize];
    match kind {
        Kind::Extend { signed: false, to: to @ (4 | 8), from: 1 } if !op.has(attr::MEMORY) && op.src >= 16 => {
            Kind::ExtendHigh { to }
        }
        _ if is_compiled(kind, op) => kind,
        _ => Kind::Handler { flags },
    }
}

/// What the table cannot see: high byte registers and prefixes that need care.
fn is_compiled(kind: Kind, op: &Op) -> bool {
    let memory = op.has(attr::MEMORY);
    let high = |register: u8| register >= 16;
    if op.has(attr::ADDRESS_16) {
        return false;
    }
    match kind {
        Kind::Alu { size: 1, form, .. } | Kind::Test { size: 1, form } | Kind::Mov { size: 1, form } => match form {
            Form::RmImm => memory || !high(op.dst),
            Form::RmReg => !high(op.src) && (memory || !high(op.dst)),
            Form::RegRm => !high(op.dst) && (memory || !high(op.src)),
        },
        Kind::Not { size: 1 } | Kind::Neg { size: 1 } | Kind::Step { size: 1, .. } => memory || !high(op.dst),
        Kind::Extend { from: 1, .. } => memory || !high(op.src),
        Kind::Set { .. } => !memory && !high(op.dst),
        Kind::ShiftImm { size, .. } => {
            let count = op.imm as u8 & if size == 8 { 63 } else { 31 };
            count != 0 && count < size * 8 && (size > 1 || memory || !high(op.dst))
        }
        Kind::RotateImm { size, .. } => {
            let count = op.imm as u8 & if size == 8 { 63 } else { 31 };
            count != 0 && count < size * 8
        }
        Kind::BitReg { .. } | Kind::PopReg => !memory,
        Kind::Cmpxchg { .. } | Kind::Xadd { .. } => memory && !high(op.src),
        Kind::Xchg { size: 1 } => !high(op.src) && (memory || !high(op.dst)),
        Kind::Lea { .. } => memory,
        Kind::Jcc { .. } | Kind::Jmp | Kind::Call => crate::int::branch::is_canonical(op.imm),
        Kind::CallRm => memory || op.dst != 4,
        _ => true,
    }
}

/// Whether the reference handler of a code may read or write the status flags. Families that work on flags by other ways than the
/// decoder's tables say (interrupts, system calls) are never excused.
fn uses_flags(code: Code) -> bool {
    let mut instruction = Instruction::default();
    instruction.set_code(code);
    let quiet = instruction.rflags_read() == 0 && instruction.rflags_modified() == 0;
    let Entry::Handlers { family, .. } = table::entry(code) else { return true };
    let pure = ["packed integer", "vector moves and state", "sse arithmetic", "x87", "mov", "stack", "bits", "string"];
    !(quiet && pure.contains(family))
}

fn form(code: Code) -> Option<Form> {
    if code.op_code().op_count() != 2 {
        return None;
    }
    Some(match (operand(code, 0), operand(code, 1)) {
        (_, Operand::Immediate) => Form::RmImm,
        (Operand::RegisterOrMemory | Operand::Memory, Operand::Register) => Form::RmReg,
        (Operand::Register, Operand::RegisterOrMemory | Operand::Memory) => Form::RegRm,
        _ => return None,
    })
}

fn size(code: Code, index: u32) -> u8 {
    if code.op_code().op_count() <= index { 0 } else { (bits(code, index) / 8) as u8 }
}

fn find(code: Code) -> Kind {
    let by_handler = Kind::Handler { flags: true };
    if code.encoding() != EncodingKind::Legacy || !matches!(table::entry(code), Entry::Handlers { .. }) {
        return by_handler;
    }
    integer(code).or_else(|| branch(code)).or_else(|| vector(code)).unwrap_or(by_handler)
}

fn binary(code: Code, op: u8) -> Option<Kind> {
    Some(Kind::Alu { op, size: size(code, 0), form: form(code)? })
}

fn shifted(code: Code, kind: u8) -> Option<Kind> {
    let size = size(code, 0);
    match operand(code, 1) {
        Operand::Immediate => Some(Kind::ShiftImm { kind, size }),
        // Narrow operands can be shifted by more than their width.
        _ if size >= 4 => Some(Kind::ShiftCl { kind, size }),
        _ => None,
    }
}

fn rotated(code: Code, kind: u8) -> Option<Kind> {
    let size = size(code, 0);
    match operand(code, 1) {
        Operand::Immediate if size >= 2 => Some(Kind::RotateImm { kind, size }),
        Operand::Register if size >= 4 => Some(Kind::RotateCl { kind, size }),
        _ => None,
    }
}

fn bit(code: Code, kind: u8) -> Option<Kind> {
    let size = size(code, 0);
    match operand(code, 1) {
        _ if size < 4 => None,
        Operand::Immediate => Some(Kind::BitImm { kind, size }),
        _ => Some(Kind::BitReg { kind, size }),
    }
}

fn integer(code: Code) -> Option<Kind> {
    let bytes = size(code, 0);
    Some(match code.mnemonic() {
        Mnemonic::Add => binary(code, alu::ADD)?,
        Mnemonic::Or => binary(code, alu::OR)?,
        Mnemonic::Adc => binary(code, alu::ADC)?,
        Mnemonic::Sbb => binary(code, alu::SBB)?,
        Mnemonic::And => binary(code, alu::AND)?,
        Mnemonic::Sub => binary(code, alu::SUB)?,
        Mnemonic::Xor => binary(code, alu::XOR)?,
        Mnemonic::Cmp => binary(code, alu::CMP)?,
        Mnemonic::Test => Kind::Test { size: bytes, form: form(code)? },
        Mnemonic::Not => Kind::Not { size: bytes },
        Mnemonic::Neg => Kind::Neg { size: bytes },
        Mnemonic::Inc => Kind::Step { kind: 0, size: bytes },
        Mnemonic::Dec => Kind::Step { kind: 1, size: bytes },
        Mnemonic::Mov => mov(code)?,
        Mnemonic::Movzx => Kind::Extend { signed: false, to: bytes, from: size(code, 1) },
        Mnemonic::Movsx | Mnemonic::Movsxd => Kind::Extend { signed: true, to: bytes, from: size(code, 1) },
        Mnemonic::Lea => Kind::Lea { size: bytes },
        Mnemonic::Shl | Mnemonic::Sal => shifted(code, shift::SHL)?,
        Mnemonic::Shr => shifted(code, shift::SHR)?,
        Mnemonic::Sar => shifted(code, shift::SAR)?,
        Mnemonic::Rol => rotated(code, shift::ROL)?,
        Mnemonic::Ror => rotated(code, shift::ROR)?,
        Mnemonic::Bt => bit(code, 4)?,
        Mnemonic::Bts => bit(code, 5)?,
        Mnemonic::Btr => bit(code, 6)?,
        Mnemonic::Btc => bit(code, 7)?,
        Mnemonic::Bsf if bytes >= 4 => Kind::Scan { kind: 0, size: bytes },
        Mnemonic::Bsr if bytes >= 4 => Kind::Scan { kind: 1, size: bytes },
        Mnemonic::Xchg if size(code, 1) != 0 => Kind::Xchg { size: bytes },
        Mnemonic::Cmpxchg if bytes >= 4 => Kind::Cmpxchg { size: bytes },
        Mnemonic::Xadd if bytes >= 4 => Kind::Xadd { size: bytes },
        Mnemonic::Mul if bytes >= 4 => Kind::Multiply { kind: 4, size: bytes },
        Mnemonic::Imul if bytes >= 4 && code.op_code().op_count() == 1 => Kind::Multiply { kind: 5, size: bytes },
        Mnemonic::Div if bytes >= 4 => Kind::Divide { kind: 6, size: bytes },
        Mnemonic::Idiv if bytes >= 4 => Kind::Divide { kind: 7, size: bytes },
        Mnemonic::Imul if code.op_code().op_count() == 2 => Kind::Imul2 { size: bytes },
        Mnemonic::Imul if code.op_code().op_count() == 3 => Kind::Imul3 { size: bytes },
        Mnemonic::Bswap if bytes >= 4 => Kind::Bswap { size: bytes },
        _ => return special(code),
    })
}

fn mov(code: Code) -> Option<Kind> {
    let bytes = size(code, 0).max(size(code, 1));
    // Segment, control and debug registers have no width here.
    let general = size(code, 0) != 0 || operand(code, 0) == Operand::Memory;
    (general && bytes != 0).then(|| Some(Kind::Mov { size: bytes, form: form(code)? })).flatten()
}

fn special(code: Code) -> Option<Kind> {
    Some(match code {
        Code::Push_r64 | Code::Push_rm64 => Kind::PushReg,
        Code::Pushq_imm8 | Code::Pushq_imm32 => Kind::PushImm,
        Code::Pop_r64 => Kind::PopReg,
        Code::Leaveq => Kind::Leave,
        Code::Cli => Kind::Interrupts { on: false },
        Code::Sti => Kind::Interrupts { on: true },
        Code::Cbw => Kind::SignAx { to: 2 },
        Code::Cwde => Kind::SignAx { to: 4 },
        Code::Cdqe => Kind::SignAx { to: 8 },
        Code::Cwd => Kind::SignDx { size: 2 },
        Code::Cdq => Kind::SignDx { size: 4 },
        Code::Cqo => Kind::SignDx { size: 8 },
        Code::Pause | Code::Mfence | Code::Lfence | Code::Sfence => Kind::Nop,
        Code::Reservednop_rm16_r16_0F0D | Code::Reservednop_rm32_r32_0F0D | Code::Reservednop_rm64_r64_0F0D => {
            return None;
        }
        _ => match code.mnemonic() {
            Mnemonic::Nop | Mnemonic::Reservednop | Mnemonic::Endbr64 | Mnemonic::Endbr32 => Kind::Nop,
            Mnemonic::Prefetchnta | Mnemonic::Prefetcht0 | Mnemonic::Prefetcht1 | Mnemonic::Prefetcht2 => Kind::Nop,
            Mnemonic::Prefetchw => Kind::Nop,
            _ => return conditional(code),
        },
    })
}

fn conditional(code: Code) -> Option<Kind> {
    let cc = condition_of(code)?;
    let info = code.op_code();
    match (info.op_code(), info.op_count()) {
        (0x90..=0x9f, 1) if size(code, 0) == 1 => Some(Kind::Set { cc }),
        (0x40..=0x4f, 2) if size(code, 0) != 0 => Some(Kind::Cmov { cc, size: size(code, 0) }),
        _ => None,
    }
}

fn branch(code: Code) -> Option<Kind> {
    Some(match code {
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => Kind::Jmp,
        Code::Call_rel32_64 => Kind::Call,
        Code::Retnq | Code::Retnq_imm16 => Kind::Ret,
        Code::Jmp_rm64 => Kind::JmpRm,
        Code::Call_rm64 => Kind::CallRm,
        _ if code.is_jcc_short_or_near() => Kind::Jcc { cc: condition_of(code)? },
        _ => return None,
    })
}

/// What compiled code of a kind does to the status flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    /// Flags it looks at.
    pub reads: u8,
    /// It replaces all status flags.
    pub replaces: bool,
    /// It replaces some status flags: saving them needs those before it.
    pub merges: bool,
    /// Flags that the host's flags hold afterwards as the guest has them.
    pub provides: u8,
    /// It may fault, leave or call, so the flags before it must be in their place; the host's flags are lost.
    pub stops: bool,
}

/// The effect of an operation compiled as `kind`.
pub(super) fn effect(kind: Kind, op: &Op) -> Effect {
    let memory = op.has(attr::MEMORY);
    let none = Effect { reads: 0, replaces: false, merges: false, provides: 0, stops: memory };
    let all = Effect { replaces: true, provides: flag::ALL, ..none };
    match kind {
        // The handler reads and writes the flags in their place.
        Kind::Handler { .. } => Effect { stops: true, ..none },
        Kind::Alu { op: alu::ADC | alu::SBB, .. } => Effect { reads: flag::C, ..all },
        Kind::Alu { .. } | Kind::Test { .. } | Kind::Neg { .. } => all,
        Kind::Step { .. } => Effect { merges: true, provides: flag::ALL & !flag::C, ..none },
        Kind::ShiftImm { size, .. } => match op.imm as u8 & if size == 8 { 63 } else { 31 } {
            1 => all,
            _ => Effect { provides: flag::ALL & !flag::O, ..all },
        },
        Kind::ShiftCl { .. } | Kind::RotateImm { .. } | Kind::RotateCl { .. } => Effect { merges: true, ..none },
        Kind::BitImm { .. } | Kind::BitReg { .. } => Effect { merges: true, provides: flag::C, ..none },
        Kind::Scan { .. } | Kind::Cmpxchg { .. } | Kind::Xadd { .. } => all,
        Kind::Multiply { .. } => Effect { provides: flag::C | flag::O, ..all },
        // The host's flags are lost, the guest's stay.
        Kind::Divide { .. } => Effect { stops: true, ..none },
        Kind::Xchg { .. } | Kind::ExtendHigh { .. } => none,
        Kind::Imul2 { .. } | Kind::Imul3 { .. } => Effect { provides: flag::C | flag::O, ..all },
        Kind::Set { cc } | Kind::Cmov { cc, .. } | Kind::Jcc { cc } => Effect { reads: needs(cc), ..none },
        Kind::PushReg | Kind::PushImm | Kind::PopReg | Kind::Leave => Effect { stops: true, ..none },
        Kind::Call | Kind::Ret | Kind::JmpRm | Kind::CallRm => Effect { stops: true, ..none },
        Kind::VectorCompare { .. } => Effect { stops: true, ..all },
        Kind::Vector { .. } | Kind::VectorStore { .. } | Kind::VectorShift { .. } => Effect { stops: true, ..none },
        Kind::VectorFromGeneral { .. } | Kind::VectorToGeneral { .. } | Kind::VectorMask { .. } => {
            Effect { stops: true, ..none }
        }
        Kind::IntegerToFloat { .. } | Kind::FloatToInteger { .. } => Effect { stops: true, ..none },
        Kind::Interrupts { .. } => Effect { stops: true, ..none },
        Kind::Lea { .. } | Kind::Nop => Effect { stops: false, ..none },
        Kind::Not { .. }
        | Kind::Mov { .. }
        | Kind::Extend { .. }
        | Kind::SignAx { .. }
        | Kind::SignDx { .. }
        | Kind::Bswap { .. }
        | Kind::Jmp => none,
    }
}
