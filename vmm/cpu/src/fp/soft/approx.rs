// SPDX-License-Identifier: AGPL-3.0-or-later
//! RCPSS and RSQRTSS. The architecture only bounds the relative error by 1.5 * 2^-12; real CPUs differ. Ours are these:
//!
//! The operand's significand is rounded half up to 13 fraction bits (s, an integer from 2^13 on). The reciprocal is
//! `floor((2^28 + s) / (2 s))`, which is 2^27 / s rounded, taken as a significand with 13 fraction bits one binade down. The
//! reciprocal root takes s for an even exponent and 2 s for an odd one and is `floor(sqrt(2^41 / s))` with 14 fraction bits
//! below one. So powers of two (of four) have exact results, and the error stays below 2^-12.
//!
//! Denormal operands count as zeros of their sign, reciprocals of numbers from 2^126 on become zeros, NaNs become quiet, and no exception is
//! raised (AMD64 APM vol. 4; Intel SDM vol. 2, RCPPS).

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0xff << 23;
const QUIET: u32 = 1 << 22;
const DEFAULT_NAN: u32 = SIGN | INFINITY | QUIET;

/// The exponent (unbiased) and the significand of a normal number rounded to 13 fraction bits; at most 2^14.
fn parts(magnitude: u32) -> (i32, u64) {
    let significand = u64::from(magnitude & 0x7f_ffff | 0x80_0000);
    ((magnitude >> 23) as i32 - 127, (significand + (1 << 9)) >> 10)
}

/// A positive number `significand * 2^exponent`, exact or truncated; denormal results become zero.
fn assemble(significand: u64, exponent: i32) -> u32 {
    let leading = 63 - significand.leading_zeros() as i32;
    let field = exponent + leading + 127;
    if field <= 0 {
        return 0;
    }
    let fraction = if leading <= 23 { significand << (23 - leading) } else { significand >> (leading - 23) };
    (field as u32) << 23 | (fraction as u32 & 0x7f_ffff)
}

/// RCPSS.
pub fn reciprocal(a: u32) -> u32 {
    let (sign, magnitude) = (a & SIGN, a & !SIGN);
    match magnitude {
        _ if magnitude > INFINITY => a | QUIET,
        INFINITY => sign,
        _ if magnitude < 1 << 23 => sign | INFINITY,
        _ => {
            let (exponent, s) = parts(magnitude);
            if exponent >= 126 {
                return sign;
            }
            // 1 / (s * 2^(exponent - 13)) is (2^27 / s) * 2^(-exponent - 14).
            sign | assemble(((1 << 28) + s) / (2 * s), -exponent - 14)
        }
    }
}

/// RSQRTSS.
pub fn reciprocal_root(a: u32) -> u32 {
    let (sign, magnitude) = (a & SIGN, a & !SIGN);
    match magnitude {
        _ if magnitude > INFINITY => a | QUIET,
        _ if magnitude < 1 << 23 => sign | INFINITY,
        _ if sign != 0 => DEFAULT_NAN,
        INFINITY => 0,
        _ => {
            let (exponent, s) = parts(magnitude);
            let odd = exponent & 1;
            // 1 / sqrt(s * 2^odd * 2^(exponent - odd - 13)) is sqrt(2^41 / (s * 2^odd)) * 2^(-14 - (exponent - odd) / 2).
            let root = ((1u64 << 41) / (s << odd)).isqrt();
            assemble(root, -14 - (exponent - odd) / 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative error allowed by the architecture.
    const BOUND: f64 = 1.5 / 4096.0;

    #[test]
    fn errors_stay_within_the_architectural_bound() {
        for step in 0..1u32 << 18 {
            let a = 0x3f80_0000 + step * 64;
            let x = f64::from(f32::from_bits(a));
            let reciprocal_error = (f64::from(f32::from_bits(reciprocal(a))) * x - 1.0).abs();
            assert!(reciprocal_error < BOUND, "1/{x}: {reciprocal_error}");
            let root_error = (f64::from(f32::from_bits(reciprocal_root(a))) * x.sqrt() - 1.0).abs();
            assert!(root_error < BOUND, "1/sqrt({x}): {root_error}");
        }
    }

    #[test]
    fn special_operands_have_the_architectural_results() {
        assert_eq!(reciprocal(0x3f80_0000), 0x3f80_0000);
        assert_eq!(reciprocal(0xc080_0000), 0xbe80_0000);
        assert_eq!(reciprocal(0x8000_0001), 0xff80_0000);
        assert_eq!(reciprocal(0xff80_0000), 0x8000_0000);
        assert_eq!(reciprocal(0x7f00_0000), 0);
        assert_eq!(reciprocal(0x7f80_0001), 0x7fc0_0001);
        assert_eq!(reciprocal_root(0x4080_0000), 0x3f00_0000);
        assert_eq!(reciprocal_root(0x8000_0000), 0xff80_0000);
        assert_eq!(reciprocal_root(0xbf80_0000), DEFAULT_NAN);
        assert_eq!(reciprocal_root(0x7f80_0000), 0);
    }
}
