// SPDX-License-Identifier: AGPL-3.0-or-later
//! CLC, STC, CMC, CLD, STD, LAHF, SAHF, SALC. (CLI and STI belong to the system instructions.)

use crate::core_state::Core;
use crate::flags::{LazyFlags, bit};
use crate::op::{Handler, Op, Step};
use crate::table::Entry;
use iced_x86::Code;

const FAMILY: &str = "flags";
const AH: u8 = 16;
const LAHF_BITS: u64 = bit::CF | bit::PF | bit::AF | bit::ZF | bit::SF;

fn clc(core: &mut Core, _op: &Op) -> Step {
    core.set_carry(false);
    Ok(())
}

fn stc(core: &mut Core, _op: &Op) -> Step {
    core.set_carry(true);
    Ok(())
}

fn cmc(core: &mut Core, _op: &Op) -> Step {
    let carry = core.flags.cf();
    core.set_carry(!carry);
    Ok(())
}

fn cld(core: &mut Core, _op: &Op) -> Step {
    core.system_flags &= !bit::DF;
    Ok(())
}

fn std(core: &mut Core, _op: &Op) -> Step {
    core.system_flags |= bit::DF;
    Ok(())
}

fn lahf(core: &mut Core, _op: &Op) -> Step {
    let flags = core.flags.bits() & LAHF_BITS | bit::FIXED;
    core.set_reg(AH, flags as u8);
    Ok(())
}

fn sahf(core: &mut Core, _op: &Op) -> Step {
    let loaded = u64::from(core.reg::<u8>(AH)) & LAHF_BITS;
    core.flags = LazyFlags::from_bits((core.flags.bits() & !LAHF_BITS) | loaded);
    Ok(())
}

/// Undocumented and in every CPU: AL from CF.
fn salc(core: &mut Core, _op: &Op) -> Step {
    let value = if core.flags.cf() { 0xff } else { 0 };
    core.set_reg(0, value as u8);
    Ok(())
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let handler: Handler = match code {
        Code::Clc => clc,
        Code::Stc => stc,
        Code::Cmc => cmc,
        Code::Cld => cld,
        Code::Std => std,
        Code::Lahf => lahf,
        Code::Sahf => sahf,
        Code::Salc => salc,
        _ => return None,
    };
    Entry::one(FAMILY, handler)
}
