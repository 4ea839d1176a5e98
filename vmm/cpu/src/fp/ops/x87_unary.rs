// SPDX-License-Identifier: AGPL-3.0-or-later
//! x87 instructions on ST(0) (and ST(1)): signs, roots, remainders, scaling, constants, examination.

use super::x87::begin;
use crate::core_state::Core;
use crate::fp::soft::Rounding;
use crate::fp::x87::arith::{self, Remainder};
use crate::fp::x87::f80::{F80, LEADING, Outcome};
use crate::fp::x87::flag::{C0, C1, C2, C3, CODES};
use crate::fp::x87::stack::{OVERFLOW, UNDERFLOW};
use crate::op::{Op, Step};

/// FCHS.
pub fn fchs(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.replace(0, 0, false, |a, _, _| Outcome::exact(a.negated()));
    Ok(())
}

/// FABS.
pub fn fabs(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.replace(0, 0, false, |a, _, _| Outcome::exact(F80 { se: a.se & 0x7fff, ..a }));
    Ok(())
}

/// FSQRT.
pub fn fsqrt(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.replace(0, 0, false, |a, _, control| arith::sqrt(a, control));
    Ok(())
}

/// FRNDINT.
pub fn frndint(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.replace(0, 0, false, |a, _, control| arith::round_to_integral(a, control));
    Ok(())
}

/// FSCALE.
pub fn fscale(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.replace(0, 1, false, arith::scale);
    Ok(())
}

/// FXTRACT: the exponent replaces ST(0), the significand is pushed.
pub fn fxtract(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let x87 = &mut core.x87;
    if x87.empty(0) {
        push_two(core, UNDERFLOW, F80::DEFAULT_NAN, F80::DEFAULT_NAN);
        return Ok(());
    }
    if !x87.empty(7) {
        push_two(core, OVERFLOW, F80::DEFAULT_NAN, F80::DEFAULT_NAN);
        return Ok(());
    }
    let outcome = arith::extract(x87.st(0), x87.environment());
    push_two(core, outcome.flags, outcome.value.0, outcome.value.1);
    Ok(())
}

/// Replaces ST(0) by `first` and pushes `second`, if the flags permit.
pub fn push_two(core: &mut Core, flags: u16, first: F80, second: F80) {
    if core.x87.raise(flags) {
        core.x87.set_st(0, first);
        core.x87.push_over(second);
    }
}

/// FPREM, and FPREM1 where `NEAREST`.
pub fn fprem<const NEAREST: bool>(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let x87 = &mut core.x87;
    let outcome = if x87.empty(0) || x87.empty(1) {
        let value = Remainder { value: F80::DEFAULT_NAN, incomplete: false, quotient: None };
        Outcome { value, flags: UNDERFLOW }
    } else {
        arith::remainder(x87.st(0), x87.st(1), NEAREST, x87.environment())
    };
    x87.remainder(outcome);
    Ok(())
}

/// FXAM: the class of ST(0), empty or not, and its sign.
pub fn fxam(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let x87 = &mut core.x87;
    let value = x87.st(0);
    let (c3, c2, c0) = if x87.empty(0) { (true, false, true) } else { arith::examine(value) };
    let code = |set: bool, code: u16| if set { code } else { 0 };
    let codes = code(c3, C3) | code(c2, C2) | code(c0, C0) | code(value.negative(), C1);
    x87.status = (x87.status & !CODES) | codes;
    Ok(())
}

/// The constants, in the order of their opcodes D9 E8 to D9 EE: exponent, the significand truncated, and whether the nearest is
/// one more. FLD1 and FLDZ are exact.
const CONSTANTS: [(u16, u64, bool); 7] = [
    (0x3fff, LEADING, false),
    (0x4000, 0xd49a_784b_cd1b_8afe, false),
    (0x3fff, 0xb8aa_3b29_5c17_f0bb, true),
    (0x4000, 0xc90f_daa2_2168_c234, true),
    (0x3ffd, 0x9a20_9a84_fbcf_f798, true),
    (0x3ffe, 0xb172_17f7_d1cf_79ab, true),
    (0, 0, false),
];

/// FLD1, FLDL2T, FLDL2E, FLDPI, FLDLG2, FLDLN2, FLDZ: rounded to 64 bits by RC, without an inexact exception.
pub fn fld_constant<const INDEX: usize>(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let (se, truncated, nearest_up) = CONSTANTS[INDEX];
    let exact = matches!(INDEX, 0 | 6);
    let up = match core.x87.environment().rounding() {
        Rounding::Nearest => nearest_up,
        Rounding::Up => !exact,
        Rounding::Down | Rounding::Zero => false,
    };
    core.x87.push(Outcome::exact(F80 { se, sig: truncated + u64::from(up) }));
    Ok(())
}
