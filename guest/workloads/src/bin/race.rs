// SPDX-License-Identifier: Apache-2.0
//! Two threads on two CPUs that add to one counter and wake each other up, with two bugs that can be switched on. Needs a VM
//! with several CPUs to be of interest.
//!
//! | `race_bug=` | what is wrong |
//! |---|---|
//! | (nothing) | nothing: the counter is behind a lock, and the waiter looks again under the lock before it sleeps |
//! | `data_race` | the counter is read, and written back increased, without a lock |
//! | `lost_wakeup` | the waiter looks before it takes the lock, and the notifier takes none |
//!
//! `race_rounds=N` sets how many rounds there are (default 2,000).

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, PoisonError};
use std::time::Duration;

use chaoscontrol_sdk::{
    SdkError, assert_always, assert_sometimes, details, guest, random_below, send_event, setup_complete,
};

const ROUNDS_DEFAULT: u64 = 2_000;
/// How long a waiter sleeps before it looks whether it was forgotten. Ten thousand times what a wake-up takes.
const FORGOTTEN: Duration = Duration::from_millis(200);
/// Most turns of a loop that each thread works between two steps: the window of either bug is a small part of it.
const WORK_MAX: u64 = 600;

/// Which bug is on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    DataRace,
    LostWakeup,
}

/// What the threads share.
struct Shared {
    bug: Bug,
    locked: Mutex<u64>,
    unlocked: AtomicU64,
    ready: AtomicBool,
    gate: Mutex<()>,
    bell: Condvar,
    barrier: Barrier,
    slept: AtomicBool,
    forgotten: AtomicBool,
}

impl Shared {
    fn add(&self) {
        if self.bug == Bug::DataRace {
            // The compiler would make one instruction of the two, between whose halves no other CPU gets.
            let value = black_box(self.unlocked.load(Ordering::Relaxed));
            self.unlocked.store(value + 1, Ordering::Relaxed);
        } else {
            *self.locked.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
    }

    fn total(&self) -> u64 {
        if self.bug == Bug::DataRace {
            self.unlocked.load(Ordering::Relaxed)
        } else {
            *self.locked.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    fn notify(&self) {
        if self.bug == Bug::LostWakeup {
            self.ready.store(true, Ordering::SeqCst);
        } else {
            let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            self.ready.store(true, Ordering::SeqCst);
        }
        self.bell.notify_one();
    }

    fn wait(&self) {
        if self.bug == Bug::LostWakeup {
            // Looked at before the lock is taken: a notification between here and the sleep meets nobody.
            while !self.ready.load(Ordering::SeqCst) {
                let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
                drop(self.sleep(gate));
            }
            return;
        }
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.ready.load(Ordering::SeqCst) {
            gate = self.sleep(gate);
        }
    }

    /// Sleeps until the bell rings. Whoever sleeps on although there was something to wake up for was forgotten.
    fn sleep<'a>(&self, gate: std::sync::MutexGuard<'a, ()>) -> std::sync::MutexGuard<'a, ()> {
        self.slept.store(true, Ordering::Relaxed);
        let known = self.ready.load(Ordering::SeqCst);
        let (gate, result) = self.bell.wait_timeout(gate, FORGOTTEN).unwrap_or_else(PoisonError::into_inner);
        let unseen = known || self.bug == Bug::LostWakeup && self.ready.load(Ordering::SeqCst);
        if result.timed_out() && unseen {
            self.forgotten.store(true, Ordering::Relaxed);
        }
        gate
    }
}

fn main() -> Result<(), SdkError> {
    chaoscontrol_sdk::init()?;
    let bug = match guest::parameter("race_bug").as_deref() {
        None | Some("" | "none") => Bug::None,
        Some("data_race") => Bug::DataRace,
        Some("lost_wakeup") => Bug::LostWakeup,
        Some(other) => {
            println!("chaos-race: race_bug={other} is none of none, data_race, lost_wakeup");
            std::process::exit(2);
        }
    };
    let rounds = guest::parameter("race_rounds").and_then(|text| text.parse().ok()).unwrap_or(ROUNDS_DEFAULT);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!("chaos-race: {cpus} CPUs, {rounds} rounds");
    let shared = Arc::new(Shared {
        bug,
        locked: Mutex::new(0),
        unlocked: AtomicU64::new(0),
        ready: AtomicBool::new(false),
        gate: Mutex::new(()),
        bell: Condvar::new(),
        barrier: Barrier::new(2),
        slept: AtomicBool::new(false),
        forgotten: AtomicBool::new(false),
    });
    setup_complete(details! { cpus: cpus, rounds: rounds })?;
    let other = shared.clone();
    let helper = std::thread::spawn(move || {
        pin_to(1 % cpus);
        (0..rounds).for_each(|_| second(&other));
    });
    pin_to(0);
    for round in 1..=rounds {
        first(&shared, round);
    }
    drop(helper.join());
    send_event("race_done", details! { total: shared.total() })?;
    println!("chaos-race: {} additions", shared.total());
    Ok(())
}

/// The thread that waits, and judges once both are done with the round.
fn first(shared: &Shared, round: u64) {
    shared.barrier.wait();
    work(random_below(WORK_MAX));
    shared.add();
    work(random_below(WORK_MAX));
    shared.wait();
    shared.barrier.wait();
    let (total, slept) = (shared.total(), shared.slept.swap(false, Ordering::Relaxed));
    assert_always!(total == 2 * round, "no addition is lost", details! { total: total, round: round });
    let forgotten = shared.forgotten.load(Ordering::Relaxed);
    assert_always!(!forgotten, "nobody who is notified sleeps on", details! { round: round });
    assert_sometimes!(slept, "the waiter has to sleep");
    assert_sometimes!(!slept, "the waiter comes too late to sleep");
    shared.ready.store(false, Ordering::SeqCst);
    shared.barrier.wait();
}

/// The thread that notifies.
fn second(shared: &Shared) {
    shared.barrier.wait();
    work(random_below(WORK_MAX));
    shared.add();
    work(random_below(WORK_MAX));
    shared.notify();
    shared.barrier.wait();
    shared.barrier.wait();
}

/// Something that takes a few instructions a turn.
fn work(turns: u64) {
    let mut value = turns;
    for turn in 0..turns {
        value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn));
    }
}

/// Keeps the calling thread on one CPU. Where that is refused it may move, which changes nothing of what is right.
fn pin_to(cpu: usize) {
    // SAFETY: a set of all zeros is valid, `CPU_SET` writes inside it, and the kernel only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
