// SPDX-License-Identifier: AGPL-3.0-or-later
//! Handlers: operands in, a pure function of `simd`, `soft` or `x87`, the result out.
//!
//! Every handler checks availability first, then reads memory, and only then changes state, so that a fault or an exit
//! leaves nothing half done. Operand 0 is `dst`, operand 1 `src`, operand 2 `third`.

use crate::core_state::Core;
use crate::op::{Op, Step, Trap, attr};
use crate::width::Mem;

pub mod arith;
pub mod compare;
pub mod control;
pub mod convert;
pub mod fxsave;
pub mod moves;
pub mod packed;
pub mod scalar_moves;
pub mod x87;
pub mod x87_control;
pub mod x87_transcendental;
pub mod x87_unary;

/// An XMM register.
#[inline(always)]
pub fn xmm(core: &Core, register: u8) -> u128 {
    core.xmm[usize::from(register & 15)]
}

/// An XMM register to be changed.
#[inline(always)]
pub fn xmm_mut(core: &mut Core, register: u8) -> &mut u128 {
    &mut core.xmm[usize::from(register & 15)]
}

/// An MMX register.
#[inline(always)]
pub fn mm(core: &Core, register: u8) -> u64 {
    core.x87.significand[usize::from(register & 7)]
}

/// Writes an MMX register: the exponent part of the x87 register becomes all ones.
#[inline(always)]
pub fn set_mm(core: &mut Core, register: u8, value: u64) {
    let register = usize::from(register & 7);
    core.x87.significand[register] = value;
    core.x87.sign_exponent[register] = 0xffff;
}

/// What every MMX instruction but EMMS does to the x87 state: TOP is 0 and all registers are valid.
#[inline(always)]
pub fn enter_mmx(core: &mut Core) {
    core.x87.tag = 0;
    core.x87.set_top(0);
}

/// Operand 1: an XMM register or an aligned 16-byte location.
#[inline(always)]
pub fn source128(core: &mut Core, op: &Op) -> Result<u128, Trap> {
    if op.has(attr::MEMORY) { core.load_aligned(op) } else { Ok(xmm(core, op.src)) }
}

/// Operand 1: the low bytes of an XMM register, or memory of that size.
#[inline(always)]
pub fn source_low<T: Mem>(core: &mut Core, op: &Op) -> Result<u128, Trap> {
    let value = if op.has(attr::MEMORY) { core.load::<T>(op)?.to_bits() } else { xmm(core, op.src) };
    Ok(value & (u128::MAX >> (128 - 8 * T::BYTES)))
}

/// Operand 1: an MMX register or memory.
#[inline(always)]
pub fn source_mmx(core: &mut Core, op: &Op) -> Result<u64, Trap> {
    if op.has(attr::MEMORY) { core.load::<u64>(op) } else { Ok(mm(core, op.src)) }
}

/// Records SIMD exception flags; an unmasked one raises #XM (and the caller then writes no result). An unmasked exception that
/// is found before a result exists keeps the result's own exceptions from being recorded.
#[inline(always)]
pub fn record(core: &mut Core, flags: u32) -> Step {
    if flags == 0 { Ok(()) } else { record_some(core, flags) }
}

#[cold]
fn record_some(core: &mut Core, flags: u32) -> Step {
    use super::soft::flag;
    let unmasked = flags & !(core.mxcsr >> 7) & flag::ALL;
    if unmasked == 0 {
        core.mxcsr |= flags;
        return Ok(());
    }
    core.mxcsr |= if unmasked & flag::BEFORE_RESULT != 0 { flags & flag::BEFORE_RESULT } else { flags };
    Err(core.simd_exception())
}
