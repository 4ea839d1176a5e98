// SPDX-License-Identifier: AGPL-3.0-or-later
//! x87 transcendental instructions.

use super::x87::begin;
use super::x87_unary::push_two;
use crate::core_state::Core;
use crate::fp::x87::f80::{Control, F80, Outcome};
use crate::fp::x87::flag::C2;
use crate::fp::x87::stack::{OVERFLOW, UNDERFLOW};
use crate::fp::x87::transcendental::{self, Trigonometric};
use crate::op::{Op, Step};

/// F2XM1.
pub fn f2xm1(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.replace(0, 0, false, |a, _, control| transcendental::power_minus_one(a, control));
    Ok(())
}

/// FYL2X.
pub fn fyl2x(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.replace(1, 0, true, transcendental::logarithm);
    Ok(())
}

/// FYL2XP1.
pub fn fyl2xp1(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.replace(1, 0, true, transcendental::logarithm_plus_one);
    Ok(())
}

/// FPATAN.
pub fn fpatan(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.replace(1, 0, true, transcendental::arctangent);
    Ok(())
}

/// FSIN and FCOS: C2 says that the argument was out of range and nothing was done.
fn in_place(core: &mut Core, f: fn(F80, Control) -> Trigonometric) {
    let x87 = &mut core.x87;
    let outcome = match x87.empty(0) {
        true => Some(Outcome { value: F80::DEFAULT_NAN, flags: UNDERFLOW }),
        false => f(x87.st(0), x87.environment()),
    };
    match outcome {
        None => {
            x87.raise(0);
            x87.status |= C2;
        }
        Some(outcome) => {
            x87.status &= !C2;
            if x87.raise(outcome.flags) {
                x87.set_st(0, outcome.value);
            }
        }
    }
}

/// FSIN.
pub fn fsin(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    in_place(core, transcendental::sine);
    Ok(())
}

/// FCOS.
pub fn fcos(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    in_place(core, transcendental::cosine);
    Ok(())
}

/// FSINCOS and FPTAN: the first result replaces ST(0), the second is pushed.
fn and_push(core: &mut Core, f: impl FnOnce(F80, Control) -> Trigonometric<(F80, F80)>) {
    let x87 = &mut core.x87;
    let both = (F80::DEFAULT_NAN, F80::DEFAULT_NAN);
    let outcome = if x87.empty(0) {
        Some(Outcome { value: both, flags: UNDERFLOW })
    } else if !x87.empty(7) {
        Some(Outcome { value: both, flags: OVERFLOW })
    } else {
        f(x87.st(0), x87.environment())
    };
    match outcome {
        None => {
            x87.raise(0);
            x87.status |= C2;
        }
        Some(outcome) => {
            x87.status &= !C2;
            push_two(core, outcome.flags, outcome.value.0, outcome.value.1);
        }
    }
}

/// FSINCOS.
pub fn fsincos(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    and_push(core, transcendental::sine_cosine);
    Ok(())
}

/// FPTAN: pushes 1.0, or the NaN that the tangent is.
pub fn fptan(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    and_push(core, |a, control| {
        let Outcome { value, flags } = transcendental::tangent(a, control)?;
        let second = if value.is_nan() { value } else { F80::ONE };
        Some(Outcome { value: (value, second), flags })
    });
    Ok(())
}
