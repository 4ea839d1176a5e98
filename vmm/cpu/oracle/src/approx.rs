// SPDX-License-Identifier: AGPL-3.0-or-later
//! How close two results are that need not be equal.

/// Whether two 80-bit numbers have the same class and are at most `ulps` apart.
pub fn extended_close(a: (u64, u16), b: (u64, u16), ulps: u64) -> bool {
    const EXPONENT: u16 = 0x7fff;
    if a.1 & EXPONENT == EXPONENT || b.1 & EXPONENT == EXPONENT {
        return false;
    }
    let order = |(significand, sign_exponent): (u64, u16)| {
        let magnitude = i128::from(sign_exponent & EXPONENT) << 63 | i128::from(significand & (u64::MAX >> 1));
        if sign_exponent & !EXPONENT != 0 { -magnitude } else { magnitude }
    };
    order(a).abs_diff(order(b)) <= u128::from(ulps)
}

/// Whether each of the four single-precision lanes is equal, or both are finite and within a relative error of 2^`power`.
pub fn singles_close(a: u128, b: u128, power: i32) -> bool {
    (0..4).all(|lane| {
        let (x, y) = ((a >> (32 * lane)) as u32, (b >> (32 * lane)) as u32);
        let (p, q) = (f64::from(f32::from_bits(x)), f64::from(f32::from_bits(y)));
        // Results next to the subnormal ones may be flushed to zero.
        let tiny = p.abs().max(q.abs()) <= f64::from(f32::MIN_POSITIVE) * 1.001;
        x == y || tiny || p.is_finite() && q.is_finite() && (p - q).abs() <= p.abs() * 2f64.powi(power)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closeness_has_ends() {
        assert!(extended_close((1 << 63, 0x3fff), (u64::MAX, 0x3ffe), 1));
        assert!(!extended_close((1 << 63, 0x3fff), (u64::MAX - 1, 0x3ffe), 1));
        assert!(!extended_close((1 << 63, 0x7fff), ((1 << 63) + 1, 0x7fff), 2));
        let lane = |value: f32| u128::from(value.to_bits());
        assert!(singles_close(lane(1.0), lane(1.0003), -11));
        assert!(!singles_close(lane(1.0), lane(1.0006), -11));
        assert!(!singles_close(lane(f32::INFINITY), lane(f32::MAX), -11));
    }
}
