// SPDX-License-Identifier: Apache-2.0
//! A workload for embedded key-value stores: what was committed is there after a power cut, whole and in order.
//!
//! A store is opened in a file system on `/dev/vda` and given transactions, each of which writes to some of 96 keys and notes itself
//! in a log, in one commit. Transaction n is made from its number and a random *nonce*. Two things hold it to its promise:
//!
//! - **What it holds follows from its log.** After every start the log must be 1, 2, 3 … without a gap, and the keys must be what these
//!   transactions leave, no more and no less: a commit is there whole or not at all.
//! - **A committed transaction is never replaced.** Once `commit` has returned, the pair of number and nonce is an agreement
//!   ([`assert_agree!`]), which outlives the machine. A store that lost it goes on with the same number and another nonce.
//!
//! A commit that was cut off may be there or not; if it is, it is committed from then on.
//!
//! The store's own promise is about power cuts, not about a disk that lies: run it with `--without-faults 'disk_*'`.

mod disk;
mod script;

pub use script::{KEYS, Transaction};

use chaoscontrol_sdk::{
    SdkError, assert_agree, assert_always, assert_reachable, assert_sometimes, details, get_random, guest,
    random_choice, setup_complete,
};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// The content of a store's keys.
pub type Contents = BTreeMap<u64, Vec<u8>>;

/// A store under test. Every method is what the store's own documentation says an application does.
pub trait Store: Sized {
    /// Its name, for messages.
    const NAME: &'static str;

    /// What it answers when it cannot do something.
    type Error: Display;

    /// Opens the store in a folder, or makes it there; after a power cut this is where it recovers.
    fn open(folder: &Path) -> Result<Self, Self::Error>;

    /// Applies a transaction in one commit that is durable when this returns.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), Self::Error>;

    /// The log: nonces by number.
    fn log(&self) -> Result<BTreeMap<u64, u64>, Self::Error>;

    /// The keys.
    fn contents(&self) -> Result<Contents, Self::Error>;
}

/// Transactions before setup is complete: the store is in use when faults begin.
const SETUP_TRANSACTIONS: u64 = 4;
/// The last transactions of which each start says what they are.
const REMEMBERED: usize = 48;
/// Pauses between transactions, in ms: most often none.
const PAUSES_MS: [u64; 4] = [0, 0, 2, 10];

/// Runs the workload for ever, or for `store_transactions=N` transactions.
pub fn run<S: Store>() -> ExitCode {
    if let Err(error) = chaoscontrol_sdk::init() {
        println!("{}: {error}", S::NAME);
    }
    // What is called /dev/vda on somebody's own machine is not ours to mount.
    if guest::vm().is_none() {
        println!("{}: this runs in a ChaosControl VM", S::NAME);
        return ExitCode::from(2);
    }
    let device = guest::parameter("store_disk").unwrap_or_else(|| "/dev/vda".to_owned());
    let limit = guest::parameter("store_transactions").and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
    let folder = match disk::mount(&device) {
        Ok(folder) => folder,
        Err(error) => {
            println!("{}: {error}", S::NAME);
            return ExitCode::from(1);
        }
    };
    match work::<S>(&folder, limit) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}: {error}", S::NAME);
            ExitCode::from(1)
        }
    }
}

/// Runs the workload in a folder that is there.
///
/// # Errors
/// What the store answered, or that it holds something else than its log says. A store that cannot be opened, or refuses a commit, on a
/// disk without faults breaks its promise.
pub fn work<S: Store>(folder: &Path, limit: u64) -> Result<(), String> {
    let opened = S::open(folder).map_err(|error| error.to_string());
    let why = opened.as_ref().err().cloned().unwrap_or_default();
    assert_always!(opened.is_ok(), "the store opens after a power cut", details! { why: why.as_str() });
    let mut store = opened?;
    let mut last = recovered(&store)?;
    println!("{}: {last} transactions are there", S::NAME);
    let first = last;
    while last < limit {
        if last == first.max(SETUP_TRANSACTIONS) {
            setup_complete(details! { transactions: last }).map_err(|error| error.to_string())?;
        }
        last += 1;
        let transaction = Transaction::new(last, get_random());
        let done = store.commit(&transaction).map_err(|error| error.to_string());
        let why = done.as_ref().err().cloned().unwrap_or_default();
        assert_always!(done.is_ok(), "a sound disk takes every commit", details! { number: last, why: why.as_str() });
        done?;
        committed(last, transaction.nonce()).map_err(|error| error.to_string())?;
        assert_sometimes!(first > SETUP_TRANSACTIONS && last > first, "transactions are committed after a power cut");
        std::thread::sleep(Duration::from_millis(*random_choice(&PAUSES_MS).expect("there are some")));
    }
    Ok(())
}

/// Binds a transaction's number to its nonce, for every later start of this machine.
fn committed(number: u64, nonce: u64) -> Result<(), SdkError> {
    // The machine's index is part of the key: every machine has a store of its own.
    let machine = guest::vm().unwrap_or(0);
    assert_agree!("a committed transaction", format_args!("{machine}/{number}"), nonce)
}

/// Checks what a start found; gives the number of the last transaction.
fn recovered<S: Store>(store: &S) -> Result<u64, String> {
    let log = store.log().map_err(|error| format!("reading the log: {error}"))?;
    let last = log.len() as u64;
    let gapless = log.keys().copied().eq(1..=last);
    assert_always!(gapless, "the log has no gap", details! { length: last });
    let contents = store.contents().map_err(|error| format!("reading the keys: {error}"))?;
    let expected = script::contents(log.iter().map(|(number, nonce)| Transaction::new(*number, *nonce)));
    let wrong = script::differing(&expected, &contents);
    assert_always!(
        wrong.is_none(),
        "the keys are what the logged transactions leave",
        details! { transactions: last, key: wrong.unwrap_or(0), has: contents.len(), expected: expected.len() }
    );
    if !gapless || wrong.is_some() {
        return Err("the store does not hold what its log says".to_owned());
    }
    for (number, nonce) in log.iter().rev().take(REMEMBERED) {
        committed(*number, *nonce).map_err(|error| error.to_string())?;
    }
    if last > 0 {
        assert_reachable!("a store is opened again", details! { transactions: last });
    }
    Ok(last)
}
