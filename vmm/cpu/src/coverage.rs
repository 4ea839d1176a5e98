// SPDX-License-Identifier: AGPL-3.0-or-later
//! Edge coverage: counts of (branch address, target address) pairs of retired control transfers.
//!
//! A transfer is any near or far jump, call or return, a conditional branch whether taken or not (the target is then the
//! next instruction), SYSCALL, SYSRET, SYSENTER and SYSEXIT. INT n, exceptions, interrupts and IRET make no edge. The map
//! is indexed by `mix(branch * K1 + target * K2) >> 48`, and counts saturate at 255.

use crate::config::CoverageFilter;

/// Bytes of the coverage map.
pub const COVERAGE_MAP_BYTES: usize = 1 << 16;

pub(crate) struct Coverage {
    filter: CoverageFilter,
    map: Box<[u8]>,
}

impl Coverage {
    pub fn new(filter: CoverageFilter) -> Self {
        Self { filter, map: vec![0; COVERAGE_MAP_BYTES].into_boxed_slice() }
    }

    pub fn set_filter(&mut self, filter: CoverageFilter) {
        self.filter = filter;
    }

    pub fn filter(&self) -> CoverageFilter {
        self.filter
    }

    /// The map, for compiled code. It does not move while this value lives.
    pub fn map_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }

    pub fn map(&self) -> &[u8] {
        &self.map
    }

    pub fn clear(&mut self) {
        self.map.fill(0);
    }

    /// Counts an edge. `user` says whether the branch executed at CPL 3.
    pub fn record(&mut self, user: bool, branch: u64, target: u64) {
        let (start, end) = self.filter.range;
        if (self.filter.user_only && !user) || branch < start || branch >= end {
            return;
        }
        let count = &mut self.map[index(branch, target)];
        *count = count.saturating_add(1);
    }
}

/// The multipliers of [`index`]: branch, target, and the finalizer's two.
pub(crate) const FACTORS: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// The map index of an edge: two odd multipliers, then the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) fn index(branch: u64, target: u64) -> usize {
    let [branch_factor, target_factor, first, second] = FACTORS;
    let mut hash = branch.wrapping_mul(branch_factor).wrapping_add(target.wrapping_mul(target_factor));
    hash = (hash ^ (hash >> 30)).wrapping_mul(first);
    hash = (hash ^ (hash >> 27)).wrapping_mul(second);
    (hash >> 48) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_directed_filtered_and_saturate() {
        let filter = CoverageFilter { user_only: true, range: (0x1000, 0x2000) };
        let mut coverage = Coverage::new(filter);
        for _ in 0..300 {
            coverage.record(true, 0x1000, 0x1800);
        }
        coverage.record(true, 0x1800, 0x1000);
        coverage.record(false, 0x1010, 0x1020);
        coverage.record(true, 0x2000, 0x1000);
        assert_eq!(coverage.map()[index(0x1000, 0x1800)], 255);
        assert_eq!(coverage.map()[index(0x1800, 0x1000)], 1);
        assert_eq!(coverage.map().iter().filter(|count| **count != 0).count(), 2);
    }
}
