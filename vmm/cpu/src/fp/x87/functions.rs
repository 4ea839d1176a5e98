// SPDX-License-Identifier: AGPL-3.0-or-later
//! The transcendental functions on finite, nonzero arguments, to about 120 bits: sine, cosine, arctangent, 2^x - 1 and
//! logarithms. One rounding to 64 bits then gives the nearest number but for the rarest ties, so results lie within 1 ulp of the
//! true value in every rounding mode.
//!
//! Methods: angles are reduced by 2/pi to 320 fraction bits (arguments lie below 2^63 and come no nearer than 2^-66 or so to a
//! multiple of pi/2, so at least 190 good bits remain), then Taylor series; arctangents by a table of atan(k/32) and the
//! series; logarithms by 2 atanh((m-1)/(m+1)).

use crate::fp::soft::wide::{HALF_PI, LN_2, LOG2_E, ONE, PI, add, constant, div, horner, mul, odd_reciprocals};
use crate::fp::soft::{Num, Rounding};

/// 2/pi truncated to 320 fraction bits, lowest limb first.
const TWO_OVER_PI: [u64; 5] =
    [0xb724_6e3a_424d_d2e0, 0xfe51_63ab_debb_c561, 0xdb62_9599_3c43_9041, 0xfc27_57d1_f534_ddc0, 0xa2f9_836e_4e44_1529];

/// Terms of the series of sine and cosine: 0.79^34 / 34! is below 2^-135.
const SINE_TERMS: u64 = 17;
/// Terms of e^x - 1 for |x| at most 0.7: 0.7^34 / 34! is below 2^-140.
const EXPONENTIAL_TERMS: u64 = 34;
/// Terms of atan for arguments up to 1/63: 63^-22 is below 2^-131.
const ARCTANGENT_TERMS: u64 = 11;
/// Terms of atanh for arguments up to 0.172: 0.172^52 is below 2^-131.
const LOGARITHM_TERMS: u64 = 26;

/// atan(k/32) for k from 1 to 32.
const ARCTANGENTS: [Num; 32] = [
    constant(-6, 0xffea_addd_4bb1_2542_779d_776d_da8c_6214),
    constant(-5, 0xffaa_ddb9_67ef_4e36_cb27_92dc_0e2e_0d51),
    constant(-4, 0xbf70_c130_1788_7460_9356_7e78_4cf8_3676),
    constant(-4, 0xfead_d4d5_617b_6e32_c897_989f_3e88_8ef8),
    constant(-3, 0x9eb7_7746_3313_62c3_4761_9d25_0360_fe85),
    constant(-3, 0xbdcb_da5e_72d8_1134_7b0b_4f88_1c9c_7488),
    constant(-3, 0xdc86_ba94_9305_1022_f621_a5c1_cb55_2f03),
    constant(-3, 0xfadb_afc9_6406_eb15_6dc7_9ef5_f7a2_17e6),
    constant(-2, 0x8c5f_ad18_5f8b_c130_ca47_48b1_bf88_298d),
    constant(-2, 0x9b13_b9b8_3f5e_5e69_c5ab_b498_d27a_f328),
    constant(-2, 0xa985_6cca_8e6a_4eda_99b7_f77b_f7d9_e8c1),
    constant(-2, 0xb7b0_ca0f_26f7_8473_8aa3_2122_dcfe_4483),
    constant(-2, 0xc592_69ca_50d9_2b6d_a174_6e91_f50a_28de),
    constant(-2, 0xd327_761e_611f_e5b6_427c_95e9_001e_7136),
    constant(-2, 0xe06d_a64a_764f_7c67_c631_ed96_798c_b804),
    constant(-2, 0xed63_382b_0dda_7b45_6fe4_45ec_bc3a_8d03),
    constant(-2, 0xfa06_e85a_a0a0_be5c_66d2_3c7d_5dc8_ecc2),
    constant(-1, 0x832b_f4a6_d986_7e2a_4b6a_09cb_61a5_15c1),
    constant(-1, 0x892a_ecdf_de95_47b5_0944_78fc_472b_4afc),
    constant(-1, 0x8f00_5d5e_f7f5_9f9b_5c83_5e16_65c4_3748),
    constant(-1, 0x94ac_72c9_8471_86f6_18c4_f393_f78a_32f9),
    constant(-1, 0x9a2f_80e6_71bd_da20_4226_f8e2_204f_f3bd),
    constant(-1, 0x9f89_fdc4_f4b7_a1ec_f8b4_9264_4f07_01e0),
    constant(-1, 0xa4bc_7d19_34f7_0924_19a8_7f2a_457d_ac9f),
    constant(-1, 0xa9c7_abdc_4830_f5c8_916a_84b5_be79_33f6),
    constant(-1, 0xaeac_4c38_b4d8_c080_1472_5e2f_3e52_070a),
    constant(-1, 0xb36b_31c9_1f04_3691_5901_4174_4462_f93a),
    constant(-1, 0xb805_3e2b_c231_9e73_cb2d_a552_10a4_443d),
    constant(-1, 0xbc7b_5dea_e98a_f280_d411_3006_e80f_b290),
    constant(-1, 0xc0ce_85b8_ac52_6640_89dd_62c4_6e92_fa25),
    constant(-1, 0xc4ff_affa_bf8f_bd54_8cb4_3d10_bc9e_0221),
    constant(-1, 0xc90f_daa2_2168_c234_c4c6_628b_80dc_1cd1),
];

/// An angle as `quadrant * pi/2 + rest`, |rest| at most pi/4; `None` for a rest of zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduced {
    quadrant: u64,
    rest: Option<Num>,
}

/// Reduces an angle of at most 64 significant bits and a magnitude below 2^63.
pub fn reduce(x: Num) -> Reduced {
    // Below 2^-1 nothing needs to be taken away.
    if x.exponent < -1 {
        return Reduced { quadrant: 0, rest: Some(x) };
    }
    // x * 2/pi in 384 fraction bits and one limb of integer: x is an integer times 2^(exponent - 63).
    let product = limbs(x, (x.exponent + 1) as u32);
    let integer = product[6];
    let negative_rest = product[5] >> 63 != 0;
    let mut fraction = [0u64; 6];
    fraction.copy_from_slice(&product[..6]);
    let quadrant = if negative_rest {
        negate(&mut fraction);
        integer.wrapping_add(1)
    } else {
        integer
    };
    let rest = leading(&fraction, negative_rest).map(|turns| mul(turns, HALF_PI));
    let (quadrant, rest) =
        if x.negative { (quadrant.wrapping_neg(), rest.map(Num::negated)) } else { (quadrant, rest) };
    Reduced { quadrant: quadrant & 3, rest }
}

/// The significand of `x` times 2/pi, shifted so that the binary point lies below limb 6.
fn limbs(x: Num, shift: u32) -> [u64; 7] {
    let significand = x.significand >> 64;
    let mut product = [0u64; 7];
    let mut carry = 0u128;
    for (limb, factor) in product.iter_mut().zip(TWO_OVER_PI) {
        carry += significand * u128::from(factor);
        *limb = carry as u64;
        carry >>= 64;
    }
    product[5] = carry as u64;
    // As an integer the product has 320 + 63 - exponent fraction bits; 384 are wanted.
    if shift > 0 {
        for i in (1..7).rev() {
            product[i] = (product[i] << shift) | (product[i - 1] >> (64 - shift));
        }
        product[0] <<= shift;
    }
    product
}

fn negate(limbs: &mut [u64; 6]) {
    let mut carry = true;
    for limb in limbs {
        (*limb, carry) = (!*limb).overflowing_add(u64::from(carry));
    }
}

/// The leading 128 bits of a fraction of 384 bits.
fn leading(fraction: &[u64; 6], negative: bool) -> Option<Num> {
    let top = (0..6).rev().find(|&i| fraction[i] != 0)?;
    let limb = |i: usize, below: usize| i.checked_sub(below).map_or(0, |i| fraction[i]);
    let high = u128::from(fraction[top]) << 64 | u128::from(limb(top, 1));
    let shift = fraction[top].leading_zeros();
    let low = if shift == 0 { 0 } else { limb(top, 2) >> (64 - shift) };
    let exponent = -1 - 64 * (5 - top as i32) - shift as i32;
    Some(Num { negative, exponent, significand: (high << shift) | u128::from(low) })
}

/// The sine of a small angle.
fn sine_series(x: Num) -> Num {
    mul(x, horner(mul(x, x).negated(), SINE_TERMS, |k| 2 * k * (2 * k + 1)))
}

/// The cosine of a small angle.
fn cosine_series(x: Num) -> Num {
    horner(mul(x, x).negated(), SINE_TERMS, |k| (2 * k - 1) * 2 * k)
}

impl Reduced {
    /// The sine; `None` for zero, which no nonzero argument has.
    pub fn sine(self) -> Option<Num> {
        let value = match self.quadrant & 1 {
            0 => self.rest.map(sine_series),
            _ => Some(self.rest.map_or(ONE, cosine_series)),
        };
        value.map(|value| if self.quadrant & 2 != 0 { value.negated() } else { value })
    }

    /// The cosine.
    pub fn cosine(self) -> Option<Num> {
        Self { quadrant: (self.quadrant + 1) & 3, ..self }.sine()
    }
}

/// The tangent, from sine and cosine.
pub fn tangent(x: Num) -> Option<Num> {
    let reduced = reduce(x);
    Some(div(reduced.sine()?, reduced.cosine()?))
}

/// atan(y / x) for positive numbers with y <= x.
fn arctangent_of_fraction(y: Num, x: Num) -> Num {
    // k / 32 is the nearest to y / x from below or above; both are finite, so the quotient is at most 1.
    let ratio = div(y, x);
    let k = ratio.times_power(5).to_integer(Rounding::Nearest).map_or(0, |(k, _, _)| k.min(32));
    let series = |t: Num| mul(t, odd_reciprocals(mul(t, t).negated(), ARCTANGENT_TERMS));
    let (Some(step), Some(known)) = (Num::from_integer(false, k), ARCTANGENTS.get((k as usize).wrapping_sub(1))) else {
        return series(ratio);
    };
    // atan(t) = atan(c) + atan((t - c) / (1 + t c)).
    let c = step.times_power(-5);
    let numerator = crate::fp::soft::arith::add(ratio, c.negated());
    match numerator {
        None => *known,
        Some(numerator) => add(*known, series(div(numerator, add(ONE, mul(ratio, c))))),
    }
}

/// The angle of the point (x, y), both nonzero: atan2(y, x).
pub fn arctangent(y: Num, x: Num) -> Num {
    let (up, right) = (y.magnitude(), x.magnitude());
    let steep = (up.exponent, up.significand) > (right.exponent, right.significand);
    let angle = if steep {
        add(HALF_PI, arctangent_of_fraction(right, up).negated())
    } else {
        arctangent_of_fraction(up, right)
    };
    let angle = if x.negative { add(PI, angle.negated()) } else { angle };
    Num { negative: y.negative, ..angle }
}

/// 2^x - 1 for |x| at most 1.
pub fn power_minus_one(x: Num) -> Num {
    let u = mul(x, LN_2);
    // e^u - 1 = u (1 + u/2 (1 + u/3 (1 + ...))).
    mul(u, horner(u, EXPONENTIAL_TERMS, |k| k + 1))
}

/// 2 atanh(s) / ln 2, the logarithm of (1 + s) / (1 - s) to base 2, for |s| at most 0.172.
fn logarithm_series(s: Num) -> Num {
    let atanh = mul(s, odd_reciprocals(mul(s, s), LOGARITHM_TERMS));
    mul(atanh, LOG2_E).times_power(1)
}

/// The logarithm of a positive number to base 2; `None` for zero, the logarithm of one.
pub fn logarithm(x: Num) -> Option<Num> {
    // The root of two divides the binade.
    const ROOT: u128 = 0xb504_f333_f9de_6484_597d_89b3_754a_be9f;
    let scale = if x.significand > ROOT { x.exponent + 1 } else { x.exponent };
    let mantissa = x.times_power(-scale);
    let integer = Num::from_integer(scale < 0, u64::from(scale.unsigned_abs()));
    let difference = crate::fp::soft::arith::add(mantissa, ONE.negated());
    let fraction = difference.map(|difference| logarithm_series(div(difference, add(mantissa, ONE))));
    match (integer, fraction) {
        (Some(integer), Some(fraction)) => Some(add(integer, fraction)),
        (one, other) => one.or(other),
    }
}

/// The logarithm of 1 + x to base 2, for x above -1; small x lose nothing.
pub fn logarithm_plus_one(x: Num) -> Option<Num> {
    // Beyond this the other form of the argument is as good.
    if x.exponent >= -2 {
        return logarithm(add(ONE, x));
    }
    Some(logarithm_series(div(x, add(constant(1, 1 << 127), x))))
}
