// SPDX-License-Identifier: AGPL-3.0-or-later
//! What CPUs of one machine tell each other about what they derived from memory.
//!
//! They run one at a time. Whoever runs changes page flags for all, and lists what the others must forget: translations, the
//! blocks of a page, the permission to write a page unnoticed. A CPU catches up with the list before it does anything, so that
//! a store by one of them is seen by all at once. The list is bounded; who is too far behind forgets everything.

use crate::memory::PageIndex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Changes that are kept for those who are behind.
const KEPT: usize = 4096;

/// Something that another CPU must forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// All translations.
    Translations,
    /// The blocks of a physical page.
    Code(u64),
    /// That stores to a physical page may pass unnoticed.
    Writes(u64),
    /// That stores to any page may pass unnoticed.
    AllWrites,
}

/// What there is to catch up with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// These, in order.
    Changes(Vec<Change>),
    /// More than was kept.
    Everything,
}

#[derive(Debug, Default)]
struct List {
    /// Number of the first change that is kept.
    first: u64,
    changes: Vec<Change>,
    walked: Vec<PageIndex>,
    /// Number of the next change that each CPU has not seen.
    seen: Vec<u64>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Number of the next change.
    end: AtomicU64,
    short_entries: AtomicBool,
    list: Mutex<List>,
}

/// One CPU's end of the list.
#[derive(Debug)]
pub(crate) struct Changes {
    shared: Arc<Shared>,
    cpu: usize,
    seen: u64,
}

impl Changes {
    /// Ends for `count` CPUs.
    pub fn among(count: usize) -> Vec<Self> {
        let list = Mutex::new(List { seen: vec![0; count], ..List::default() });
        let shared = Arc::new(Shared { list, ..Shared::default() });
        (0..count).map(|cpu| Self { shared: shared.clone(), cpu, seen: 0 }).collect()
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.shared.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is something to catch up with.
    pub fn is_behind(&self) -> bool {
        self.seen != self.shared.end.load(Relaxed)
    }

    /// Takes what there is to catch up with.
    pub fn catch_up(&mut self) -> News {
        let end = self.shared.end.load(Relaxed);
        let mut list = self.list();
        list.seen[self.cpu] = end;
        let news = match self.seen.checked_sub(list.first) {
            Some(skip) => News::Changes(list.changes[skip as usize..].to_vec()),
            None => News::Everything,
        };
        drop(list);
        self.seen = end;
        news
    }

    /// Lists a change of this CPU, which has caught up.
    pub fn push(&mut self, change: Change) {
        debug_assert!(!self.is_behind(), "only who has caught up may change what others see");
        let end = self.shared.end.load(Relaxed) + 1;
        let mut list = self.list();
        list.changes.push(change);
        list.seen[self.cpu] = end;
        if list.changes.len() > KEPT {
            let oldest = list.seen.iter().copied().min().unwrap_or(end);
            let unseen = (end - oldest) as usize;
            // Half at most stays, so that the list is not looked through at every change.
            let stays = if unseen > KEPT / 2 { 0 } else { unseen };
            let gone = list.changes.len() - stays;
            list.changes.drain(..gone);
            list.first += gone as u64;
        }
        drop(list);
        self.shared.end.store(end, Relaxed);
        self.seen = end;
    }

    pub fn note_walk(&mut self, page: PageIndex) {
        self.list().walked.push(page);
    }

    /// Takes the pages that walks of all CPUs have read, and tells the others that their translations are gone.
    pub fn forget_walks(&mut self) -> Vec<PageIndex> {
        let walked = std::mem::take(&mut self.list().walked);
        self.shared.short_entries.store(false, Relaxed);
        self.push(Change::Translations);
        walked
    }

    /// Some CPU has walked tables whose entries have four bytes.
    pub fn short_entries(&self) -> bool {
        self.shared.short_entries.load(Relaxed)
    }

    pub fn note_short_entries(&mut self) {
        self.shared.short_entries.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_gets_each_change_of_others_once() {
        let [mut a, mut b, mut c] = <[Changes; 3]>::try_from(Changes::among(3)).expect("three");
        a.push(Change::Code(1));
        a.push(Change::Translations);
        assert!(b.is_behind() && !a.is_behind());
        assert_eq!(b.catch_up(), News::Changes(vec![Change::Code(1), Change::Translations]));
        b.push(Change::Writes(2));
        assert_eq!(a.catch_up(), News::Changes(vec![Change::Writes(2)]));
        assert_eq!(c.catch_up(), News::Changes(vec![Change::Code(1), Change::Translations, Change::Writes(2)]));
        assert!(![a, b, c].iter().any(Changes::is_behind));
    }

    #[test]
    fn who_is_too_far_behind_forgets_everything_and_the_list_stays_bounded() {
        let [mut a, mut b] = <[Changes; 2]>::try_from(Changes::among(2)).expect("two");
        for page in 0..3 * KEPT as u64 {
            a.push(Change::Code(page));
        }
        assert!(a.list().changes.len() <= KEPT);
        assert_eq!(b.catch_up(), News::Everything);
        for page in 0..3 * KEPT as u64 {
            a.push(Change::Code(page));
            assert_eq!(b.catch_up(), News::Changes(vec![Change::Code(page)]));
        }
        assert!(a.list().changes.len() <= KEPT + 1);
    }
}
