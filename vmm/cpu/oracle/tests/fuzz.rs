// SPDX-License-Identifier: AGPL-3.0-or-later
//! Arbitrary guests neither panic nor leave their RAM: a bounded number of seeded inputs. `vmm/cpu/fuzz` runs without end.

use chaoscontrol_cpu_oracle::fuzz::Fuzzer;
use chaoscontrol_cpu_oracle::random::{below, stream};
use rand_core::Rng;

const SEED: u64 = 1;
const INPUTS: u64 = 3_000;

#[test]
fn arbitrary_guests_stay_inside_their_ram() {
    let mut fuzzer = Fuzzer::new().expect("mapped");
    let mut events = 0;
    for index in 0..INPUTS {
        let mut rng = stream(SEED, index);
        let mut input = vec![0; 64 + below(&mut rng, 4096) as usize];
        rng.fill_bytes(&mut input);
        // A panic names the input: seed and index are in the thread's message below.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fuzzer.run(&input)));
        events += result.unwrap_or_else(|_| panic!("input {index} of seed {SEED} panicked"));
    }
    assert!(events > INPUTS, "only {events} events were counted in {INPUTS} inputs");
}
