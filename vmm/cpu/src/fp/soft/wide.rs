// SPDX-License-Identifier: AGPL-3.0-or-later
//! [`Num`] as a floating-point number of 128 bits, for functions that have no exact result. Each operation is off by at most a few
//! units of the last bit; what is lost leaves a sticky one behind, so that an inexact value never looks exact.

use super::Num;
use super::arith;

/// A positive constant.
pub const fn constant(exponent: i32, significand: u128) -> Num {
    Num { negative: false, exponent, significand }
}

/// One.
pub const ONE: Num = constant(0, 1 << 127);
/// Pi.
pub const PI: Num = constant(1, 0xc90f_daa2_2168_c234_c4c6_628b_80dc_1cd1);
/// Half of pi.
pub const HALF_PI: Num = constant(0, PI.significand);
/// The natural logarithm of 2.
pub const LN_2: Num = constant(-1, 0xb172_17f7_d1cf_79ab_c9e3_b398_03f2_f6af);
/// The logarithm to base 2 of e.
pub const LOG2_E: Num = constant(0, 0xb8aa_3b29_5c17_f0bb_be87_fed0_691d_3e89);

impl Num {
    /// The value with the other sign.
    pub fn negated(self) -> Self {
        Self { negative: !self.negative, ..self }
    }

    /// The value without sign.
    pub fn magnitude(self) -> Self {
        Self { negative: false, ..self }
    }

    /// The value times a power of two.
    pub fn times_power(self, exponent: i32) -> Self {
        Self { exponent: self.exponent + exponent, ..self }
    }
}

/// a * b
pub fn mul(a: Num, b: Num) -> Num {
    let (a_high, a_low) = (a.significand >> 64, a.significand & u128::from(u64::MAX));
    let (b_high, b_low) = (b.significand >> 64, b.significand & u128::from(u64::MAX));
    let low = a_low * b_low;
    let (middle, carry) = (a_high * b_low).overflowing_add(a_low * b_high);
    let (middle, carry_low) = middle.overflowing_add(low >> 64);
    let high = a_high * b_high + (middle >> 64) + ((u128::from(carry) + u128::from(carry_low)) << 64);
    let sticky = u128::from((low | middle) as u64 != 0);
    Num::normalize(a.negative != b.negative, a.exponent + b.exponent + 1, high | sticky)
}

/// a / divisor, for a divisor that is not zero.
pub fn div_small(a: Num, divisor: u64) -> Num {
    let divisor = u128::from(divisor);
    let (first, remainder) = (a.significand / divisor, a.significand % divisor);
    // The remainder is below 2^64, so the next 64 bits of the quotient fit, too.
    let second = (remainder << 64) / divisor;
    let sticky = u128::from(!(remainder << 64).is_multiple_of(divisor));
    let shift = first.leading_zeros();
    let significand = match shift {
        0 => first,
        _ => (first << shift) | (second >> (64 - shift)),
    };
    Num { exponent: a.exponent - shift as i32, significand: significand | sticky, ..a }
}

/// a / b
pub fn div(a: Num, b: Num) -> Num {
    let (mut rest, divisor) = (a.significand, b.significand);
    let mut quotient = 0u128;
    // One bit of the quotient a step; `carry` is the 129th bit of the remainder.
    let mut carry = false;
    for _ in 0..128 {
        quotient <<= 1;
        if carry || rest >= divisor {
            rest = rest.wrapping_sub(divisor);
            quotient |= 1;
        }
        carry = rest >> 127 != 0;
        rest <<= 1;
    }
    let sticky = u128::from(carry || rest != 0);
    Num::normalize(a.negative != b.negative, a.exponent - b.exponent, quotient | sticky)
}

/// a + b where the sum cannot be zero; an exact zero becomes the smaller operand's last bit.
pub fn add(a: Num, b: Num) -> Num {
    arith::add(a, b).unwrap_or(Num { exponent: a.exponent - 127, significand: 1 << 127, ..a })
}

/// The sum of `x^(step * k) / (d(1) * ... * d(k))` for k from 0 to `terms`, by Horner's rule: each round is
/// `1 + z / d(k) * rest`.
pub fn horner(z: Num, terms: u64, denominator: impl Fn(u64) -> u64) -> Num {
    let mut sum = ONE;
    for k in (1..=terms).rev() {
        sum = add(ONE, div_small(mul(z, sum), denominator(k)));
    }
    sum
}

/// The sum of `z^k / (2k + 1)` for k from 0 to `terms`: what remains of atan (z negative) and atanh (z positive).
pub fn odd_reciprocals(z: Num, terms: u64) -> Num {
    let mut sum = div_small(ONE, 2 * terms + 1);
    for k in (0..terms).rev() {
        sum = add(div_small(ONE, 2 * k + 1), mul(z, sum));
    }
    sum
}
