// SPDX-License-Identifier: Apache-2.0
//! Randomness that the explorer controls: every answer is an input of the run, so a replay gives the same.

use crate::runtime;

/// A random number. Outside a VM it comes from the operating system, or from the seed in `CHAOS_SDK_SEED`.
pub fn get_random() -> u64 {
    runtime::random(0)
}

/// A random number below `bound`, which is at least 1.
///
/// # Panics
/// When `bound` is zero: there is no such number.
pub fn random_below(bound: u64) -> u64 {
    assert!(bound > 0, "no number is below 0");
    // A host that answers out of range must not break the caller's indexing.
    if bound == 1 { 0 } else { runtime::random(bound) % bound }
}

/// One of the given things, chosen by the explorer; none of an empty slice.
pub fn random_choice<T>(things: &[T]) -> Option<&T> {
    if things.is_empty() { None } else { things.get(random_below(things.len() as u64) as usize) }
}
