// SPDX-License-Identifier: AGPL-3.0-or-later
//! Makes a failing case small: everything that is not needed for the failure goes back to its default.

use crate::case::{Case, Fx, Patch};
use crate::compare::Difference;

/// Repeats simplifications until none keeps the case failing. Returns the smallest case with its difference. `fail` says
/// for each of a list of cases how it fails; it is asked for whole lists, because running one case costs as much as many.
pub fn minimize(case: &Case, mut fail: impl FnMut(&[Case]) -> Vec<Option<Difference>>) -> Option<(Case, Difference)> {
    let mut best = (*case, fail(std::slice::from_ref(case)).pop()??);
    // Each pass that changes something removes at least one piece, so this ends.
    loop {
        let changes = changes(&best.0);
        let candidates: Vec<Case> = changes.iter().map(|change| applied(&best.0, [change])).collect();
        let results = fail(&candidates);
        let works: Vec<usize> = (0..results.len()).filter(|&index| results[index].is_some()).collect();
        let Some(&first) = works.first() else { return Some(best) };
        // What works alone often works together: all of it, then halves.
        let mut together: Vec<Case> = Vec::new();
        let mut count = works.len();
        while count > 1 {
            together.push(applied(&best.0, works[..count].iter().map(|&index| &changes[index])));
            count /= 2;
        }
        let mut found = fail(&together);
        best = match found.iter().position(Option::is_some) {
            Some(index) => (together[index], found.swap_remove(index)?),
            None => (candidates[first], results.into_iter().nth(first)??),
        };
    }
}

type Change = Box<dyn Fn(&mut Case)>;

fn applied<'a>(case: &Case, changes: impl IntoIterator<Item = &'a Change>) -> Case {
    let mut changed = *case;
    for change in changes {
        change(&mut changed);
    }
    changed
}

/// The simplifications that would change something.
fn changes(case: &Case) -> Vec<Change> {
    let empty = Case::empty(case.bits);
    let mut list: Vec<Change> = vec![
        // The tag word is left alone: each change must be final, or this would not end.
        Box::new(|c| c.fx = initial_with_tag(c.fx.0[4])),
        Box::new(|c| c.patch_count = 0),
        Box::new(move |c| c.rflags = empty.rflags),
        Box::new(|c| c.fx.set_u32(24, 0x1f80)),
        Box::new(|c| c.fx.set_u16(0, 0x37f)),
        Box::new(|c| c.fx.set_u16(2, 0)),
        Box::new(|c| c.fx.0[4] = 0xff),
    ];
    for index in 0..16 {
        list.push(Box::new(move |c| c.gpr[index] = 0));
        list.push(Box::new(move |c| c.fx.set_xmm(index, 0)));
        list.push(Box::new(move |c| c.fx.set_xmm(index, c.fx.xmm(index) & u128::from(u64::MAX))));
    }
    for index in 0..8 {
        list.push(Box::new(move |c| c.fx.set_st(index, 0, 0)));
        list.push(Box::new(move |c| c.patches[index] = Patch::default()));
    }
    for bit in [0x400u64, 1, 4, 0x10, 0x40, 0x80, 0x800] {
        list.push(Box::new(move |c| c.rflags &= !bit));
    }
    list.retain(|change| !same(&applied(case, [change]), case));
    list
}

fn initial_with_tag(tag: u8) -> Fx {
    let mut fx = Fx::initial();
    fx.0[4] = tag;
    fx
}

fn same(a: &Case, b: &Case) -> bool {
    a.fx == b.fx && a.gpr == b.gpr && a.rflags == b.rflags && a.patch_count == b.patch_count && a.patches == b.patches
}
