// SPDX-License-Identifier: Apache-2.0
//! A small guest that shows the SDK: a counter with a bug that only some choices of the explorer reach.
//!
//! `demo_rounds=N` on the kernel command line sets how many rounds it runs (default 200).

use chaoscontrol_sdk::{
    SdkError, assert_agree, assert_always, assert_always_less_than, assert_reachable, assert_sometimes,
    assert_sometimes_all, details, guest, random_choice, send_event, setup_complete,
};
use std::time::Duration;

const ROUNDS_DEFAULT: u64 = 200;
/// The counter must stay below this; steps of 7 in a row get there.
const LIMIT: u64 = 1000;
const PAUSE: Duration = Duration::from_millis(5);

fn main() -> Result<(), SdkError> {
    chaoscontrol_sdk::init()?;
    let rounds = guest::parameter("demo_rounds").and_then(|text| text.parse().ok()).unwrap_or(ROUNDS_DEFAULT);
    println!("chaos-sdk-demo: {rounds} rounds");
    setup_complete(details! { rounds: rounds })?;
    let mut counter = 0u64;
    let (mut even, mut large) = (false, false);
    for round in 0..rounds {
        let step = *random_choice(&[1u64, 2, 3, 7]).expect("there are four choices");
        counter += step;
        even |= counter.is_multiple_of(2);
        large |= step == 7;
        assert_always!(
            counter >= round,
            "the counter keeps up with the rounds",
            details! { counter: counter, round: round }
        );
        assert_always_less_than!(counter, LIMIT, "the counter stays below its limit");
        assert_sometimes!(step == 7, "the largest step is taken");
        assert_sometimes_all!({ even: even, large: large }, "an even counter and a large step");
        assert_agree!("counter after a round", round, counter)?;
        std::thread::sleep(PAUSE);
    }
    assert_reachable!("all rounds are done");
    send_event("demo_done", details! { counter: counter })?;
    println!("chaos-sdk-demo: counter {counter}");
    Ok(())
}
