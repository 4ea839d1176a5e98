// SPDX-License-Identifier: AGPL-3.0-or-later
//! SSE floating-point arithmetic: one generic handler a shape, one type an operation.

use super::{record, source_low, source128, xmm, xmm_mut};
use crate::core_state::Core;
use crate::fp::simd::Lane;
use crate::fp::soft::approx;
use crate::fp::soft::sse::{self, Env, F32, F64, Flagged, Float};
use crate::fp::soft::sse_convert;
use crate::op::{Op, Step};

/// A lane of a format.
pub trait LaneOf: Float {
    /// The integer that carries it.
    type Bits: Lane + Into<u64>;
    /// Narrows a result.
    fn bits(value: u64) -> Self::Bits;
}

impl LaneOf for F32 {
    type Bits = u32;
    #[inline(always)]
    fn bits(value: u64) -> u32 {
        value as u32
    }
}

impl LaneOf for F64 {
    type Bits = u64;
    #[inline(always)]
    fn bits(value: u64) -> u64 {
        value
    }
}

/// An operation on two lanes.
pub trait Binary {
    /// The result and its flags.
    fn apply<F: Float>(a: u64, b: u64, env: Env) -> Flagged;
}

macro_rules! binary {
    ($($name:ident: |$a:ident, $b:ident, $env:ident| $body:expr;)*) => {$(
        #[doc = concat!(stringify!($name), " on lanes of format F.")]
        pub struct $name;
        impl Binary for $name {
            #[inline(always)]
            fn apply<F: Float>($a: u64, $b: u64, $env: Env) -> Flagged {
                $body
            }
        }
    )*};
}

binary! {
    Add: |a, b, env| sse::add::<F>(a, b, env);
    Sub: |a, b, env| sse::sub::<F>(a, b, env);
    Mul: |a, b, env| sse::mul::<F>(a, b, env);
    Div: |a, b, env| sse::div::<F>(a, b, env);
    Min: |a, b, env| sse::min_max::<F>(a, b, false, env);
    Max: |a, b, env| sse::min_max::<F>(a, b, true, env);
    Sqrt: |a, b, env| { let _ = a; sse::sqrt::<F>(b, env) };
}

/// Lanes of `F` in an XMM register.
const fn lanes<F: LaneOf>() -> usize {
    16 / <F::Bits as Lane>::BYTES
}

/// Computes each result lane from its number and gathers the flags.
#[inline(always)]
fn each_lane<F: LaneOf>(mut f: impl FnMut(usize) -> Flagged) -> (u128, u32) {
    let mut out = [0; 16];
    let mut flags = 0;
    for i in 0..lanes::<F>() {
        let (result, raised) = f(i);
        F::bits(result).set(&mut out, i);
        flags |= raised;
    }
    (u128::from_le_bytes(out), flags)
}

#[inline(always)]
fn lane<F: LaneOf>(register: &[u8; 16], i: usize) -> u64 {
    <F::Bits as Lane>::get(register, i).into()
}

/// xPS, xPD xmm, xmm/m128
pub fn packed<O: Binary, F: LaneOf>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?.to_le_bytes();
    let a = xmm(core, op.dst).to_le_bytes();
    let env = Env(core.mxcsr);
    let (result, flags) = each_lane::<F>(|i| O::apply::<F>(lane::<F>(&a, i), lane::<F>(&b, i), env));
    record(core, flags)?;
    *xmm_mut(core, op.dst) = result;
    Ok(())
}

/// Replaces the low lane of the destination.
#[inline(always)]
pub fn set_low<F: LaneOf>(core: &mut Core, register: u8, value: u64) {
    let register = xmm_mut(core, register);
    let bits = 8 * <F::Bits as Lane>::BYTES;
    *register = (*register >> bits << bits) | u128::from(value);
}

macro_rules! scalar {
    ($name:ident, $format:ty, $mem:ty) => {
        /// xSS, xSD xmm, xmm/m: the low lane only.
        pub fn $name<O: Binary>(core: &mut Core, op: &Op) -> Step {
            core.check_sse()?;
            let b = source_low::<$mem>(core, op)? as u64;
            let a = xmm(core, op.dst) as $mem;
            let (result, flags) = O::apply::<$format>(u64::from(a), b, Env(core.mxcsr));
            record(core, flags)?;
            set_low::<$format>(core, op.dst, result);
            Ok(())
        }
    };
}
scalar!(scalar32, F32, u32);
scalar!(scalar64, F64, u64);

/// HADDPS and its like: neighbours within each operand.
pub fn horizontal<O: Binary, F: LaneOf>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?.to_le_bytes();
    let a = xmm(core, op.dst).to_le_bytes();
    let env = Env(core.mxcsr);
    let half = lanes::<F>() / 2;
    let (result, flags) = each_lane::<F>(|i| {
        let (source, pair) = if i < half { (&a, i) } else { (&b, i - half) };
        O::apply::<F>(lane::<F>(source, 2 * pair), lane::<F>(source, 2 * pair + 1), env)
    });
    record(core, flags)?;
    *xmm_mut(core, op.dst) = result;
    Ok(())
}

/// ADDSUBPS, ADDSUBPD: even lanes subtract, odd lanes add.
pub fn addsub<F: LaneOf>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?.to_le_bytes();
    let a = xmm(core, op.dst).to_le_bytes();
    let env = Env(core.mxcsr);
    let (result, flags) = each_lane::<F>(|i| {
        let apply = if i & 1 == 0 { Sub::apply::<F> } else { Add::apply::<F> };
        apply(lane::<F>(&a, i), lane::<F>(&b, i), env)
    });
    record(core, flags)?;
    *xmm_mut(core, op.dst) = result;
    Ok(())
}

/// CMPPS, CMPPD: a mask a lane. Only the low three bits of the immediate count.
pub fn compare_packed<F: LaneOf>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?.to_le_bytes();
    let a = xmm(core, op.dst).to_le_bytes();
    let env = Env(core.mxcsr);
    let (result, flags) = each_lane::<F>(|i| predicate_mask::<F>(lane::<F>(&a, i), lane::<F>(&b, i), op.imm, env));
    record(core, flags)?;
    *xmm_mut(core, op.dst) = result;
    Ok(())
}

fn predicate_mask<F: LaneOf>(a: u64, b: u64, imm: u64, env: Env) -> Flagged {
    let (holds, flags) = sse::predicate::<F>(a, b, imm as u8 & 7, env);
    (if holds { F::SIGN | (F::SIGN - 1) } else { 0 }, flags)
}

/// CMPSS.
pub fn cmpss(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source_low::<u32>(core, op)? as u64;
    let a = u64::from(xmm(core, op.dst) as u32);
    let (result, flags) = predicate_mask::<F32>(a, b, op.imm, Env(core.mxcsr));
    record(core, flags)?;
    set_low::<F32>(core, op.dst, result);
    Ok(())
}

/// CMPSD.
pub fn cmpsd(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source_low::<u64>(core, op)? as u64;
    let a = xmm(core, op.dst) as u64;
    let (result, flags) = predicate_mask::<F64>(a, b, op.imm, Env(core.mxcsr));
    record(core, flags)?;
    set_low::<F64>(core, op.dst, result);
    Ok(())
}

/// ROUNDPS, ROUNDPD.
pub fn round_packed<F: LaneOf>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?.to_le_bytes();
    let env = Env(core.mxcsr);
    let (result, flags) = each_lane::<F>(|i| sse_convert::round_to_integral::<F>(lane::<F>(&b, i), op.imm as u8, env));
    record(core, flags)?;
    *xmm_mut(core, op.dst) = result;
    Ok(())
}

/// ROUNDSS.
pub fn roundss(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source_low::<u32>(core, op)? as u64;
    let (result, flags) = sse_convert::round_to_integral::<F32>(b, op.imm as u8, Env(core.mxcsr));
    record(core, flags)?;
    set_low::<F32>(core, op.dst, result);
    Ok(())
}

/// ROUNDSD.
pub fn roundsd(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source_low::<u64>(core, op)? as u64;
    let (result, flags) = sse_convert::round_to_integral::<F64>(b, op.imm as u8, Env(core.mxcsr));
    record(core, flags)?;
    set_low::<F64>(core, op.dst, result);
    Ok(())
}

/// DPPS, DPPD: products of the lanes named in `imm[7:4]`, summed, to the lanes named in `imm[3:0]`. The steps are those of separate
/// instructions: a multiplication, then additions of the register to itself with neighbours (and halves) exchanged, which
/// decides which of several NaNs a lane gets. An unmasked exception of a step ends the instruction there.
pub fn dot_product<F: LaneOf>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?.to_le_bytes();
    let a = xmm(core, op.dst).to_le_bytes();
    let imm = op.imm as u8;
    let env = Env(core.mxcsr);
    let mut terms = [0; 4];
    let mut flags = 0;
    for (i, term) in terms.iter_mut().enumerate().take(lanes::<F>()) {
        if imm >> (4 + i) & 1 != 0 {
            let (product, raised) = sse::mul::<F>(lane::<F>(&a, i), lane::<F>(&b, i), env);
            (*term, flags) = (product, flags | raised);
        }
    }
    record(core, flags)?;
    let mut distance = 1;
    while distance < lanes::<F>() {
        let mut flags = 0;
        let before = terms;
        for (i, term) in terms.iter_mut().enumerate().take(lanes::<F>()) {
            // The first step of DPPS has the neighbour first.
            let (a, b) = if distance == 1 && lanes::<F>() == 4 { (i ^ 1, i) } else { (i, i ^ distance) };
            let (sum, raised) = sse::add::<F>(before[a], before[b], env);
            (*term, flags) = (sum, flags | raised);
        }
        record(core, flags)?;
        distance *= 2;
    }
    let (result, _) = each_lane::<F>(|i| (if imm >> i & 1 != 0 { terms[i] } else { 0 }, 0));
    *xmm_mut(core, op.dst) = result;
    Ok(())
}

/// RCPPS and RSQRTPS (`ROOT`); they raise nothing.
pub fn approximate_packed<const ROOT: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?.to_le_bytes();
    let (result, _) = each_lane::<F32>(|i| (u64::from(approximation::<ROOT>(u32::get(&b, i))), 0));
    *xmm_mut(core, op.dst) = result;
    Ok(())
}

/// RCPSS and RSQRTSS.
pub fn approximate_scalar<const ROOT: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source_low::<u32>(core, op)? as u32;
    set_low::<F32>(core, op.dst, u64::from(approximation::<ROOT>(b)));
    Ok(())
}

fn approximation<const ROOT: bool>(b: u32) -> u32 {
    if ROOT { approx::reciprocal_root(b) } else { approx::reciprocal(b) }
}
