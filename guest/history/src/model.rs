// SPDX-License-Identifier: Apache-2.0
//! What one sequential object answers.

use crate::history::{Call, Kind, Operation, Outcome};
use crate::value::Value;
use std::collections::{BTreeMap, VecDeque};

/// A value by number: 0 is nothing.
type Id = u32;

/// A call with its values as numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Read,
    Write(Id),
    CompareAndSet(Id, Id),
    Enqueue(Id),
    Dequeue,
}

/// What came back, with values as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nobody knows.
    Open,
    Gave(Id),
    Refused,
}

/// The state of a register or a queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Register(Id),
    Queue(VecDeque<Id>),
}

impl State {
    pub(crate) fn new(kind: Kind) -> Self {
        match kind {
            Kind::Register | Kind::Counter => Self::Register(0),
            Kind::Queue => Self::Queue(VecDeque::new()),
        }
    }

    /// The state after the call, if this one can answer so. An open call has its effect.
    pub(crate) fn after(&self, step: Step, answer: Answer) -> Option<Self> {
        let gives = |id: Id| answer == Answer::Open || answer == Answer::Gave(id);
        match (self, step) {
            (Self::Register(held), Step::Read) => gives(*held).then(|| self.clone()),
            (Self::Register(_), Step::Write(id)) => Some(Self::Register(id)),
            (Self::Register(held), Step::CompareAndSet(expected, new)) => match answer {
                Answer::Refused => (*held != expected).then(|| self.clone()),
                Answer::Gave(_) => (*held == expected).then_some(Self::Register(new)),
                // One that finds another value changes nothing, which is the same as never having happened.
                Answer::Open => (*held == expected).then_some(Self::Register(new)),
            },
            (Self::Queue(held), Step::Enqueue(id)) => {
                let mut held = held.clone();
                held.push_back(id);
                Some(Self::Queue(held))
            }
            (Self::Queue(held), Step::Dequeue) => {
                let mut held = held.clone();
                let first = held.pop_front().unwrap_or(0);
                gives(first).then_some(Self::Queue(held))
            }
            _ => None,
        }
    }
}

/// The steps and answers of operations on one key, and which may change something.
pub(crate) fn translate(operations: &[&Operation]) -> Vec<(Step, Answer)> {
    let mut ids: BTreeMap<&Value, Id> = BTreeMap::from([(&Value::Nothing, 0)]);
    let mut id = |value| {
        let next = ids.len() as Id;
        *ids.entry(value).or_insert(next)
    };
    let mut steps = Vec::with_capacity(operations.len());
    for operation in operations {
        let step = match &operation.call {
            Call::Read | Call::Add(_) => Step::Read,
            Call::Write(value) => Step::Write(id(value)),
            Call::CompareAndSet { expected, new } => Step::CompareAndSet(id(expected), id(new)),
            Call::Enqueue(value) => Step::Enqueue(id(value)),
            Call::Dequeue => Step::Dequeue,
        };
        let answer = match &operation.outcome {
            Outcome::Done(value) => Answer::Gave(id(value)),
            Outcome::Refused => Answer::Refused,
            Outcome::Failed | Outcome::Unknown => Answer::Open,
        };
        steps.push((step, answer));
    }
    steps
}
