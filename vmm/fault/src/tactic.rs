// SPDX-License-Identifier: AGPL-3.0-or-later
//! Tactics: faults that follow what guests do.
//!
//! A [`Mark`] says that a guest did something: reported to the oracle, spoke after a silence, completed a flush, started. A
//! [`Tactic`] is a list of reactions; each waits for a mark with its label and then puts its faults at that moment, with the
//! VMs counted from the one that did it. So "whenever someone has been elected, cut it off a little later" is one tactic,
//! and it meets every election of a branch although nobody knows beforehand when they are.
//!
//! Invariants: what a tactic does is a function of its data and of the branch's own marks; a fault never lies before the
//! barrier at which it was decided. So a branch that ran under a tactic runs to the same bits again under the plain schedule
//! that came of it, and only that schedule is kept of a bug.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{Fault, FaultEvent, Role, Schedule, Shape};

/// Reactions of a tactic, at most.
pub const REACTIONS_MAX: usize = 8;
/// Bytes of a label, at most; longer ones are cut at a character.
pub const LABEL_BYTES_MAX: usize = 128;
/// Faults that a tactic adds to one branch, at most: what comes of it has to be minimized.
pub const TACTIC_EVENTS_MAX: usize = 40;

/// Something that a guest did.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// When, in cluster ns after the start of the branch.
    pub time_ns: u64,
    /// Which VM.
    pub vm: u16,
    /// What: a name that the host made up or the guest sent. Escape it before showing.
    pub label: String,
}

impl Mark {
    /// A mark, with its label cut to [`LABEL_BYTES_MAX`].
    #[must_use]
    pub fn new(time_ns: u64, vm: u16, mut label: String) -> Self {
        let mut end = label.len().min(LABEL_BYTES_MAX);
        while !label.is_char_boundary(end) {
            end -= 1;
        }
        label.truncate(end);
        Self { time_ns, vm, label }
    }
}

/// What to do once a guest did something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reaction {
    /// The label waited for.
    pub label: String,
    /// Marks with it that are let pass first.
    pub skip: u32,
    /// Times count from the mark. VM 0 is the one that made it, VM 1 the next, and so on around; sets likewise.
    pub faults: Schedule,
}

/// Reactions, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tactic {
    /// In their order; the next one waits once the faults of the one before are over and guests had `settle_ns`.
    pub reactions: Vec<Reaction>,
    /// Whether the first follows the last.
    pub repeats: bool,
    /// For how long guests are left alone behind a reaction's faults, in ns. What strikes again at once meets what guests do in
    /// a hurry, or only guests that do nothing but wait.
    #[serde(default, with = "crate::ledger::decimal", skip_serializing_if = "is_zero")]
    pub settle_ns: u64,
}

/// What is left out of documents; tactics of older ones have no such time.
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Tactic {
    /// What is wrong with a tactic from a file.
    pub fn check(&self) -> Result<(), String> {
        if self.reactions.is_empty() || self.reactions.len() > REACTIONS_MAX {
            return Err(format!(
                "tactic.reactions has {} entries, it must have 1 to {REACTIONS_MAX}",
                self.reactions.len()
            ));
        }
        Ok(())
    }
}

/// A tactic at work in one branch.
#[derive(Clone, Debug)]
pub struct Tactician {
    tactic: Tactic,
    shape: Shape,
    /// Which reaction waits.
    waiting: usize,
    /// Marks that it let pass.
    passed: u32,
    /// Marks before this are of the reaction before.
    armed_ns: u64,
    added: usize,
}

impl Tactician {
    /// The tactic at the start of a branch of a cluster of this shape.
    #[must_use]
    pub fn new(tactic: Tactic, shape: Shape) -> Self {
        Self { tactic, shape, waiting: 0, passed: 0, armed_ns: 0, added: 0 }
    }

    /// The faults that the marks of one round call for. None lies before `now_ns`, the barrier that ended the round (after
    /// the start of the branch); what does not fit the cluster or its horizon is left out.
    pub fn react(&mut self, marks: &[Mark], now_ns: u64) -> Vec<FaultEvent> {
        let mut waiting: VecDeque<&Mark> = marks.iter().collect();
        let mut events = Vec::new();
        while let (Some(mark), Some(reaction)) = (waiting.pop_front(), self.tactic.reactions.get(self.waiting)) {
            if mark.label != reaction.label || mark.time_ns < self.armed_ns {
                continue;
            }
            if self.passed < reaction.skip {
                self.passed += 1;
                continue;
            }
            let at = |event: &FaultEvent| FaultEvent {
                time_ns: mark.time_ns.saturating_add(event.time_ns).max(now_ns),
                fault: turned(&event.fault, mark.vm, self.shape.vms()).unwrap_or(event.fault),
            };
            let own: Vec<FaultEvent> = reaction.faults.events().iter().map(at).collect();
            let end = |event: &FaultEvent| event.time_ns.saturating_add(event.fault.duration_ns().unwrap_or(0));
            self.armed_ns = own.iter().map(end).max().unwrap_or(now_ns).saturating_add(self.tactic.settle_ns);
            events.extend(own.into_iter().filter(|event| event.check(0, &self.shape).is_ok()));
            self.passed = 0;
            self.waiting += 1;
            if self.waiting == self.tactic.reactions.len() && self.tactic.repeats {
                self.waiting = 0;
            }
        }
        events.truncate(TACTIC_EVENTS_MAX - self.added);
        self.added += events.len();
        events
    }
}

/// The fault with its VMs counted from `first`.
fn turned(fault: &Fault, first: u16, vms: u16) -> Option<Fault> {
    let spec = fault.kind().spec();
    let count = i128::from(vms.max(1));
    let turn = |value: i128| (value + i128::from(first)).rem_euclid(count);
    let value = |(value, role): (i128, Role)| match role {
        Role::Vm => turn(value),
        Role::VmSet => (0..count).filter(|bit| value >> bit & 1 != 0).fold(0, |set, bit| set | 1 << turn(bit)),
        Role::Disk | Role::Cpu | Role::Duration | Role::Quantity => value,
    };
    let roles = spec.parameters.iter().map(|parameter| parameter.domain.role);
    let values: Vec<i128> = fault.values().into_iter().zip(roles).map(value).collect();
    Fault::from_values(fault.kind(), &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape { disks: vec![1; 3], cpus: 1, horizon_ns: 1_000_000 }
    }

    fn reaction(label: &str, skip: u32, events: &[(u64, Fault)]) -> Reaction {
        let events = events.iter().map(|(time_ns, fault)| FaultEvent { time_ns: *time_ns, fault: *fault });
        Reaction { label: label.into(), skip, faults: Schedule::new(events.collect()).unwrap() }
    }

    fn mark(time_ns: u64, vm: u16, label: &str) -> Mark {
        Mark::new(time_ns, vm, label.into())
    }

    #[test]
    fn faults_follow_the_mark_and_the_vm_that_made_it() {
        let cut = reaction("elected", 1, &[(50, Fault::NetworkPartition { vms: 0b011, duration_ns: 0 })]);
        let mut tactician = Tactician::new(Tactic { reactions: vec![cut], repeats: true, settle_ns: 0 }, shape());
        assert_eq!(tactician.react(&[mark(10, 0, "elected"), mark(11, 0, "other")], 20), vec![]);
        let events = tactician.react(&[mark(100, 2, "elected")], 120);
        let fault = Fault::NetworkPartition { vms: 0b101, duration_ns: 0 };
        assert_eq!(events, vec![FaultEvent { time_ns: 150, fault }]);
        // Until the fault is past nothing waits, and then one is let pass again.
        assert_eq!(tactician.react(&[mark(149, 1, "elected"), mark(160, 1, "elected")], 170), vec![]);
        assert_eq!(tactician.react(&[mark(180, 1, "elected")], 500)[0].time_ns, 500, "never before the barrier");
    }

    #[test]
    fn reactions_wait_for_each_other_and_end() {
        let kill = |vm| Fault::VmRestart { vm };
        let reactions = vec![reaction("a", 0, &[(0, kill(1))]), reaction("b", 0, &[(0, kill(2)), (1 << 40, kill(0))])];
        let mut tactician = Tactician::new(Tactic { reactions, repeats: false, settle_ns: 0 }, shape());
        assert_eq!(tactician.react(&[mark(5, 0, "b")], 6), vec![]);
        let events = tactician.react(&[mark(7, 2, "a"), mark(8, 1, "b")], 8);
        assert_eq!(events[0], FaultEvent { time_ns: 8, fault: kill(0) });
        // What lies behind the horizon is left out.
        assert_eq!(events[1..], [FaultEvent { time_ns: 8, fault: kill(0) }]);
        assert_eq!(tactician.react(&[mark(9, 0, "a"), mark(9, 0, "b")], 9), vec![]);
    }

    #[test]
    fn nothing_is_waited_for_until_the_faults_are_over_and_guests_had_their_time() {
        let cut = reaction("a", 0, &[(10, Fault::NetworkPartition { vms: 1, duration_ns: 300 })]);
        let mut tactician = Tactician::new(Tactic { reactions: vec![cut], repeats: true, settle_ns: 50 }, shape());
        assert_eq!(tactician.react(&[mark(100, 0, "a")], 100).len(), 1);
        assert_eq!(
            tactician.react(&[mark(409, 0, "a"), mark(459, 0, "a")], 459),
            vec![],
            "cut off up to 410, 50 ns more"
        );
        assert_eq!(tactician.react(&[mark(460, 0, "a")], 460).len(), 1);
    }

    #[test]
    fn a_tactic_adds_no_more_than_its_bound() {
        let again = reaction("a", 0, &[(0, Fault::NetworkHeal {})]);
        let mut tactician = Tactician::new(Tactic { reactions: vec![again], repeats: true, settle_ns: 0 }, shape());
        let added: usize = (1..1000).map(|time| tactician.react(&[mark(time, 0, "a")], time).len()).sum();
        assert_eq!(added, TACTIC_EVENTS_MAX);
    }

    #[test]
    fn labels_are_cut_at_a_character() {
        let mark = mark(0, 0, &"\u{e9}".repeat(100));
        assert_eq!(mark.label.len(), LABEL_BYTES_MAX);
        let tactic =
            |reactions| Tactic { reactions: vec![reaction("a", 0, &[]); reactions], repeats: false, settle_ns: 0 };
        assert!(tactic(1).check().is_ok() && tactic(REACTIONS_MAX).check().is_ok());
        assert!(tactic(0).check().is_err() && tactic(REACTIONS_MAX + 1).check().is_err());
    }
}
