// SPDX-License-Identifier: Apache-2.0
//! Operations, and how calls and returns become operations.

use crate::value::{TEXT_BYTES_MAX, Value};
use std::collections::BTreeMap;
use std::fmt;

/// Operations of one history: what a branch may report, with room.
pub const OPERATIONS_MAX: usize = 1 << 20;
/// Processes of one history.
pub const PROCESSES_MAX: usize = 1 << 16;

/// What was called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// Reads a register or a counter.
    Read,
    /// Writes a register.
    Write(Value),
    /// Writes a register if it holds the expected value.
    CompareAndSet {
        /// What it must hold.
        expected: Value,
        /// What it holds then.
        new: Value,
    },
    /// Appends to a queue.
    Enqueue(Value),
    /// Takes the first of a queue, or nothing.
    Dequeue,
    /// Adds to a counter.
    Add(u32),
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It happened; a read or dequeue gave this, the others nothing.
    Done(Value),
    /// A compare-and-set that found another value.
    Refused,
    /// It did not happen, for certain.
    Failed,
    /// Nobody knows whether it happened: it timed out, or its process died.
    Unknown,
}

/// What kind of object a key is, which follows from the calls on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// read, write, compare-and-set.
    Register,
    /// enqueue, dequeue.
    Queue,
    /// read, add.
    Counter,
}

impl Call {
    /// The kind of object that has this call; `None` for a read, which registers and counters have.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Self::Read => None,
            Self::Write(_) | Self::CompareAndSet { .. } => Some(Kind::Register),
            Self::Enqueue(_) | Self::Dequeue => Some(Kind::Queue),
            Self::Add(_) => Some(Kind::Counter),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("read"),
            Self::Write(value) => write!(f, "write {value}"),
            Self::CompareAndSet { expected, new } => write!(f, "compare_and_set {expected} -> {new}"),
            Self::Enqueue(value) => write!(f, "enqueue {value}"),
            Self::Dequeue => f.write_str("dequeue"),
            Self::Add(amount) => write!(f, "add {amount}"),
        }
    }
}

/// One operation. Times are of one clock; of two operations the first precedes the second when it returned before the second was
/// called. Operations with equal times overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who called.
    pub process: u32,
    /// On what.
    pub key: Box<str>,
    /// What.
    pub call: Call,
    /// When it was called.
    pub called: u64,
    /// When it returned; `None` when it did not, or when nobody knows how.
    pub returned: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Operation {
    /// Whether it surely happened.
    #[must_use]
    pub fn happened(&self) -> bool {
        matches!(self.outcome, Outcome::Done(_) | Outcome::Refused)
    }

    /// Whether `self` returned before `other` was called.
    #[must_use]
    pub fn precedes(&self, other: &Self) -> bool {
        self.returned.is_some_and(|returned| returned < other.called)
    }
}

/// Why a call or a return fits no history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// A process returned from nothing.
    NothingOpen,
    /// It returned from another operation than the one it had called.
    WrongOperation {
        /// The number that was called.
        called: u64,
        /// The number that returned.
        returned: u64,
    },
    /// The outcome is none that the call has.
    WrongOutcome,
    /// Time went back.
    TimeWentBack,
    /// A key's calls are of two kinds of object.
    MixedKinds {
        /// The key.
        key: Box<str>,
    },
    /// Too many operations, processes, or bytes.
    TooMany(&'static str),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingOpen => f.write_str("a return without a call of its process before it"),
            Self::WrongOperation { called, returned } => {
                write!(f, "operation {returned} returned, but its process had called operation {called}")
            }
            Self::WrongOutcome => f.write_str("the call cannot end like this"),
            Self::TimeWentBack => f.write_str("the time is before that of the event before it in the same process"),
            Self::MixedKinds { key } => {
                write!(f, "the calls on key {:?} are those of two kinds of object", key.as_ref())
            }
            Self::TooMany(what) => write!(f, "too many {what}"),
        }
    }
}

impl std::error::Error for BuildError {}

/// Makes operations of calls and returns. A process calls one operation at a time: its next call leaves one that has not returned
/// open for good, as when the program behind it was started again.
#[derive(Debug, Default)]
pub struct Builder {
    operations: Vec<Operation>,
    /// Of each process: its open operation (place and number), and its last time.
    processes: BTreeMap<u32, (Option<(usize, u64)>, u64)>,
}

impl Builder {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A process calls. `number` is of the caller's choosing; the return must name it again.
    pub fn call(&mut self, process: u32, number: u64, key: &str, call: Call, at: u64) -> Result<(), BuildError> {
        if self.operations.len() >= OPERATIONS_MAX {
            return Err(BuildError::TooMany("operations"));
        }
        if key.len() > TEXT_BYTES_MAX {
            return Err(BuildError::TooMany("bytes in a key"));
        }
        if self.processes.len() >= PROCESSES_MAX && !self.processes.contains_key(&process) {
            return Err(BuildError::TooMany("processes"));
        }
        let place = self.operations.len();
        let entry = self.processes.entry(process).or_insert((None, at));
        if at < entry.1 {
            return Err(BuildError::TimeWentBack);
        }
        *entry = (Some((place, number)), at);
        let operation =
            Operation { process, key: key.into(), call, called: at, returned: None, outcome: Outcome::Unknown };
        self.operations.push(operation);
        Ok(())
    }

    /// A process returns from its open operation.
    pub fn returned(&mut self, process: u32, number: u64, outcome: Outcome, at: u64) -> Result<(), BuildError> {
        let (open, last) = self.processes.get_mut(&process).ok_or(BuildError::NothingOpen)?;
        let (place, called) = open.ok_or(BuildError::NothingOpen)?;
        if number != called {
            return Err(BuildError::WrongOperation { called, returned: number });
        }
        if at < *last {
            return Err(BuildError::TimeWentBack);
        }
        let operation = &mut self.operations[place];
        let fits = match (&outcome, &operation.call) {
            (Outcome::Refused, call) => matches!(call, Call::CompareAndSet { .. }),
            (Outcome::Done(_), Call::Read | Call::Dequeue) => true,
            (Outcome::Done(value), _) => *value == Value::Nothing,
            (Outcome::Failed | Outcome::Unknown, _) => true,
        };
        if !fits {
            return Err(BuildError::WrongOutcome);
        }
        if outcome != Outcome::Unknown {
            operation.returned = Some(at);
        }
        operation.outcome = outcome;
        (*open, *last) = (None, at);
        Ok(())
    }

    /// The operations, in the order of their calls.
    #[must_use]
    pub fn finish(self) -> Vec<Operation> {
        self.operations
    }
}

/// A history by key: what kind of object each is, and its operations in the order of their calls.
pub(crate) fn by_key(history: &[Operation]) -> Result<BTreeMap<&str, (Kind, Vec<&Operation>)>, BuildError> {
    let mut keys: BTreeMap<&str, (Option<Kind>, Vec<&Operation>)> = BTreeMap::new();
    for operation in history {
        let (kind, operations) = keys.entry(&operation.key).or_default();
        match (*kind, operation.call.kind()) {
            (Some(Kind::Queue), None) => return Err(mixed(operation)),
            (Some(known), Some(new)) if known != new => return Err(mixed(operation)),
            (None, Some(Kind::Queue)) if !operations.is_empty() => return Err(mixed(operation)),
            (None, new) => *kind = new,
            _ => {}
        }
        operations.push(operation);
    }
    Ok(keys.into_iter().map(|(key, (kind, operations))| (key, (kind.unwrap_or(Kind::Register), operations))).collect())
}

fn mixed(operation: &Operation) -> BuildError {
    BuildError::MixedKinds { key: operation.key.clone() }
}
