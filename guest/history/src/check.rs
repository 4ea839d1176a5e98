// SPDX-License-Identifier: Apache-2.0
//! The whole check: every key against every property.

use crate::history::{BuildError, Kind, Operation, by_key};
use crate::linear::{Linear, linearizable};
use crate::reduce::reduce;
use crate::sessions::{Broken, lost_addition, lost_compare_and_set, read_your_writes};

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Property {
    /// Registers and queues behave as if each operation happened at one moment between its call and its return.
    Linearizable,
    /// A process does not read what is older than its own last write.
    ReadYourWrites,
    /// No update undoes another that it did not see.
    NoLostUpdates,
}

impl Property {
    /// All of them, in the order of [`Report::violations`].
    pub const ALL: [Self; 3] = [Self::ReadYourWrites, Self::NoLostUpdates, Self::Linearizable];

    /// Its name in reports and on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linearizable => "linearizable",
            Self::ReadYourWrites => "read-your-writes",
            Self::NoLostUpdates => "no-lost-updates",
        }
    }
}

/// How much may be searched.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Configurations that the search for one key may visit; each takes some tens of bytes.
    pub configurations: u64,
}

impl Default for Budget {
    /// A million: seconds, and some hundred MB at most.
    fn default() -> Self {
        Self { configurations: 1_000_000 }
    }
}

/// A broken property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub property: Property,
    /// On which key.
    pub key: Box<str>,
    /// What the key is.
    pub kind: Kind,
    /// The fewest operations that were found to show it, in the order of their calls.
    pub operations: Vec<Operation>,
    /// In words. Values in it are escaped.
    pub why: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Keys checked.
    pub keys: usize,
    /// Operations checked.
    pub operations: usize,
    /// Operations of which nobody knows whether they happened.
    pub open: usize,
    /// What is broken, by key and property.
    pub violations: Vec<Violation>,
    /// Keys for which the search used up its budget.
    pub undecided: Vec<Box<str>>,
}

/// Checks a history against some properties.
///
/// # Errors
/// If a key's calls are those of two kinds of object.
pub fn check(history: &[Operation], properties: &[Property], budget: Budget) -> Result<Report, BuildError> {
    let keys = by_key(history)?;
    let open = history.iter().filter(|operation| operation.returned.is_none()).count();
    let mut report = Report { keys: keys.len(), operations: history.len(), open, ..Report::default() };
    for (key, (kind, operations)) in keys {
        for property in Property::ALL.into_iter().filter(|property| properties.contains(property)) {
            match one(property, kind, &operations, budget) {
                Found::Holds => {}
                Found::Undecided => report.undecided.push(key.into()),
                Found::Broken(mut operations, why) => {
                    operations.sort_by_key(|operation| (operation.called, operation.process));
                    report.violations.push(Violation { property, key: key.into(), kind, operations, why });
                }
            }
        }
    }
    Ok(report)
}

enum Found {
    Holds,
    Undecided,
    Broken(Vec<Operation>, String),
}

impl From<Broken> for Found {
    fn from(broken: Broken) -> Self {
        broken.map_or(Self::Holds, |(operations, why)| Self::Broken(operations, why))
    }
}

fn one(property: Property, kind: Kind, operations: &[&Operation], budget: Budget) -> Found {
    match (property, kind) {
        (Property::ReadYourWrites, Kind::Register) => read_your_writes(operations).into(),
        (Property::NoLostUpdates, Kind::Register) => lost_compare_and_set(operations).into(),
        (Property::NoLostUpdates, Kind::Counter) => lost_addition(operations).into(),
        (Property::Linearizable, Kind::Register | Kind::Queue) => {
            match linearizable(kind, operations, budget.configurations) {
                Linear::Yes => Found::Holds,
                Linear::Undecided => Found::Undecided,
                Linear::No => {
                    let left = reduce(kind, operations, budget.configurations);
                    let why = format!("no order of these {} operations fits their times and answers", left.len());
                    Found::Broken(left, why)
                }
            }
        }
        _ => Found::Holds,
    }
}
