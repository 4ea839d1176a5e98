// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shrinking a schedule to the faults that matter: delta debugging, then smaller parameters and rounder times.
//!
//! Delta debugging ends where no single fault can be left out, which may still be twice as many as need be: two ways to the bug in
//! one schedule get in each other's way. So smaller subsets of what was found, up to three faults, are tried after it, as far
//! as the budget goes.
//!
//! A candidate is accepted when its branch shows the same bug. Candidates of one step run at once, but the one of lowest index
//! wins, and attempts count as if they had run one after the other; so the result does not depend on the number of threads.
//! Source of the algorithm: A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002.

use std::collections::BTreeSet;

use chaoscontrol_artifact::schema::BugIdentity;
use chaoscontrol_fault::{Applicability, Choice, Domain, FaultEvent, Role, Schedule};

use crate::error::ExploreError;
use crate::pool::Pool;
use crate::subject::{Plan, Ran};

/// A minimal schedule and how its branch ran.
#[derive(Debug)]
pub struct Minimal {
    /// The schedule.
    pub schedule: Schedule,
    /// How its branch ran.
    pub ran: Ran,
    /// Branches run.
    pub attempts: u32,
    /// Whether leaving out any one fault makes the bug go away.
    pub one_minimal: bool,
}

/// Times are rounded down to multiples of these, coarsest first.
const ROUND_NS: [u64; 4] = [1_000_000_000, 100_000_000, 10_000_000, 1_000_000];

/// Subsets of more faults than this are not tried one by one.
pub const SUBSET_MAX: usize = 3;
/// Subsets run in one go.
const SUBSETS_AT_ONCE: usize = 64;

struct Minimizer<'a> {
    pool: &'a Pool<'a>,
    identity: &'a BugIdentity,
    base: &'a Plan,
    budget: u32,
    attempts: u32,
    /// Schedules known not to show the bug.
    failed: BTreeSet<Schedule>,
    best: Schedule,
    ran: Ran,
    on_step: &'a mut dyn FnMut(u32, usize),
}

/// Shrinks the schedule of `base`, whose branch shows `identity`. `None` when it does not show it (again). `on_step` is told
/// attempts so far and faults left.
pub fn minimize(
    pool: &Pool,
    base: &Plan,
    identity: &BugIdentity,
    budget: u32,
    on_step: &mut dyn FnMut(u32, usize),
) -> Result<Option<Minimal>, ExploreError> {
    let ran = pool.run(base)?;
    if !shows(&ran, identity) {
        return Ok(None);
    }
    // What a tactic did is in the schedule that came of it.
    let base = &Plan { schedule: ran.schedule.clone(), tactic: None, ..base.clone() };
    let best = base.schedule.clone();
    let mut minimizer =
        Minimizer { pool, identity, base, budget, attempts: 1, failed: BTreeSet::new(), best, ran, on_step };
    minimizer.shrink_answers()?;
    minimizer.keep_what_was_applied()?;
    let found = minimizer.best.events().to_vec();
    let mut one_minimal = minimizer.remove_faults()?;
    if minimizer.fewer_of(&found)? {
        one_minimal = minimizer.remove_faults()?;
    }
    // Smaller parameters may make a fault needless; that ends because each turn removes one at least.
    while minimizer.shrink_values()? {
        let before = minimizer.best.len();
        one_minimal = minimizer.remove_faults()?;
        if minimizer.best.len() == before {
            break;
        }
    }
    let Minimizer { best: schedule, ran, attempts, .. } = minimizer;
    Ok(Some(Minimal { schedule, ran, attempts, one_minimal }))
}

/// The smallest number of faults among all subsets of up to [`SUBSET_MAX`] faults of the schedule of `base` that show the bug, by
/// trying every one; `None` where none shows it. What [`minimize`] is measured against.
pub fn smallest(pool: &Pool, base: &Plan, identity: &BugIdentity) -> Result<Option<usize>, ExploreError> {
    let events = base.schedule.events();
    for size in 0..=SUBSET_MAX.min(events.len()) {
        let mut subsets = Subsets::new(events.len(), size);
        loop {
            let next: Vec<Plan> = subsets
                .by_ref()
                .take(SUBSETS_AT_ONCE)
                .map(|subset| Plan { schedule: chosen(&base.schedule, &subset), tactic: None, ..base.clone() })
                .collect();
            if next.is_empty() {
                break;
            }
            if pool.first(&next, &|ran| shows(ran, identity))?.is_some() {
                return Ok(Some(size));
            }
        }
    }
    Ok(None)
}

/// All subsets of `size` places of `count`, in lexicographic order.
struct Subsets {
    count: usize,
    next: Option<Vec<usize>>,
}

impl Subsets {
    fn new(count: usize, size: usize) -> Self {
        Self { count, next: (size <= count).then(|| (0..size).collect()) }
    }

    /// How many there are.
    fn total(count: usize, size: usize) -> usize {
        (0..size.min(count)).fold(1, |total: usize, place| total.saturating_mul(count - place) / (place + 1))
    }
}

impl Iterator for Subsets {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let subset = self.next.take()?;
        let size = subset.len();
        let movable = (0..size).rev().find(|place| subset[*place] < self.count - size + place);
        if let Some(place) = movable {
            let mut following = subset.clone();
            following[place] += 1;
            for later in place + 1..size {
                following[later] = following[later - 1] + 1;
            }
            self.next = Some(following);
        }
        Some(subset)
    }
}

/// The faults at these places, and all answers to choices.
fn chosen(of: &Schedule, subset: &[usize]) -> Schedule {
    let faults = schedule(subset.iter().map(|place| of.events()[*place]).collect());
    faults.with_choices(of.choices().to_vec()).expect("the answers that it had")
}

fn shows(ran: &Ran, identity: &BugIdentity) -> bool {
    ran.violations.iter().any(|violation| violation.identity == *identity)
}

impl Minimizer<'_> {
    fn exhausted(&self) -> bool {
        self.attempts >= self.budget
    }

    /// Takes the first candidate that shows the bug. Gives its index among those that were new.
    fn accept_first(&mut self, candidates: Vec<Schedule>) -> Result<bool, ExploreError> {
        let mut new: Vec<Schedule> = Vec::new();
        for candidate in candidates {
            if candidate != self.best && !self.failed.contains(&candidate) && !new.contains(&candidate) {
                new.push(candidate);
            }
        }
        new.truncate((self.budget - self.attempts) as usize);
        let plan = |schedule: &Schedule| Plan { schedule: schedule.clone(), ..self.base.clone() };
        let plans: Vec<Plan> = new.iter().map(plan).collect();
        let identity = self.identity;
        let first = self.pool.first(&plans, &|ran| shows(ran, identity))?;
        let tried = first.as_ref().map_or(new.len(), |(index, _)| index + 1);
        self.attempts += tried as u32;
        let accepted = first.is_some();
        if let Some((index, ran)) = first {
            self.best = new[index].clone();
            self.ran = ran;
            new.truncate(index);
        }
        self.failed.extend(new);
        (self.on_step)(self.attempts, self.best.len());
        Ok(accepted)
    }

    /// A schedule of these faults, with the answers that are left.
    fn with_faults(&self, events: Vec<FaultEvent>) -> Schedule {
        let faults = schedule(events);
        faults.with_choices(self.best.choices().to_vec()).expect("the answers that it had")
    }

    fn with_answers(&self, choices: Vec<Choice>) -> Schedule {
        self.best.clone().with_choices(choices).expect("no more answers than before")
    }

    /// Leaves out answers to choices: all, halves, quarters and so on down to single ones; then makes the rest 0 where that does.
    fn shrink_answers(&mut self) -> Result<bool, ExploreError> {
        let before = self.best.choices().to_vec();
        let mut chunk = before.len();
        while chunk > 0 && !self.exhausted() {
            let answers = self.best.choices().to_vec();
            let without = |part: usize| {
                let kept = answers.iter().enumerate().filter(|(place, _)| place / chunk != part);
                self.with_answers(kept.map(|(_, choice)| *choice).collect())
            };
            let candidates: Vec<Schedule> = (0..answers.len().div_ceil(chunk)).map(without).collect();
            if !self.accept_first(candidates)? {
                chunk = if chunk == 1 { 0 } else { chunk.div_ceil(2) };
            } else {
                chunk = chunk.min(self.best.choices().len());
            }
        }
        for place in 0..self.best.choices().len() {
            if self.exhausted() {
                break;
            }
            let value = self.best.choices()[place].value;
            let smaller = [0, 1, value % 8, value / 2].into_iter().filter(|smaller| *smaller < value);
            let with = |value: u64| {
                let mut choices = self.best.choices().to_vec();
                choices[place].value = value;
                self.with_answers(choices)
            };
            let candidates: Vec<Schedule> = smaller.map(with).collect();
            self.accept_first(candidates)?;
        }
        Ok(self.best.choices() != before)
    }

    /// Leaves out at once what was due after the bug or could not be applied.
    fn keep_what_was_applied(&mut self) -> Result<(), ExploreError> {
        let applied = |entry: &&chaoscontrol_fault::LedgerEntry| entry.applicability == Applicability::Applicable;
        let events: Vec<FaultEvent> =
            self.ran.ledger.entries().iter().filter(applied).map(|entry| entry.event).collect();
        if !events.is_empty() && events.len() < self.best.len() && !self.exhausted() {
            self.accept_first(vec![self.with_faults(events)])?;
        }
        Ok(())
    }

    /// Tries smaller subsets of `found`, as long as all of one size fit the budget. True when one shows the bug.
    fn fewer_of(&mut self, found: &[FaultEvent]) -> Result<bool, ExploreError> {
        for size in 1..self.best.len().min(SUBSET_MAX + 1) {
            if Subsets::total(found.len(), size) > (self.budget - self.attempts) as usize {
                return Ok(false);
            }
            let mut subsets = Subsets::new(found.len(), size);
            loop {
                let next: Vec<Schedule> = subsets
                    .by_ref()
                    .take(SUBSETS_AT_ONCE)
                    .map(|subset| self.with_faults(subset.iter().map(|place| found[*place]).collect()))
                    .collect();
                if next.is_empty() {
                    break;
                }
                if self.accept_first(next)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Delta debugging down to single faults. True when every single removal was tried in vain.
    fn remove_faults(&mut self) -> Result<bool, ExploreError> {
        let mut parts = 2;
        loop {
            let events = self.best.events().to_vec();
            if events.is_empty() {
                return Ok(true);
            }
            if self.exhausted() {
                return Ok(false);
            }
            parts = parts.min(events.len());
            let chunk = events.len().div_ceil(parts);
            let kept = |keep: &dyn Fn(usize) -> bool| {
                let events = events.iter().enumerate().filter(|(index, _)| keep(index / chunk));
                self.with_faults(events.map(|(_, event)| *event).collect())
            };
            // Each part alone, then all but each part; alone first, since a bug often needs one fault only.
            let parts_now = events.len().div_ceil(chunk);
            let alone = (0..parts_now).map(|part| kept(&|at| at == part));
            let without = (0..parts_now).map(|part| kept(&|at| at != part));
            let candidates: Vec<Schedule> = alone.chain(without).collect();
            if self.accept_first(candidates)? {
                parts = 2.max(parts.saturating_sub(1));
            } else if chunk == 1 {
                return Ok(!self.exhausted());
            } else {
                parts = events.len().min(parts * 2);
            }
        }
    }

    /// One pass over every parameter and time. True when anything became smaller.
    fn shrink_values(&mut self) -> Result<bool, ExploreError> {
        let mut changed = false;
        // The number of faults does not change here, but equal ones may swap places: an index is only a way to visit all.
        for index in 0..self.best.len() {
            let parameters = self.best.events()[index].fault.kind().spec().parameters;
            for (parameter, spec) in parameters.iter().enumerate() {
                changed |= self.shrink_one(index, |event| smaller(event, parameter, &spec.domain))?;
            }
            changed |= self.shrink_one(index, rounder)?;
        }
        // With fewer faults, fewer answers may do.
        changed |= self.shrink_answers()?;
        Ok(changed)
    }

    fn shrink_one(
        &mut self,
        index: usize,
        candidates: impl Fn(&FaultEvent) -> Vec<FaultEvent>,
    ) -> Result<bool, ExploreError> {
        let Some(event) = self.best.events().get(index).copied() else { return Ok(false) };
        if self.exhausted() {
            return Ok(false);
        }
        let with = |replacement: FaultEvent| {
            let mut events = self.best.events().to_vec();
            events[index] = replacement;
            self.with_faults(events)
        };
        let shape = self.pool.factory().shape(self.base.horizon_ns);
        let fits = |schedule: &Schedule| schedule.check(&shape).is_ok();
        let candidates: Vec<Schedule> = candidates(&event).into_iter().map(with).filter(fits).collect();
        self.accept_first(candidates)
    }
}

fn schedule(events: Vec<FaultEvent>) -> Schedule {
    Schedule::new(events).expect("no more events than the schedule it came from")
}

/// Simpler values of one parameter, simplest first.
fn smaller(event: &FaultEvent, parameter: usize, domain: &Domain) -> Vec<FaultEvent> {
    let value = event.fault.values()[parameter];
    let values: Vec<i128> = match domain.role {
        // Another VM, disk or CPU is another fault.
        Role::Vm | Role::Disk | Role::Cpu => Vec::new(),
        // Each VM of the set alone.
        Role::VmSet => (0..32).map(|bit| 1 << bit).filter(|bit| value & bit != 0 && value != *bit).collect(),
        // Zero means without end: that is not shorter. Whole milliseconds read better.
        Role::Duration => {
            let shorter = [value / 10, value / 4, value / 2].into_iter().filter(|v| *v >= 1_000_000);
            shorter.map(|v| v / 1_000_000 * 1_000_000).collect()
        }
        Role::Quantity => {
            let floor = domain.min.max(0);
            [floor, floor + (value - floor) / 10, floor + (value - floor) / 2]
                .into_iter()
                .filter(|v| v.abs() < value.abs())
                .collect()
        }
    };
    values.into_iter().filter_map(|value| event.with_value(parameter, value)).collect()
}

/// The event at rounder times, roundest first.
fn rounder(event: &FaultEvent) -> Vec<FaultEvent> {
    let round = |unit: &u64| FaultEvent { time_ns: event.time_ns / unit * unit, ..*event };
    ROUND_NS.iter().map(round).filter(|rounded| rounded.time_ns != event.time_ns).collect()
}
