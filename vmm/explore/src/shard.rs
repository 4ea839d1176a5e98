// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shards: the branches of one round divided among machines that do not talk to each other.
//!
//! A round of `branches` branches from index `first` on is cut into `count` stretches of neighbouring indexes, as even as they
//! can be. Shard 1 has the lowest. Within its stretch a shard is a campaign of its own on top of what the round began with;
//! merging them gives the campaign that goes on ([`crate::campaign::Campaign::merge_shards`]).

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Shards of one round: as many as stores that one store may read from, with room for those before.
pub const SHARDS_MAX: u32 = 128;

/// One of the parts of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    index: u32,
    count: u32,
}

impl Shard {
    /// A round that is not divided.
    pub const WHOLE: Self = Self { index: 1, count: 1 };

    /// Shard `index` of `count`, counted from 1.
    pub fn new(index: u32, count: u32) -> Option<Self> {
        ((1..=SHARDS_MAX).contains(&count) && (1..=count).contains(&index)).then_some(Self { index, count })
    }

    /// Which one, from 1.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Of how many.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Its branches in a round of `branches` branches from `first` on.
    pub fn range(self, first: u64, branches: u64) -> Range<u64> {
        let cut = |index: u32| {
            let share = u128::from(branches) * u128::from(index) / u128::from(self.count);
            // A share of a u64 is one.
            first.saturating_add(u64::try_from(share).unwrap_or(u64::MAX))
        };
        cut(self.index - 1)..cut(self.index)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        let parts = text.split_once('/').and_then(|(index, count)| Some((number(index)?, number(count)?)));
        let shard = parts.and_then(|(index, count)| Self::new(index, count));
        shard.ok_or_else(|| {
            format!("{text:?} is no shard: it must be I/N with I from 1 to N, and N at most {SHARDS_MAX}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shards_of_a_round_have_each_branch_once_in_order() {
        for (first, branches) in [(0, 64), (7, 5), (1000, 1), (3, 0), (u64::MAX - 10, 10)] {
            for count in [1, 2, 3, 7, SHARDS_MAX] {
                let mut next = first;
                for index in 1..=count {
                    let range = Shard::new(index, count).unwrap().range(first, branches);
                    assert_eq!(range.start, next, "{index}/{count} of {branches} from {first}");
                    assert!(range.end - range.start <= branches.div_ceil(u64::from(count)));
                    next = range.end;
                }
                assert_eq!(next, first + branches);
            }
        }
        assert_eq!(Shard::WHOLE.range(3, 8), 3..11);
    }

    #[test]
    fn shards_are_written_as_they_are_read() {
        for text in ["1/1", "2/4", "128/128"] {
            assert_eq!(text.parse::<Shard>().unwrap().to_string(), text);
        }
        for wrong in ["", "1", "0/4", "5/4", "1/0", "1/129", "a/2", "+1/2", "1/2/3", "-1/2"] {
            assert!(wrong.parse::<Shard>().unwrap_err().contains("I/N"), "{wrong}");
        }
    }
}
