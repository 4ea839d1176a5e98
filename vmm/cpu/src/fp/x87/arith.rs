// SPDX-License-Identifier: AGPL-3.0-or-later
//! Sums, products, quotients, roots, scaling and rounding of 80-bit numbers.

use super::f80::{Control, F80, LEADING, Outcome, Value, nan_outcome};
use super::flag::{C1, DE, IE, PE, ZE};
use crate::fp::soft::sse::sign_of_zero_sum;
use crate::fp::soft::{Num, Rounding, arith};

/// The six arithmetic instructions, as in bits 5..3 of their ModRM byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// a + b
    Add,
    /// a * b
    Mul,
    /// a - b
    Sub,
    /// b - a
    SubReversed,
    /// a / b
    Div,
    /// b / a
    DivReversed,
}

const INVALID: Outcome = Outcome { value: F80::DEFAULT_NAN, flags: IE };

/// `a` is the destination's value, `b` the source's; `widened_denormal` says that `b` was denormal in memory.
pub fn operate(operation: Operation, a: F80, b: F80, widened_denormal: bool, control: Control) -> Outcome {
    if let Some(outcome) = nan_outcome(a, b) {
        return outcome;
    }
    let denormal = F80::denormal_flag(&[a, b]) | if widened_denormal { DE } else { 0 };
    // An unmasked denormal operand ends the operation before it can find anything else.
    if denormal != 0 && !control.masks(DE) && !stronger(operation, a, b) {
        return Outcome { value: a, flags: DE };
    }
    let (outcome, precedence) = match operation {
        Operation::Add => (add(a, b, control), false),
        Operation::Sub => (add(a, b.negated(), control), false),
        Operation::SubReversed => (add(b, a.negated(), control), false),
        Operation::Mul => (mul(a, b, control), false),
        Operation::Div => (div(a, b, control), true),
        Operation::DivReversed => (div(b, a, control), true),
    };
    if outcome.flags & IE != 0 || (precedence && outcome.flags & ZE != 0) { outcome } else { outcome.with(denormal) }
}

/// Whether an invalid operation or a division by zero comes before the denormal operand.
fn stronger(operation: Operation, a: F80, b: F80) -> bool {
    match operation {
        Operation::Div => b.is_zero(),
        Operation::DivReversed => a.is_zero(),
        _ => false,
    }
}

fn add(a: F80, b: F80, control: Control) -> Outcome {
    match (a.unpack(), b.unpack()) {
        (Value::Infinity(x), Value::Infinity(y)) if x != y => INVALID,
        (Value::Infinity(sign), _) | (_, Value::Infinity(sign)) => Outcome::exact(F80::infinity(sign)),
        (Value::Zero(x), Value::Zero(y)) => Outcome::exact(F80::zero(sign_of_zero_sum(x, y, control.rounding()))),
        (Value::Finite(x), Value::Zero(_)) | (Value::Zero(_), Value::Finite(x)) => F80::round(x, control),
        (Value::Finite(x), Value::Finite(y)) => match arith::add(x, y) {
            Some(sum) => F80::round(sum, control),
            None => Outcome::exact(F80::zero(control.rounding() == Rounding::Down)),
        },
    }
}

fn mul(a: F80, b: F80, control: Control) -> Outcome {
    let negative = a.negative() != b.negative();
    match (a.unpack(), b.unpack()) {
        (Value::Infinity(_), Value::Zero(_)) | (Value::Zero(_), Value::Infinity(_)) => INVALID,
        (Value::Infinity(_), _) | (_, Value::Infinity(_)) => Outcome::exact(F80::infinity(negative)),
        (Value::Zero(_), _) | (_, Value::Zero(_)) => Outcome::exact(F80::zero(negative)),
        (Value::Finite(x), Value::Finite(y)) => F80::round(arith::mul(x, y), control),
    }
}

fn div(a: F80, b: F80, control: Control) -> Outcome {
    let negative = a.negative() != b.negative();
    match (a.unpack(), b.unpack()) {
        (Value::Infinity(_), Value::Infinity(_)) | (Value::Zero(_), Value::Zero(_)) => INVALID,
        (Value::Infinity(_), _) => Outcome::exact(F80::infinity(negative)),
        (_, Value::Infinity(_)) | (Value::Zero(_), _) => Outcome::exact(F80::zero(negative)),
        (Value::Finite(_), Value::Zero(_)) => Outcome { value: F80::infinity(negative), flags: ZE },
        (Value::Finite(x), Value::Finite(y)) => F80::round(arith::div(x, y), control),
    }
}

/// What every operation on one operand begins with: NaNs and unsupported patterns.
pub fn single_nan(a: F80) -> Option<Outcome> {
    nan_outcome(a, a)
}

/// FSQRT.
pub fn sqrt(a: F80, control: Control) -> Outcome {
    if let Some(outcome) = single_nan(a) {
        return outcome;
    }
    match a.unpack() {
        Value::Zero(_) => Outcome::exact(a),
        _ if a.negative() => INVALID,
        Value::Infinity(_) => Outcome::exact(a),
        Value::Finite(_) if a.is_denormal() && !control.masks(DE) => Outcome { value: a, flags: DE },
        Value::Finite(x) => F80::round(arith::sqrt(x), control).with(F80::denormal_flag(&[a])),
    }
}

/// FRNDINT.
pub fn round_to_integral(a: F80, control: Control) -> Outcome {
    if let Some(outcome) = single_nan(a) {
        return outcome;
    }
    let Value::Finite(x) = a.unpack() else { return Outcome::exact(a) };
    let denormal = F80::denormal_flag(&[a]);
    if denormal != 0 && !control.masks(DE) {
        return Outcome { value: a, flags: DE };
    }
    if x.exponent >= 63 {
        return Outcome::exact(a);
    }
    let Some((magnitude, inexact, up)) = x.to_integer(control.rounding()) else { return Outcome::exact(a) };
    let flags = denormal | if inexact { PE } else { 0 } | if up { C1 } else { 0 };
    let value = match Num::from_integer(x.negative, magnitude) {
        Some(num) => F80::assemble(num.negative, num.exponent, (num.significand >> 64) as u64),
        None => F80::zero(x.negative),
    };
    Outcome { value, flags }
}

/// FSCALE: a * 2^trunc(b).
pub fn scale(a: F80, b: F80, control: Control) -> Outcome {
    if let Some(outcome) = nan_outcome(a, b) {
        return outcome;
    }
    let negative = a.negative();
    match (a.unpack(), b.unpack()) {
        (Value::Zero(_), Value::Infinity(false)) | (Value::Infinity(_), Value::Infinity(true)) => return INVALID,
        _ => {}
    }
    let denormal = F80::denormal_flag(&[a, b]);
    if denormal != 0 && !control.masks(DE) {
        return Outcome { value: a, flags: DE };
    }
    match (a.unpack(), b.unpack()) {
        (Value::Zero(_) | Value::Infinity(_), _) => Outcome::exact(a).with(denormal),
        (_, Value::Infinity(false)) => Outcome::exact(F80::infinity(negative)).with(denormal),
        (_, Value::Infinity(true)) => Outcome::exact(F80::zero(negative)).with(denormal),
        // A subnormal one is still tiny, which an unmasked underflow reports: AMD's processors do, Intel's do not.
        (Value::Finite(x), Value::Zero(_)) => F80::round(x, control.full_precision()).with(denormal),
        (Value::Finite(x), Value::Finite(y)) => {
            // Past this the result overflows or vanishes whatever `x` is.
            const FAR: u64 = 0x1_0000;
            let steps = y.to_integer(Rounding::Zero).map_or(FAR, |(magnitude, _, _)| magnitude.min(FAR)) as i32;
            let exponent = x.exponent + if y.negative { -steps } else { steps };
            F80::round(Num { exponent, ..x }, control.full_precision()).with(denormal)
        }
    }
}

/// FXTRACT: the exponent as a number, and the significand with exponent zero.
pub fn extract(a: F80, control: Control) -> Outcome<(F80, F80)> {
    if let Some(Outcome { value, flags }) = single_nan(a) {
        return Outcome { value: (value, value), flags };
    }
    match a.unpack() {
        Value::Infinity(_) => Outcome::exact((F80::infinity(false), a)),
        Value::Zero(_) => Outcome { value: (F80::infinity(true), a), flags: ZE },
        Value::Finite(_) if a.is_denormal() && !control.masks(DE) => Outcome { value: (a, a), flags: DE },
        Value::Finite(x) => {
            let significand = F80::assemble(x.negative, 0, (x.significand >> 64) as u64);
            let exponent = F80::from_i64(i64::from(x.exponent));
            Outcome { value: (exponent, significand), flags: F80::denormal_flag(&[a]) }
        }
    }
}

/// A partial remainder: the new value, whether reduction is incomplete, and the low bits of the quotient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remainder {
    /// The new value.
    pub value: F80,
    /// C2.
    pub incomplete: bool,
    /// The quotient's low three bits, zero if incomplete; `None` where there is no quotient (NaNs), and C0 and C3 stay.
    pub quotient: Option<u8>,
}

/// FPREM, and FPREM1 where `nearest`. An exponent difference of 64 or more is reduced by 32 to 63 bits at a time.
pub fn remainder(a: F80, b: F80, nearest: bool, control: Control) -> Outcome<Remainder> {
    let done = |value, flags| Outcome { value: Remainder { value, incomplete: false, quotient: Some(0) }, flags };
    if let Some(Outcome { value, flags }) = nan_outcome(a, b) {
        return Outcome { value: Remainder { value, incomplete: false, quotient: None }, flags };
    }
    let denormal = F80::denormal_flag(&[a, b]);
    let (x, y) = match (a.unpack(), b.unpack()) {
        (Value::Infinity(_), _) | (_, Value::Zero(_)) => {
            let value = Remainder { value: F80::DEFAULT_NAN, incomplete: false, quotient: None };
            return Outcome { value, flags: IE };
        }
        _ if denormal != 0 && !control.masks(DE) => return done(a, DE),
        (Value::Zero(_), _) => return done(a, denormal),
        (Value::Finite(x), Value::Infinity(_)) => {
            // As in `scale`.
            let Outcome { value, flags } = F80::round(x, control.full_precision());
            return done(value, flags | denormal);
        }
        (Value::Finite(x), Value::Finite(y)) => (x, y),
    };
    let difference = x.exponent - y.exponent;
    if difference >= 64 {
        let step = (difference & 31) | 32;
        let (rest, _) = reduce(x, y, step);
        let value = finish(x.negative, y.exponent + difference - step, rest, control);
        return Outcome {
            value: Remainder { value: value.value, incomplete: true, quotient: Some(0) },
            flags: value.flags | denormal,
        };
    }
    let (mut rest, mut quotient, mut negative) = match difference {
        0.. => {
            let (rest, quotient) = reduce(x, y, difference);
            (rest, quotient, x.negative)
        }
        // |a| < |b|: it is its own remainder, at b's scale with 64 more bits.
        _ => {
            if !nearest || difference < -1 {
                let Outcome { value, flags } = F80::round(x, control.full_precision());
                return done(value, flags | denormal);
            }
            ((x.significand >> 1), 0, x.negative)
        }
    };
    // `rest` is a fraction of y.significand at the same scale; nearest may take one more y away.
    if nearest {
        let twice = rest << 1;
        let divisor = y.significand;
        let carry = rest >> 127 != 0;
        if carry || twice > divisor || (twice == divisor && quotient & 1 != 0) {
            rest = divisor - rest;
            quotient += 1;
            negative = !negative;
        }
    }
    let value =
        if rest == 0 { Outcome::exact(F80::zero(x.negative)) } else { finish(negative, y.exponent, rest, control) };
    Outcome {
        value: Remainder { value: value.value, incomplete: false, quotient: Some(quotient as u8 & 7) },
        flags: value.flags | denormal,
    }
}

/// Divides x.significand * 2^steps by y.significand: the remainder, and the quotient's low bits.
fn reduce(x: Num, y: Num, steps: i32) -> (u128, u64) {
    let divisor = y.significand >> 64;
    let mut rest = x.significand >> 64;
    let mut quotient = u64::from(rest >= divisor);
    if rest >= divisor {
        rest -= divisor;
    }
    // At most 63 steps; the remainder is below 2^64, so it never outgrows 128 bits.
    let shifted = rest << steps;
    quotient = (quotient << steps) | (shifted / divisor) as u64;
    ((shifted % divisor) << 64, quotient)
}

/// A remainder `rest * 2^(exponent - 127)`, exactly; zero keeps the dividend's sign.
fn finish(negative: bool, exponent: i32, rest: u128, control: Control) -> Outcome {
    if rest == 0 {
        return Outcome::exact(F80::zero(negative));
    }
    F80::round(Num::normalize(negative, exponent, rest), control.full_precision())
}

/// Condition codes of FXAM as (C3, C2, C0); C1 is the sign.
pub fn examine(a: F80) -> (bool, bool, bool) {
    match a.field() {
        _ if a.unsupported() => (false, false, false),
        0x7fff if a.sig == LEADING => (false, true, true),
        0x7fff => (false, false, true),
        0 if a.sig == 0 => (true, false, false),
        0 => (true, true, false),
        _ => (false, true, false),
    }
}
