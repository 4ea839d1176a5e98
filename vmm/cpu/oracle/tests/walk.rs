// SPDX-License-Identifier: AGPL-3.0-or-later
//! Every iced `Code` is judged by an oracle or raises #UD for a stated reason.

use chaoscontrol_cpu_oracle::qemu::programs;
use chaoscontrol_cpu_oracle::walk::{Judge, judges};

#[test]
fn every_code_has_a_judge() {
    let mut holes = Vec::new();
    let programs: Vec<String> = programs::all(1).into_iter().map(|program| program.name).collect();
    let mut by_host = 0;
    for (code, judge) in judges() {
        match judge {
            None => holes.push(format!("{code:?}: implemented, but no oracle judges it")),
            Some(Judge::Undefined(reason) | Judge::NeverDecoded(reason) | Judge::Table(reason))
                if reason.is_empty() =>
            {
                holes.push(format!("{code:?}: no reason"));
            }
            Some(Judge::Lockstep(name)) if !programs.iter().any(|program| program == name) => {
                holes.push(format!("{code:?}: there is no lockstep program {name}"));
            }
            Some(Judge::Host) => by_host += 1,
            Some(_) => {}
        }
    }
    assert!(holes.is_empty(), "{} holes:\n{}", holes.len(), holes.join("\n"));
    assert!(by_host > 1000, "only {by_host} codes are judged by the host");
}
