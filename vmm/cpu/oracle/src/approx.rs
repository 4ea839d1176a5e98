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

/// Whether each element of so many bytes, 4 or 8, is equal, or a NaN in both.
pub fn same_but_nans(a: u128, b: u128, bytes: u32) -> bool {
    let (bits, infinity) = if bytes == 4 { (32, 0x7f80_0000) } else { (64, 0x7ff0_0000_0000_0000) };
    let element = |value: u128, index: u32| (value >> (bits * index)) & (u128::MAX >> (128 - bits));
    let nan = |element: u128| element & (u128::MAX >> (129 - bits)) > infinity;
    (0..128 / bits).all(|index| {
        let (x, y) = (element(a, index), element(b, index));
        x == y || nan(x) && nan(y)
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

    #[test]
    fn nans_are_alike_and_nothing_else_is() {
        let nans = (0x7ff8_0000_0000_0000 << 64, 0xfff0_0000_0000_0001 << 64);
        assert!(same_but_nans(nans.0, nans.1, 8));
        assert!(!same_but_nans(nans.0, 0x7ff0_0000_0000_0000 << 64, 8), "an infinity is none");
        assert!(!same_but_nans(nans.0, nans.1 | 1, 8));
        assert!(same_but_nans(0x7f80_0001, 0xffc0_0000, 4));
    }
}
