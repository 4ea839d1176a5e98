// SPDX-License-Identifier: AGPL-3.0-or-later
//! Decimal adjustments (compatibility mode only), as the SDM's pseudocode has them.
//!
//! Undefined flags: AAA and AAS set ZF, SF and PF from AL and clear OF; DAA and DAS clear OF; AAM and AAD clear CF, OF and AF.

use crate::core_state::{Core, vector};
use crate::flags::{LazyFlags, bit};
use crate::op::{Handler, Op, Step};
use crate::table::Entry;
use iced_x86::Code;

const FAMILY: &str = "bcd";
const AL: u8 = 0;
const AX: u8 = 0;
const AH: u8 = 16;

/// ZF, SF and PF from AL, with AF and CF as given and OF clear.
fn set_flags(core: &mut Core, adjust: bool, carry: bool) {
    let shape = LazyFlags { result: (core.reg::<u8>(AL) as i8) as u64, carries: 0, misc: 0 };
    let mut flags = shape.bits();
    flags |= if adjust { bit::AF } else { 0 };
    flags |= if carry { bit::CF } else { 0 };
    core.flags = LazyFlags::from_bits(flags);
}

fn ascii(core: &mut Core, change: i16) -> Step {
    let adjust = core.reg::<u8>(AL) & 15 > 9 || core.flags.af();
    if adjust {
        let ax = core.reg::<u16>(AX).wrapping_add_signed(change);
        core.set_reg(AX, ax);
    }
    let low = core.reg::<u8>(AL) & 15;
    core.set_reg(AL, low);
    set_flags(core, adjust, adjust);
    Ok(())
}

fn aaa(core: &mut Core, _op: &Op) -> Step {
    ascii(core, 0x106)
}

fn aas(core: &mut Core, _op: &Op) -> Step {
    ascii(core, -0x106)
}

fn daa(core: &mut Core, _op: &Op) -> Step {
    let (old, old_carry) = (core.reg::<u8>(AL), core.flags.cf());
    let adjust = old & 15 > 9 || core.flags.af();
    let carry = old > 0x99 || old_carry;
    let value = old.wrapping_add(if adjust { 6 } else { 0 }).wrapping_add(if carry { 0x60 } else { 0 });
    core.set_reg(AL, value);
    set_flags(core, adjust, carry);
    Ok(())
}

fn das(core: &mut Core, _op: &Op) -> Step {
    let (old, old_carry) = (core.reg::<u8>(AL), core.flags.cf());
    let adjust = old & 15 > 9 || core.flags.af();
    let high = old > 0x99 || old_carry;
    let borrow = adjust && (old < 6 || old_carry);
    let value = old.wrapping_sub(if adjust { 6 } else { 0 }).wrapping_sub(if high { 0x60 } else { 0 });
    core.set_reg(AL, value);
    set_flags(core, adjust, high || borrow);
    Ok(())
}

fn aam(core: &mut Core, op: &Op) -> Step {
    let base = op.imm as u8;
    let al = core.reg::<u8>(AL);
    let (Some(quotient), Some(remainder)) = (al.checked_div(base), al.checked_rem(base)) else {
        return Err(core.fault(vector::DE));
    };
    core.set_reg(AH, quotient);
    core.set_reg(AL, remainder);
    set_flags(core, false, false);
    Ok(())
}

fn aad(core: &mut Core, op: &Op) -> Step {
    let value = core.reg::<u8>(AH).wrapping_mul(op.imm as u8).wrapping_add(core.reg::<u8>(AL));
    core.set_reg(AX, u16::from(value));
    set_flags(core, false, false);
    Ok(())
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let handler: Handler = match code {
        Code::Aaa => aaa,
        Code::Aas => aas,
        Code::Daa => daa,
        Code::Das => das,
        Code::Aam_imm8 => aam,
        Code::Aad_imm8 => aad,
        _ => return None,
    };
    Entry::one(FAMILY, handler)
}
