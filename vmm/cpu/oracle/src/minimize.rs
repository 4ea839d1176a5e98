// SPDX-License-Identifier: AGPL-3.0-or-later
//! Makes a failing case small: everything that is not needed for the failure goes back to its default.

use crate::case::{Case, Fx, Patch};
use crate::compare::Difference;

/// Repeats simplifications until none keeps `fails` true. Returns the smallest case with its difference.
pub fn minimize(case: &Case, mut fails: impl FnMut(&Case) -> Option<Difference>) -> Option<(Case, Difference)> {
    let mut best = *case;
    let mut difference = fails(&best)?;
    // Each pass that changes something removes at least one piece, so this ends.
    loop {
        let mut changed = false;
        for candidate in candidates(&best) {
            if let Some(found) = fails(&candidate) {
                best = candidate;
                difference = found;
                changed = true;
                break;
            }
        }
        if !changed {
            return Some((best, difference));
        }
    }
}

fn candidates(case: &Case) -> Vec<Case> {
    let empty = Case::empty(case.bits);
    let mut list = Vec::new();
    let mut push = |change: &dyn Fn(&mut Case)| {
        let mut candidate = *case;
        change(&mut candidate);
        if !same(&candidate, case) {
            list.push(candidate);
        }
    };
    push(&|c| c.fx = Fx::initial());
    push(&|c| (160..416).for_each(|at| c.fx.0[at] = 0));
    push(&|c| (32..160).for_each(|at| c.fx.0[at] = 0));
    push(&|c| c.patch_count = 0);
    push(&|c| c.rflags = empty.rflags);
    push(&|c| c.fx.set_u32(24, 0x1f80));
    push(&|c| c.fx.set_u16(0, 0x37f));
    push(&|c| c.fx.set_u16(2, 0));
    push(&|c| c.fx.0[4] = 0xff);
    for index in 0..16 {
        push(&|c| c.gpr[index] = 0);
        push(&|c| c.fx.set_xmm(index, 0));
        push(&|c| c.fx.set_xmm(index, c.fx.xmm(index) & u128::from(u64::MAX)));
    }
    for index in 0..8 {
        push(&|c| c.fx.set_st(index, 0, 0));
    }
    for index in 0..case.patch_count as usize {
        push(&|c| {
            c.patches.copy_within(index + 1.., index);
            c.patches[c.patches.len() - 1] = Patch::default();
            c.patch_count -= 1;
        });
    }
    for bit in [0x400u64, 1, 4, 0x10, 0x40, 0x80, 0x800] {
        push(&|c| c.rflags &= !bit);
    }
    list
}

fn same(a: &Case, b: &Case) -> bool {
    a.fx == b.fx && a.gpr == b.gpr && a.rflags == b.rflags && a.patch_count == b.patch_count && a.patches == b.patches
}
