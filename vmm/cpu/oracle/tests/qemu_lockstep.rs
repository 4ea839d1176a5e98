// SPDX-License-Identifier: AGPL-3.0-or-later
//! Ring 0, paging, faults and modes against QEMU.

use chaoscontrol_cpu_oracle::qemu::{lockstep, machine, programs};

/// Seed of the programs that draw at random.
const SEED: u64 = 1;

#[test]
fn both_cpus_agree_at_every_step() {
    if let Err(reason) = machine::available() {
        eprintln!("skipped: lockstep with qemu: {reason}");
        return;
    }
    let mut qemu = machine::Qemu::start().expect("qemu starts");
    let mut failed = Vec::new();
    let mut steps = 0;
    for program in programs::all(SEED) {
        match lockstep::run(&mut qemu, program.world()) {
            Ok(count) => steps += count,
            Err(error) => {
                failed.push(format!("{} (seed {SEED}): {error}", program.name));
                // A connection that broke may have left answers behind.
                if matches!(error, lockstep::LockstepError::Io(_)) {
                    qemu = machine::Qemu::start().expect("qemu starts");
                }
            }
        }
    }
    assert!(failed.is_empty(), "after {steps} equal steps:\n{}", failed.join("\n"));
    assert!(steps > 10_000, "only {steps} steps were compared");
}
