// SPDX-License-Identifier: AGPL-3.0-or-later
//! ADD, ADC, SUB, SBB, CMP, AND, OR, XOR, TEST, INC, DEC, NEG, NOT.
//!
//! AF after logical operations, which the architecture leaves undefined, is clear.

use crate::core_state::Core;
use crate::flags::LazyFlags;
use crate::forms::{Operand, bits, handler_by_width, operand};
use crate::op::{Op, Step};
use crate::table::Entry;
use crate::width::Width;
use iced_x86::{Code, Mnemonic};

const FAMILY: &str = "alu";

/// A two-operand operation.
pub(crate) trait Binary {
    /// The result goes back to the first operand.
    const WRITES: bool;
    fn apply<T: Width>(core: &mut Core, a: T, b: T) -> T;
}

/// A one-operand operation.
pub(crate) trait Unary {
    fn apply<T: Width>(core: &mut Core, a: T) -> T;
}

impl Core {
    /// a + b + carry in, with all flags.
    #[inline(always)]
    pub fn flags_add<T: Width>(&mut self, a: T, b: T, carry: bool) -> T {
        let result = T::cut(a.zx().wrapping_add(b.zx()).wrapping_add(u64::from(carry)));
        let out = if carry { result <= a } else { result < a };
        self.flags = LazyFlags { result: result.sx(), carries: a.sx() ^ b.sx() ^ result.sx(), misc: u32::from(out) };
        result
    }

    /// a - b - borrow in, with all flags.
    #[inline(always)]
    pub fn flags_sub<T: Width>(&mut self, a: T, b: T, borrow: bool) -> T {
        let result = T::cut(a.zx().wrapping_sub(b.zx()).wrapping_sub(u64::from(borrow)));
        let out = if borrow { a <= b } else { a < b };
        self.flags = LazyFlags { result: result.sx(), carries: a.sx() ^ b.sx() ^ result.sx(), misc: u32::from(out) };
        result
    }

    /// Flags of a logical result: CF, OF and AF clear.
    #[inline(always)]
    pub fn flags_logic<T: Width>(&mut self, result: T) -> T {
        self.flags = LazyFlags { result: result.sx(), carries: 0, misc: 0 };
        result
    }
}

macro_rules! binary {
    ($($name:ident $writes:literal |$core:ident, $a:ident, $b:ident| $body:expr;)*) => { $(
        pub(crate) struct $name;
        impl Binary for $name {
            const WRITES: bool = $writes;
            #[inline(always)]
            fn apply<T: Width>($core: &mut Core, $a: T, $b: T) -> T { $body }
        }
    )* };
}

binary! {
    Add true |core, a, b| core.flags_add(a, b, false);
    Sub true |core, a, b| core.flags_sub(a, b, false);
    Cmp false |core, a, b| core.flags_sub(a, b, false);
    And true |core, a, b| core.flags_logic(T::cut(a.zx() & b.zx()));
    Test false |core, a, b| core.flags_logic(T::cut(a.zx() & b.zx()));
    Or true |core, a, b| core.flags_logic(T::cut(a.zx() | b.zx()));
    Xor true |core, a, b| core.flags_logic(T::cut(a.zx() ^ b.zx()));
    Adc true |core, a, b| {
        let carry = core.flags.cf();
        core.flags_add(a, b, carry)
    };
    Sbb true |core, a, b| {
        let borrow = core.flags.cf();
        core.flags_sub(a, b, borrow)
    };
}

macro_rules! unary {
    ($($name:ident |$core:ident, $a:ident| $body:expr;)*) => { $(
        struct $name;
        impl Unary for $name {
            #[inline(always)]
            fn apply<T: Width>($core: &mut Core, $a: T) -> T { $body }
        }
    )* };
}

unary! {
    Not |_core, a| T::cut(!a.zx());
    Neg |core, a| core.flags_sub(T::cut(0), a, false);
    Inc |core, a| {
        let carry = core.flags.cf();
        let result = core.flags_add(a, T::cut(1), false);
        keep_carry(core, carry);
        result
    };
    Dec |core, a| {
        let carry = core.flags.cf();
        let result = core.flags_sub(a, T::cut(1), false);
        keep_carry(core, carry);
        result
    };
}

/// Gives CF its old value, and keeps OF.
#[inline(always)]
fn keep_carry(core: &mut Core, carry: bool) {
    let changed = core.flags.misc ^ u32::from(carry);
    core.flags.misc = u32::from(carry);
    core.flags.carries ^= u64::from(changed) << 63;
}

#[inline(always)]
fn reg_reg<O: Binary, T: Width>(core: &mut Core, op: &Op) -> Step {
    let result = O::apply(core, core.reg::<T>(op.dst), core.reg::<T>(op.src));
    if O::WRITES {
        core.set_reg(op.dst, result);
    }
    Ok(())
}

fn reg_imm<O: Binary, T: Width>(core: &mut Core, op: &Op) -> Step {
    let result = O::apply(core, core.reg::<T>(op.dst), T::cut(op.imm));
    if O::WRITES {
        core.set_reg(op.dst, result);
    }
    Ok(())
}

fn reg_mem<O: Binary, T: Width>(core: &mut Core, op: &Op) -> Step {
    core.load_then(op, |core, op, value: T| {
        let result = O::apply(core, core.reg::<T>(op.dst), value);
        if O::WRITES {
            core.set_reg(op.dst, result);
        }
    })
}

#[inline(always)]
fn mem_value<O: Binary, T: Width>(core: &mut Core, op: &Op, value: impl Fn(&Core, &Op) -> T) -> Step {
    if O::WRITES {
        let value = value(core, op);
        core.modify::<T>(op, |core, old| O::apply(core, old, value))
    } else {
        core.load_then(op, |core, op, old: T| {
            O::apply(core, old, value(core, op));
        })
    }
}

fn mem_reg<O: Binary, T: Width>(core: &mut Core, op: &Op) -> Step {
    mem_value::<O, T>(core, op, |core, op| core.reg(op.src))
}

fn mem_imm<O: Binary, T: Width>(core: &mut Core, op: &Op) -> Step {
    mem_value::<O, T>(core, op, |_, op| T::cut(op.imm))
}

fn unary_reg<O: Unary, T: Width>(core: &mut Core, op: &Op) -> Step {
    let result = O::apply(core, core.reg::<T>(op.dst));
    core.set_reg(op.dst, result);
    Ok(())
}

fn unary_mem<O: Unary, T: Width>(core: &mut Core, op: &Op) -> Step {
    core.modify::<T>(op, |core, old| O::apply(core, old))
}

fn binary_entry<O: Binary>(code: Code) -> Option<Entry> {
    let width = bits(code, 0);
    match (operand(code, 0), operand(code, 1)) {
        (Operand::RegisterOrMemory, Operand::Register) => {
            Entry::rm(FAMILY, handler_by_width!(width, reg_reg, O), handler_by_width!(width, mem_reg, O))
        }
        (Operand::Register, Operand::RegisterOrMemory) => {
            Entry::rm(FAMILY, handler_by_width!(width, reg_reg, O), handler_by_width!(width, reg_mem, O))
        }
        (_, Operand::Immediate) => {
            Entry::rm(FAMILY, handler_by_width!(width, reg_imm, O), handler_by_width!(width, mem_imm, O))
        }
        _ => None,
    }
}

fn unary_entry<O: Unary>(code: Code) -> Option<Entry> {
    let width = bits(code, 0);
    Entry::rm(FAMILY, handler_by_width!(width, unary_reg, O), handler_by_width!(width, unary_mem, O))
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    match code.mnemonic() {
        Mnemonic::Add => binary_entry::<Add>(code),
        Mnemonic::Adc => binary_entry::<Adc>(code),
        Mnemonic::Sub => binary_entry::<Sub>(code),
        Mnemonic::Sbb => binary_entry::<Sbb>(code),
        Mnemonic::Cmp => binary_entry::<Cmp>(code),
        Mnemonic::And => binary_entry::<And>(code),
        Mnemonic::Or => binary_entry::<Or>(code),
        Mnemonic::Xor => binary_entry::<Xor>(code),
        Mnemonic::Test => binary_entry::<Test>(code),
        Mnemonic::Inc => unary_entry::<Inc>(code),
        Mnemonic::Dec => unary_entry::<Dec>(code),
        Mnemonic::Neg => unary_entry::<Neg>(code),
        Mnemonic::Not => unary_entry::<Not>(code),
        _ => None,
    }
}
