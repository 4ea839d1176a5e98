// SPDX-License-Identifier: AGPL-3.0-or-later
//! How the next branch is planned: what is tried, what it grows from, and what its faults follow.

use std::collections::BTreeMap;

use chaoscontrol_artifact::U64;
use chaoscontrol_artifact::schema::{CorpusEntry, LABELS_MAX, MOMENTS_MAX, Mode, Moment, Origin, PlannedBranch};
use chaoscontrol_cluster::{CHOICE, FLUSH};
use chaoscontrol_fault::{FaultEvent, Label, MAX_CHOICES, MAX_EVENTS, Mark, Pace, Schedule, Stream};

use super::Campaign;
use crate::subject::Ran;

/// New schedules in a hundred: mutation alone would circle around what it knows.
const FRESH: u64 = 55;

/// Hasty tactics in a hundred, and in the first window.
const HASTY: u64 = 60;
const HASTY_EARLY: u64 = 10;

/// What guests do, by how much it says of what they are at; the share of all reactions that wait for one of the class.
/// Agreements and events name what a protocol decides; a flush or a frame is what any guest does.
const CLASSES: [(&str, u64); 10] = [
    (CHOICE, 3),
    ("agree: ", 80),
    ("event: ", 80),
    ("fails: ", 6),
    ("passes: ", 6),
    ("closer: ", 8),
    ("start: ", 8),
    ("setup", 4),
    ("send", 8),
    (FLUSH, 12),
];

/// Label under which the numbers that guests got are counted, where they are answered.
const GET_RANDOM: &str = "get_random";

/// Choices of a VM in a branch, before any was seen.
const CHOICES_GUESSED: u64 = 16;

/// A schedule of these faults.
fn faults_of(events: Vec<FaultEvent>) -> Schedule {
    Schedule::new(events).expect("no more events than fit")
}

impl Campaign {
    /// Plans branches until `window` of them wait.
    pub(super) fn fill(&mut self) {
        while self.planned.len() < self.settings.window as usize {
            let index = self.total.branches.0 + self.planned.len() as u64;
            let mut branch = self.draw(index);
            branch.schedule = self.with_base(&branch.schedule);
            self.planned.push_back(branch);
        }
    }

    /// A schedule with the faults that every branch has. What does not fit beside them is left out.
    fn with_base(&self, schedule: &Schedule) -> Schedule {
        let mut events = self.base.events().to_vec();
        let room = MAX_EVENTS - events.len();
        events.extend(schedule.events().iter().take(room));
        let mut choices = schedule.choices().to_vec();
        choices.retain(|choice| !self.base.choices().iter().any(|b| (b.vm, b.nth) == (choice.vm, choice.nth)));
        choices.truncate(MAX_CHOICES - self.base.choices().len());
        choices.extend(self.base.choices());
        faults_of(events).with_choices(choices).expect("one answer each, and no more than fit")
    }

    /// What a branch has beside those faults, which planning must not change.
    fn without_base(&self, schedule: &Schedule) -> Schedule {
        let own = |event: &&FaultEvent| !self.base.events().contains(event);
        faults_of(schedule.events().iter().filter(own).copied().collect())
    }

    /// Plans one branch, but for the faults that every branch has, from what is merged.
    fn draw(&self, index: u64) -> PlannedBranch {
        let mut stream = Stream::named(self.settings.seed, "explore plan", index);
        let fresh = U64(stream.next_u64());
        let empty = PlannedBranch {
            branch: U64(index),
            seed: fresh,
            origin: Origin::Uniform,
            parent: None,
            schedule: Schedule::default(),
            tactic: None,
        };
        if self.settings.mode == Mode::Uniform {
            return PlannedBranch { schedule: self.planner.uniform(&mut stream), ..empty };
        }
        let parent = self.pick(&mut stream).filter(|_| stream.below(100) >= FRESH);
        let answers = match self.settings.mode {
            Mode::Inputs => true,
            Mode::Hybrid => stream.below(2) == 0,
            Mode::Faults | Mode::Uniform => false,
        };
        let mut planned = match (self.settings.mode, parent) {
            // The parent's own timeline up to the first choice that is answered otherwise.
            (Mode::Inputs, Some(parent)) => PlannedBranch {
                origin: Origin::Mutation,
                parent: Some(parent.branch),
                seed: parent.seed,
                schedule: self.without_base(&parent.schedule),
                ..empty
            },
            (Mode::Inputs, None) => PlannedBranch { origin: Origin::Random, ..empty },
            (_, Some(parent)) => self.grown(parent, empty, &mut stream),
            (_, None) => self.fresh(empty, &mut stream),
        };
        let kept = parent.filter(|parent| planned.parent == Some(parent.branch));
        let mut choices = kept.map_or(Vec::new(), |parent| parent.schedule.choices().to_vec());
        if answers {
            let per_vm = (self.per_vm(CHOICE).unwrap_or(CHOICES_GUESSED), self.per_vm(GET_RANDOM).unwrap_or(0));
            choices = self.planner.choices(&choices, per_vm, &mut stream);
        }
        planned.schedule = planned.schedule.with_choices(choices).expect("one answer each, and no more than fit");
        planned
    }

    /// How often a VM does something in a branch, at most as far as is known.
    fn per_vm(&self, label: &str) -> Option<u64> {
        let vms = u64::from(self.settings.shape.vms().max(1));
        Some(self.labels.get(label)?.most.0.div_ceil(vms))
    }

    /// A branch that grows from none.
    fn fresh(&self, empty: PlannedBranch, stream: &mut Stream) -> PlannedBranch {
        let labels = self.labels();
        match stream.below(20) {
            0..=13 if !labels.is_empty() => {
                let pace = self.pace(empty.branch.0, stream);
                let (schedule, tactic) = self.planner.tactic(&labels, pace, stream);
                PlannedBranch { origin: Origin::Tactic, schedule, tactic: Some(tactic), ..empty }
            }
            0..=18 => PlannedBranch { origin: Origin::Shape, schedule: self.planner.shapes(stream), ..empty },
            _ => PlannedBranch { origin: Origin::Random, schedule: self.planner.random(stream), ..empty },
        }
    }

    /// How soon the tactic of a branch strikes again. Most bugs show where guests get somewhere between faults, so that a campaign
    /// begins with those; what is left after the first window takes more of a hurry.
    fn pace(&self, branch: u64, stream: &mut Stream) -> Pace {
        let hasty = if branch < u64::from(self.settings.window) { HASTY_EARLY } else { HASTY };
        if stream.below(100) < hasty { Pace::Hasty } else { Pace::Steady }
    }

    /// A branch that grows from an entry.
    fn grown(&self, parent: &CorpusEntry, empty: PlannedBranch, stream: &mut Stream) -> PlannedBranch {
        let own = self.without_base(&parent.schedule);
        // Half of the time the parent's own timeline goes on, so that the change of the schedule is the only one.
        let seed = if stream.below(2) == 0 { parent.seed } else { empty.seed };
        let grown = PlannedBranch { parent: Some(parent.branch), seed, ..empty.clone() };
        let other = self.pick(stream).filter(|other| other.branch != parent.branch);
        let (labels, marks) = (self.labels(), marks(parent));
        let planned = match (stream.below(20), other) {
            (0..=2, Some(other)) => {
                let other = self.without_base(&other.schedule);
                PlannedBranch { origin: Origin::Splice, schedule: self.planner.splice(&own, &other, stream), ..grown }
            }
            (3..=7, _) if !labels.is_empty() => {
                let pace = self.pace(empty.branch.0, stream);
                let (_, tactic) = self.planner.tactic(&labels, pace, stream);
                // The tactic takes over at some point of the parent's branch, with the parent's own past: mostly where
                // the guests did something rare.
                let rare = marks.get(stream.below(marks.len().max(1) as u64) as usize).filter(|_| stream.below(4) > 0);
                let cut = rare.map_or_else(|| stream.below(self.settings.shape.horizon_ns), |mark| mark.time_ns);
                let early = own.events().iter().filter(|event| event.time_ns < cut).copied().collect();
                let schedule = Schedule::new(early).expect("no more events than before");
                return PlannedBranch {
                    origin: Origin::Tactic,
                    schedule,
                    tactic: Some(tactic),
                    seed: parent.seed,
                    ..grown
                };
            }
            (8..=11, _) if !marks.is_empty() => PlannedBranch {
                origin: Origin::Mutation,
                schedule: self.planner.retimed(&own, &marks, stream),
                seed: parent.seed,
                ..grown
            },
            _ => PlannedBranch { origin: Origin::Mutation, schedule: self.planner.mutate(&own, stream), ..grown },
        };
        if planned.schedule.is_empty() { self.fresh(empty, stream) } else { planned }
    }

    /// The entry of most energy of three drawn at random.
    fn pick(&self, stream: &mut Stream) -> Option<&CorpusEntry> {
        let count = self.entries.len() as u64;
        let draws = [stream.below(count), stream.below(count), stream.below(count)];
        let drawn = draws.into_iter().filter_map(|index| self.entries.get(index as usize));
        drawn.max_by_key(|entry| (self.energy(entry), entry.branch))
    }

    /// How much an entry is worth growing from: what it reached first and how seldom others get there, less for each branch that
    /// grew from it already.
    fn energy(&self, entry: &CorpusEntry) -> u64 {
        let novelty = 4 * u64::from(entry.new_edges) + u64::from(entry.new_counts) + 16 * u64::from(entry.new_labels);
        let branches = |moment: &Moment| self.labels.get(&moment.label).map_or(1, |counts| counts.branches.0.max(1));
        let rarest = entry.moments.iter().map(branches).min().unwrap_or(self.total.branches.0.max(1));
        // Each doubling of the branches that one must run to see it again.
        let rarity = u64::from((self.total.branches.0 / rarest).max(1).ilog2());
        1024 * (novelty + 8 * rarity + 1) / (1 + u64::from(entry.grown))
    }

    /// What reactions may wait for.
    fn labels(&self) -> Vec<Label> {
        let mut counts: BTreeMap<&str, u64> =
            self.settings.labels.iter().map(|(label, count)| (label.as_str(), *count)).collect();
        counts.extend(self.labels.iter().map(|(label, c)| (label.as_str(), c.marks.0 / c.branches.0.max(1))));
        let class = |label: &str| CLASSES.iter().position(|(prefix, _)| label.starts_with(prefix));
        // What happens seldom is what protocols are about: each doubling halves the weight.
        let rarity = |count: u64| (1u64 << 16) >> count.saturating_add(1).ilog2().min(12);
        let mut sums = [0u64; CLASSES.len()];
        for (label, count) in &counts {
            if let Some(class) = class(label) {
                sums[class] += rarity(*count);
            }
        }
        let label = |(name, per_branch): (&str, u64)| {
            let class = class(name)?;
            let weight = CLASSES[class].1 * 1024 * rarity(per_branch) / sums[class];
            Some(Label { name: name.to_owned(), per_branch, weight: weight.max(1) })
        };
        counts.into_iter().filter_map(label).collect()
    }

    /// Counts what guests did in a branch. Gives how many things they did that they had not done before, or not so often (twice
    /// as often as ever, at least), and how many numeric assertions came closer to their limits than ever.
    pub(super) fn merge_marks(&mut self, ran: &Ran) -> u32 {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for mark in &ran.marks {
            *counts.entry(&mark.label).or_default() += 1;
        }
        if matches!(self.settings.mode, Mode::Inputs | Mode::Hybrid) && ran.randoms > 0 {
            counts.insert(GET_RANDOM, ran.randoms);
        }
        let mut new = 0;
        for (label, count) in counts {
            if self.labels.len() >= LABELS_MAX && !self.labels.contains_key(label) {
                continue;
            }
            let known = self.labels.entry(label.to_owned()).or_default();
            new += u32::from(known.most.0.checked_ilog2() < count.checked_ilog2());
            known.branches.0 = known.branches.0.saturating_add(1);
            known.marks.0 = known.marks.0.saturating_add(count);
            known.most.0 = known.most.0.max(count);
        }
        for (label, closest) in &ran.closest {
            // A label of a mark that was left out, because there were too many, has no counts.
            if let Some(known) = self.labels.get_mut(label)
                && known.closest.is_none_or(|known| *closest < known.0)
            {
                known.closest = Some(U64(*closest));
                new += 1;
            }
        }
        new
    }

    /// The moments of a branch that are worth keeping: the rarest, in order of time.
    pub(super) fn moments(&self, marks: &[Mark]) -> Vec<Moment> {
        let often = |mark: &&Mark| self.labels.get(&mark.label).map_or(0, |counts| counts.marks.0);
        let mut rarest: Vec<&Mark> = marks.iter().collect();
        rarest.sort_by_key(|mark| (often(mark), mark.time_ns));
        rarest.truncate(MOMENTS_MAX);
        rarest.sort();
        let moment = |mark: &Mark| Moment { time_ns: U64(mark.time_ns), vm: mark.vm, label: mark.label.clone() };
        rarest.into_iter().map(moment).collect()
    }
}

fn marks(entry: &CorpusEntry) -> Vec<Mark> {
    let mark = |moment: &Moment| Mark::new(moment.time_ns.0, moment.vm, moment.label.clone());
    entry.moments.iter().map(mark).collect()
}
