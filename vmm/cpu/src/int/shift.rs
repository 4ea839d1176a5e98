// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shifts, rotates and double shifts.
//!
//! A masked count of zero changes nothing. Where the architecture leaves flags undefined: OF is computed by the rule for
//! a count of one whatever the count, and AF after shifts is clear.

use crate::core_state::Core;
use crate::flags::LazyFlags;
use crate::forms::{Operand, bits, handler_by_width, operand};
use crate::op::{Op, Step};
use crate::table::Entry;
use crate::width::Width;
use iced_x86::{Code, Mnemonic};

const FAMILY: &str = "shift";

/// A shift or rotate by a masked count that is not zero.
trait Shift {
    fn apply<T: Width>(core: &mut Core, value: T, count: u32) -> T;
}

impl Core {
    /// Sets CF and OF and keeps the other flags.
    #[inline(always)]
    pub fn set_carry_overflow(&mut self, carry: bool, overflow: bool) {
        self.flags.misc = (self.flags.misc & !1) | u32::from(carry);
        self.flags.carries = (self.flags.carries & !(1 << 63)) | u64::from(carry != overflow) << 63;
    }

    /// Flags of a shift: SF, ZF and PF from the result, AF clear.
    #[inline(always)]
    fn flags_shift<T: Width>(&mut self, result: T, carry: bool, overflow: bool) {
        let carries = u64::from(carry != overflow) << 63;
        self.flags = LazyFlags { result: result.sx(), carries, misc: u32::from(carry) };
    }
}

fn top<T: Width>(value: T) -> bool {
    value.sx() >> 63 != 0
}

fn bit_at(value: u64, index: u32) -> bool {
    index < 64 && value >> index & 1 != 0
}

struct Shl;
impl Shift for Shl {
    #[inline(always)]
    fn apply<T: Width>(core: &mut Core, value: T, count: u32) -> T {
        // Narrow operands can lose everything; bits above the operand's width hold what was shifted out.
        let wide = u128::from(value.zx()) << count;
        let result = T::cut(wide as u64);
        let carry = wide >> T::BITS & 1 != 0;
        core.flags_shift(result, carry, top(result) != carry);
        result
    }
}

struct Shr;
impl Shift for Shr {
    #[inline(always)]
    fn apply<T: Width>(core: &mut Core, value: T, count: u32) -> T {
        let result = T::cut(value.zx() >> count);
        let carry = bit_at(value.zx(), count - 1);
        // For a count of one this is the operand's top bit.
        let overflow = top(T::cut(result.zx() << 1)) != top(result);
        core.flags_shift(result, carry, overflow);
        result
    }
}

struct Sar;
impl Shift for Sar {
    #[inline(always)]
    fn apply<T: Width>(core: &mut Core, value: T, count: u32) -> T {
        let signed = value.sx() as i64;
        let result = T::cut((signed >> count) as u64);
        core.flags_shift(result, signed >> (count - 1) & 1 != 0, false);
        result
    }
}

struct Rol;
impl Shift for Rol {
    #[inline(always)]
    fn apply<T: Width>(core: &mut Core, value: T, count: u32) -> T {
        let turn = count % T::BITS;
        let result = T::cut(value.zx() << turn | value.zx() >> ((T::BITS - turn) % T::BITS));
        let carry = result.zx() & 1 != 0;
        core.set_carry_overflow(carry, top(result) != carry);
        result
    }
}

struct Ror;
impl Shift for Ror {
    #[inline(always)]
    fn apply<T: Width>(core: &mut Core, value: T, count: u32) -> T {
        let turn = count % T::BITS;
        let result = T::cut(value.zx() >> turn | value.zx() << ((T::BITS - turn) % T::BITS));
        let second = top(T::cut(result.zx() << 1));
        core.set_carry_overflow(top(result), top(result) != second);
        result
    }
}

struct Rcl;
impl Shift for Rcl {
    fn apply<T: Width>(core: &mut Core, value: T, count: u32) -> T {
        let turn = count % (T::BITS + 1);
        if turn == 0 {
            let carry = core.flags.cf();
            core.set_carry_overflow(carry, top(value) != carry);
            return value;
        }
        let wide = u128::from(core.flags.cf()) << T::BITS | u128::from(value.zx());
        let turned = wide << turn | wide >> (T::BITS + 1 - turn);
        let (result, carry) = (T::cut(turned as u64), turned >> T::BITS & 1 != 0);
        core.set_carry_overflow(carry, top(result) != carry);
        result
    }
}

struct Rcr;
impl Shift for Rcr {
    fn apply<T: Width>(core: &mut Core, value: T, count: u32) -> T {
        let turn = count % (T::BITS + 1);
        let second = |result: T| top(result) != top(T::cut(result.zx() << 1));
        if turn == 0 {
            let carry = core.flags.cf();
            core.set_carry_overflow(carry, second(value));
            return value;
        }
        let wide = u128::from(core.flags.cf()) << T::BITS | u128::from(value.zx());
        let turned = wide >> turn | wide << (T::BITS + 1 - turn);
        let (result, carry) = (T::cut(turned as u64), turned >> T::BITS & 1 != 0);
        core.set_carry_overflow(carry, second(result));
        result
    }
}

/// The count as the CPU masks it.
#[inline(always)]
fn masked<T: Width>(count: u64) -> u32 {
    count as u32 & if T::BITS == 64 { 63 } else { 31 }
}

#[inline(always)]
fn shift_reg<O: Shift, T: Width>(core: &mut Core, op: &Op, count: u64) -> Step {
    let count = masked::<T>(count);
    if count == 0 {
        // A 32-bit operation clears the upper half even then.
        core.set_reg(op.dst, core.reg::<T>(op.dst));
        return Ok(());
    }
    let result = O::apply(core, core.reg::<T>(op.dst), count);
    core.set_reg(op.dst, result);
    Ok(())
}

fn shift_mem<O: Shift, T: Width>(core: &mut Core, op: &Op, count: u64) -> Step {
    let count = masked::<T>(count);
    core.modify::<T>(op, |core, old| if count == 0 { old } else { O::apply(core, old, count) })
}

fn reg_imm<O: Shift, T: Width>(core: &mut Core, op: &Op) -> Step {
    shift_reg::<O, T>(core, op, op.imm)
}

fn reg_cl<O: Shift, T: Width>(core: &mut Core, op: &Op) -> Step {
    shift_reg::<O, T>(core, op, core.gpr[1])
}

fn mem_imm<O: Shift, T: Width>(core: &mut Core, op: &Op) -> Step {
    shift_mem::<O, T>(core, op, op.imm)
}

fn mem_cl<O: Shift, T: Width>(core: &mut Core, op: &Op) -> Step {
    shift_mem::<O, T>(core, op, core.gpr[1])
}

fn shift_entry<O: Shift>(code: Code) -> Option<Entry> {
    let width = bits(code, 0);
    if operand(code, 1) == Operand::Immediate {
        Entry::rm(FAMILY, handler_by_width!(width, reg_imm, O), handler_by_width!(width, mem_imm, O))
    } else {
        Entry::rm(FAMILY, handler_by_width!(width, reg_cl, O), handler_by_width!(width, mem_cl, O))
    }
}

/// A double shift by a masked count that is not zero. 16-bit counts above 16, which are undefined, go on into the first
/// operand again, as if the pattern were operand, filler, operand.
trait DoubleShift {
    fn apply<T: Width>(core: &mut Core, value: T, filler: T, count: u32) -> T;
}

struct Shld;
impl DoubleShift for Shld {
    #[inline(always)]
    fn apply<T: Width>(core: &mut Core, value: T, filler: T, count: u32) -> T {
        let (result, carry) = if T::BITS == 16 {
            let wide = value.zx() << 32 | filler.zx() << 16 | value.zx();
            (T::cut(wide << count >> 32), bit_at(wide, 48 - count))
        } else {
            let wide = u128::from(value.zx()) << T::BITS | u128::from(filler.zx());
            (T::cut((wide << count >> T::BITS) as u64), bit_at(value.zx(), T::BITS - count))
        };
        core.flags_shift(result, carry, top(result) != top(value));
        result
    }
}

struct Shrd;
impl DoubleShift for Shrd {
    #[inline(always)]
    fn apply<T: Width>(core: &mut Core, value: T, filler: T, count: u32) -> T {
        let (result, carry) = if T::BITS == 16 {
            let wide = value.zx() << 32 | filler.zx() << 16 | value.zx();
            (T::cut(wide >> count), bit_at(wide, count - 1))
        } else {
            let wide = u128::from(filler.zx()) << T::BITS | u128::from(value.zx());
            (T::cut((wide >> count) as u64), bit_at(value.zx(), count - 1))
        };
        core.flags_shift(result, carry, top(result) != top(T::cut(result.zx() << 1)));
        result
    }
}

#[inline(always)]
fn double_reg<O: DoubleShift, T: Width>(core: &mut Core, op: &Op, count: u64) -> Step {
    let count = masked::<T>(count);
    let old = core.reg::<T>(op.dst);
    let new = if count == 0 { old } else { O::apply(core, old, core.reg::<T>(op.src), count) };
    core.set_reg(op.dst, new);
    Ok(())
}

fn double_mem<O: DoubleShift, T: Width>(core: &mut Core, op: &Op, count: u64) -> Step {
    let count = masked::<T>(count);
    let filler = core.reg::<T>(op.src);
    core.modify::<T>(op, |core, old| if count == 0 { old } else { O::apply(core, old, filler, count) })
}

fn double_reg_imm<O: DoubleShift, T: Width>(core: &mut Core, op: &Op) -> Step {
    double_reg::<O, T>(core, op, op.imm)
}

fn double_reg_cl<O: DoubleShift, T: Width>(core: &mut Core, op: &Op) -> Step {
    double_reg::<O, T>(core, op, core.gpr[1])
}

fn double_mem_imm<O: DoubleShift, T: Width>(core: &mut Core, op: &Op) -> Step {
    double_mem::<O, T>(core, op, op.imm)
}

fn double_mem_cl<O: DoubleShift, T: Width>(core: &mut Core, op: &Op) -> Step {
    double_mem::<O, T>(core, op, core.gpr[1])
}

fn double_entry<O: DoubleShift>(code: Code) -> Option<Entry> {
    let width = bits(code, 0);
    if operand(code, 2) == Operand::Immediate {
        Entry::rm(FAMILY, handler_by_width!(width, double_reg_imm, O), handler_by_width!(width, double_mem_imm, O))
    } else {
        Entry::rm(FAMILY, handler_by_width!(width, double_reg_cl, O), handler_by_width!(width, double_mem_cl, O))
    }
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    match code.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal => shift_entry::<Shl>(code),
        Mnemonic::Shr => shift_entry::<Shr>(code),
        Mnemonic::Sar => shift_entry::<Sar>(code),
        Mnemonic::Rol => shift_entry::<Rol>(code),
        Mnemonic::Ror => shift_entry::<Ror>(code),
        Mnemonic::Rcl => shift_entry::<Rcl>(code),
        Mnemonic::Rcr => shift_entry::<Rcr>(code),
        Mnemonic::Shld => double_entry::<Shld>(code),
        Mnemonic::Shrd => double_entry::<Shrd>(code),
        _ => None,
    }
}
