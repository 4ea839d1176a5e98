// SPDX-License-Identifier: AGPL-3.0-or-later
//! Results within one unit in the last place of a multi-precision reference, and the special operands.

use super::f80::{Control, F80, Outcome};
use super::flag::{IE, PE, ZE};
use super::transcendental::{arctangent, cosine, logarithm, logarithm_plus_one, power_minus_one, sine, tangent};
use super::vectors::{self, Reg};

const NEAREST: Control = Control(0x37f);

fn value((se, sig): Reg) -> F80 {
    F80 { se, sig }
}

/// Distance in units of the last place, across binades of one sign.
fn ulps(a: F80, b: F80) -> u128 {
    let key = |x: F80| u128::from(x.se & 0x7fff) << 63 | u128::from(x.sig & !(1 << 63));
    if a.negative() == b.negative() { key(a).abs_diff(key(b)) } else { u128::MAX }
}

fn check(name: &str, arguments: &[F80], found: Outcome, expected: Reg) {
    let distance = ulps(found.value, value(expected));
    assert!(distance <= 1, "{name} {arguments:x?}: found {:x?}, expected {expected:x?}", found.value);
    assert_eq!(found.flags & PE, PE, "{name} {arguments:x?} is inexact");
}

#[test]
fn functions_of_one_argument_are_within_one_ulp() {
    for &(x, expected) in vectors::SINE {
        check("sine", &[value(x)], sine(value(x), NEAREST).expect("in range"), expected);
    }
    for &(x, expected) in vectors::COSINE {
        check("cosine", &[value(x)], cosine(value(x), NEAREST).expect("in range"), expected);
    }
    for &(x, expected) in vectors::TANGENT {
        check("tangent", &[value(x)], tangent(value(x), NEAREST).expect("in range"), expected);
    }
    for &(x, expected) in vectors::POWER_MINUS_ONE {
        check("2^x - 1", &[value(x)], power_minus_one(value(x), NEAREST), expected);
    }
}

#[test]
fn functions_of_two_arguments_are_within_one_ulp() {
    for &(y, x, expected) in vectors::LOGARITHM {
        check("y log2 x", &[value(y), value(x)], logarithm(value(y), value(x), NEAREST), expected);
    }
    for &(y, x, expected) in vectors::LOGARITHM_PLUS_ONE {
        check("y log2(1 + x)", &[value(y), value(x)], logarithm_plus_one(value(y), value(x), NEAREST), expected);
    }
    for &(y, x, expected) in vectors::ARCTANGENT {
        check("atan2", &[value(y), value(x)], arctangent(value(y), value(x), NEAREST), expected);
    }
}

#[test]
fn directed_rounding_brackets_the_nearest() {
    for &(x, _) in vectors::SINE {
        let at = |rc: u16| sine(value(x), Control(0x37f | rc << 10)).expect("in range").value;
        let (down, up) = (at(1), at(2));
        assert_eq!(ulps(down, up), 1, "{x:x?}");
        assert!(at(0) == down || at(0) == up, "{x:x?}");
    }
}

#[test]
fn special_operands_have_the_results_of_the_tables() {
    let one = F80::ONE;
    let infinity = F80::infinity(false);
    assert_eq!(sine(F80 { se: 0x3fff + 63, sig: 1 << 63 }, NEAREST), None);
    assert_eq!(sine(F80::zero(true), NEAREST), Some(Outcome::exact(F80::zero(true))));
    assert_eq!(cosine(F80::ZERO, NEAREST), Some(Outcome::exact(one)));
    assert_eq!(cosine(infinity, NEAREST), Some(Outcome { value: F80::DEFAULT_NAN, flags: IE }));
    assert_eq!(arctangent(F80::zero(true), one, NEAREST), Outcome::exact(F80::zero(true)));
    assert_eq!(arctangent(one, infinity, NEAREST), Outcome::exact(F80::ZERO));
    assert_eq!(arctangent(infinity, one, NEAREST).value, F80 { se: 0x3fff, sig: 0xc90f_daa2_2168_c235 });
    assert_eq!(logarithm(one, F80::ZERO, NEAREST), Outcome { value: F80::infinity(true), flags: ZE });
    assert_eq!(logarithm(F80::ZERO, infinity, NEAREST).flags, IE);
    assert_eq!(logarithm(one, one.negated(), NEAREST).flags, IE);
    assert_eq!(logarithm(one, F80::from_i64(8), NEAREST).value, F80::from_i64(3));
    assert_eq!(power_minus_one(F80::infinity(true), NEAREST), Outcome::exact(one.negated()));
    assert_eq!(power_minus_one(one, NEAREST).value, one);
}
