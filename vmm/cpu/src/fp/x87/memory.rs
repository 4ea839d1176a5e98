// SPDX-License-Identifier: AGPL-3.0-or-later
//! Between registers and memory formats: single, double, integers, packed decimal; and comparison.

use super::f80::{Control, F80, LEADING, Outcome, Value};
use super::flag::{C0, C1, C2, C3, DE, IE, OE, PE, UE};
use crate::fp::soft::sse::{F32, F64, Float};
use crate::fp::soft::{Num, Rounding};

/// A single or double as a register holds it, signaling NaNs included; and whether it was denormal.
pub fn widen<F: Float>(a: u64) -> (F80, bool) {
    let negative = a & F::SIGN != 0;
    let fraction = a & F::FRACTION;
    let sig = fraction << (63 - F::FRACTION_BITS);
    match (a & F::INFINITY) >> F::FRACTION_BITS {
        0 if fraction == 0 => (F80::zero(negative), false),
        0 => {
            let shift = sig.leading_zeros();
            (F80::assemble(negative, F::FORMAT.exponent_min - shift as i32, sig << shift), true)
        }
        _ if a & F::INFINITY == F::INFINITY => (F80 { se: F80::infinity(negative).se, sig: sig | LEADING }, false),
        field => (F80::assemble(negative, field as i32 - F::FORMAT.exponent_max, sig | LEADING), false),
    }
}

/// FLD of a single or double: a signaling NaN is invalid and becomes quiet, a denormal is noted.
pub fn load<F: Float>(a: u64) -> Outcome {
    let (value, denormal) = widen::<F>(a);
    if value.is_signaling() {
        return Outcome { value: value.quiet(), flags: IE };
    }
    Outcome { value, flags: if denormal { DE } else { 0 } }
}

/// FST to a single or double.
pub fn store<F: Float>(a: F80, control: Control) -> Outcome<u64> {
    let sign = if a.negative() { F::SIGN } else { 0 };
    if a.unsupported() {
        return Outcome { value: F::DEFAULT_NAN, flags: IE };
    }
    if a.is_nan() {
        let payload = (a.sig & !LEADING) >> (63 - F::FRACTION_BITS);
        let flags = if a.is_signaling() { IE } else { 0 };
        return Outcome { value: sign | F::INFINITY | F::QUIET | payload, flags };
    }
    match a.unpack() {
        Value::Zero(_) => Outcome::exact(sign),
        Value::Infinity(_) => Outcome::exact(sign | F::INFINITY),
        Value::Finite(value) => narrow::<F>(value, control),
    }
}

fn narrow<F: Float>(value: Num, control: Control) -> Outcome<u64> {
    let rounding = control.rounding();
    let rounded = value.round(F::FORMAT, rounding);
    let sign = if value.negative { F::SIGN } else { 0 };
    let lost = if rounded.inexact { PE } else { 0 } | if rounded.up { C1 } else { 0 };
    if rounded.overflow {
        let to_infinity = match rounding {
            Rounding::Nearest => true,
            Rounding::Down => value.negative,
            Rounding::Up => !value.negative,
            Rounding::Zero => false,
        };
        // Unmasked, the store does not take place, and the flags tell what rounding the significand did.
        let flags = if !control.masks(OE) {
            OE
        } else if to_infinity {
            OE | PE | C1
        } else {
            OE | PE
        };
        return Outcome { value: sign | (F::INFINITY - u64::from(!to_infinity)), flags };
    }
    let field = (rounded.exponent + F::FORMAT.exponent_max - 1) as u64;
    let bits = sign | ((field << F::FRACTION_BITS) + rounded.significand);
    let underflow = if rounded.tiny && (rounded.inexact || !control.masks(UE)) { UE } else { 0 };
    if underflow != 0 && !control.masks(UE) {
        return Outcome { value: bits, flags: UE };
    }
    Outcome { value: bits, flags: lost | underflow }
}

/// FLD m32.
pub fn load_single(a: u32) -> Outcome {
    load::<F32>(u64::from(a))
}

/// FLD m64.
pub fn load_double(a: u64) -> Outcome {
    load::<F64>(a)
}

/// FIST and FISTTP to `bits` (16, 32 or 64): out of range gives the integer indefinite and IE.
pub fn to_integer(a: F80, bits: u32, rounding: Rounding) -> Outcome<i64> {
    let indefinite = Outcome { value: i64::MIN >> (64 - bits), flags: IE };
    if a.unsupported() || a.is_nan() {
        return indefinite;
    }
    let value = match a.unpack() {
        Value::Zero(_) => return Outcome::exact(0),
        Value::Infinity(_) => return indefinite,
        Value::Finite(value) => value,
    };
    let limit = (1u64 << (bits - 1)) - u64::from(!value.negative);
    match value.to_integer(rounding) {
        Some((magnitude, inexact, up)) if magnitude <= limit => {
            let signed = magnitude as i64;
            Outcome {
                value: if value.negative { signed.wrapping_neg() } else { signed },
                flags: if inexact { PE } else { 0 } | if up { C1 } else { 0 },
            }
        }
        _ => indefinite,
    }
}

/// Largest magnitude of 18 decimal digits.
const DECIMAL_MAX: u64 = 999_999_999_999_999_999;
/// The packed decimal indefinite.
pub const DECIMAL_INDEFINITE: u128 = 0xffff_c000_0000_0000_0000;

/// FBSTP: 18 digits, low byte first, and a sign byte.
pub fn to_decimal(a: F80, control: Control) -> Outcome<u128> {
    let indefinite = Outcome { value: DECIMAL_INDEFINITE, flags: IE };
    if a.unsupported() || a.is_nan() {
        return indefinite;
    }
    let sign = u128::from(a.negative()) << 79;
    let value = match a.unpack() {
        Value::Zero(_) => return Outcome::exact(sign),
        Value::Infinity(_) => return indefinite,
        Value::Finite(value) => value,
    };
    let Some((mut magnitude, inexact, up)) = value.to_integer(control.rounding()) else { return indefinite };
    if magnitude > DECIMAL_MAX {
        return indefinite;
    }
    let mut digits = 0u128;
    for position in 0..18 {
        digits |= u128::from(magnitude % 10) << (4 * position);
        magnitude /= 10;
    }
    Outcome { value: sign | digits, flags: if inexact { PE } else { 0 } | if up { C1 } else { 0 } }
}

/// FBLD. Digits above 9, which the manuals leave undefined, count with their value.
pub fn from_decimal(bits: u128) -> F80 {
    let magnitude = (0..18).rev().fold(0u64, |value, position| value * 10 + (bits >> (4 * position)) as u64 % 16);
    let negative = bits >> 79 & 1 != 0;
    match Num::from_integer(negative, magnitude) {
        Some(num) => F80::assemble(num.negative, num.exponent, (num.significand >> 64) as u64),
        None => F80::zero(negative),
    }
}

/// Condition codes of an unordered comparison.
pub const UNORDERED: u16 = C0 | C2 | C3;

/// FCOM and, where `quiet_invalid` is false, FUCOM: condition codes and flags. `denormal` says that an operand was denormal
/// before it was widened.
pub fn compare(a: F80, b: F80, quiet_invalid: bool, denormal: bool) -> Outcome<u16> {
    if a.unsupported() || b.unsupported() {
        return Outcome { value: UNORDERED, flags: IE };
    }
    if a.is_nan() || b.is_nan() {
        let invalid = quiet_invalid || a.is_signaling() || b.is_signaling();
        return Outcome { value: UNORDERED, flags: if invalid { IE } else { 0 } };
    }
    let flags = F80::denormal_flag(&[a, b]) | if denormal { DE } else { 0 };
    let codes = match order_key(a).cmp(&order_key(b)) {
        std::cmp::Ordering::Greater => 0,
        std::cmp::Ordering::Less => C0,
        std::cmp::Ordering::Equal => C3,
    };
    Outcome { value: codes, flags }
}

/// A key that orders numbers; both zeros have the same one. Pseudo-denormals count as the normal number they equal.
fn order_key(a: F80) -> i128 {
    let field = if a.field() == 0 && a.sig & LEADING != 0 { 1 } else { a.field() };
    let magnitude = i128::from(field) << 64 | i128::from(a.sig);
    if a.negative() { -magnitude } else { magnitude }
}
