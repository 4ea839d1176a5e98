// SPDX-License-Identifier: AGPL-3.0-or-later
//! Ring 0, paging, faults and modes against QEMU.

use chaoscontrol_cpu_oracle::qemu::programs::{self, Program};
use chaoscontrol_cpu_oracle::qemu::{lockstep, machine};

/// Seed of the bounded run.
const SEED: u64 = 1;
/// More seeds, for the programs that draw at random. `CHAOS_LOCKSTEP_SEEDS` asks for another number of them.
const MORE_SEEDS: u64 = 2;

/// Runs programs on both CPUs and returns how many steps were equal.
fn run(programs: Vec<(u64, Program)>) -> Option<u64> {
    if let Err(reason) = machine::available() {
        eprintln!("skipped: lockstep with qemu: {reason}");
        return None;
    }
    let mut qemu = machine::Qemu::start().expect("qemu starts");
    let mut failed = Vec::new();
    let mut steps = 0;
    for (seed, program) in programs {
        match lockstep::run(&mut qemu, program.world()) {
            Ok(count) => steps += count,
            Err(error) => {
                failed.push(format!("{} (seed {seed}): {error}", program.name));
                // A connection that broke may have left answers behind.
                if matches!(error, lockstep::LockstepError::Io(_)) {
                    qemu = machine::Qemu::start().expect("qemu starts");
                }
            }
        }
    }
    assert!(failed.is_empty(), "after {steps} equal steps:\n{}", failed.join("\n"));
    Some(steps)
}

#[test]
fn both_cpus_agree_at_every_step() {
    let programs = programs::long_mode(SEED).into_iter().map(|program| (SEED, program)).collect();
    if let Some(steps) = run(programs) {
        assert!(steps > 10_000, "only {steps} steps were compared");
    }
}

#[test]
fn both_cpus_agree_on_the_way_from_real_mode() {
    let programs = programs::start_up().into_iter().map(|program| (SEED, program)).collect();
    if let Some(steps) = run(programs) {
        assert!(steps > 5_000, "only {steps} steps were compared");
    }
}

#[test]
fn both_cpus_agree_for_other_seeds() {
    let wanted = std::env::var("CHAOS_LOCKSTEP_SEEDS").ok().and_then(|text| text.parse().ok());
    let seeds = SEED + 1..=SEED + wanted.unwrap_or(MORE_SEEDS);
    let programs = seeds.clone().flat_map(|seed| programs::drawn(seed).into_iter().map(move |program| (seed, program)));
    if let Some(steps) = run(programs.collect()) {
        assert!(steps > 1_000 * (seeds.end() - SEED), "only {steps} steps were compared");
    }
}
