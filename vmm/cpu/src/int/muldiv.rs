// SPDX-License-Identifier: AGPL-3.0-or-later
//! MUL, IMUL, DIV, IDIV.
//!
//! Undefined flags: a multiplication sets SF and PF from the low half of the product and clears ZF and AF; a division
//! changes no flag.

use crate::core_state::{Core, vector};
use crate::flags::{LazyFlags, bit};
use crate::forms::{bits, handler_by_width};
use crate::op::{Op, Step};
use crate::table::Entry;
use crate::width::Width;
use iced_x86::{Code, Mnemonic};

const FAMILY: &str = "muldiv";
const RAX: u8 = 0;
const RDX: u8 = 2;
const AH: u8 = 16;

impl Core {
    fn flags_product<T: Width>(&mut self, low: T, overflow: bool) {
        let shape = LazyFlags { result: low.sx(), carries: 0, misc: 0 };
        let mut flags = shape.bits() & (bit::SF | bit::PF);
        if overflow {
            flags |= bit::CF | bit::OF;
        }
        self.flags = LazyFlags::from_bits(flags);
    }

    /// Stores a double-width result in AX or xDX:xAX.
    #[inline(always)]
    fn set_wide<T: Width>(&mut self, low: T, high: T) {
        self.set_reg(RAX, low);
        self.set_reg(if T::BITS == 8 { AH } else { RDX }, high);
    }

    #[inline(always)]
    fn wide<T: Width>(&self) -> u128 {
        let high = self.reg::<T>(if T::BITS == 8 { AH } else { RDX });
        u128::from(high.zx()) << T::BITS | u128::from(self.reg::<T>(RAX).zx())
    }
}

fn multiply<T: Width>(core: &mut Core, b: T) -> Step {
    let product = u128::from(core.reg::<T>(RAX).zx()) * u128::from(b.zx());
    let (low, high) = (T::cut(product as u64), T::cut((product >> T::BITS) as u64));
    core.set_wide(low, high);
    core.flags_product(low, high.zx() != 0);
    Ok(())
}

fn multiply_signed<T: Width>(core: &mut Core, b: T) -> Step {
    let product = i128::from(core.reg::<T>(RAX).sx() as i64) * i128::from(b.sx() as i64);
    let (low, high) = (T::cut(product as u64), T::cut((product >> T::BITS) as u64));
    core.set_wide(low, high);
    core.flags_product(low, i128::from(low.sx() as i64) != product);
    Ok(())
}

fn divide<T: Width>(core: &mut Core, b: T) -> Step {
    if b.zx() == 0 {
        return Err(core.fault(vector::DE));
    }
    let dividend = core.wide::<T>();
    let (quotient, remainder) = match u64::try_from(dividend) {
        Ok(small) => (u128::from(small / b.zx()), small % b.zx()),
        Err(_) => (dividend / u128::from(b.zx()), (dividend % u128::from(b.zx())) as u64),
    };
    if quotient >> T::BITS != 0 {
        return Err(core.fault(vector::DE));
    }
    core.set_wide(T::cut(quotient as u64), T::cut(remainder));
    Ok(())
}

fn divide_signed<T: Width>(core: &mut Core, b: T) -> Step {
    let unused = 128 - 2 * T::BITS;
    let dividend = (core.wide::<T>() << unused) as i128 >> unused;
    let divisor = i128::from(b.sx() as i64);
    // The only overflow of the 128-bit division is MIN / -1, whose quotient does not fit either.
    let (Some(quotient), Some(remainder)) = (dividend.checked_div(divisor), dividend.checked_rem(divisor)) else {
        return Err(core.fault(vector::DE));
    };
    let low = T::cut(quotient as u64);
    if i128::from(low.sx() as i64) != quotient {
        return Err(core.fault(vector::DE));
    }
    core.set_wide(low, T::cut(remainder as u64));
    Ok(())
}

macro_rules! one_operand {
    ($($register:ident $memory:ident $body:ident;)*) => { $(
        fn $register<T: Width>(core: &mut Core, op: &Op) -> Step {
            $body::<T>(core, core.reg::<T>(op.dst))
        }
        fn $memory<T: Width>(core: &mut Core, op: &Op) -> Step {
            let value = core.load::<T>(op)?;
            $body::<T>(core, value)
        }
    )* };
}
one_operand! {
    mul_reg mul_mem multiply;
    imul_reg imul_mem multiply_signed;
    div_reg div_mem divide;
    idiv_reg idiv_mem divide_signed;
}

/// IMUL with two or three operands.
#[inline(always)]
fn product<T: Width>(core: &mut Core, op: &Op, a: T, b: T) -> Step {
    let product = i128::from(a.sx() as i64) * i128::from(b.sx() as i64);
    let low = T::cut(product as u64);
    core.set_reg(op.dst, low);
    core.flags_product(low, i128::from(low.sx() as i64) != product);
    Ok(())
}

fn imul2_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    product::<T>(core, op, core.reg(op.dst), core.reg(op.src))
}

fn imul2_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let value = core.load::<T>(op)?;
    product::<T>(core, op, core.reg(op.dst), value)
}

fn imul3_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    product::<T>(core, op, core.reg(op.src), T::cut(op.imm))
}

fn imul3_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let value = core.load::<T>(op)?;
    product::<T>(core, op, value, T::cut(op.imm))
}

fn imul_entry(code: Code, width: u32) -> Option<Entry> {
    match code.op_code().op_count() {
        1 => Entry::rm(FAMILY, handler_by_width!(width, imul_reg), handler_by_width!(width, imul_mem)),
        2 => Entry::rm(FAMILY, handler_by_width!(width, imul2_reg), handler_by_width!(width, imul2_mem)),
        _ => Entry::rm(FAMILY, handler_by_width!(width, imul3_reg), handler_by_width!(width, imul3_mem)),
    }
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let width = match code.op_code().op_count() {
        0 => 0,
        _ => bits(code, 0),
    };
    match code.mnemonic() {
        Mnemonic::Mul => Entry::rm(FAMILY, handler_by_width!(width, mul_reg), handler_by_width!(width, mul_mem)),
        Mnemonic::Imul => imul_entry(code, width),
        Mnemonic::Div => Entry::rm(FAMILY, handler_by_width!(width, div_reg), handler_by_width!(width, div_mem)),
        Mnemonic::Idiv => Entry::rm(FAMILY, handler_by_width!(width, idiv_reg), handler_by_width!(width, idiv_mem)),
        _ => None,
    }
}
