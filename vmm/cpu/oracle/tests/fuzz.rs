// SPDX-License-Identifier: AGPL-3.0-or-later
//! Arbitrary guests neither panic nor leave their RAM, and both tiers make the same of them: a bounded number of seeded inputs.
//! `cpu-oracle fuzz` runs any number, `vmm/cpu/fuzz` runs without end, guided by coverage.

use chaoscontrol_cpu_oracle::fuzz::run_inputs;

const SEED: u64 = 1;
const INPUTS: u64 = 3_000;

#[test]
fn arbitrary_guests_stay_inside_their_ram_and_run_alike_on_both_tiers() {
    let ran = run_inputs(SEED, 0, INPUTS, 1, &|_| {}).expect("memory can be mapped");
    assert!(ran.events > 500 * INPUTS, "{INPUTS} inputs of seed {SEED} do little: {ran:?}");
    let compiles = cfg!(all(target_arch = "x86_64", target_os = "linux"));
    assert!(!compiles || ran.compiled > 100 * INPUTS, "{INPUTS} inputs of seed {SEED} compile little: {ran:?}");
}
