// SPDX-License-Identifier: AGPL-3.0-or-later
//! The merged coverage map with AFL-like hit-count buckets.

use chaoscontrol_artifact::Bytes;
use chaoscontrol_artifact::schema::CoverageMap;
use chaoscontrol_cluster::GUEST_SLOTS_FROM;

/// What a branch added to the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Novelty {
    /// Slots that were zero.
    pub edges: u32,
    /// Slots that were known, but not with this hit count.
    pub counts: u32,
}

impl Novelty {
    /// Whether there is anything new.
    pub fn any(self) -> bool {
        self.edges > 0 || self.counts > 0
    }
}

/// For each slot the set of buckets that some branch reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    slots: Vec<u8>,
}

/// The bucket of a hit count, as one bit: 1, 2, 3, 4-7, 8-15, 16-31, 32-127, 128 and more. Zero hits have none.
pub fn bucket(hits: u8) -> u8 {
    match hits {
        0 => 0,
        1 => 1 << 0,
        2 => 1 << 1,
        3 => 1 << 2,
        4..=7 => 1 << 3,
        8..=15 => 1 << 4,
        16..=31 => 1 << 5,
        32..=127 => 1 << 6,
        128.. => 1 << 7,
    }
}

impl Coverage {
    /// Merges the hit counts of a branch's VMs. The VMs share one map: which of them played a role does not make a timeline
    /// new.
    pub fn merge(&mut self, vms: &[Vec<u8>]) -> Novelty {
        let mut novelty = Novelty::default();
        let size = vms.iter().map(Vec::len).max().unwrap_or(0);
        if self.slots.len() < size {
            self.slots.resize(size, 0);
        }
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let reached = vms.iter().fold(0, |set, vm| set | bucket(vm.get(index).copied().unwrap_or(0)));
            if reached & !*slot != 0 {
                if *slot == 0 {
                    novelty.edges += 1;
                } else {
                    novelty.counts += 1;
                }
                *slot |= reached;
            }
        }
        novelty
    }

    /// Adds all that another map has.
    pub fn unite(&mut self, other: &Self) {
        if self.slots.len() < other.slots.len() {
            self.slots.resize(other.slots.len(), 0);
        }
        self.slots.iter_mut().zip(&other.slots).for_each(|(slot, other)| *slot |= other);
    }

    /// Slots that some branch reached.
    pub fn edges(&self) -> u32 {
        self.slots.iter().filter(|slot| **slot != 0).count() as u32
    }

    /// How many edges share their slot with another one, estimated, as if each fell anywhere in its part of the map: what the engine
    /// counts has one, and what guests count themselves the other.
    pub fn collisions(&self) -> u32 {
        let (by_engine, by_guests) = self.slots.split_at(self.slots.len().min(GUEST_SLOTS_FROM));
        collisions_in(by_engine).saturating_add(collisions_in(by_guests))
    }

    /// As a document.
    pub fn to_document(&self) -> CoverageMap {
        CoverageMap { slots: Bytes(self.slots.clone()), edges: self.edges(), collisions: self.collisions() }
    }

    /// From a document.
    pub fn from_document(document: CoverageMap) -> Self {
        Self { slots: document.slots.0 }
    }
}

/// Of one part: `n` slots reached of `m` mean that about `m * ln(m / (m - n))` edges were, if each falls anywhere.
fn collisions_in(slots: &[u8]) -> u32 {
    // The sum 1/m + 1/(m-1) + ... (n terms) approaches ln(m / (m - n)); in units of 2^-32 to stay with integers.
    let (size, edges) = (slots.len() as u64, slots.iter().filter(|slot| **slot != 0).count() as u64);
    let sum: u64 = (0..edges).map(|taken| (1u64 << 32) / (size - taken)).sum();
    let distinct = (u128::from(size) * u128::from(sum)) >> 32;
    u32::try_from(distinct.saturating_sub(u128::from(edges))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_one_bucket_and_only_new_buckets_are_novel() {
        assert_eq!(bucket(0), 0);
        assert!((1..=255).all(|hits: u8| bucket(hits).count_ones() == 1));
        assert!((1..255).all(|hits: u8| bucket(hits) <= bucket(hits + 1)));
        let mut coverage = Coverage::default();
        assert_eq!(coverage.merge(&[vec![0, 1, 9], vec![0, 0, 0]]), Novelty { edges: 2, counts: 0 });
        assert_eq!(coverage.merge(&[vec![0, 1, 15]]), Novelty::default());
        assert_eq!(coverage.merge(&[vec![1, 2, 8]]), Novelty { edges: 1, counts: 1 });
        assert_eq!(coverage.edges(), 3);
        assert_eq!(Coverage::from_document(coverage.to_document()), coverage);
    }

    #[test]
    fn the_order_of_vms_does_not_matter() {
        let (one, two) = (vec![1, 0, 200], vec![3, 1, 0]);
        let (mut left, mut right) = (Coverage::default(), Coverage::default());
        assert_eq!(left.merge(&[one.clone(), two.clone()]), right.merge(&[two, one]));
        assert_eq!(left, right);
    }

    #[test]
    fn what_guests_count_is_behind_every_edge_and_only_where_one_counts() {
        let mut coverage = Coverage::default();
        let without = vec![1; GUEST_SLOTS_FROM];
        coverage.merge(std::slice::from_ref(&without));
        let (document, collisions) = (coverage.to_document(), coverage.collisions());
        assert_eq!(document.slots.0.len(), GUEST_SLOTS_FROM, "guests that count nothing make no slots");
        let mut with = without;
        with.resize(GUEST_SLOTS_FROM + 1000, 0);
        with[GUEST_SLOTS_FROM + 7] = 200;
        // A VM without such counts beside one with some, and a branch whose guests have none any more.
        assert_eq!(coverage.merge(&[vec![1; GUEST_SLOTS_FROM], with]), Novelty { edges: 1, counts: 0 });
        assert_eq!(coverage.merge(&[vec![1; 10]]), Novelty::default());
        assert_eq!((coverage.edges(), coverage.collisions()), (GUEST_SLOTS_FROM as u32 + 1, collisions));
        assert_eq!(Coverage::from_document(coverage.to_document()), coverage);
    }

    #[test]
    fn collisions_are_few_while_the_map_is_sparse() {
        let mut coverage = Coverage::default();
        let mut hits = vec![0; 65_536];
        hits[..6_554].fill(1);
        coverage.merge(&[hits.clone()]);
        // m ln(1/0.9) - n = 65,536 * 0.10536 - 6,554 = 351.
        assert!((345..357).contains(&coverage.collisions()), "{}", coverage.collisions());
        hits.fill(1);
        coverage.merge(&[hits]);
        assert!(coverage.collisions() > 65_536);
    }
}
