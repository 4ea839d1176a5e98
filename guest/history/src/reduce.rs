// SPDX-License-Identifier: Apache-2.0
//! Takes out of a history that is not linearizable what it does not need to be so.
//!
//! First the end: linearizability holds for every beginning of a linearizable history, so the earliest return whose beginning breaks it is
//! found by halving. Then what is left, in ever smaller pieces. Only such operations are taken out whose absence keeps a
//! linearizable history linearizable, so that what remains convicts the whole: of a register reads, and writes of values that nothing else
//! that is left asks for; of a queue the two ends of a value that was enqueued once, values that were never taken, and dequeues that
//! found nothing.

use crate::history::{Call, Kind, Operation, Outcome};
use crate::linear::{Linear, linearizable};
use crate::value::Value;
use std::collections::BTreeMap;

pub(crate) struct Reduction<'a> {
    kind: Kind,
    configurations: u64,
    kept: Vec<&'a Operation>,
}

/// The fewest operations that were found to break linearizability, of `operations`, which do.
pub(crate) fn reduce(kind: Kind, operations: &[&Operation], configurations: u64) -> Vec<Operation> {
    let beginning = shortest_beginning(kind, operations, configurations);
    let mut reduction = Reduction { kind, configurations, kept: beginning.iter().collect() };
    while reduction.pass() {}
    reduction.kept.into_iter().cloned().collect()
}

/// What had been called at `end`; what had not returned by then is open.
fn beginning(operations: &[&Operation], end: u64) -> Vec<Operation> {
    let called = operations.iter().filter(|operation| operation.called <= end);
    called
        .map(|operation| match operation.returned {
            Some(returned) if returned > end => {
                Operation { returned: None, outcome: Outcome::Unknown, ..(*operation).clone() }
            }
            _ => (*operation).clone(),
        })
        .collect()
}

fn shortest_beginning(kind: Kind, operations: &[&Operation], configurations: u64) -> Vec<Operation> {
    let mut ends: Vec<u64> = operations.iter().filter_map(|operation| operation.returned).collect();
    ends.sort_unstable();
    ends.dedup();
    let breaks = |end: &u64| {
        let part = beginning(operations, *end);
        linearizable(kind, &part.iter().collect::<Vec<_>>(), configurations) == Linear::No
    };
    let first = ends.partition_point(|end| !breaks(end));
    match ends.get(first) {
        Some(end) => beginning(operations, *end),
        // Only where a search of a part used up its budget.
        None => operations.iter().map(|operation| (*operation).clone()).collect(),
    }
}

impl Reduction<'_> {
    /// Tries to take out groups, in pieces of falling size; whether anything went.
    fn pass(&mut self) -> bool {
        let before = self.kept.len();
        let mut size = self.groups().len();
        while size > 0 {
            let mut start = 0;
            loop {
                let groups = self.groups();
                let Some(piece) = groups.get(start..groups.len().min(start + size)).filter(|piece| !piece.is_empty())
                else {
                    break;
                };
                let out: Vec<usize> = piece.iter().flatten().copied().collect();
                let rest: Vec<&Operation> = self
                    .kept
                    .iter()
                    .enumerate()
                    .filter(|(index, _)| !out.contains(index))
                    .map(|(_, operation)| *operation)
                    .collect();
                if linearizable(self.kind, &rest, self.configurations) == Linear::No {
                    self.kept = rest;
                } else {
                    start += size;
                }
            }
            size /= 2;
        }
        self.kept.len() < before
    }

    /// Places of operations that may go together.
    fn groups(&self) -> Vec<Vec<usize>> {
        match self.kind {
            Kind::Queue => self.queue_groups(),
            Kind::Register | Kind::Counter => self.register_groups(),
        }
    }

    fn register_groups(&self) -> Vec<Vec<usize>> {
        let asks = |operation: &Operation, value: &Value| match (&operation.call, &operation.outcome) {
            (Call::Read, Outcome::Done(given)) => given == value,
            (Call::CompareAndSet { expected, .. }, Outcome::Done(_) | Outcome::Unknown) => expected == value,
            // It found another value than this one: any other would do, but which one is left may depend on what goes.
            (Call::CompareAndSet { .. }, _) => true,
            _ => false,
        };
        let free = |index: usize, operation: &Operation| match (&operation.call, &operation.outcome) {
            (Call::Read, _) | (_, Outcome::Failed | Outcome::Refused) => true,
            (Call::Write(value), _) => {
                let others = self.kept.iter().enumerate().filter(|(other, _)| *other != index);
                !others.into_iter().any(|(_, other)| asks(other, value))
            }
            _ => false,
        };
        let places = self.kept.iter().enumerate().filter(|(index, operation)| free(*index, operation));
        places.map(|(index, _)| vec![index]).collect()
    }

    fn queue_groups(&self) -> Vec<Vec<usize>> {
        let mut ends: BTreeMap<&Value, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        let mut groups = Vec::new();
        let mut open_dequeues = false;
        for (index, operation) in self.kept.iter().enumerate() {
            match (&operation.call, &operation.outcome) {
                (_, Outcome::Failed) | (Call::Dequeue, Outcome::Done(Value::Nothing)) => groups.push(vec![index]),
                (Call::Enqueue(value), _) => ends.entry(value).or_default().0.push(index),
                (Call::Dequeue, Outcome::Done(value)) => ends.entry(value).or_default().1.push(index),
                (Call::Dequeue, _) => open_dequeues = true,
                _ => {}
            }
        }
        for (put, taken) in ends.into_values() {
            // An open dequeue may have taken a value that nothing else took, and would have to take another one without it.
            let whole = put.len() == 1 && (taken.len() == 1 || (taken.is_empty() && !open_dequeues));
            if whole {
                groups.push([put, taken].concat());
            }
        }
        groups
    }
}
