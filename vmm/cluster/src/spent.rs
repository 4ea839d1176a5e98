// SPDX-License-Identifier: AGPL-3.0-or-later
//! Where the host's time goes while branches run. For people alone: nothing that a branch does or gives depends on it.

/// Reads a clock of the host, in ns from whenever. Whoever runs branches brings it; without one nothing is measured.
pub type HostClock = fn() -> u64;

/// Host time by what was done in it, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Setting the cluster back, and keeping branches in their middle.
    pub snapshots_ns: u64,
    /// Guests ran.
    pub guests_ns: u64,
    /// Barriers: frames, faults, the trace.
    pub barriers_ns: u64,
    /// What guests reported was read and judged.
    pub reports_ns: u64,
    /// Memory and disks were hashed at the end of a branch, and its outcome put together.
    pub endings_ns: u64,
}

impl Spent {
    /// All of it.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.snapshots_ns + self.guests_ns + self.barriers_ns + self.reports_ns + self.endings_ns
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.snapshots_ns += other.snapshots_ns;
        self.guests_ns += other.guests_ns;
        self.barriers_ns += other.barriers_ns;
        self.reports_ns += other.reports_ns;
        self.endings_ns += other.endings_ns;
    }
}

/// Gives the time since it was last read to what was done in it.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    clock: Option<HostClock>,
    last_ns: u64,
    spent: Spent,
}

impl Stopwatch {
    pub fn new(clock: Option<HostClock>) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Starts from zero.
    pub fn start(&mut self) {
        self.spent = Spent::default();
        self.last_ns = self.clock.map_or(0, |clock| clock());
    }

    /// What was done since it was last read.
    pub fn lap(&mut self, of: fn(&mut Spent) -> &mut u64) {
        if let Some(clock) = self.clock {
            let now_ns = clock();
            *of(&mut self.spent) += now_ns.saturating_sub(self.last_ns);
            self.last_ns = now_ns;
        }
    }

    /// Since the start.
    pub fn spent(&self) -> Spent {
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn each_lap_counts_for_what_was_done_in_it() {
        static NOW: AtomicU64 = AtomicU64::new(0);
        let mut watch = Stopwatch::new(Some(|| NOW.fetch_add(10, Ordering::Relaxed)));
        watch.lap(|spent| &mut spent.reports_ns);
        watch.start();
        watch.lap(|spent| &mut spent.guests_ns);
        watch.lap(|spent| &mut spent.barriers_ns);
        watch.lap(|spent| &mut spent.guests_ns);
        let spent = Spent { guests_ns: 20, barriers_ns: 10, ..Spent::default() };
        assert_eq!((watch.spent(), spent.total_ns()), (spent, 30));
        let mut none = Stopwatch::new(None);
        none.start();
        none.lap(|spent| &mut spent.guests_ns);
        assert_eq!(none.spent(), Spent::default());
    }
}
