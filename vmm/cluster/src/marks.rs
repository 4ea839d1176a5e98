// SPDX-License-Identifier: AGPL-3.0-or-later
//! What guests do that faults may follow: marks, and the tactic that waits for them.

use std::collections::BTreeMap;

use chaoscontrol_fault::{FaultEvent, Mark, Tactic, Tactician};
use chaoscontrol_protocol::{Outcome, Record};
use chaoscontrol_sim::SimConfig;

use crate::branch::{APPROACHES_MAX, MARKS_MAX};

/// A VM that sends after it was silent for so long makes a mark: heartbeats every few tens of milliseconds make one each, the
/// frames of one burst do not.
const SILENCE_NS: u64 = 10_000_000;

/// Label of a frame sent after a silence.
pub const SEND: &str = "send";
/// Label of a choice that a guest left to the host.
pub const CHOICE: &str = "choice";
/// Label of completed flushes.
pub const FLUSH: &str = "flush";

/// What one VM did before.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    /// When it last sent.
    sent_ns: Option<u64>,
    /// Flushes so far.
    flushes: u64,
}

/// The marks of a branch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    start_ns: u64,
    before: Vec<Before>,
    /// Those of the running round.
    round: Vec<Mark>,
    kept: Vec<Mark>,
    /// The barriers of rounds that had marks, with how many were kept by then.
    barriers: Vec<(u64, usize)>,
    /// Numbers drawn. There may be a great many, and no fault need follow one, so they make no marks.
    drawn: u64,
    /// How close numeric assertions came to their limits.
    closest: BTreeMap<String, u64>,
    tactician: Option<Tactician>,
}

impl Marks {
    /// A branch begins at `start_ns`, with so many flushes of each VM behind it.
    pub fn begin(
        start_ns: u64,
        flushes: impl Iterator<Item = u64>,
        tactic: Option<&Tactic>,
        config: &SimConfig,
        horizon_ns: u64,
    ) -> Self {
        let tactician = tactic.map(|tactic| Tactician::new(tactic.clone(), config.shape(horizon_ns)));
        let before = flushes.map(|flushes| Before { sent_ns: None, flushes }).collect();
        Self { start_ns, before, tactician, ..Self::default() }
    }

    fn mark(&mut self, vm: u16, cluster_ns: u64, label: String) {
        self.round.push(Mark::new(cluster_ns.saturating_sub(self.start_ns), vm, label));
    }

    /// A guest reported something; `property` is that of the site, for an assertion.
    pub fn reported(&mut self, vm: u16, cluster_ns: u64, record: &Record<'_>, property: Option<&str>) {
        let label = match record {
            Record::ProcessStart { name, .. } => format!("start: {name}"),
            Record::Assertion { outcome, .. } => {
                let how = if *outcome == Outcome::Pass { "passes" } else { "fails" };
                format!("{how}: {}", property.unwrap_or_default())
            }
            Record::Event { name, .. } => format!("event: {name}"),
            Record::SetupComplete { .. } => "setup".to_owned(),
            Record::Agree { namespace, .. } => format!("agree: {namespace}"),
            Record::Guidance { maximize, left, right, .. } => {
                let label = format!("closer: {}", property.unwrap_or_default());
                if let Some(distance) = left.distance(*right) {
                    self.approached(&label, *maximize, distance);
                }
                label
            }
            _ => return,
        };
        self.mark(vm, cluster_ns, label);
    }

    /// A numeric assertion that is to become large, or small, came so far.
    fn approached(&mut self, label: &str, maximize: bool, distance: i64) {
        // The order of signed numbers, from 0 up.
        let raised = distance as u64 ^ 1 << 63;
        let left = if maximize { !raised } else { raised };
        let room = self.closest.len() < APPROACHES_MAX;
        match self.closest.get_mut(label) {
            Some(closest) => *closest = left.min(*closest),
            None if room => drop(self.closest.insert(label.to_owned(), left)),
            None => {}
        }
    }

    /// How close each numeric assertion came to its limit in the branch, by its label. Smaller is closer.
    pub fn closest(&self) -> &BTreeMap<String, u64> {
        &self.closest
    }

    /// A guest left a choice to the host.
    pub fn chose(&mut self, vm: u16, cluster_ns: u64) {
        self.mark(vm, cluster_ns, CHOICE.to_owned());
    }

    /// A guest got a number from `get_random`.
    pub fn drew(&mut self) {
        self.drawn += 1;
    }

    /// How many did.
    pub fn drawn(&self) -> u64 {
        self.drawn
    }

    /// A VM sent its first frame of a round.
    pub fn sent(&mut self, vm: u16, cluster_ns: u64) {
        let Some(before) = self.before.get_mut(usize::from(vm)) else { return };
        let silent = before.sent_ns.is_none_or(|sent_ns| cluster_ns >= sent_ns.saturating_add(SILENCE_NS));
        before.sent_ns = Some(cluster_ns);
        if silent {
            self.mark(vm, cluster_ns, SEND.to_owned());
        }
    }

    /// A VM's disks have completed so many flushes by the end of a round.
    pub fn flushed(&mut self, vm: u16, flushes: u64, cluster_ns: u64) {
        let Some(before) = self.before.get_mut(usize::from(vm)) else { return };
        // A restart counts from zero again.
        if std::mem::replace(&mut before.flushes, flushes) < flushes {
            self.mark(vm, cluster_ns, FLUSH.to_owned());
        }
    }

    /// Ends a round at this barrier and gives the faults that its marks call for.
    pub fn end_round(&mut self, now_ns: u64) -> Vec<FaultEvent> {
        self.round.sort_unstable();
        let now_ns = now_ns.saturating_sub(self.start_ns);
        let events = self.tactician.as_mut().map_or(Vec::new(), |tactician| tactician.react(&self.round, now_ns));
        self.round.truncate(MARKS_MAX - self.kept.len());
        if !self.round.is_empty() {
            self.kept.append(&mut self.round);
            self.barriers.push((now_ns, self.kept.len()));
        }
        events
    }

    /// The same marks under another tactic.
    pub fn under(&self, tactician: Option<Tactician>) -> Self {
        Self { tactician, ..self.clone() }
    }

    /// How many are kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// The tactician as these marks leave it, if it does nothing for them. None of them may have been left out.
    pub fn idle_until_now(&self, mut tactician: Tactician) -> Option<Tactician> {
        let mut first = 0;
        for (now_ns, end) in &self.barriers {
            if !tactician.react(&self.kept[first..*end], *now_ns).is_empty() {
                return None;
            }
            first = *end;
        }
        Some(tactician)
    }

    /// The marks of the branch that has ended.
    pub fn take(&mut self) -> Vec<Mark> {
        std::mem::take(&mut self.kept)
    }
}

#[cfg(test)]
mod tests {
    use chaoscontrol_protocol::Number;

    use super::*;

    #[test]
    fn of_each_numeric_assertion_the_closest_approach_is_kept_and_less_is_closer() {
        let mut marks = Marks::default();
        let mut came = |property: &str, maximize: bool, left: i64| {
            let record = Record::Guidance { site: 0, maximize, left: Number::Signed(left), right: Number::Signed(0) };
            marks.reported(0, 1, &record, Some(property));
            marks.closest().get(&format!("closer: {property}")).copied()
        };
        let far = came("large", true, -7);
        assert_eq!(came("large", true, -9), far);
        assert!(came("large", true, 3) < far);
        let far = came("small", false, 3);
        assert_eq!(came("small", false, 4), far);
        assert!(came("small", false, -4) < far);
        for index in 0..2 * APPROACHES_MAX {
            came(&index.to_string(), true, 1);
        }
        assert_eq!(marks.closest().len(), APPROACHES_MAX);
    }
}
