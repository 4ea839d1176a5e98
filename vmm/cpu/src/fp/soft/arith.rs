// SPDX-License-Identifier: AGPL-3.0-or-later
//! Sum, product, quotient and square root of [`Num`]s. Operands have at most 64 significant bits unless a function says
//! otherwise; results are exact, or correct to more than 120 bits with a sticky lowest bit, so one rounding is enough.

use super::{Num, shift_right_sticky};

/// The sum; `None` if it is exactly zero. Takes full 128-bit operands, too (then the lowest bit may be off by one).
pub fn add(a: Num, b: Num) -> Option<Num> {
    let (large, small) = if (a.exponent, a.significand) >= (b.exponent, b.significand) { (a, b) } else { (b, a) };
    let shifted = shift_right_sticky(small.significand, large.exponent.abs_diff(small.exponent));
    if large.negative != small.negative {
        let difference = large.significand - shifted;
        return (difference != 0).then(|| Num::normalize(large.negative, large.exponent, difference));
    }
    let (sum, carry) = large.significand.overflowing_add(shifted);
    Some(if carry {
        Num { exponent: large.exponent + 1, significand: (1 << 127) | (sum >> 1) | (sum & 1), ..large }
    } else {
        Num { significand: sum, ..large }
    })
}

/// The product.
pub fn mul(a: Num, b: Num) -> Num {
    let product = (a.significand >> 64) * (b.significand >> 64);
    Num::normalize(a.negative != b.negative, a.exponent + b.exponent + 1, product)
}

/// The quotient.
pub fn div(a: Num, b: Num) -> Num {
    let (n, d) = (a.significand >> 64, b.significand >> 64);
    // The first quotient is below 2^64 because n / 2 < d, the second because the remainder is below d.
    let first = (n << 63) / d;
    let remainder = (n << 63) % d;
    let second = (remainder << 63) / d;
    let sticky = u128::from(!(remainder << 63).is_multiple_of(d));
    // first * 2^63 + second is n / d scaled by 2^126.
    Num::normalize(a.negative != b.negative, a.exponent - b.exponent + 1, (first << 63) | second | sticky)
}

/// The square root of a positive number.
pub fn sqrt(a: Num) -> Num {
    // An even exponent is taken out: the radicand is n * 2^odd with n in [2^126, 2^128).
    let (radicand, half) =
        if a.exponent & 1 == 0 { (a.significand >> 1, a.exponent / 2) } else { (a.significand, (a.exponent - 1) / 2) };
    let root = radicand.isqrt();
    let remainder = radicand - root * root;
    // (root + 1/2)^2 is root^2 + root + 1/4, so the next bit is set exactly when the remainder exceeds the root.
    let next = u128::from(remainder > root);
    let sticky = u128::from(remainder != 0);
    Num::normalize(false, half, (root << 64) | (next << 63) | sticky)
}
