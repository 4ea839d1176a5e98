// SPDX-License-Identifier: Apache-2.0
//! The replicated state machine: a sum, with each client's commands counted once.

use crate::log::{Command, Entry, Index};
use std::collections::BTreeMap;

/// State after the entries applied so far.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub applied: Index,
    pub sum: u64,
    /// The last number of each client.
    last_numbers: BTreeMap<u32, u64>,
    /// A hash of everything applied: equal histories have equal hashes.
    pub history: u64,
}

impl Machine {
    /// Applies the next entry.
    pub fn apply(&mut self, entry: &Entry) {
        self.applied += 1;
        self.mix(entry.term);
        let Command::Add { client, number, value } = entry.command else { return };
        [u64::from(client), number, value].into_iter().for_each(|word| self.mix(word));
        let last = self.last_numbers.entry(client).or_default();
        if number > *last {
            *last = number;
            self.sum = self.sum.wrapping_add(value);
        }
    }

    /// The last number of a client that was applied.
    pub fn last_number(&self, client: u32) -> u64 {
        self.last_numbers.get(&client).copied().unwrap_or(0)
    }

    fn mix(&mut self, word: u64) {
        self.history = (self.history ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_command_counts_once() {
        let add = |number| Entry { term: 1, command: Command::Add { client: 9, number, value: 5 } };
        let mut machine = Machine::default();
        [1, 2, 2, 1, 3].into_iter().for_each(|number| machine.apply(&add(number)));
        assert_eq!((machine.sum, machine.applied, machine.last_number(9)), (15, 5, 3));
    }
}
