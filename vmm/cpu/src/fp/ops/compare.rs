// SPDX-License-Identifier: AGPL-3.0-or-later
//! Comparisons that set RFLAGS: COMISx, UCOMISx, PTEST, and the string comparisons of SSE4.2.

use super::{record, source_low, source128, xmm, xmm_mut};
use crate::core_state::Core;
use crate::flags::{LazyFlags, bit};
use crate::fp::simd::strings::{self, Comparison};
use crate::fp::soft::sse::{self, Env, F32, F64, Relation};
use crate::op::{Op, Step, Trap, attr};

/// The status flags of a comparison; OF, SF and AF are cleared.
fn relation_flags(relation: Relation) -> u64 {
    match relation {
        Relation::Greater => 0,
        Relation::Less => bit::CF,
        Relation::Equal => bit::ZF,
        Relation::Unordered => bit::ZF | bit::PF | bit::CF,
    }
}

/// COMISS, and UCOMISS where `QUIET_INVALID` is false.
pub fn comiss<const QUIET_INVALID: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source_low::<u32>(core, op)? as u64;
    let a = u64::from(xmm(core, op.dst) as u32);
    let (relation, flags) = sse::compare::<F32>(a, b, QUIET_INVALID, Env(core.mxcsr));
    record(core, flags)?;
    core.flags = LazyFlags::from_bits(relation_flags(relation));
    Ok(())
}

/// COMISD, and UCOMISD where `QUIET_INVALID` is false.
pub fn comisd<const QUIET_INVALID: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source_low::<u64>(core, op)? as u64;
    let a = xmm(core, op.dst) as u64;
    let (relation, flags) = sse::compare::<F64>(a, b, QUIET_INVALID, Env(core.mxcsr));
    record(core, flags)?;
    core.flags = LazyFlags::from_bits(relation_flags(relation));
    Ok(())
}

/// PTEST: ZF if no bit is in both, CF if no bit of the source is outside the destination.
pub fn ptest(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?;
    let a = xmm(core, op.dst);
    let zf = if a & b == 0 { bit::ZF } else { 0 };
    let cf = if !a & b == 0 { bit::CF } else { 0 };
    core.flags = LazyFlags::from_bits(zf | cf);
    Ok(())
}

/// Compares the operands of a string instruction; its memory operand need not be aligned. `lengths` gives EAX and EDX (or RAX
/// and RDX) to the forms with explicit lengths.
fn string_comparison(core: &mut Core, op: &Op, lengths: Option<(i64, i64)>) -> Result<Comparison, Trap> {
    core.check_sse()?;
    let b = if op.has(attr::MEMORY) { core.load::<u128>(op)? } else { xmm(core, op.src) }.to_le_bytes();
    let a = xmm(core, op.dst).to_le_bytes();
    let imm = op.imm as u8;
    let (a_len, b_len) = match lengths {
        Some((a, b)) => (strings::explicit_length(a, imm), strings::explicit_length(b, imm)),
        None => (strings::implicit_length(&a, imm), strings::implicit_length(&b, imm)),
    };
    Ok(strings::compare(&a, a_len, &b, b_len, imm))
}

/// CF any hit, ZF the second operand ends, SF the first operand ends, OF the first element is hit.
fn set_string_flags(core: &mut Core, found: Comparison) {
    let flag = |set: bool, bit: u64| if set { bit } else { 0 };
    let flags = flag(found.bits != 0, bit::CF)
        | flag(found.b_ends, bit::ZF)
        | flag(found.a_ends, bit::SF)
        | flag(found.bits & 1 != 0, bit::OF);
    core.flags = LazyFlags::from_bits(flags);
}

fn finish_index(core: &mut Core, op: &Op, found: Comparison) {
    core.set_reg::<u32>(1, found.index(op.imm as u8));
    set_string_flags(core, found);
}

fn finish_mask(core: &mut Core, op: &Op, found: Comparison) {
    *xmm_mut(core, 0) = u128::from_le_bytes(found.mask(op.imm as u8));
    set_string_flags(core, found);
}

/// EAX and EDX, or RAX and RDX, as lengths.
fn lengths<const WIDE: bool>(core: &Core) -> Option<(i64, i64)> {
    let length = |register| match WIDE {
        true => core.reg::<u64>(register) as i64,
        false => i64::from(core.reg::<u32>(register) as i32),
    };
    Some((length(0), length(2)))
}

/// PCMPISTRI.
pub fn pcmpistri(core: &mut Core, op: &Op) -> Step {
    let found = string_comparison(core, op, None)?;
    finish_index(core, op, found);
    Ok(())
}

/// PCMPISTRM.
pub fn pcmpistrm(core: &mut Core, op: &Op) -> Step {
    let found = string_comparison(core, op, None)?;
    finish_mask(core, op, found);
    Ok(())
}

/// PCMPESTRI.
pub fn pcmpestri<const WIDE: bool>(core: &mut Core, op: &Op) -> Step {
    let found = string_comparison(core, op, lengths::<WIDE>(core))?;
    finish_index(core, op, found);
    Ok(())
}

/// PCMPESTRM.
pub fn pcmpestrm<const WIDE: bool>(core: &mut Core, op: &Op) -> Step {
    let found = string_comparison(core, op, lengths::<WIDE>(core))?;
    finish_mask(core, op, found);
    Ok(())
}
