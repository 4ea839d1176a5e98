// SPDX-License-Identifier: AGPL-3.0-or-later
//! Conversions between formats, integers and register classes.

use super::arith::{LaneOf, set_low};
use super::scalar_moves::source_rm;
use super::{enter_mmx, mm, record, set_mm, source_low, source128, xmm_mut};
use crate::core_state::Core;
use crate::fp::simd::Lane;
use crate::fp::soft::Rounding;
use crate::fp::soft::sse::{Env, F32, F64};
use crate::fp::soft::sse_convert::{f32_to_f64, f64_to_f32, from_integer, to_integer};
use crate::op::{Op, Step, Trap, attr};
use crate::width::Width;

/// CVTSI2SS, CVTSI2SD xmm, r/m.
pub fn scalar_from_integer<F: LaneOf, T: Width>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = source_rm::<T>(core, op)?.sx() as i64;
    let (result, flags) = from_integer::<F>(value, Env(core.mxcsr));
    record(core, flags)?;
    set_low::<F>(core, op.dst, result);
    Ok(())
}

/// The rounding of a conversion to integer: toward zero for the CVTT forms.
fn rounding<const TRUNCATE: bool>(env: Env) -> Rounding {
    if TRUNCATE { Rounding::Zero } else { env.rounding() }
}

/// CVTSS2SI, CVTTSS2SI.
pub fn cvtss2si<const TRUNCATE: bool, T: Width>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let a = source_low::<u32>(core, op)? as u64;
    let env = Env(core.mxcsr);
    let (result, flags) = to_integer::<F32>(a, T::BITS, rounding::<TRUNCATE>(env), env);
    record(core, flags)?;
    core.set_reg::<T>(op.dst, T::cut(result as u64));
    Ok(())
}

/// CVTSD2SI, CVTTSD2SI.
pub fn cvtsd2si<const TRUNCATE: bool, T: Width>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let a = source_low::<u64>(core, op)? as u64;
    let env = Env(core.mxcsr);
    let (result, flags) = to_integer::<F64>(a, T::BITS, rounding::<TRUNCATE>(env), env);
    record(core, flags)?;
    core.set_reg::<T>(op.dst, T::cut(result as u64));
    Ok(())
}

/// CVTSS2SD.
pub fn cvtss2sd(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let a = source_low::<u32>(core, op)? as u64;
    let (result, flags) = f32_to_f64(a, Env(core.mxcsr));
    record(core, flags)?;
    set_low::<F64>(core, op.dst, result);
    Ok(())
}

/// CVTSD2SS.
pub fn cvtsd2ss(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let a = source_low::<u64>(core, op)? as u64;
    let (result, flags) = f64_to_f32(a, Env(core.mxcsr));
    record(core, flags)?;
    set_low::<F32>(core, op.dst, result);
    Ok(())
}

/// Converts the lanes `From` of `source` into lanes `To` of a register, as many as fit both; the rest is cleared.
#[inline(always)]
fn lanes<From: Lane, To: Lane>(source: u128, f: impl Fn(From) -> (To, u32)) -> (u128, u32) {
    let source = source.to_le_bytes();
    let mut out = [0; 16];
    let mut flags = 0;
    for i in 0..16 / From::BYTES.max(To::BYTES) {
        let (result, raised) = f(From::get(&source, i));
        result.set(&mut out, i);
        flags |= raised;
    }
    (u128::from_le_bytes(out), flags)
}

/// A 32-bit integer of a conversion.
fn narrow((value, flags): (i64, u32)) -> (i32, u32) {
    (value as i32, flags)
}

/// A 32-bit float of a conversion.
fn single((value, flags): (u64, u32)) -> (u32, u32) {
    (value as u32, flags)
}

fn finish(core: &mut Core, op: &Op, (result, flags): (u128, u32)) -> Step {
    record(core, flags)?;
    *xmm_mut(core, op.dst) = result;
    Ok(())
}

/// CVTPS2PD.
pub fn cvtps2pd(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let source = source_low::<u64>(core, op)?;
    let env = Env(core.mxcsr);
    finish(core, op, lanes(source, |x: u32| f32_to_f64(u64::from(x), env)))
}

/// CVTPD2PS.
pub fn cvtpd2ps(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let source = source128(core, op)?;
    let env = Env(core.mxcsr);
    finish(core, op, lanes(source, |x: u64| single(f64_to_f32(x, env))))
}

/// CVTDQ2PS.
pub fn cvtdq2ps(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let source = source128(core, op)?;
    let env = Env(core.mxcsr);
    finish(core, op, lanes(source, |x: i32| single(from_integer::<F32>(i64::from(x), env))))
}

/// CVTDQ2PD.
pub fn cvtdq2pd(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let source = source_low::<u64>(core, op)?;
    let env = Env(core.mxcsr);
    finish(core, op, lanes(source, |x: i32| from_integer::<F64>(i64::from(x), env)))
}

/// CVTPS2DQ, CVTTPS2DQ.
pub fn cvtps2dq<const TRUNCATE: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let source = source128(core, op)?;
    let env = Env(core.mxcsr);
    let convert = |x: u32| narrow(to_integer::<F32>(u64::from(x), 32, rounding::<TRUNCATE>(env), env));
    finish(core, op, lanes(source, convert))
}

/// CVTPD2DQ, CVTTPD2DQ.
pub fn cvtpd2dq<const TRUNCATE: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let source = source128(core, op)?;
    let env = Env(core.mxcsr);
    finish(core, op, lanes(source, |x: u64| narrow(to_integer::<F64>(x, 32, rounding::<TRUNCATE>(env), env))))
}

/// The MMX register or memory operand of CVTPI2Px. The memory form has nothing to do with the x87 state.
fn packed_integers(core: &mut Core, op: &Op) -> Result<u128, Trap> {
    if op.has(attr::MEMORY) {
        return Ok(u128::from(core.load::<u64>(op)?));
    }
    core.check_x87_pending()?;
    enter_mmx(core);
    Ok(u128::from(mm(core, op.src)))
}

/// CVTPI2PS xmm, mm/m64: the upper half stays.
pub fn cvtpi2ps(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let source = packed_integers(core, op)?;
    let env = Env(core.mxcsr);
    let (result, flags) = lanes(source, |x: i32| single(from_integer::<F32>(i64::from(x), env)));
    record(core, flags)?;
    set_low::<F64>(core, op.dst, result as u64);
    Ok(())
}

/// CVTPI2PD xmm, mm/m64: exact.
pub fn cvtpi2pd(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let source = packed_integers(core, op)?;
    let env = Env(core.mxcsr);
    finish(core, op, lanes(source, |x: i32| from_integer::<F64>(i64::from(x), env)))
}

/// CVTPS2PI, CVTTPS2PI mm, xmm/m64.
pub fn cvtps2pi<const TRUNCATE: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    core.check_x87_pending()?;
    let source = source_low::<u64>(core, op)?;
    let env = Env(core.mxcsr);
    let convert = |x: u32| narrow(to_integer::<F32>(u64::from(x), 32, rounding::<TRUNCATE>(env), env));
    finish_mmx(core, op, lanes(source & u128::from(u64::MAX), convert))
}

/// CVTPD2PI, CVTTPD2PI mm, xmm/m128.
pub fn cvtpd2pi<const TRUNCATE: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    core.check_x87_pending()?;
    let source = source128(core, op)?;
    let env = Env(core.mxcsr);
    finish_mmx(core, op, lanes(source, |x: u64| narrow(to_integer::<F64>(x, 32, rounding::<TRUNCATE>(env), env))))
}

fn finish_mmx(core: &mut Core, op: &Op, (result, flags): (u128, u32)) -> Step {
    enter_mmx(core);
    record(core, flags)?;
    set_mm(core, op.dst, result as u64);
    Ok(())
}
