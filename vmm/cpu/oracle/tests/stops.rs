// SPDX-License-Identifier: AGPL-3.0-or-later
//! Stopping, restoring and cache sizes cannot be seen.

use chaoscontrol_cpu::Exit;
use chaoscontrol_cpu_oracle::qemu::programs::{self, Program};
use chaoscontrol_cpu_oracle::selfedit;
use chaoscontrol_cpu_oracle::stops::{Policy, run};

const SEED: u64 = 1;

/// Programs that come to their own end, so that the test cannot pass by cutting all off.
fn ends(program: &Program) -> bool {
    run(program.world(), Policy::Straight).is_ok_and(|ending| ending.end == Exit::Halted)
}

fn check(program: &Program, policies: &[Policy]) {
    let straight = run(program.world(), Policy::Straight).unwrap_or_else(|error| panic!("{}: {error}", program.name));
    for &policy in policies {
        let ending =
            run(program.world(), policy).unwrap_or_else(|error| panic!("{}, {policy:?}: {error}", program.name));
        if let Some(difference) = straight.difference(&ending) {
            panic!("{}, {policy:?}: {difference}", program.name);
        }
    }
}

#[test]
fn stopping_at_every_boundary_is_invisible() {
    for program in programs::all(SEED) {
        assert!(ends(&program), "{} does not end", program.name);
        check(&program, &[Policy::Single]);
    }
}

#[test]
fn random_stops_and_restores_are_invisible() {
    for (index, program) in programs::all(SEED).iter().enumerate() {
        let seed = index as u64;
        check(program, &[Policy::Compiled, Policy::Random(seed), Policy::Restores(seed)]);
    }
}

#[test]
fn programs_that_edit_tables_and_code_always_give_one_result() {
    for index in 0..150 {
        let program = selfedit::program(SEED, index);
        let policies = [
            Policy::Compiled,
            Policy::Single,
            Policy::Random(index),
            Policy::Restores(index),
            Policy::Restores(index + 1000),
        ];
        check(&program, &policies);
    }
    let ended = (0..150).filter(|&index| ends(&selfedit::program(SEED, index))).count();
    assert!(ended > 100, "only {ended} of 150 programs came to their end");
}
