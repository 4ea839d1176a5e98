// SPDX-License-Identifier: AGPL-3.0-or-later
//! Soft arithmetic against the host's SSE unit: result and MXCSR flags, all exceptions masked, all rounding modes, DAZ and FTZ.

use super::sse::{self, Env, F32, F64, Float, Relation};
use super::{Rounding, flag, sse_convert};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use std::arch::asm;

const SEED: u64 = 0x5eed_0001;
const CASES: u32 = 40_000;

/// A function that runs instructions on xmm0 and xmm1 under an MXCSR and returns xmm0's low half and the MXCSR after.
macro_rules! host {
    ($($name:ident: $operation:literal;)*) => {$(
        fn $name(a: u64, b: u64, mxcsr: u32) -> (u64, u32) {
            let mut saved = 0u32;
            let mut after = 0u32;
            let out: u64;
            // SAFETY: the host's MXCSR is restored before the block ends, all exceptions are masked, and every register
            // written is declared.
            unsafe {
                asm!(
                    "stmxcsr [{saved}]",
                    "ldmxcsr [{control}]",
                    "movq xmm0, {a}",
                    "movq xmm1, {b}",
                    $operation,
                    "stmxcsr [{after}]",
                    "ldmxcsr [{saved}]",
                    "movq {out}, xmm0",
                    saved = in(reg) &mut saved,
                    control = in(reg) &mxcsr,
                    after = in(reg) &mut after,
                    a = in(reg) a,
                    b = in(reg) b,
                    out = lateout(reg) out,
                    out("rax") _,
                    out("xmm0") _,
                    out("xmm1") _,
                );
            }
            (out, after)
        }
    )*};
}

host! {
    addss: "addss xmm0, xmm1"; addsd: "addsd xmm0, xmm1";
    subss: "subss xmm0, xmm1"; subsd: "subsd xmm0, xmm1";
    mulss: "mulss xmm0, xmm1"; mulsd: "mulsd xmm0, xmm1";
    divss: "divss xmm0, xmm1"; divsd: "divsd xmm0, xmm1";
    minss: "minss xmm0, xmm1"; minsd: "minsd xmm0, xmm1";
    maxss: "maxss xmm0, xmm1"; maxsd: "maxsd xmm0, xmm1";
    sqrtss: "sqrtss xmm0, xmm0"; sqrtsd: "sqrtsd xmm0, xmm0";
    cmpeqss: "cmpss xmm0, xmm1, 0"; cmpltss: "cmpss xmm0, xmm1, 1";
    cmpless: "cmpss xmm0, xmm1, 2"; cmpunordss: "cmpss xmm0, xmm1, 3";
    cmpneqsd: "cmpsd xmm0, xmm1, 4"; cmpnltsd: "cmpsd xmm0, xmm1, 5";
    cmpnlesd: "cmpsd xmm0, xmm1, 6"; cmpordsd: "cmpsd xmm0, xmm1, 7";
    cvtss2sd: "cvtss2sd xmm0, xmm0"; cvtsd2ss: "cvtsd2ss xmm1, xmm0\nmovd eax, xmm1\nmovq xmm0, rax";
    cvtsi2ss32: "movd eax, xmm0\npxor xmm0, xmm0\ncvtsi2ss xmm0, eax";
    cvtsi2ss64: "movq rax, xmm0\npxor xmm0, xmm0\ncvtsi2ss xmm0, rax";
    cvtsi2sd64: "movq rax, xmm0\ncvtsi2sd xmm0, rax";
    cvtss2si32: "cvtss2si eax, xmm0\nmovq xmm0, rax"; cvtss2si64: "cvtss2si rax, xmm0\nmovq xmm0, rax";
    cvtsd2si32: "cvtsd2si eax, xmm0\nmovq xmm0, rax"; cvtsd2si64: "cvtsd2si rax, xmm0\nmovq xmm0, rax";
    cvttss2si32: "cvttss2si eax, xmm0\nmovq xmm0, rax"; cvttsd2si64: "cvttsd2si rax, xmm0\nmovq xmm0, rax";
    roundss0: "roundss xmm0, xmm0, 0"; roundss1: "roundss xmm0, xmm0, 1"; roundss2: "roundss xmm0, xmm0, 2";
    roundsd3: "roundsd xmm0, xmm0, 3"; roundsd4: "roundsd xmm0, xmm0, 4"; roundsd12: "roundsd xmm0, xmm0, 12";
    comiss: "comiss xmm0, xmm1\npushfq\npop rax\nmovq xmm0, rax";
    ucomisd: "ucomisd xmm0, xmm1\npushfq\npop rax\nmovq xmm0, rax";
}

/// A random pattern that favours edges: specials, neighbours of powers of two, equal exponents, small integers.
fn pattern<F: Float>(random: &mut ChaCha8Rng) -> u64 {
    let bits = random.next_u64() & (F::SIGN | (F::SIGN - 1));
    let fraction = bits & F::FRACTION;
    let sign = bits & F::SIGN;
    let exponent = |field: u64| field << F::FRACTION_BITS;
    let bias = F::FORMAT.exponent_max as u64;
    match random.next_u32() % 12 {
        0 => sign,
        1 => sign | F::INFINITY,
        2 => sign | F::INFINITY | fraction,
        3 => sign | fraction,
        4 => sign | (fraction & 7),
        5 => sign | exponent(1) | (fraction & 3),
        6 => sign | (F::INFINITY - 1 - (fraction & 3)),
        7 => sign | exponent(bias + (fraction & 15)) | (F::FRACTION << (fraction >> 5 & 31) & F::FRACTION),
        8 => sign | exponent(bias + 20 + (fraction & 63)) | fraction,
        9 => sign | exponent(bias - 2 + (fraction & 3)) | fraction,
        _ => bits,
    }
}

/// A random MXCSR with all exceptions masked.
fn control(random: &mut ChaCha8Rng) -> u32 {
    let bits = random.next_u32();
    let mut control = 0x1f80 | (bits & 0x6000) | (bits & flag::PE);
    if bits >> 16 & 3 == 0 {
        control |= bits & 0x8040;
    }
    control
}

fn check<F: Float>(name: &str, host: fn(u64, u64, u32) -> (u64, u32), soft: impl Fn(u64, u64, Env) -> (u64, u32)) {
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    for case in 0..CASES {
        let (a, b, mxcsr) = (pattern::<F>(&mut random), pattern::<F>(&mut random), control(&mut random));
        let (result, flags) = soft(a, b, Env(mxcsr));
        let expected = host(a, b, mxcsr);
        assert_eq!(
            (result, mxcsr | flags),
            expected,
            "{name} case {case} of seed {SEED:#x}: a {a:#x} b {b:#x} mxcsr {mxcsr:#x}: ours {result:#x} {:#x}, host {:#x} {:#x}",
            mxcsr | flags,
            expected.0,
            expected.1
        );
    }
}

#[test]
fn arithmetic_equals_the_hosts_bit_for_bit() {
    check::<F32>("addss", addss, sse::add::<F32>);
    check::<F64>("addsd", addsd, sse::add::<F64>);
    check::<F32>("subss", subss, sse::sub::<F32>);
    check::<F64>("subsd", subsd, sse::sub::<F64>);
    check::<F32>("mulss", mulss, sse::mul::<F32>);
    check::<F64>("mulsd", mulsd, sse::mul::<F64>);
    check::<F32>("divss", divss, sse::div::<F32>);
    check::<F64>("divsd", divsd, sse::div::<F64>);
    check::<F32>("sqrtss", sqrtss, |a, _, env| sse::sqrt::<F32>(a, env));
    check::<F64>("sqrtsd", sqrtsd, |a, _, env| sse::sqrt::<F64>(a, env));
}

#[test]
fn minimum_maximum_and_comparisons_equal_the_hosts() {
    check::<F32>("minss", minss, |a, b, env| sse::min_max::<F32>(a, b, false, env));
    check::<F64>("minsd", minsd, |a, b, env| sse::min_max::<F64>(a, b, false, env));
    check::<F32>("maxss", maxss, |a, b, env| sse::min_max::<F32>(a, b, true, env));
    check::<F64>("maxsd", maxsd, |a, b, env| sse::min_max::<F64>(a, b, true, env));
    type Host = fn(u64, u64, u32) -> (u64, u32);
    for (number, host) in [cmpeqss as Host, cmpltss, cmpless, cmpunordss].into_iter().enumerate() {
        check::<F32>("cmpss", host, |a, b, env| {
            let (holds, flags) = sse::predicate::<F32>(a, b, number as u8, env);
            (if holds { 0xffff_ffff } else { 0 }, flags)
        });
    }
    for (number, host) in [cmpneqsd as Host, cmpnltsd, cmpnlesd, cmpordsd].into_iter().enumerate() {
        check::<F64>("cmpsd", host, |a, b, env| {
            let (holds, flags) = sse::predicate::<F64>(a, b, number as u8 + 4, env);
            (if holds { u64::MAX } else { 0 }, flags)
        });
    }
    let rflags = |relation| match relation {
        Relation::Greater => 0x000,
        Relation::Less => 0x001,
        Relation::Equal => 0x040,
        Relation::Unordered => 0x045,
    };
    fn status(f: Host) -> impl Fn(u64, u64, u32) -> (u64, u32) {
        move |a, b, mxcsr| {
            let (rflags, after) = f(a, b, mxcsr);
            (rflags & 0x8d5, after)
        }
    }
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    for _ in 0..CASES {
        let (a, b, mxcsr) = (pattern::<F32>(&mut random), pattern::<F32>(&mut random), control(&mut random));
        let (relation, flags) = sse::compare::<F32>(a, b, true, Env(mxcsr));
        assert_eq!((rflags(relation), mxcsr | flags), status(comiss)(a, b, mxcsr), "comiss {a:#x} {b:#x} {mxcsr:#x}");
        let (a, b) = (pattern::<F64>(&mut random), pattern::<F64>(&mut random));
        let (relation, flags) = sse::compare::<F64>(a, b, false, Env(mxcsr));
        assert_eq!((rflags(relation), mxcsr | flags), status(ucomisd)(a, b, mxcsr), "ucomisd {a:#x} {b:#x} {mxcsr:#x}");
    }
}

#[test]
fn conversions_equal_the_hosts() {
    check::<F32>("cvtss2sd", cvtss2sd, |a, _, env| sse_convert::f32_to_f64(a, env));
    check::<F64>("cvtsd2ss", cvtsd2ss, |a, _, env| sse_convert::f64_to_f32(a, env));
    check::<F64>("cvtsi2ss", cvtsi2ss32, |a, _, env| sse_convert::from_integer::<F32>(i64::from(a as i32), env));
    check::<F64>("cvtsi2ss64", cvtsi2ss64, |a, _, env| sse_convert::from_integer::<F32>(a as i64, env));
    check::<F64>("cvtsi2sd64", cvtsi2sd64, |a, _, env| sse_convert::from_integer::<F64>(a as i64, env));
    let narrow = |(value, flags): (i64, u32)| (u64::from(value as u32), flags);
    let wide = |(value, flags): (i64, u32)| (value as u64, flags);
    check::<F32>("cvtss2si", cvtss2si32, |a, _, e| narrow(sse_convert::to_integer::<F32>(a, 32, e.rounding(), e)));
    check::<F32>("cvtss2si64", cvtss2si64, |a, _, e| wide(sse_convert::to_integer::<F32>(a, 64, e.rounding(), e)));
    check::<F64>("cvtsd2si", cvtsd2si32, |a, _, e| narrow(sse_convert::to_integer::<F64>(a, 32, e.rounding(), e)));
    check::<F64>("cvtsd2si64", cvtsd2si64, |a, _, e| wide(sse_convert::to_integer::<F64>(a, 64, e.rounding(), e)));
    check::<F32>("cvttss2si", cvttss2si32, |a, _, e| narrow(sse_convert::to_integer::<F32>(a, 32, Rounding::Zero, e)));
    check::<F64>("cvttsd2si64", cvttsd2si64, |a, _, e| wide(sse_convert::to_integer::<F64>(a, 64, Rounding::Zero, e)));
}

#[test]
fn rounding_to_integral_equals_the_hosts() {
    check::<F32>("roundss 0", roundss0, |a, _, env| sse_convert::round_to_integral::<F32>(a, 0, env));
    check::<F32>("roundss 1", roundss1, |a, _, env| sse_convert::round_to_integral::<F32>(a, 1, env));
    check::<F32>("roundss 2", roundss2, |a, _, env| sse_convert::round_to_integral::<F32>(a, 2, env));
    check::<F64>("roundsd 3", roundsd3, |a, _, env| sse_convert::round_to_integral::<F64>(a, 3, env));
    check::<F64>("roundsd 4", roundsd4, |a, _, env| sse_convert::round_to_integral::<F64>(a, 4, env));
    check::<F64>("roundsd 12", roundsd12, |a, _, env| sse_convert::round_to_integral::<F64>(a, 12, env));
}
