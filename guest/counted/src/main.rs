// SPDX-License-Identifier: Apache-2.0
//! A guest that counts its own edges. `guest/build` compiles this program, and nothing that it links, with LLVM's SanitizerCoverage.
//!
//! What it does depends on choices and on faults: each round it takes one of 16 ways, a second thread follows it, and a child process
//! takes others. A step of the wall clock, which only a fault makes, leads to code that nothing else reaches.

use chaoscontrol_sdk::{SdkError, assert_sometimes, details, random_choice, setup_complete};
use std::hint::black_box;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

/// What a child is started with.
const CHILD: &str = "child";
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(20);
/// The wall clock and this program's own pauses differ by no more, unless somebody sets the clock.
const STEP: Duration = Duration::from_secs(1);
/// Rounds between two children.
const ROUNDS_A_CHILD: u64 = 16;
const WAYS: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

fn main() -> Result<(), SdkError> {
    chaoscontrol_sdk::init()?;
    if std::env::args().nth(1).as_deref() == Some(CHILD) {
        child();
        return Ok(());
    }
    let (ways, taken) = channel();
    let _follower = std::thread::spawn(move || follow(&taken));
    setup_complete(details! { ways: WAYS.len() })?;
    let mut before = SystemTime::now();
    for round in 1_u64.. {
        let way = *random_choice(&WAYS).unwrap_or(&0);
        take(way);
        // The follower ends with this thread only.
        let _ = ways.send(way);
        if round.is_multiple_of(ROUNDS_A_CHILD) {
            let ended = std::env::current_exe().and_then(|own| Command::new(own).arg(CHILD).status());
            assert_sometimes!(ended.is_ok_and(|status| status.success()), "a child process ran");
        }
        std::thread::sleep(PAUSE);
        let now = SystemTime::now();
        if now.duration_since(before).is_ok_and(|passed| passed > STEP) {
            after_a_step();
        }
        before = now;
    }
    Ok(())
}

/// A branch of its own for each way.
fn take(way: u8) {
    match black_box(way) {
        0 => black_box(2),
        1 => black_box(3),
        2 => black_box(5),
        3 => black_box(7),
        4 => black_box(11),
        5 => black_box(13),
        6 => black_box(17),
        7 => black_box(19),
        8 => black_box(23),
        9 => black_box(29),
        10 => black_box(31),
        11 => black_box(37),
        12 => black_box(41),
        13 => black_box(43),
        14 => black_box(47),
        _ => black_box(53),
    };
}

/// The second thread: counts in the same map.
fn follow(taken: &Receiver<u8>) {
    for way in taken {
        if black_box(way) == 15 {
            black_box(59);
        }
    }
}

/// The child process: counts in the same map too.
fn child() {
    for turn in 0..black_box(3_u8) {
        take(black_box(turn));
    }
}

#[inline(never)]
fn after_a_step() {
    assert_sometimes!(black_box(true), "somebody set the wall clock");
}
