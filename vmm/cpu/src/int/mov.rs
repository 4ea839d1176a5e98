// SPDX-License-Identifier: AGPL-3.0-or-later
//! MOV, MOVZX, MOVSX, MOVSXD, LEA, CMOVcc, XCHG, XADD, CMPXCHG and its wide forms, conversions, XLAT.

use crate::core_state::{Core, vector};
use crate::flags::bit;
use crate::forms::{Operand, bits, handler_by_width, operand};
use crate::int::cond::{condition_of, with_condition};
use crate::op::{Handler, Op, Step};
use crate::table::Entry;
use crate::width::Width;
use iced_x86::{Code, Mnemonic, OpCodeOperandKind};

const FAMILY: &str = "mov";
const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RBX: u8 = 3;

fn mov_reg_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.set_reg(op.dst, core.reg::<T>(op.src));
    Ok(())
}

fn mov_reg_imm<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.set_reg(op.dst, T::cut(op.imm));
    Ok(())
}

fn mov_reg_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.load_then(op, |core, op, value: T| core.set_reg(op.dst, value))
}

fn mov_mem_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.store(op, core.reg::<T>(op.src))
}

fn mov_mem_imm<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.store(op, T::cut(op.imm))
}

fn mov_entry(code: Code) -> Option<Entry> {
    let width = bits(code, 0).max(bits(code, 1));
    match (operand(code, 0), operand(code, 1)) {
        (Operand::RegisterOrMemory | Operand::Memory, Operand::Register) => {
            Entry::rm(FAMILY, handler_by_width!(width, mov_reg_reg), handler_by_width!(width, mov_mem_reg))
        }
        (Operand::Register, Operand::RegisterOrMemory | Operand::Memory) => {
            Entry::rm(FAMILY, handler_by_width!(width, mov_reg_reg), handler_by_width!(width, mov_reg_mem))
        }
        (_, Operand::Immediate) => {
            Entry::rm(FAMILY, handler_by_width!(width, mov_reg_imm), handler_by_width!(width, mov_mem_imm))
        }
        _ => None,
    }
}

/// Widening moves: `S` is the source width, `SIGNED` whether the sign is extended.
fn extend_reg<const SIGNED: bool, D: Width, S: Width>(core: &mut Core, op: &Op) -> Step {
    let source = core.reg::<S>(op.src);
    core.set_reg(op.dst, D::cut(if SIGNED { source.sx() } else { source.zx() }));
    Ok(())
}

fn extend_mem<const SIGNED: bool, D: Width, S: Width>(core: &mut Core, op: &Op) -> Step {
    core.load_then(op, |core, op, source: S| {
        core.set_reg(op.dst, D::cut(if SIGNED { source.sx() } else { source.zx() }));
    })
}

fn extend_forms<const SIGNED: bool, D: Width, S: Width>() -> (Handler, Handler) {
    (extend_reg::<SIGNED, D, S>, extend_mem::<SIGNED, D, S>)
}

fn extend_entry<const SIGNED: bool>(code: Code) -> Option<Entry> {
    let (register, memory) = match (bits(code, 0), bits(code, 1)) {
        (16, 8) => extend_forms::<SIGNED, u16, u8>(),
        (32, 8) => extend_forms::<SIGNED, u32, u8>(),
        (64, 8) => extend_forms::<SIGNED, u64, u8>(),
        (16, 16) => extend_forms::<SIGNED, u16, u16>(),
        (32, 16) => extend_forms::<SIGNED, u32, u16>(),
        (64, 16) => extend_forms::<SIGNED, u64, u16>(),
        (16, 32) => extend_forms::<SIGNED, u16, u32>(),
        (32, 32) => extend_forms::<SIGNED, u32, u32>(),
        (64, 32) => extend_forms::<SIGNED, u64, u32>(),
        _ => return None,
    };
    Entry::rm(FAMILY, register, memory)
}

fn lea<T: Width>(core: &mut Core, op: &Op) -> Step {
    let address = core.effective(op);
    core.set_reg(op.dst, T::cut(address));
    Ok(())
}

fn cmov_reg<const CC: u8, T: Width>(core: &mut Core, op: &Op) -> Step {
    // A 32-bit destination loses its upper half also when the condition is false.
    let value = core.reg::<T>(if core.condition::<CC>() { op.src } else { op.dst });
    core.set_reg(op.dst, value);
    Ok(())
}

fn cmov_mem<const CC: u8, T: Width>(core: &mut Core, op: &Op) -> Step {
    let source = core.load::<T>(op)?;
    let value = if core.condition::<CC>() { source } else { core.reg::<T>(op.dst) };
    core.set_reg(op.dst, value);
    Ok(())
}

fn cmov_entry(code: Code) -> Option<Entry> {
    let condition = condition_of(code)?;
    let (register, memory): (Handler, Handler) = match bits(code, 0) {
        16 => (with_condition!(condition, cmov_reg, u16), with_condition!(condition, cmov_mem, u16)),
        32 => (with_condition!(condition, cmov_reg, u32), with_condition!(condition, cmov_mem, u32)),
        _ => (with_condition!(condition, cmov_reg, u64), with_condition!(condition, cmov_mem, u64)),
    };
    Entry::rm(FAMILY, register, memory)
}

fn xchg_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    let (a, b) = (core.reg::<T>(op.dst), core.reg::<T>(op.src));
    core.set_reg(op.dst, b);
    core.set_reg(op.src, a);
    Ok(())
}

/// One of the operands is memory; the register is `src` or, where memory comes second, `dst`.
fn xchg_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let address = core.linear(op, T::BYTES, true)?;
    let register = op.src;
    let new = core.reg::<T>(register);
    let mut old = new;
    core.modify_at::<T>(crate::access::Place { address, segment: op.segment }, |_, value| {
        old = value;
        new
    })?;
    core.set_reg(register, old);
    Ok(())
}

fn xadd_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    let (a, b) = (core.reg::<T>(op.dst), core.reg::<T>(op.src));
    let sum = core.flags_add(a, b, false);
    core.set_reg(op.src, a);
    core.set_reg(op.dst, sum);
    Ok(())
}

fn xadd_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let b = core.reg::<T>(op.src);
    let mut old = b;
    core.modify::<T>(op, |core, value| {
        old = value;
        core.flags_add(value, b, false)
    })?;
    core.set_reg(op.src, old);
    Ok(())
}

fn cmpxchg_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    let (expected, current) = (core.reg::<T>(RAX), core.reg::<T>(op.dst));
    core.flags_sub(expected, current, false);
    if expected == current {
        core.set_reg(op.dst, core.reg::<T>(op.src));
    } else {
        // The destination register is not written at all: its upper half stays, too.
        core.set_reg(RAX, current);
    }
    Ok(())
}

/// Memory is written in either case, with its old value where the comparison fails.
fn cmpxchg_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let (expected, new) = (core.reg::<T>(RAX), core.reg::<T>(op.src));
    let mut current = expected;
    core.modify::<T>(op, |core, value| {
        current = value;
        core.flags_sub(expected, value, false);
        if expected == value { new } else { value }
    })?;
    if expected != current {
        core.set_reg(RAX, current);
    }
    Ok(())
}

/// Sets ZF and keeps the other flags.
fn set_zero_flag(core: &mut Core, zero: bool) {
    let flags = core.flags.bits() & !bit::ZF;
    core.flags = crate::flags::LazyFlags::from_bits(flags | if zero { bit::ZF } else { 0 });
}

fn cmpxchg8b(core: &mut Core, op: &Op) -> Step {
    let pair =
        |core: &Core, high: u8, low: u8| u64::from(core.reg::<u32>(high)) << 32 | u64::from(core.reg::<u32>(low));
    let (expected, new) = (pair(core, RDX, RAX), pair(core, RCX, RBX));
    let mut current = expected;
    core.modify::<u64>(op, |_, value| {
        current = value;
        if expected == value { new } else { value }
    })?;
    set_zero_flag(core, expected == current);
    if expected != current {
        core.set_reg(RAX, current as u32);
        core.set_reg(RDX, (current >> 32) as u32);
    }
    Ok(())
}

fn cmpxchg16b(core: &mut Core, op: &Op) -> Step {
    let address = core.linear(op, 16, true)?;
    if address & 15 != 0 {
        return Err(core.misaligned(address, op.segment));
    }
    let pair =
        |core: &Core, high: u8, low: u8| u128::from(core.reg::<u64>(high)) << 64 | u128::from(core.reg::<u64>(low));
    let (expected, new) = (pair(core, RDX, RAX), pair(core, RCX, RBX));
    let mut current = expected;
    core.modify_at::<u128>(crate::access::Place { address, segment: op.segment }, |_, value| {
        current = value;
        if expected == value { new } else { value }
    })?;
    set_zero_flag(core, expected == current);
    if expected != current {
        core.set_reg(RAX, current as u64);
        core.set_reg(RDX, (current >> 64) as u64);
    }
    Ok(())
}

/// CBW, CWDE, CDQE: the accumulator's lower half, extended.
fn extend_accumulator<D: Width, S: Width>(core: &mut Core, _op: &Op) -> Step {
    let value = D::cut(core.reg::<S>(RAX).sx());
    core.set_reg(RAX, value);
    Ok(())
}

/// CWD, CDQ, CQO: the accumulator's sign in xDX.
fn sign_to_rdx<T: Width>(core: &mut Core, _op: &Op) -> Step {
    let sign = (core.reg::<T>(RAX).sx() as i64 >> 63) as u64;
    core.set_reg(RDX, T::cut(sign));
    Ok(())
}

/// XLAT: AL from the table at xBX + AL.
fn xlat(core: &mut Core, op: &Op) -> Step {
    let mut moved = *op;
    moved.displacement = u64::from(core.reg::<u8>(RAX));
    let value = core.load::<u8>(&moved)?;
    core.set_reg(RAX, value);
    Ok(())
}

/// LEA with a register operand.
fn undefined(core: &mut Core, _op: &Op) -> Step {
    Err(core.fault(vector::UD))
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let width = match code.op_code().op_count() {
        0 => 0,
        1 => bits(code, 0),
        _ => bits(code, 0).max(bits(code, 1)),
    };
    match code {
        Code::Cbw => return Entry::one(FAMILY, extend_accumulator::<u16, u8>),
        Code::Cwde => return Entry::one(FAMILY, extend_accumulator::<u32, u16>),
        Code::Cdqe => return Entry::one(FAMILY, extend_accumulator::<u64, u32>),
        Code::Cwd => return Entry::one(FAMILY, sign_to_rdx::<u16>),
        Code::Cdq => return Entry::one(FAMILY, sign_to_rdx::<u32>),
        Code::Cqo => return Entry::one(FAMILY, sign_to_rdx::<u64>),
        Code::Cmpxchg8b_m64 => return Entry::one(FAMILY, cmpxchg8b),
        Code::Cmpxchg16b_m128 => return Entry::one(FAMILY, cmpxchg16b),
        Code::Xlat_m8 => return Entry::one(FAMILY, xlat),
        Code::Cmpxchg486_rm8_r8 | Code::Cmpxchg486_rm16_r16 | Code::Cmpxchg486_rm32_r32 => {
            return Some(Entry::Ud("only on early 486 steppings"));
        }
        _ => {}
    }
    match code.mnemonic() {
        Mnemonic::Mov => mov_entry(code),
        Mnemonic::Movzx => extend_entry::<false>(code),
        Mnemonic::Movsx | Mnemonic::Movsxd => extend_entry::<true>(code),
        Mnemonic::Lea => Entry::rm(FAMILY, undefined, handler_by_width!(width, lea)),
        Mnemonic::Xchg => Entry::rm(FAMILY, handler_by_width!(width, xchg_reg), handler_by_width!(width, xchg_mem)),
        Mnemonic::Xadd => Entry::rm(FAMILY, handler_by_width!(width, xadd_reg), handler_by_width!(width, xadd_mem)),
        Mnemonic::Cmpxchg => {
            Entry::rm(FAMILY, handler_by_width!(width, cmpxchg_reg), handler_by_width!(width, cmpxchg_mem))
        }
        _ if is_cmov(code) => cmov_entry(code),
        _ => None,
    }
}

fn is_cmov(code: Code) -> bool {
    let info = code.op_code();
    info.op_count() == 2
        && matches!(info.op_code(), 0x40..=0x4f)
        && matches!(
            info.op_kind(0),
            OpCodeOperandKind::r16_reg | OpCodeOperandKind::r32_reg | OpCodeOperandKind::r64_reg
        )
        && condition_of(code).is_some()
}
