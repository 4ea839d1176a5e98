// SPDX-License-Identifier: AGPL-3.0-or-later
//! The transcendental instructions: special operands, flags and rounding around [`super::functions`].
//!
//! Special results follow the tables of the Intel SDM vol. 2 (FSIN, FCOS, FPTAN, FPATAN, F2XM1, FYL2X, FYL2XP1). Results are
//! rounded by RC to 64 bits whatever PC says. PE is set by every result that is computed, also where it happens to be exact.

use super::arith::single_nan;
use super::f80::{Control, F80, Outcome, Value, nan_outcome};
use super::flag::{DE, IE, PE, ZE};
use super::functions::{self, Reduced};
use crate::fp::soft::wide::{HALF_PI, PI, mul};
use crate::fp::soft::{Num, arith};

const INVALID: Outcome = Outcome { value: F80::DEFAULT_NAN, flags: IE };

/// Arguments from this exponent on are out of range for the trigonometric functions (C2).
const RANGE_EXPONENT: i32 = 63;

/// Rounds an inexact value. The sticky bit may be missing where a series ended on a round number.
fn inexact(value: Num, control: Control) -> Outcome {
    F80::round(Num { significand: value.significand | 1, ..value }, control.full_precision())
}

/// An angle's trigonometric value: `None` where the argument is out of range.
pub type Trigonometric<T = F80> = Option<Outcome<T>>;

/// What FSIN, FCOS, FSINCOS and FPTAN share: `special` for zeros, `f` for the rest.
fn trigonometric<T>(
    a: F80,
    control: Control,
    same: impl Fn(F80) -> T,
    zero: impl FnOnce(F80) -> T,
    f: impl FnOnce(Num) -> Outcome<T>,
) -> Trigonometric<T> {
    if let Some(Outcome { value, flags }) = single_nan(a) {
        return Some(Outcome { value: same(value), flags });
    }
    let denormal = F80::denormal_flag(&[a]);
    match a.unpack() {
        Value::Infinity(_) => Some(Outcome { value: same(F80::DEFAULT_NAN), flags: IE }),
        Value::Zero(_) => Some(Outcome::exact(zero(a))),
        Value::Finite(_) if denormal != 0 && !control.masks(DE) => Some(Outcome { value: same(a), flags: DE }),
        Value::Finite(x) if x.exponent >= RANGE_EXPONENT => None,
        Value::Finite(x) => Some(f(x).with(denormal)),
    }
}

/// A component of a reduced angle, rounded; it is never zero.
fn component(value: Option<Num>, control: Control) -> Outcome {
    value.map_or(Outcome::exact(F80::ZERO), |value| inexact(value, control))
}

/// FSIN.
pub fn sine(a: F80, control: Control) -> Trigonometric {
    trigonometric(a, control, |a| a, |a| a, |x| component(functions::reduce(x).sine(), control))
}

/// FCOS.
pub fn cosine(a: F80, control: Control) -> Trigonometric {
    trigonometric(a, control, |a| a, |_| F80::ONE, |x| component(functions::reduce(x).cosine(), control))
}

/// FSINCOS: sine and cosine. C1 is that of the cosine, which is computed last.
pub fn sine_cosine(a: F80, control: Control) -> Trigonometric<(F80, F80)> {
    trigonometric(
        a,
        control,
        |a| (a, a),
        |a| (a, F80::ONE),
        |x| {
            let reduced: Reduced = functions::reduce(x);
            let (sine, cosine) = (component(reduced.sine(), control), component(reduced.cosine(), control));
            let flags = (sine.flags & !super::flag::C1) | cosine.flags;
            Outcome { value: (sine.value, cosine.value), flags }
        },
    )
}

/// FPTAN.
pub fn tangent(a: F80, control: Control) -> Trigonometric {
    trigonometric(a, control, |a| a, |a| a, |x| component(functions::tangent(x), control))
}

/// FPATAN: the angle of the point (x, y).
pub fn arctangent(y: F80, x: F80, control: Control) -> Outcome {
    if let Some(outcome) = nan_outcome(y, x) {
        return outcome;
    }
    let denormal = F80::denormal_flag(&[y, x]);
    if denormal != 0 && !control.masks(DE) {
        return Outcome { value: y, flags: DE };
    }
    let signed = |value: Num| inexact(Num { negative: y.negative(), ..value }, control);
    let three_quarters = Num { negative: false, ..mul(PI, Num::normalize(false, -1, 3 << 126)) };
    let outcome = match (y.unpack(), x.unpack()) {
        (Value::Infinity(_), Value::Infinity(false)) => signed(PI.times_power(-2)),
        (Value::Infinity(_), Value::Infinity(true)) => signed(three_quarters),
        (Value::Infinity(_), _) => signed(HALF_PI),
        (Value::Zero(_), _) if !x.negative() => Outcome::exact(y),
        (Value::Zero(_), _) => signed(PI),
        (_, Value::Zero(_)) => signed(HALF_PI),
        (_, Value::Infinity(false)) => Outcome::exact(F80::zero(y.negative())),
        (_, Value::Infinity(true)) => signed(PI),
        (Value::Finite(y), Value::Finite(x)) => inexact(functions::arctangent(y, x), control),
    };
    outcome.with(denormal)
}

/// F2XM1. Beyond -1..1, where the manuals define nothing, the operand stays as it is; minus infinity gives -1.
pub fn power_minus_one(a: F80, control: Control) -> Outcome {
    if let Some(outcome) = single_nan(a) {
        return outcome;
    }
    let denormal = F80::denormal_flag(&[a]);
    match a.unpack() {
        Value::Infinity(true) => Outcome::exact(F80::ONE.negated()),
        Value::Infinity(false) | Value::Zero(_) => Outcome::exact(a),
        Value::Finite(_) if denormal != 0 && !control.masks(DE) => Outcome { value: a, flags: DE },
        Value::Finite(x) if x.exponent > 0 || (x.exponent == 0 && x.significand != 1 << 127) => {
            Outcome { value: a, flags: PE }
        }
        // 2^1 - 1 and 2^-1 - 1.
        Value::Finite(x) if x.exponent == 0 && x.negative => {
            Outcome { value: F80 { se: 0xbffe, sig: super::f80::LEADING }, flags: PE }
        }
        Value::Finite(x) if x.exponent == 0 => Outcome { value: a, flags: PE },
        Value::Finite(x) => inexact(functions::power_minus_one(x), control).with(denormal),
    }
}

/// FYL2X: y * log2(x).
pub fn logarithm(y: F80, x: F80, control: Control) -> Outcome {
    if let Some(outcome) = nan_outcome(y, x) {
        return outcome;
    }
    if x.negative() && !x.is_zero() {
        return INVALID;
    }
    let denormal = F80::denormal_flag(&[y, x]);
    let value = match x.unpack() {
        Value::Zero(_) => return logarithm_of_zero(y, denormal, control),
        Value::Infinity(_) if y.is_zero() => return INVALID,
        Value::Infinity(_) => Log::Infinite,
        Value::Finite(x) => {
            functions::logarithm(x).map_or(Log::Zero, |log| Log::Finite(log, x.significand != 1 << 127))
        }
    };
    times(y, value, denormal, control)
}

/// log2(0) is minus infinity: invalid times zero, a division by zero otherwise.
fn logarithm_of_zero(y: F80, denormal: u16, control: Control) -> Outcome {
    let value = F80::infinity(!y.negative());
    match y.unpack() {
        Value::Zero(_) => INVALID,
        Value::Infinity(_) => Outcome::exact(value),
        Value::Finite(_) if denormal != 0 && !control.masks(DE) => Outcome { value: y, flags: DE },
        Value::Finite(_) => Outcome { value, flags: ZE },
    }
}

/// A logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Log {
    /// Of one.
    Zero,
    /// Plus infinity.
    Infinite,
    /// Any other; whether it is irrational.
    Finite(Num, bool),
}

/// y times a logarithm.
fn times(y: F80, log: Log, denormal: u16, control: Control) -> Outcome {
    let sign = |negative: bool| y.negative() != negative;
    match (y.unpack(), log) {
        (Value::Infinity(_), Log::Zero) => return INVALID,
        _ if denormal != 0 && !control.masks(DE) => return Outcome { value: y, flags: DE },
        _ => {}
    }
    let outcome = match (y.unpack(), log) {
        (_, Log::Infinite) => Outcome::exact(F80::infinity(sign(false))),
        (Value::Infinity(_), Log::Finite(log, _)) => Outcome::exact(F80::infinity(sign(log.negative))),
        (Value::Zero(_), Log::Finite(log, _)) => Outcome::exact(F80::zero(sign(log.negative))),
        (_, Log::Zero) => Outcome::exact(F80::zero(sign(false))),
        (Value::Finite(y), Log::Finite(log, true)) => inexact(mul(y, log), control),
        // A power of two has an integer logarithm, and the product is exact before it is rounded.
        (Value::Finite(y), Log::Finite(log, false)) => {
            F80::round(arith::mul(y, log), control.full_precision()).with(PE)
        }
    };
    outcome.with(denormal)
}

/// FYL2XP1: y * log2(1 + x). The manuals define |x| up to 1 - sqrt(1/2); larger x give the same function, x = -1 a division by zero,
/// and x below -1 an invalid operation.
pub fn logarithm_plus_one(y: F80, x: F80, control: Control) -> Outcome {
    if let Some(outcome) = nan_outcome(y, x) {
        return outcome;
    }
    let denormal = F80::denormal_flag(&[y, x]);
    let value = match x.unpack() {
        Value::Zero(_) if matches!(y.unpack(), Value::Infinity(_)) => return INVALID,
        Value::Zero(negative) => return Outcome::exact(F80::zero(y.negative() != negative)).with(denormal),
        Value::Infinity(true) => return INVALID,
        Value::Infinity(false) if y.is_zero() => return INVALID,
        Value::Infinity(false) => Log::Infinite,
        Value::Finite(x) if x.negative && x.exponent >= 0 => {
            let one = x.exponent == 0 && x.significand == 1 << 127;
            return if one { logarithm_of_zero(y, denormal, control) } else { INVALID };
        }
        Value::Finite(x) => {
            functions::logarithm_plus_one(x).map_or(Log::Zero, |log| Log::Finite(log, !power_of_two_after_one(x)))
        }
    };
    times(y, value, denormal, control)
}

/// Whether 1 + x is a power of two.
fn power_of_two_after_one(x: Num) -> bool {
    use crate::fp::soft::wide::ONE;
    // Where bits of x fall out of the sum, it is none.
    x.exponent.abs() < 64 && arith::add(x, ONE).is_some_and(|sum| sum.significand == 1 << 127)
}
