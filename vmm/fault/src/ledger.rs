// SPDX-License-Identifier: AGPL-3.0-or-later
//! The stage ledger: what became of each fault of a schedule.

use std::collections::BTreeMap;

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
                Application::None => {}
                Application::Applied { .. } => counts.applied += 1,
                Application::Failed { .. } => counts.failed += 1,
            }
            counts.observed += u64::from(entry.observed > 0);
        }
    }
}

/// 64-bit values as strings of digits.
mod decimal {
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
