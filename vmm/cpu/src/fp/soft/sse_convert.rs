// SPDX-License-Identifier: AGPL-3.0-or-later
//! Conversions of SSE: between the two formats, to and from integers, and rounding to an integral value.

use super::flag::{DE, IE, PE};
use super::sse::{Env, F32, F64, Flagged, Float, Value, apply_daz, is_nan, is_signaling, pack, unpack, zero};
use super::{Num, Rounding};

/// Moves a NaN between formats: sign and the upper payload bits stay, and it becomes quiet.
fn convert_nan<From: Float, To: Float>(a: u64) -> Flagged {
    let sign = zero::<To>(a & From::SIGN != 0);
    let payload = a & From::FRACTION;
    let payload = if To::FRACTION_BITS > From::FRACTION_BITS {
        payload << (To::FRACTION_BITS - From::FRACTION_BITS)
    } else {
        payload >> (From::FRACTION_BITS - To::FRACTION_BITS)
    };
    (sign | To::INFINITY | To::QUIET | payload, if is_signaling::<From>(a) { IE } else { 0 })
}

/// CVTSS2SD, CVTSD2SS and their packed forms.
pub fn convert<From: Float, To: Float>(a: u64, env: Env) -> Flagged {
    let a = apply_daz::<From>(a, env);
    if is_nan::<From>(a) {
        return convert_nan::<From, To>(a);
    }
    match unpack::<From>(a) {
        Value::Zero(negative) => (zero::<To>(negative), 0),
        Value::Infinity(negative) => (To::INFINITY | zero::<To>(negative), 0),
        Value::Finite(value) => {
            let (result, flags) = pack::<To>(value, env);
            let denormal = if a & From::INFINITY == 0 { DE } else { 0 };
            (result, flags | denormal)
        }
    }
}

/// CVTSS2SD.
pub fn f32_to_f64(a: u64, env: Env) -> Flagged {
    convert::<F32, F64>(a, env)
}

/// CVTSD2SS.
pub fn f64_to_f32(a: u64, env: Env) -> Flagged {
    convert::<F64, F32>(a, env)
}

/// CVTSI2xx and CVTDQ2xx.
pub fn from_integer<F: Float>(a: i64, env: Env) -> Flagged {
    match Num::from_integer(a < 0, a.unsigned_abs()) {
        Some(value) => pack::<F>(value, env),
        None => (0, 0),
    }
}

/// CVTxx2SI and its packed forms, to `bits` (32 or 64) with the given rounding. Out of range, infinite and NaN give the integer
/// indefinite, the most negative number, and IE.
pub fn to_integer<F: Float>(a: u64, bits: u32, rounding: Rounding, env: Env) -> (i64, u32) {
    let a = apply_daz::<F>(a, env);
    let indefinite = (i64::MIN >> (64 - bits), IE);
    if is_nan::<F>(a) {
        return indefinite;
    }
    let value = match unpack::<F>(a) {
        Value::Zero(_) => return (0, 0),
        Value::Infinity(_) => return indefinite,
        Value::Finite(value) => value,
    };
    let limit = (1u64 << (bits - 1)) - u64::from(!value.negative);
    match value.to_integer(rounding) {
        Some((magnitude, inexact, _)) if magnitude <= limit => {
            let result = if value.negative { (magnitude as i64).wrapping_neg() } else { magnitude as i64 };
            (result, if inexact { PE } else { 0 })
        }
        _ => indefinite,
    }
}

/// ROUNDSS and its like; bits 1..0 of `imm` are the rounding unless bit 2 asks for MXCSR's, bit 3 hides an inexact result.
pub fn round_to_integral<F: Float>(a: u64, imm: u8, env: Env) -> Flagged {
    let a = apply_daz::<F>(a, env);
    if is_nan::<F>(a) {
        return (a | F::QUIET, if is_signaling::<F>(a) { IE } else { 0 });
    }
    let Value::Finite(value) = unpack::<F>(a) else { return (a, 0) };
    if value.exponent >= F::FRACTION_BITS as i32 {
        return (a, 0);
    }
    let rounding = if imm & 4 != 0 { env.rounding() } else { Rounding::from_bits(u32::from(imm)) };
    // Below 2^53, so it always fits.
    let Some((magnitude, inexact, _)) = value.to_integer(rounding) else { return (a, 0) };
    let flags = if inexact && imm & 8 == 0 { PE } else { 0 };
    match Num::from_integer(value.negative, magnitude) {
        Some(integral) => (pack::<F>(integral, env).0, flags),
        None => (zero::<F>(value.negative), flags),
    }
}
