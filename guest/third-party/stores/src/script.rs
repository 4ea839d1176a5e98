// SPDX-License-Identifier: Apache-2.0
//! What transactions do, as a function of their number and nonce.

use crate::Contents;

/// Keys in use.
pub const KEYS: u64 = 96;
/// Most keys that one transaction writes to.
const WRITES_MAX: u64 = 8;
/// Every so many transactions one writes long values, so that the store grows.
const LONG_EVERY: u64 = 6;
const LONG_BYTES: u64 = 12_000;
const SHORT_BYTES: u64 = 120;
/// Every so many transactions one empties the store first.
const CLEAR_EVERY: u64 = 16;

/// One transaction: it may empty the store, then writes to some keys, of which an empty value removes the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    number: u64,
    nonce: u64,
}

impl Transaction {
    /// The transaction of this number and nonce.
    #[must_use]
    pub fn new(number: u64, nonce: u64) -> Self {
        Self { number, nonce }
    }

    /// Its place in the log.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What tells it from another one of the same number.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Whether it empties the store first. Stores that cannot do so within a transaction remove key by key.
    #[must_use]
    pub fn clears(&self) -> bool {
        self.number.is_multiple_of(CLEAR_EVERY)
    }

    /// The writes, in order: key and value; `None` removes the key. No key is written to twice.
    #[must_use]
    pub fn writes(&self) -> Vec<(u64, Option<Vec<u8>>)> {
        let mut draw = Draw(self.nonce ^ self.number.rotate_left(32));
        let most = if self.number.is_multiple_of(LONG_EVERY) { LONG_BYTES } else { SHORT_BYTES };
        let mut writes: Vec<(u64, Option<Vec<u8>>)> = Vec::new();
        for _ in 0..1 + draw.next() % WRITES_MAX {
            let key = draw.next() % KEYS;
            let bytes = 1 + draw.next() % most;
            let removes = draw.next().is_multiple_of(5);
            if writes.iter().all(|(other, _)| *other != key) {
                let value = (0..bytes).map(|_| draw.next() as u8).collect();
                writes.push((key, (!removes).then_some(value)));
            }
        }
        writes
    }

    fn apply(&self, contents: &mut Contents) {
        if self.clears() {
            contents.clear();
        }
        for (key, value) in self.writes() {
            match value {
                Some(value) => contents.insert(key, value),
                None => contents.remove(&key),
            };
        }
    }
}

/// What transactions leave, in the order given.
pub(crate) fn contents(transactions: impl Iterator<Item = Transaction>) -> Contents {
    let mut contents = Contents::new();
    transactions.for_each(|transaction| transaction.apply(&mut contents));
    contents
}

/// The first key that is not the same in both.
pub(crate) fn differing(one: &Contents, other: &Contents) -> Option<u64> {
    (0..KEYS).find(|key| one.get(key) != other.get(key)).or_else(|| other.keys().copied().find(|key| *key >= KEYS))
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers everywhere for one seed.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_a_function_of_number_and_nonce() {
        assert_eq!(Transaction::new(7, 9).writes(), Transaction::new(7, 9).writes());
        assert_ne!(Transaction::new(7, 9).writes(), Transaction::new(7, 10).writes());
    }

    #[test]
    fn one_lost_or_doubled_transaction_shows() {
        let all = || (1..40).map(|number| Transaction::new(number, number * 77));
        let whole = contents(all());
        assert_eq!(differing(&whole, &contents(all())), None);
        let without = contents(all().filter(|transaction| transaction.number() != 39));
        assert!(differing(&whole, &without).is_some());
    }
}
