// SPDX-License-Identifier: AGPL-3.0-or-later
//! Branches kept in their middle, in memory, so that others that are the same so far need not run that again.
//!
//! A cache of prefixes and nothing else: what is found here, or not, changes how long a branch takes and never what comes of it.
//! So it may be bounded, and evict, by whatever order threads come in.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use chaoscontrol_fault::Schedule;

/// Items at most: each costs a look when one has to go.
const ITEMS_MAX: usize = 1024;
/// Seeds of which schedules are remembered, the latest.
const SEEDS_MAX: usize = 4096;
/// Schedules of one seed that are remembered, the latest.
const SCHEDULES_MAX: usize = 32;

/// Items, and the schedules of the branches that ran, by the seed of their branch.
pub struct PrefixCache<T> {
    bytes_max: u64,
    state: Mutex<State<T>>,
}

struct State<T> {
    bytes: u64,
    /// Branches that ran.
    ran: u64,
    families: BTreeMap<u64, Family<T>>,
    saved_ns: u64,
}

struct Family<T> {
    schedules: VecDeque<Schedule>,
    kept: Vec<Kept<T>>,
    last_ran: u64,
}

struct Kept<T> {
    item: Arc<T>,
    bytes: u64,
    /// Cluster ns that going on from here saves.
    time_ns: u64,
    used: u64,
    /// Branches that ran before it.
    since: u64,
}

impl<T> Kept<T> {
    /// What keeping it saves in a branch after `ran`, about: what it saves each time, as often as it has been.
    fn worth(&self, ran: u64) -> u128 {
        u128::from(self.time_ns) * u128::from(1 + self.used) * 1024 / u128::from(1 + ran - self.since)
    }
}

impl<T> PrefixCache<T> {
    /// Room for so many bytes; with 0 nothing is kept or remembered.
    pub fn new(bytes_max: u64) -> Self {
        let state = State { bytes: 0, ran: 0, families: BTreeMap::new(), saved_ns: 0 };
        Self { bytes_max, state: Mutex::new(state) }
    }

    fn with<R>(&self, work: impl FnOnce(&mut State<T>) -> R) -> R {
        // Nothing is left half done where this panics.
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Remembers that a branch with this seed came to have this schedule.
    pub fn ran(&self, seed: u64, schedule: &Schedule) {
        if self.bytes_max == 0 {
            return;
        }
        self.with(|state| {
            state.ran += 1;
            let ran = state.ran;
            let new = || Family { schedules: VecDeque::new(), kept: Vec::new(), last_ran: ran };
            let family = state.families.entry(seed).or_insert_with(new);
            family.last_ran = ran;
            family.schedules.push_back(schedule.clone());
            if family.schedules.len() > SCHEDULES_MAX {
                family.schedules.pop_front();
            }
            if state.families.len() > SEEDS_MAX {
                state.forget_oldest();
            }
        });
    }

    /// Up to when a schedule is the same as one of a branch that ran with this seed, at the latest, with whether their answers to choices
    /// are; none where there was no such branch.
    pub fn alike_until(&self, seed: u64, schedule: &Schedule) -> Option<(Option<u64>, bool)> {
        self.with(|state| {
            let until = |other: &Schedule| (schedule.differs_at_ns(other), schedule.choices() == other.choices());
            let all = state.families.get(&seed)?.schedules.iter().map(until);
            all.max_by_key(|(until_ns, answers)| (*answers, until_ns.unwrap_or(u64::MAX)))
        })
    }

    /// Keeps an item of `bytes` that lies `time_ns` behind the start of a branch with this seed that ran. Those least worth go, it too.
    pub fn keep(&self, seed: u64, item: T, bytes: u64, time_ns: u64) {
        self.with(|state| {
            let Some(family) = state.families.get_mut(&seed) else { return };
            family.kept.push(Kept { item: Arc::new(item), bytes, time_ns, used: 0, since: state.ran });
            state.bytes += bytes;
            while state.bytes > self.bytes_max || state.items() > ITEMS_MAX {
                state.drop_least();
            }
        });
    }

    /// The item that lies farthest behind the start of a branch with this seed, of those that `leads` accepts.
    pub fn farthest(&self, seed: u64, leads: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.with(|state| {
            let kept = &mut state.families.get_mut(&seed)?.kept;
            let best = kept.iter_mut().filter(|kept| leads(&kept.item)).max_by_key(|kept| kept.time_ns)?;
            best.used += 1;
            state.saved_ns += best.time_ns;
            Some(best.item.clone())
        })
    }

    /// Cluster ns that were not run again so far.
    pub fn saved_ns(&self) -> u64 {
        self.with(|state| state.saved_ns)
    }
}

impl<T> State<T> {
    fn items(&self) -> usize {
        self.families.values().map(|family| family.kept.len()).sum()
    }

    fn drop_least(&mut self) {
        let ran = self.ran;
        let of = |(seed, family): (&u64, &Family<T>)| {
            let worths = family.kept.iter().enumerate().map(|(place, kept)| (kept.worth(ran), *seed, place));
            worths.min()
        };
        let Some((_, seed, place)) = self.families.iter().filter_map(of).min() else { return };
        let family = self.families.get_mut(&seed).expect("it was just found there");
        self.bytes -= family.kept.remove(place).bytes;
    }

    fn forget_oldest(&mut self) {
        let oldest = self.families.iter().min_by_key(|(_, family)| family.last_ran).map(|(seed, _)| *seed);
        let forgotten = oldest.and_then(|seed| self.families.remove(&seed));
        self.bytes -= forgotten.map_or(0, |family| family.kept.iter().map(|kept| kept.bytes).sum());
    }
}

#[cfg(test)]
mod tests {
    use chaoscontrol_fault::{Choice, Fault, FaultEvent};

    use super::*;

    fn schedule(times: &[u64]) -> Schedule {
        let event = |time_ns: &u64| FaultEvent { time_ns: *time_ns, fault: Fault::NetworkHeal {} };
        Schedule::new(times.iter().map(event).collect()).expect("few")
    }

    fn found(cache: &PrefixCache<u64>, seed: u64) -> Option<u64> {
        cache.farthest(seed, |_| true).map(|item| *item)
    }

    /// With room for `bytes`, after a branch of each of the seeds below 9.
    fn cache(bytes: u64) -> PrefixCache<u64> {
        let cache = PrefixCache::new(bytes);
        (0..9).for_each(|seed| cache.ran(seed, &schedule(&[])));
        cache
    }

    #[test]
    fn the_farthest_that_leads_on_is_found_and_counted() {
        let cache = cache(100);
        for time_ns in [5, 20, 10] {
            cache.keep(7, time_ns, 1, time_ns);
        }
        assert_eq!(cache.farthest(7, |time_ns| *time_ns < 20).as_deref(), Some(&10));
        assert_eq!((found(&cache, 7), found(&cache, 8)), (Some(20), None));
        assert_eq!(cache.farthest(7, |_| false), None);
        assert_eq!(cache.saved_ns(), 30);
    }

    #[test]
    fn what_is_least_worth_goes_when_there_is_no_room() {
        let cache = cache(30);
        (1..=3).for_each(|seed| cache.keep(seed, seed, 10, 10 * seed));
        assert_eq!([1, 1, 1, 2].map(|seed| found(&cache, seed)), [Some(1), Some(1), Some(1), Some(2)]);
        // 10 four times, 20 twice, 30 once.
        cache.keep(4, 4, 10, 50);
        assert_eq!([1, 2, 3, 4].map(|seed| found(&cache, seed)), [Some(1), Some(2), None, Some(4)]);
        // What nobody asks for is worth less the longer it is there.
        (0..99).for_each(|_| cache.ran(8, &schedule(&[])));
        cache.keep(5, 5, 10, 10);
        assert_eq!([1, 2, 4, 5].map(|seed| found(&cache, seed)), [None, Some(2), Some(4), Some(5)]);
    }

    #[test]
    fn what_does_not_fit_is_not_kept_and_without_room_nothing_is() {
        let cache = cache(30);
        cache.keep(1, 10, 31, 10);
        assert_eq!(found(&cache, 1), None);
        let none = PrefixCache::<u64>::new(0);
        none.ran(1, &schedule(&[]));
        assert_eq!(none.alike_until(1, &schedule(&[])), None);
    }

    #[test]
    fn schedules_are_remembered_by_seed_and_the_most_alike_counts() {
        let cache = PrefixCache::<u64>::new(1);
        cache.ran(1, &schedule(&[10, 20, 30]));
        cache.ran(1, &schedule(&[10, 25]));
        cache.ran(2, &schedule(&[1]));
        assert_eq!(cache.alike_until(1, &schedule(&[10, 20])), Some((Some(30), true)));
        assert_eq!(cache.alike_until(1, &schedule(&[10, 25])), Some((None, true)));
        assert_eq!(cache.alike_until(3, &schedule(&[])), None);
        let answered = schedule(&[10]).with_choices(vec![Choice { vm: 0, nth: 1, value: 2 }]).expect("one");
        assert_eq!(cache.alike_until(1, &answered), Some((Some(25), false)));
        for _ in 0..2 * SCHEDULES_MAX {
            cache.ran(1, &schedule(&[5]));
        }
        assert_eq!(cache.alike_until(1, &schedule(&[10, 25])), Some((Some(5), true)), "bounded");
        (0..2 * SEEDS_MAX as u64).for_each(|seed| cache.ran(100 + seed, &schedule(&[])));
        assert_eq!(cache.alike_until(1, &schedule(&[])), None, "bounded");
    }
}
