// SPDX-License-Identifier: AGPL-3.0-or-later
//! Compare-and-branch pairs executed as one operation.
//!
//! A block that ends with a comparison and a conditional branch gets a third operation that does both. It runs only when
//! the whole block may run; otherwise the two execute on their own. Nothing can tell the difference: only the comparison
//! can fault, and it comes first.

use crate::core_state::Core;
use crate::int::alu::{Add, And, Binary, Cmp, Sub, Test};
use crate::int::branch::is_canonical;
use crate::int::cond::{condition_of, with_condition};
use crate::op::{Handler, Op, Step, attr};
use crate::width::Width;
use iced_x86::{Code, Mnemonic};

/// Goes to the branch target (relative, in the upper half of the immediate) if the condition holds.
#[inline(always)]
fn branch<const CC: u8>(core: &mut Core, op: &Op) {
    if core.condition::<CC>() {
        core.rip = op.next_ip.wrapping_add((op.imm as i64 >> 32) as u64);
    }
}

#[inline(always)]
fn immediate<T: Width>(op: &Op) -> T {
    T::cut(op.imm as i32 as u64)
}

fn reg_reg<const CC: u8, O: Binary, T: Width>(core: &mut Core, op: &Op) -> Step {
    let result = O::apply(core, core.reg::<T>(op.dst), core.reg::<T>(op.src));
    if O::WRITES {
        core.set_reg(op.dst, result);
    }
    branch::<CC>(core, op);
    Ok(())
}

fn reg_imm<const CC: u8, O: Binary, T: Width>(core: &mut Core, op: &Op) -> Step {
    let result = O::apply(core, core.reg::<T>(op.dst), immediate::<T>(op));
    if O::WRITES {
        core.set_reg(op.dst, result);
    }
    branch::<CC>(core, op);
    Ok(())
}

fn reg_mem<const CC: u8, O: Binary, T: Width>(core: &mut Core, op: &Op) -> Step {
    core.load_then(op, |core, op, value: T| {
        O::apply(core, core.reg::<T>(op.dst), value);
        branch::<CC>(core, op);
    })
}

fn mem_reg<const CC: u8, O: Binary, T: Width>(core: &mut Core, op: &Op) -> Step {
    core.load_then(op, |core, op, value: T| {
        O::apply(core, value, core.reg::<T>(op.src));
        branch::<CC>(core, op);
    })
}

fn mem_imm<const CC: u8, O: Binary, T: Width>(core: &mut Core, op: &Op) -> Step {
    core.load_then(op, |core, op, value: T| {
        O::apply(core, value, immediate::<T>(op));
        branch::<CC>(core, op);
    })
}

/// The operand forms that are fused.
#[derive(Clone, Copy)]
enum Form {
    RegReg,
    RegImm,
    RegMem,
    MemReg,
    MemImm,
}

fn registers<O: Binary, T: Width>(form: Form, condition: u8) -> Option<Handler> {
    Some(match form {
        Form::RegReg => with_condition!(condition, reg_reg, O, T),
        Form::RegImm => with_condition!(condition, reg_imm, O, T),
        _ => return None,
    })
}

fn any<O: Binary, T: Width>(form: Form, condition: u8) -> Option<Handler> {
    Some(match form {
        Form::RegMem => with_condition!(condition, reg_mem, O, T),
        Form::MemReg => with_condition!(condition, mem_reg, O, T),
        Form::MemImm => with_condition!(condition, mem_imm, O, T),
        _ => return registers::<O, T>(form, condition),
    })
}

fn compare<T: Width>(mnemonic: Mnemonic, form: Form, condition: u8) -> Option<Handler> {
    match mnemonic {
        Mnemonic::Cmp => any::<Cmp, T>(form, condition),
        Mnemonic::Test => any::<Test, T>(form, condition),
        _ => None,
    }
}

fn arithmetic<T: Width>(mnemonic: Mnemonic, form: Form, condition: u8) -> Option<Handler> {
    match mnemonic {
        Mnemonic::Add => registers::<Add, T>(form, condition),
        Mnemonic::Sub => registers::<Sub, T>(form, condition),
        Mnemonic::And => registers::<And, T>(form, condition),
        _ => compare::<T>(mnemonic, form, condition),
    }
}

/// The form and width of a two-operand arithmetic code.
fn shape(op: &Op) -> Option<(Form, u32)> {
    use crate::forms::{Operand, bits, operand};
    if op.code.op_code().op_count() != 2 {
        return None;
    }
    let memory = op.has(attr::MEMORY);
    let form = match (operand(op.code, 0), operand(op.code, 1)) {
        (_, Operand::Immediate) => {
            if memory {
                Form::MemImm
            } else {
                Form::RegImm
            }
        }
        (Operand::RegisterOrMemory, Operand::Register) => {
            if memory {
                Form::MemReg
            } else {
                Form::RegReg
            }
        }
        (Operand::Register, Operand::RegisterOrMemory) => {
            if memory {
                Form::RegMem
            } else {
                Form::RegReg
            }
        }
        _ => return None,
    };
    Some((form, bits(op.code, 0)))
}

/// One operation for a comparison and the conditional branch after it, if the pair is one that is fused.
pub(crate) fn fuse(first: &Op, second: &Op) -> Option<Op> {
    if !second.code.is_jcc_short_or_near() || !second.has(attr::LONG) || !is_canonical(second.imm) {
        return None;
    }
    let mnemonic = Code::mnemonic(first.code);
    if !matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Add | Mnemonic::Sub | Mnemonic::And) {
        return None;
    }
    let condition = condition_of(second.code)?;
    let distance = second.imm.wrapping_sub(second.next_ip);
    let (form, width) = shape(first)?;
    let handler = match width {
        8 => compare::<u8>(mnemonic, form, condition),
        32 => arithmetic::<u32>(mnemonic, form, condition),
        64 => arithmetic::<u64>(mnemonic, form, condition),
        _ => None,
    }?;
    let mut fused = *first;
    fused.handler = handler;
    fused.next_ip = second.next_ip;
    fused.len = first.len + second.len;
    fused.imm = (first.imm & 0xffff_ffff) | distance << 32;
    Some(fused)
}
