// SPDX-License-Identifier: AGPL-3.0-or-later
//! Named, seeded random streams whose position can be stored.
//!
//! A stream is ChaCha8 under a 256-bit key that is the BLAKE3 key derivation of (seed, purpose, index), so that two purposes
//! or two VMs never share a draw and adding a draw to one purpose moves no other.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// Domain of the key derivation; a change of the derivation changes this text.
const CONTEXT: &str = "chaoscontrol 2026 stream v1";

/// A stream as plain data: its key and how many 32-bit words were drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamState {
    /// ChaCha key.
    pub key: [u8; 32],
    /// 32-bit words drawn so far.
    pub words: u64,
}

/// One random stream. Equal when the next draws are equal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "StreamState", into = "StreamState")]
pub struct Stream {
    rng: ChaCha8Rng,
}

impl Stream {
    /// The stream of `purpose` (and `index`: usually a VM) under `seed`.
    #[must_use]
    pub fn named(seed: u64, purpose: &str, index: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&seed.to_le_bytes());
        hasher.update(&index.to_le_bytes());
        hasher.update(purpose.as_bytes());
        Self { rng: ChaCha8Rng::from_seed(*hasher.finalize().as_bytes()) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// A uniform number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        // Draws past the last whole multiple of the bound would favour small results, so they are drawn again. Each redraw
        // has a chance below one half, so that this ends.
        let limit = u64::MAX - u64::MAX % bound;
        loop {
            let draw = self.next_u64();
            if draw < limit {
                return draw % bound;
            }
        }
    }

    /// A uniform number in `low..=high`; `low` when the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        match high.checked_sub(low) {
            None => low,
            Some(u64::MAX) => self.next_u64(),
            Some(span) => low + self.below(span + 1),
        }
    }

    /// A number in `low..=high` whose magnitude is uniform: each power of two is as likely as the next.
    pub fn between_log(&mut self, low: u64, high: u64) -> u64 {
        if high <= low {
            return low;
        }
        let bits = |value: u64| 63 - u64::from(value.max(1).leading_zeros());
        let exponent = self.between(bits(low), bits(high));
        let top = (1u64 << exponent) - 1 + (1u64 << exponent);
        let from = if exponent == 0 { 0 } else { 1u64 << exponent };
        self.between(from.max(low), top.min(high))
    }

    /// True `ppm` times in a million.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.rng.fill_bytes(bytes);
    }

    /// The stream as data.
    #[must_use]
    pub fn state(&self) -> StreamState {
        // Word positions past 2^64 would take centuries to reach.
        StreamState { key: self.rng.get_seed(), words: u64::try_from(self.rng.get_word_pos()).unwrap_or(u64::MAX) }
    }
}

impl From<StreamState> for Stream {
    fn from(state: StreamState) -> Self {
        let mut rng = ChaCha8Rng::from_seed(state.key);
        rng.set_word_pos(u128::from(state.words));
        Self { rng }
    }
}

impl From<Stream> for StreamState {
    fn from(stream: Stream) -> Self {
        stream.state()
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.state() == other.state()
    }
}

impl Eq for Stream {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_stream_goes_on_where_it_was() {
        let mut stream = Stream::named(7, "network", 1);
        for drawn in 0..40 {
            let stored: Stream = serde_json::from_str(&serde_json::to_string(&stream).unwrap()).unwrap();
            assert_eq!(stored, stream, "after {drawn} draws");
            let mut stored = stored;
            assert_eq!(stored.next_u64(), stream.next_u64(), "after {drawn} draws");
        }
    }

    #[test]
    fn purposes_indices_and_seeds_have_streams_of_their_own() {
        let first = |seed, purpose, index| Stream::named(seed, purpose, index).next_u64();
        let draws = [first(1, "a", 0), first(2, "a", 0), first(1, "b", 0), first(1, "a", 1)];
        for (index, draw) in draws.iter().enumerate() {
            assert!(!draws[..index].contains(draw), "{draws:?}");
        }
    }

    /// The golden values pin the derivation and the cipher: a change would silently change every stored schedule's meaning.
    #[test]
    fn the_derivation_never_changes() {
        let mut stream = Stream::named(42, "golden", 3);
        assert_eq!([stream.next_u64(), stream.next_u64()], GOLDEN);
    }

    const GOLDEN: [u64; 2] = [11_357_666_538_045_008_784, 13_887_038_626_500_184_927];

    #[test]
    fn ranges_hold_at_their_ends() {
        let mut stream = Stream::named(3, "ranges", 0);
        let mut seen = [0u32; 5];
        for _ in 0..500 {
            seen[usize::try_from(stream.between(10, 14)).unwrap() - 10] += 1;
            let log = stream.between_log(1, u64::MAX);
            assert!(log >= 1);
            assert!((3..=1000).contains(&stream.between_log(3, 1000)));
        }
        assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
        assert_eq!(stream.between(9, 3), 9);
        assert_eq!(stream.below(0), 0);
        assert_eq!(stream.between_log(0, 0), 0);
        assert!(!stream.chance_ppm(0));
        assert!(stream.chance_ppm(1_000_000));
    }
}
