// SPDX-License-Identifier: AGPL-3.0-or-later
//! The first difference of two logs.

use crate::entry::Entry;

/// Where two logs come apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The VM.
    pub vm: u16,
    /// Index of the entry among the VM's.
    pub index: usize,
    /// The last entry that both have.
    pub before: Option<Entry>,
    /// The first log's entry; none where it ends.
    pub first: Option<Entry>,
    /// The second log's entry; none where it ends.
    pub second: Option<Entry>,
}

impl Difference {
    /// Progress within which the cause lies: behind the last entry that both have, up to the first that only one has.
    #[must_use]
    pub fn bracket(&self) -> (u64, Option<u64>) {
        let from = self.before.as_ref().map_or(0, |entry| entry.progress);
        let ends = [&self.first, &self.second].into_iter().flatten().map(|entry| entry.progress);
        (from, ends.max())
    }

    /// Guest time of the earlier of the two entries: what comes first over all VMs is the cause of the rest.
    fn guest_ns(&self) -> u64 {
        let times = [&self.first, &self.second].into_iter().flatten().map(|entry| entry.guest_ns);
        times.min().unwrap_or(u64::MAX)
    }
}

/// The first difference in one VM's entries.
#[must_use]
pub fn in_vm(vm: u16, first: &[Entry], second: &[Entry]) -> Option<Difference> {
    let same = first.iter().zip(second).take_while(|(a, b)| a == b).count();
    if same == first.len() && same == second.len() {
        return None;
    }
    Some(Difference {
        vm,
        index: same,
        before: same.checked_sub(1).and_then(|last| first.get(last)).cloned(),
        first: first.get(same).cloned(),
        second: second.get(same).cloned(),
    })
}

/// The earliest difference over all VMs; of equal times that of the lowest VM.
#[must_use]
pub fn first_difference(first: &[Vec<Entry>], second: &[Vec<Entry>]) -> Option<Difference> {
    let none = Vec::new();
    let vms = first.len().max(second.len());
    let of_vm = |vm: usize| in_vm(vm as u16, first.get(vm).unwrap_or(&none), second.get(vm).unwrap_or(&none));
    (0..vms).filter_map(of_vm).min_by_key(|difference| (difference.guest_ns(), difference.vm))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(times: &[u64]) -> Vec<Entry> {
        let entry =
            |time: &u64| Entry { progress: *time, guest_ns: *time, cpu: 0, kind: 7, fields: Vec::new(), mark: None };
        times.iter().map(entry).collect()
    }

    #[test]
    fn equal_logs_have_no_difference() {
        let log = vec![entries(&[1, 2]), entries(&[])];
        assert_eq!(first_difference(&log, &log.clone()), None);
    }

    #[test]
    fn the_earliest_difference_of_all_vms_is_named_with_what_encloses_it() {
        let first = vec![entries(&[1, 9, 10]), entries(&[2, 5, 8])];
        let second = vec![entries(&[1, 9, 11]), entries(&[2, 6, 8])];
        let found = first_difference(&first, &second).unwrap();
        assert_eq!((found.vm, found.index, found.bracket()), (1, 1, (2, Some(6))));
    }

    #[test]
    fn a_log_that_ends_early_differs_there() {
        let found = first_difference(&[entries(&[1, 2])], &[entries(&[1])]).unwrap();
        assert_eq!((found.index, found.bracket(), found.second), (1, (1, Some(2)), None));
    }
}
