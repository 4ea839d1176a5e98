// SPDX-License-Identifier: AGPL-3.0-or-later
//! The stage ledger: what became of each fault of a schedule.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{FaultEvent, FaultKind, Schedule};

/// Why a fault could not be applied when its time came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The VM is down.
    VmDown,
    /// The VM is paused already.
    VmPaused,
    /// No network fault is in effect that could be healed.
    NothingToHeal,
    /// The cluster does not have the target.
    NoSuchTarget,
    /// A guest had asked for a time without faults.
    QuietPeriod,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::VmDown => "its VM is down",
            Self::VmPaused => "its VM is paused already",
            Self::NothingToHeal => "no network fault is in effect",
            Self::NoSuchTarget => "the cluster does not have its target",
            Self::QuietPeriod => "a guest had asked for a time without faults",
        })
    }
}

/// The applicability stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Applicability {
    /// The branch ended before the fault's time came.
    #[default]
    NotReached,
    /// It could be applied.
    Applicable,
    /// It could not.
    Rejected(Rejection),
}

/// The application stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Application {
    /// Nothing was tried (not reached, or rejected).
    #[default]
    None,
    /// The guest's agent was asked at this cluster time and has not answered.
    Requested {
        /// Cluster ns since the start of the cluster.
        #[serde(with = "decimal")]
        at_ns: u64,
    },
    /// It took effect at this cluster time.
    Applied {
        /// Cluster ns since the start of the cluster.
        #[serde(with = "decimal")]
        at_ns: u64,
    },
    /// The machine refused; the text says why.
    Failed {
        /// What the machine said.
        reason: String,
    },
}

/// What became of one fault. Being listed is the first stage: selected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerEntry {
    /// The fault.
    pub event: FaultEvent,
    /// Whether it could be applied.
    pub applicability: Applicability,
    /// Whether it was.
    pub application: Application,
    /// How often its effect was observed (frames, requests, or 1 for a state change).
    #[serde(with = "decimal")]
    pub observed: u64,
}

/// Totals of one kind over one or many ledgers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCounts {
    /// Faults in schedules.
    pub selected: u64,
    /// Faults that could be applied.
    pub applicable: u64,
    /// Faults that could not be applied.
    pub rejected: u64,
    /// Faults that took effect.
    pub applied: u64,
    /// Faults that the machine refused.
    pub failed: u64,
    /// Faults whose effect was observed at least once.
    pub observed: u64,
}

/// One entry for each fault of a schedule, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ledger {
    entries: Vec<LedgerEntry>,
}

impl Ledger {
    /// The ledger of a schedule before anything happened.
    #[must_use]
    pub fn new(schedule: &Schedule) -> Self {
        let entry = |event: &FaultEvent| LedgerEntry {
            event: *event,
            applicability: Applicability::default(),
            application: Application::default(),
            observed: 0,
        };
        Self { entries: schedule.events().iter().map(entry).collect() }
    }

    /// The entries in schedule order.
    #[must_use]
    pub fn entries(&self) -> &[LedgerEntry] {
        &self.entries
    }

    /// Lists one more fault at `index`; those from there on move up.
    pub fn insert(&mut self, index: usize, event: FaultEvent) {
        let entry = LedgerEntry {
            event,
            applicability: Applicability::default(),
            application: Application::default(),
            observed: 0,
        };
        self.entries.insert(index.min(self.entries.len()), entry);
    }

    /// The ledger of a schedule that has the first `reached` faults of this one's: what became of those, and of the others nothing yet.
    #[must_use]
    pub fn under(&self, schedule: &Schedule, reached: usize) -> Self {
        let mut ledger = Self::new(schedule);
        ledger.entries.iter_mut().zip(&self.entries).take(reached).for_each(|(entry, own)| entry.clone_from(own));
        ledger
    }

    /// Records that the fault at `index` could not be applied.
    pub fn reject(&mut self, index: usize, rejection: Rejection) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.applicability = Applicability::Rejected(rejection);
        }
    }

    /// Records that the fault at `index` was applicable and took effect.
    pub fn apply(&mut self, index: usize, at_ns: u64) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.applicability = Applicability::Applicable;
            entry.application = Application::Applied { at_ns };
        }
    }

    /// Records that the fault at `index` was applicable and is now the guest's agent's.
    pub fn request(&mut self, index: usize, at_ns: u64) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.applicability = Applicability::Applicable;
            entry.application = Application::Requested { at_ns };
        }
    }

    /// Records that the fault at `index` was applicable and the machine refused it.
    pub fn fail(&mut self, index: usize, reason: String) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.applicability = Applicability::Applicable;
            entry.application = Application::Failed { reason };
        }
    }

    /// Adds to the observed effects of the fault at `index`.
    pub fn observe(&mut self, index: usize, count: u64) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.observed = entry.observed.saturating_add(count);
        }
    }

    /// Adds this ledger to totals by kind.
    pub fn count_into(&self, totals: &mut BTreeMap<FaultKind, StageCounts>) {
        for entry in &self.entries {
            let counts = totals.entry(entry.event.fault.kind()).or_default();
            counts.selected += 1;
            match entry.applicability {
                Applicability::NotReached => {}
                Applicability::Applicable => counts.applicable += 1,
                Applicability::Rejected(_) => counts.rejected += 1,
            }
            match entry.application {
                Application::None | Application::Requested { .. } => {}
                Application::Applied { .. } => counts.applied += 1,
                Application::Failed { .. } => counts.failed += 1,
            }
            counts.observed += u64::from(entry.observed > 0);
        }
    }
}

/// Why a ledger is no evidence of how a branch ran. `event` counts from 0 in schedule order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// It lists other faults.
    #[error("must list the faults of the schedule, in its order")]
    OtherSchedule,
    /// A fault that was reached although its time had not come when the branch ended.
    #[error("event {event} was reached, but the branch took {cluster_ns} ns and its time is {time_ns} ns")]
    OutOfHorizon {
        /// Which event.
        event: usize,
        /// Its time.
        time_ns: u64,
        /// How long the branch took.
        cluster_ns: u64,
    },
    /// A fault that was reached after one that was not.
    #[error("event {event} was reached after one that was not")]
    OutOfOrder {
        /// Which event.
        event: usize,
    },
    /// Stages that contradict each other.
    #[error("event {event}: {what}")]
    Malformed {
        /// Which event.
        event: usize,
        /// What contradicts what.
        what: &'static str,
    },
    /// Times that no single branch has.
    #[error(
        "event {event} was applied at {at_ns} ns, which does not fit the start of the branch as the others have it"
    )]
    Mixed {
        /// Which event.
        event: usize,
        /// When it was applied, in cluster ns.
        at_ns: u64,
    },
}

impl Ledger {
    /// Checks that the ledger can be that of a branch which ran this schedule and took `cluster_ns`: every fault once, reached
    /// in order and before the end, stages that agree, and times that count from one start.
    pub fn check(&self, schedule: &Schedule, cluster_ns: u64) -> Result<(), LedgerError> {
        if !self.entries.iter().map(|entry| &entry.event).eq(schedule.events()) {
            return Err(LedgerError::OtherSchedule);
        }
        let (mut start_ns, mut ended) = (None, false);
        for (event, entry) in self.entries.iter().enumerate() {
            let time_ns = entry.event.time_ns;
            let reached = entry.applicability != Applicability::NotReached;
            if reached && time_ns >= cluster_ns {
                return Err(LedgerError::OutOfHorizon { event, time_ns, cluster_ns });
            }
            if reached && ended {
                return Err(LedgerError::OutOfOrder { event });
            }
            ended |= !reached;
            entry.check_stages(event)?;
            let start = entry.start_ns(cluster_ns, start_ns).ok_or(event);
            start_ns = start.map_err(|event| LedgerError::Mixed { event, at_ns: entry.at_ns().unwrap_or(0) })?;
        }
        Ok(())
    }
}

impl LedgerEntry {
    fn check_stages(&self, event: usize) -> Result<(), LedgerError> {
        let malformed = |what| Err(LedgerError::Malformed { event, what });
        if (self.applicability == Applicability::Applicable) == (self.application == Application::None) {
            return malformed("its application does not fit its applicability");
        }
        if self.observed > 0 && !matches!(self.application, Application::Applied { .. }) {
            return malformed("its effect was observed, but it was not applied");
        }
        if matches!(self.application, Application::Requested { .. }) && !self.event.fault.is_for_agent() {
            return malformed("it is nothing that the guest's agent is asked for");
        }
        Ok(())
    }

    fn at_ns(&self) -> Option<u64> {
        match self.application {
            Application::Applied { at_ns } | Application::Requested { at_ns } => Some(at_ns),
            Application::None | Application::Failed { .. } => None,
        }
    }

    /// The start of the branch as far as it is known with this entry; none where the entry contradicts it. A fault is applied
    /// at its very time, but for an agent's, which is when the agent answered.
    fn start_ns(&self, cluster_ns: u64, known_ns: Option<u64>) -> Option<Option<u64>> {
        let Some(at_ns) = self.at_ns() else { return Some(known_ns) };
        let own_ns = at_ns.checked_sub(self.event.time_ns)?;
        let answered = self.event.fault.is_for_agent() && matches!(self.application, Application::Applied { .. });
        match known_ns {
            // An answer comes at or after the request, and before the branch ends.
            Some(start_ns) if answered => {
                let within = own_ns >= start_ns && at_ns <= start_ns.checked_add(cluster_ns)?;
                within.then_some(known_ns)
            }
            None if answered => Some(None),
            Some(start_ns) => (own_ns == start_ns).then_some(known_ns),
            None => Some(Some(own_ns)),
        }
    }
}

/// 64-bit values as strings of digits.
pub(crate) mod decimal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        // One spelling only: no sign, no leading zero.
        let number = text.parse().ok().filter(|number: &u64| number.to_string() == text);
        number.ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a decimal integer")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;

    /// Three restarts at 10, 20 and 30 ns of a branch that started at 1,000 ns.
    fn applied() -> (Schedule, Ledger) {
        let events = (1..4).map(|n| FaultEvent { time_ns: 10 * n, fault: Fault::VmRestart { vm: 0 } }).collect();
        let schedule = Schedule::new(events).unwrap();
        let mut ledger = Ledger::new(&schedule);
        ledger.apply(0, 1_010);
        ledger.reject(1, Rejection::QuietPeriod);
        ledger.apply(2, 1_030);
        ledger.observe(2, 1);
        (schedule, ledger)
    }

    #[test]
    fn a_ledger_of_one_branch_is_evidence() {
        let (schedule, ledger) = applied();
        assert_eq!(ledger.check(&schedule, 31), Ok(()));
        assert_eq!(Ledger::new(&schedule).check(&schedule, 5), Ok(()));
    }

    #[test]
    fn evidence_that_is_malformed_mixed_or_out_of_its_horizon_is_refused() {
        let (schedule, ledger) = applied();
        let other = Schedule::new(schedule.events()[1..].to_vec()).unwrap();
        assert_eq!(ledger.check(&other, 31), Err(LedgerError::OtherSchedule));
        assert!(matches!(ledger.check(&schedule, 30), Err(LedgerError::OutOfHorizon { event: 2, .. })));
        let mut mixed = ledger.clone();
        mixed.apply(2, 1_031);
        assert_eq!(mixed.check(&schedule, 31), Err(LedgerError::Mixed { event: 2, at_ns: 1_031 }));
        let mut early = ledger.clone();
        early.apply(0, 9);
        assert_eq!(early.check(&schedule, 31), Err(LedgerError::Mixed { event: 0, at_ns: 9 }));
        let mut skipped = Ledger::new(&schedule);
        skipped.apply(1, 1_020);
        assert_eq!(skipped.check(&schedule, 31), Err(LedgerError::OutOfOrder { event: 1 }));
        let mut seen = ledger.clone();
        seen.observe(1, 1);
        assert!(matches!(seen.check(&schedule, 31), Err(LedgerError::Malformed { event: 1, .. })));
        let mut asked = ledger;
        asked.request(0, 1_010);
        assert!(matches!(asked.check(&schedule, 31), Err(LedgerError::Malformed { event: 0, .. })));
    }

    #[test]
    fn an_agents_answer_lies_between_its_request_and_the_end_of_the_branch() {
        let restart = FaultEvent { time_ns: 10, fault: Fault::VmRestart { vm: 0 } };
        let kill = FaultEvent { time_ns: 20, fault: Fault::ProcessRestart { vm: 0 } };
        let schedule = Schedule::new(vec![restart, kill]).unwrap();
        let at = |at_ns| {
            let mut ledger = Ledger::new(&schedule);
            ledger.apply(0, 1_010);
            ledger.request(1, 1_020);
            assert_eq!(ledger.check(&schedule, 100), Ok(()));
            ledger.apply(1, at_ns);
            ledger.check(&schedule, 100)
        };
        assert_eq!((at(1_020), at(1_100)), (Ok(()), Ok(())));
        assert!(at(1_019).is_err() && at(1_101).is_err());
    }

    #[test]
    fn each_stage_of_a_fault_is_recorded_and_counted() {
        let events = (0..4).map(|vm| FaultEvent { time_ns: u64::from(vm), fault: Fault::VmRestart { vm } }).collect();
        let mut ledger = Ledger::new(&Schedule::new(events).unwrap());
        ledger.reject(0, Rejection::NoSuchTarget);
        ledger.apply(1, 50);
        ledger.observe(1, 2);
        ledger.fail(2, "the disk was read before".into());
        let mut totals = BTreeMap::new();
        ledger.count_into(&mut totals);
        let expected = StageCounts { selected: 4, applicable: 2, rejected: 1, applied: 1, failed: 1, observed: 1 };
        assert_eq!(totals, BTreeMap::from([(FaultKind::VmRestart, expected)]));
        let json = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&json).unwrap(), ledger);
        assert!(json.contains(r#""applied":{"at_ns":"50"}"#), "{json}");
    }
}
