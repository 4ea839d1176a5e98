// SPDX-License-Identifier: Apache-2.0
//! The coverage map: one hit count a byte, where everything goes that this program counts itself.
//!
//! All processes and threads of a VM count in one map, the window's. A count is read, increased and written without a lock: of two
//! CPUs that do so at once, one may lose a count, and the order of instructions says which. Until the window is mapped, what SanCov
//! counts goes to a map of the process's own, and moves over then.

use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use chaoscontrol_protocol::layout::COVERAGE_BYTES;

/// Slots of the map.
pub(crate) const SLOTS: usize = COVERAGE_BYTES as usize;

/// Counts from before the window was mapped; where there is none, all of them.
#[cfg(feature = "sancov")]
static OWN: [AtomicU8; SLOTS] = [const { AtomicU8::new(0) }; SLOTS];

/// Where counts go: always at least `SLOTS` bytes, or null where nobody counts yet.
#[cfg(feature = "sancov")]
pub(crate) static MAP: AtomicPtr<u8> = AtomicPtr::new((&raw const OWN).cast_mut().cast());
#[cfg(not(feature = "sancov"))]
pub(crate) static MAP: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// From now on counts go to the window's map, which begins at `map`; those so far are moved there.
pub(crate) fn move_to(map: *mut u8) {
    debug_assert!(!map.is_null());
    MAP.store(map, Ordering::Release);
    #[cfg(feature = "sancov")]
    for (slot, own) in OWN.iter().enumerate() {
        let hits = own.load(Ordering::Relaxed);
        if hits != 0 {
            own.store(0, Ordering::Relaxed);
            add(map, slot, hits);
        }
    }
}

/// Adds hits to a slot, which is below [`SLOTS`].
pub(crate) fn add(map: *mut u8, slot: usize, hits: u8) {
    debug_assert!(slot < SLOTS);
    // SAFETY: the map has `SLOTS` bytes and stays; whoever else counts there does so through atomics too.
    let count = unsafe { AtomicU8::from_ptr(map.add(slot)) };
    count.store(count.load(Ordering::Relaxed).saturating_add(hits), Ordering::Relaxed);
}

/// A hash of two numbers: two odd multipliers, then the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
fn hash(first: u64, second: u64) -> u64 {
    let sum = first.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(second.wrapping_mul(0xd1b5_4a32_d192_ed03));
    let mixed = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The slot of a pair of numbers.
pub(crate) fn slot_of(first: u64, second: u64) -> usize {
    (((hash(first, second) >> 32) * SLOTS as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_saturate_and_pairs_have_a_direction_and_a_slot() {
        let map = [const { AtomicU8::new(0) }; SLOTS];
        let at = map.as_ptr().cast_mut().cast();
        for _ in 0..300 {
            add(at, SLOTS - 1, 1);
        }
        assert_eq!(map[SLOTS - 1].load(Ordering::Relaxed), 255);
        assert_ne!(slot_of(1, 2), slot_of(2, 1));
        let slots: Vec<usize> = (0..100_000).map(|number| slot_of(number, number * 7)).collect();
        assert!(slots.iter().all(|slot| *slot < SLOTS));
        assert!(slots.iter().any(|slot| *slot < SLOTS / 100) && slots.iter().any(|slot| *slot > SLOTS / 100 * 99));
    }
}
