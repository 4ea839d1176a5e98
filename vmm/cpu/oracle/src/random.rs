// SPDX-License-Identifier: AGPL-3.0-or-later
//! Seeded streams: case `n` of seed `s` is always the same case.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// The generator every oracle draws from.
pub type Stream = ChaCha8Rng;

/// The stream of case `index` under `seed`.
pub fn stream(seed: u64, index: u64) -> Stream {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(index);
    rng
}

/// A number in `0..bound`; `bound` is small, so the bias of the remainder does not matter.
pub fn below(rng: &mut Stream, bound: u32) -> u32 {
    rng.next_u32() % bound.max(1)
}

/// True once in `n` draws.
pub fn one_in(rng: &mut Stream, n: u32) -> bool {
    below(rng, n) == 0
}

/// One of `items`.
pub fn pick<T: Copy>(rng: &mut Stream, items: &[T]) -> T {
    items[below(rng, items.len() as u32) as usize]
}
