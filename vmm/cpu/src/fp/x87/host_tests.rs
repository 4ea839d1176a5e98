// SPDX-License-Identifier: AGPL-3.0-or-later
//! Operations on ST(0) and ST(1) against the host's x87 unit: result and status word, every rounding and precision mode, exceptions
//! masked and unmasked. A non-waiting FNSTSW reads the status, so no exception is ever delivered.

use super::arith::{self, Operation, Remainder};
use super::f80::{Control, F80, Outcome};
use super::memory;
use crate::state::X87;
use std::arch::asm;

const SEED: u64 = 0x5eed_0087;
const CASES: u32 = 20_000;

/// A small generator, so that cases depend on the seed alone.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A pattern that favours edges: zeros, denormals, infinities, NaNs, unsupported patterns, neighbours of one and of integers.
    fn pattern(&mut self) -> F80 {
        let (bits, shape) = (self.next(), self.next());
        let sign = (shape >> 63) as u16 * 0x8000;
        let sig = match shape >> 8 & 7 {
            0 => 1 << 63,
            1 => u64::MAX,
            2 => 1 << 63 | 1,
            3 => bits & (u64::MAX << (shape >> 16 & 63)) | 1 << 63,
            _ => bits | 1 << 63,
        };
        let near_one = 0x3fff - 70 + (shape >> 24) as u16 % 140;
        let (exponent, sig) = match shape & 15 {
            0 => (0, 0),
            1 => (0, bits >> (shape >> 16 & 63)),
            2 => (0, sig),
            3 => (0x7fff, 1 << 63),
            4 => (0x7fff, sig),
            5 => (near_one, bits >> 1),
            6 => ((shape >> 40) as u16 & 0x7fff, sig),
            7 => (1 + (shape >> 40) as u16 % 70, sig),
            8 => (0x7ffe - (shape >> 40) as u16 % 70, sig),
            _ => (near_one, sig),
        };
        F80 { se: sign | exponent, sig }
    }
}

/// What the host makes of ST(0) = a, ST(1) = b: ST(0) and the status word.
macro_rules! host {
    ($($name:ident: $operation:literal;)*) => {$(
        fn $name(a: F80, b: F80, control: u16) -> (F80, u16) {
            let bytes = |x: F80| (u128::from(x.sig) | u128::from(x.se) << 64).to_le_bytes();
            let (a, b) = (bytes(a), bytes(b));
            let mut out = [0u8; 16];
            let mut status = 0u16;
            // SAFETY: the operands are ten readable bytes, the results ten and two writable ones; the unit is left initialized
            // and every register is declared as overwritten.
            unsafe {
                asm!(
                    "fninit",
                    "fld tbyte ptr [{b}]",
                    "fld tbyte ptr [{a}]",
                    "fldcw word ptr [{control}]",
                    $operation,
                    "fnstsw word ptr [{status}]",
                    "fnclex",
                    "fstp tbyte ptr [{out}]",
                    "fninit",
                    a = in(reg) &a,
                    b = in(reg) &b,
                    control = in(reg) &control,
                    status = in(reg) &mut status,
                    out = in(reg) &mut out,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                );
            }
            let all = u128::from_le_bytes(out);
            (F80 { se: (all >> 64) as u16, sig: all as u64 }, status)
        }
    )*};
}

host! {
    fadd: "fadd st, st(1)"; fsub: "fsub st, st(1)"; fsubr: "fsubr st, st(1)";
    fmul: "fmul st, st(1)"; fdiv: "fdiv st, st(1)"; fdivr: "fdivr st, st(1)";
    fsqrt: "fsqrt"; frndint: "frndint"; fscale: "fscale"; fprem: "fprem"; fprem1: "fprem1";
    fcom: "fcom st(1)"; fucom: "fucom st(1)";
}

fn is_amd() -> bool {
    core::arch::x86_64::__cpuid(0).ecx == u32::from_le_bytes(*b"cAMD")
}

fn check(name: &str, host: fn(F80, F80, u16) -> (F80, u16), ours: impl Fn(&mut X87)) {
    let mut random = Random(SEED);
    for case in 0..CASES {
        let (a, b, bits) = (random.pattern(), random.pattern(), random.next() as u16);
        // Precision 1 is reserved.
        let control = if bits & 0x300 == 0x100 { bits | 0x200 } else { bits } & 0xf3f;
        let control = if bits & 0x7000 != 0 { control | 0x3f } else { control } | 0x40;
        // Whether a subnormal number that is passed on as it is counts as an underflow differs between vendors (`arith::scale`).
        if control & 0x10 == 0 && a.is_denormal() && !is_amd() && matches!(name, "fscale" | "fprem" | "fprem1") {
            continue;
        }
        let mut x87 = X87::default();
        x87.push_over(b);
        x87.push_over(a);
        x87.set_control(control);
        ours(&mut x87);
        let expected = host(a, b, control);
        assert_eq!(
            (x87.st(0), x87.status),
            expected,
            "{name} case {case} of seed {SEED:#x}: {a:x?} {b:x?} control {control:#x}"
        );
    }
}

fn arithmetic(operation: Operation) -> impl Fn(&mut X87) {
    move |x87| x87.replace(0, 1, false, |a, b, control| arith::operate(operation, a, b, false, control))
}

fn unary(f: fn(F80, Control) -> Outcome) -> impl Fn(&mut X87) {
    move |x87| x87.replace(0, 0, false, |a, _, control| f(a, control))
}

#[test]
fn arithmetic_equals_the_hosts_in_every_mode() {
    check("fadd", fadd, arithmetic(Operation::Add));
    check("fsub", fsub, arithmetic(Operation::Sub));
    check("fsubr", fsubr, arithmetic(Operation::SubReversed));
    check("fmul", fmul, arithmetic(Operation::Mul));
    check("fdiv", fdiv, arithmetic(Operation::Div));
    check("fdivr", fdivr, arithmetic(Operation::DivReversed));
    check("fsqrt", fsqrt, unary(arith::sqrt));
    check("frndint", frndint, unary(arith::round_to_integral));
    check("fscale", fscale, |x87| x87.replace(0, 1, false, arith::scale));
}

#[test]
fn remainders_equal_the_hosts() {
    let ours = |nearest: bool| {
        move |x87: &mut X87| {
            let outcome = arith::remainder(x87.st(0), x87.st(1), nearest, x87.environment());
            x87.remainder(outcome);
        }
    };
    check("fprem", fprem, ours(false));
    check("fprem1", fprem1, ours(true));
}

#[test]
fn comparisons_equal_the_hosts() {
    let ours = |quiet_invalid: bool| {
        move |x87: &mut X87| {
            let Outcome { value, flags } = memory::compare(x87.st(0), x87.st(1), quiet_invalid, false);
            x87.raise(flags);
            x87.set_codes(value);
        }
    };
    check("fcom", fcom, ours(true));
    check("fucom", fucom, ours(false));
}

#[test]
fn a_remainder_without_quotient_keeps_the_condition_codes() {
    let mut x87 = X87 { status: 0x4300, ..X87::default() };
    x87.push_over(F80::ONE);
    let value = Remainder { value: F80::DEFAULT_NAN, incomplete: false, quotient: None };
    x87.remainder(Outcome { value, flags: 0 });
    assert_eq!(x87.status & 0x4700, 0x4100);
}
