// SPDX-License-Identifier: AGPL-3.0-or-later
//! Arbitrary bytes as a guest; see `chaoscontrol_cpu_oracle::fuzz`.

#![no_main]

use chaoscontrol_cpu_oracle::fuzz::Fuzzer;
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

thread_local! {
    static FUZZER: RefCell<Fuzzer> = RefCell::new(Fuzzer::new().expect("memory can be mapped"));
}

fuzz_target!(|data: &[u8]| {
    FUZZER.with_borrow_mut(|fuzzer| fuzzer.run(data));
});
