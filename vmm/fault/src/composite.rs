// SPDX-License-Identifier: AGPL-3.0-or-later
//! Planning of faults that belong together: shapes in time, and tactics that follow what guests do.
//!
//! Single faults at random times seldom meet what a protocol is doing. What breaks protocols in practice are a few shapes: one
//! node cut off or gone for as long as a timeout or two and back again, the same once more, the next node when the first is
//! back, everything at once (Majumdar and Niksic, "Why is random testing effective for partition tolerance bugs?", POPL 2018).

use std::collections::BTreeMap;

use crate::planner::Planner;
use crate::{
    Choice, Fault, FaultEvent, FaultKind, MAX_CHOICES, Mark, RANDOMS_FROM, Reaction, Schedule, Stream, Tactic,
};

/// How long a strike lasts. Protocols give each other up after 100 ms to some seconds: what is over sooner is a lost frame or
/// two, what lasts longer leaves no time for more in a branch.
const STRIKE_NS: (u64, u64) = (100_000_000, 1_600_000_000);
/// Between two strikes of a shape: from nothing worth the name to time enough to recover.
const GAP_NS: (u64, u64) = (2_000_000, 800_000_000);
/// Delay of a fault behind the mark that it follows, where it is not at once: from one round to a timeout later.
const FOLLOW_NS: (u64, u64) = (1_000_000, 400_000_000);
/// For how long a steady tactic leaves guests alone behind its faults: about a timeout, so that they get somewhere.
const SETTLE_NS: (u64, u64) = (100_000_000, 400_000_000);
/// A partition that moves is healed so long before it is put elsewhere.
const HEALED_NS: u64 = 1_000;

/// Among the forms, where VMs can be cut off; and where they cannot, which leaves power cuts as what happens to them.
const KILL_WEIGHT: u64 = 4;
const KILL_WEIGHT_ALONE: u64 = 14;
/// How long a killed VM stays down beside the time that it takes to boot, which others notice anyway.
const DOWN_NS: (u64, u64) = (1_000_000, 1_600_000_000);

/// A label that reactions may wait for, with how often it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The label.
    pub name: String,
    /// Marks with it in a branch, about.
    pub per_branch: u64,
    /// How often to wait for it, relative to the others.
    pub weight: u64,
}

/// How soon a tactic strikes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Once its faults are over and guests had time to go on.
    Steady,
    /// At the next mark: what guests do in a row of interrupted attempts.
    Hasty,
}

/// How a fault strikes one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Isolate,
    Deafen,
    Mute,
    Kill,
    Pause,
    Other,
}

impl Form {
    const ALL: [(Form, Option<FaultKind>, u64); 6] = [
        (Form::Isolate, Some(FaultKind::NetworkPartition), 8),
        (Form::Deafen, Some(FaultKind::NetworkPartitionOneWay), 3),
        (Form::Mute, Some(FaultKind::NetworkPartitionOneWay), 3),
        (Form::Kill, Some(FaultKind::VmKill), KILL_WEIGHT),
        (Form::Pause, Some(FaultKind::VmPause), 3),
        (Form::Other, None, 4),
    ];
}

impl Planner {
    /// Faults drawn each by itself: kind, time and parameters, all uniform in their ranges. What guided planning is measured
    /// against.
    pub fn uniform(&self, stream: &mut Stream) -> Schedule {
        let wanted = stream.between(1, self.most_events());
        let events = (0..wanted).filter_map(|_| {
            let spec = self.any_kind(stream)?;
            self.event(&[spec], stream)
        });
        self.finish(events.collect())
    }

    /// A schedule of one or two shapes.
    pub fn shapes(&self, stream: &mut Stream) -> Schedule {
        let count = if stream.below(3) == 0 { 2 } else { 1 };
        let events = (0..count).flat_map(|_| self.shape_of_faults(stream)).collect();
        self.finish(events)
    }

    fn shape_of_faults(&self, stream: &mut Stream) -> Vec<FaultEvent> {
        let (vms, horizon_ns) = (u64::from(self.shape().vms().max(1)), self.shape().horizon_ns);
        let form = self.form(stream);
        let lasts_ns = stream.between_log(STRIKE_NS.0, STRIKE_NS.1);
        let first = stream.below(vms);
        let step = match stream.below(10) {
            // One strike.
            0 => {
                let at_ns = stream.below(horizon_ns);
                return self.strike(form, first as u16, (at_ns, lasts_ns), stream);
            }
            // All VMs at once, each with a fate of its own.
            1 => {
                let at_ns = stream.below(horizon_ns);
                return (0..vms).flat_map(|vm| self.strike(form, vm as u16, (at_ns, lasts_ns), stream)).collect();
            }
            // The same VM again and again.
            2 | 3 => 0,
            // Each in turn.
            _ => stream.between(1, (vms - 1).max(1)),
        };
        let gap_ns = stream.between_log(GAP_NS.0, GAP_NS.1);
        let (start_ns, turns) = (stream.below(horizon_ns / 4 + 1), stream.between(2, 8));
        // Half of the time one form throughout, else another each time.
        let mixed = stream.below(2) == 0;
        let mut events = Vec::new();
        for turn in 0..turns {
            let form = if mixed { self.form(stream) } else { form };
            let at_ns = start_ns + turn * (lasts_ns + gap_ns);
            events.extend(self.strike(form, ((first + turn * step) % vms) as u16, (at_ns, lasts_ns), stream));
        }
        events
    }

    /// Faults before a tactic, so that there is something to follow, and the tactic. `labels` must not be empty.
    pub fn tactic(&self, labels: &[Label], pace: Pace, stream: &mut Stream) -> (Schedule, Tactic) {
        let reactions = match stream.below(10) {
            0..=6 => 1,
            7 | 8 => 2,
            _ => 3,
        };
        let first = label(labels, stream);
        let mut list = vec![self.reaction(first, pace, stream)];
        for _ in 1..reactions {
            let next = if stream.below(2) == 0 { first } else { label(labels, stream) };
            list.push(self.reaction(next, pace, stream));
        }
        let repeats = stream.below(16) > 0;
        let settle_ns = match pace {
            Pace::Steady => stream.between_log(SETTLE_NS.0, SETTLE_NS.1),
            Pace::Hasty => 0,
        };
        let tactic = Tactic { reactions: list, repeats, settle_ns };
        let mut events = Vec::new();
        if stream.below(16) > 0 {
            let vm = stream.below(u64::from(self.shape().vms().max(1))) as u16;
            let at_ns = stream.below(self.shape().horizon_ns / 8 + 1);
            // Longer than most timeouts, so that somebody notices.
            let lasts_ns = stream.between_log(STRIKE_NS.0 * 2, STRIKE_NS.1 / 2);
            let isolates = self.plans(FaultKind::NetworkPartition) && stream.below(3) > 0;
            let form = if isolates { Form::Isolate } else { self.form(stream) };
            events.extend(self.strike(form, vm, (at_ns, lasts_ns), stream));
        }
        if stream.below(4) == 0 {
            events.extend(self.shape_of_faults(stream));
        }
        (self.finish(events), tactic)
    }

    fn reaction(&self, label: &Label, pace: Pace, stream: &mut Stream) -> Reaction {
        let skip_max = (label.per_branch / 4).clamp(1, 1 << 16);
        let skip = if stream.below(8) > 0 { 0 } else { stream.between_log(1, skip_max) as u32 };
        let delay_ns = follow_ns(stream);
        let vms = u64::from(self.shape().vms().max(1));
        let vm = if stream.below(4) > 0 { 0 } else { stream.below(vms) as u16 };
        let can_move = self.plans(FaultKind::NetworkPartition) && self.plans(FaultKind::NetworkHeal);
        let (moves, lasts_ns) = match pace {
            // Each cut lasts before the next one may come.
            Pace::Steady => (2, stream.between_log(STRIKE_NS.0, STRIKE_NS.1)),
            // A cut stays until it is moved.
            Pace::Hasty => (3, 0),
        };
        let mut events = if can_move && stream.below(5) < moves {
            let cut = Fault::NetworkPartition { vms: 1 << vm, duration_ns: lasts_ns };
            vec![
                FaultEvent { time_ns: delay_ns, fault: Fault::NetworkHeal {} },
                FaultEvent { time_ns: delay_ns + HEALED_NS, fault: cut },
            ]
        } else {
            let lasts_ns = stream.between_log(STRIKE_NS.0, STRIKE_NS.1);
            self.strike(self.form(stream), vm, (delay_ns, lasts_ns), stream)
        };
        if stream.below(4) == 0 {
            let other = stream.below(vms) as u16;
            let also_ns = delay_ns + follow_ns(stream);
            let lasts_ns = stream.between_log(STRIKE_NS.0, STRIKE_NS.1);
            events.extend(self.strike(self.form(stream), other, (also_ns, lasts_ns), stream));
        }
        Reaction { label: label.name.clone(), skip, faults: self.finish(events) }
    }

    /// Answers to guests' choices that differ from `parent`'s in one to three: another one answered, another answer, one left to
    /// its own draw again. `per_vm` is how many choices a VM makes in a branch, and how many numbers it gets from `get_random`, about.
    pub fn choices(&self, parent: &[Choice], per_vm: (u64, u64), stream: &mut Stream) -> Vec<Choice> {
        let mut choices: BTreeMap<(u16, u32), u64> = parent.iter().map(|c| ((c.vm, c.nth), c.value)).collect();
        for _ in 0..stream.between(1, 3) {
            let known: Vec<(u16, u32)> = choices.keys().copied().collect();
            let one = known.get(stream.below(known.len() as u64) as usize).copied();
            match (stream.below(8), one) {
                (0, Some(one)) => drop(choices.remove(&one)),
                (1..=2, Some(one)) => drop(choices.insert(one, answer(stream))),
                _ => {
                    let vm = stream.below(u64::from(self.shape().vms().max(1))) as u16;
                    choices.insert((vm, nth(per_vm, stream)), answer(stream));
                }
            }
        }
        choices.into_iter().take(MAX_CHOICES).map(|((vm, nth), value)| Choice { vm, nth, value }).collect()
    }

    /// `parent` with one fault moved to a moment at which a guest did something in the parent's branch, or a little behind it.
    pub fn retimed(&self, parent: &Schedule, marks: &[Mark], stream: &mut Stream) -> Schedule {
        let mut events = parent.events().to_vec();
        if let (Some(mark), false) = (marks.get(stream.below(marks.len() as u64) as usize), events.is_empty()) {
            let index = stream.below(events.len() as u64) as usize;
            let delay_ns = follow_ns(stream);
            events[index].time_ns = mark.time_ns.saturating_add(delay_ns);
        }
        self.finish(events)
    }

    /// A form whose fault is among the kinds planned.
    fn form(&self, stream: &mut Stream) -> Form {
        let possible = |kind: &Option<FaultKind>| kind.is_none_or(|kind| self.plans(kind));
        let alone = !self.plans(FaultKind::NetworkPartition);
        let weight = |form: Form, weight: u64| if alone && form == Form::Kill { KILL_WEIGHT_ALONE } else { weight };
        let forms: Vec<(Form, u64)> = Form::ALL
            .into_iter()
            .filter(|(_, kind, _)| possible(kind))
            .map(|(form, _, usual)| (form, weight(form, usual)))
            .collect();
        let mut draw = stream.below(forms.iter().map(|(_, weight)| weight).sum());
        for (form, weight) in forms {
            if draw < weight {
                return form;
            }
            draw -= weight;
        }
        Form::Other
    }

    /// One VM struck from a time on, for so long.
    fn strike(&self, form: Form, vm: u16, (time_ns, duration_ns): (u64, u64), stream: &mut Stream) -> Vec<FaultEvent> {
        if time_ns >= self.shape().horizon_ns {
            return Vec::new();
        }
        let (own, all) = (1u32 << vm, self.shape().all_vms());
        let fault = match form {
            Form::Isolate => Fault::NetworkPartition { vms: own, duration_ns },
            Form::Deafen => Fault::NetworkPartitionOneWay { from_vms: all, to_vms: own, duration_ns },
            Form::Mute => Fault::NetworkPartitionOneWay { from_vms: own, to_vms: all, duration_ns },
            Form::Kill => {
                // Nothing or everything that was not durable, or any part of it.
                let survivors = match stream.below(4) {
                    0 => u64::MAX,
                    1 => stream.next_u64(),
                    _ => 0,
                };
                let down_ns = stream.between_log(DOWN_NS.0, DOWN_NS.1);
                Fault::VmKill { vm, survivors, torn_write: 0, torn_bytes: 0, down_ns }
            }
            Form::Pause => Fault::VmPause { vm, duration_ns },
            Form::Other => {
                let Some(event) = self.any_kind(stream).and_then(|spec| self.event(&[spec], stream)) else {
                    return Vec::new();
                };
                let event = FaultEvent { time_ns, fault: event.fault };
                return [Some(event), self.companion(&event, stream)].into_iter().flatten().collect();
            }
        };
        vec![FaultEvent { time_ns, fault }]
    }
}

/// Which choice, or which `get_random`, each as likely as the next.
fn nth((choices, randoms): (u64, u64), stream: &mut Stream) -> u32 {
    let (choices, randoms) = (choices.clamp(1, 1 << 20), randoms.min(1 << 20));
    let drawn = stream.below(choices + randoms);
    drawn.checked_sub(choices).map_or(drawn as u32, |random| RANDOMS_FROM + random as u32)
}

/// An answer: the first ones of any choice, or any.
fn answer(stream: &mut Stream) -> u64 {
    if stream.below(2) == 0 { stream.below(8) } else { stream.next_u64() }
}

/// How long after what it follows.
fn follow_ns(stream: &mut Stream) -> u64 {
    if stream.below(4) == 0 { 0 } else { stream.between_log(FOLLOW_NS.0, FOLLOW_NS.1) }
}

/// A label, by weight.
fn label<'a>(labels: &'a [Label], stream: &mut Stream) -> &'a Label {
    let total: u64 = labels.iter().map(|label| label.weight).sum();
    let mut draw = stream.below(total);
    for label in labels {
        if draw < label.weight {
            return label;
        }
        draw -= label.weight;
    }
    &labels[0]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{SPECS, Shape, Tactician};

    fn planner() -> Planner {
        Planner::new(Shape { disks: vec![1, 1, 1], cpus: 1, horizon_ns: 5_000_000_000 })
    }

    fn labels() -> Vec<Label> {
        let label = |name: &str, weight| Label { name: name.into(), per_branch: 5, weight };
        vec![label("agree: a leader", 9), label("flush", 1), label("send", 0)]
    }

    #[test]
    fn everything_planned_fits_its_shape_and_uniform_planning_draws_every_kind() {
        let planner = Planner::new(Shape { cpus: 2, ..planner().shape().clone() });
        let mut kinds = BTreeSet::new();
        for index in 0..2_000 {
            let mut stream = Stream::named(3, "composite", index);
            let pace = if index % 2 == 0 { Pace::Steady } else { Pace::Hasty };
            let uniform = planner.uniform(&mut stream);
            kinds.extend(uniform.events().iter().map(|event| event.fault.kind()));
            let (kick, tactic) = planner.tactic(&labels(), pace, &mut stream);
            tactic.check().unwrap();
            let moments = [Mark::new(4_999_999_999, 1, "flush".into()), Mark::new(7, 0, "send".into())];
            let retimed = planner.retimed(&uniform, &moments, &mut stream);
            for schedule in [uniform, planner.shapes(&mut stream), kick, retimed] {
                assert_eq!(schedule.check(planner.shape()), Ok(()), "seed 3 index {index}");
            }
        }
        assert_eq!(kinds.len(), SPECS.len());
    }

    #[test]
    fn tactics_wait_for_labels_by_weight_and_what_they_do_fits() {
        let planner = planner();
        let (mut leaders, mut added) = (0, 0);
        for index in 0..500 {
            let mut stream = Stream::named(4, "composite", index);
            let (_, tactic) = planner.tactic(&labels(), Pace::Hasty, &mut stream);
            assert!(tactic.reactions.iter().all(|reaction| reaction.label != "send"));
            leaders += u32::from(tactic.reactions[0].label == "agree: a leader");
            let mut tactician = Tactician::new(tactic, planner.shape().clone());
            for step in 1..100u64 {
                let now_ns = step * 40_000_000;
                let marks =
                    ["agree: a leader", "flush"].map(|label| Mark::new(now_ns - 5, (step % 3) as u16, label.into()));
                let events = tactician.react(&marks, now_ns);
                assert!(events.iter().all(|event| event.time_ns >= now_ns && event.check(0, planner.shape()).is_ok()));
                added += events.len();
            }
        }
        assert!((400..500).contains(&leaders), "{leaders}");
        assert!(added > 1_500, "{added}");
    }

    #[test]
    fn a_cluster_that_has_no_links_gets_no_partitions() {
        let planner = Planner::new(Shape { disks: vec![0], cpus: 1, horizon_ns: 1_000_000_000 });
        for index in 0..200 {
            let mut stream = Stream::named(5, "composite", index);
            let (kick, tactic) = planner.tactic(&labels(), Pace::Steady, &mut stream);
            let of_tactic = tactic.reactions.iter().flat_map(|reaction| reaction.faults.events());
            let shapes = planner.shapes(&mut stream);
            for event in kick.events().iter().chain(of_tactic).chain(shapes.events()) {
                assert!(!matches!(event.fault, Fault::NetworkPartition { .. } | Fault::NetworkPartitionOneWay { .. }));
            }
        }
    }
}
