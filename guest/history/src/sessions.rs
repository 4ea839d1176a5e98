// SPDX-License-Identifier: Apache-2.0
//! Properties that look at pairs of operations: read-your-writes and lost updates. Both follow from linearizability, cost less to
//! check, and name the two or three operations that break them.

use crate::history::{Call, Operation, Outcome};
use crate::value::Value;
use std::collections::BTreeMap;

/// What breaks a property, and in which words.
pub(crate) type Broken = Option<(Vec<Operation>, String)>;

/// What an operation writes to a register, if it may have.
fn writes(operation: &Operation) -> Option<&Value> {
    match (&operation.call, &operation.outcome) {
        (_, Outcome::Failed | Outcome::Refused) => None,
        (Call::Write(value) | Call::CompareAndSet { new: value, .. }, _) => Some(value),
        _ => None,
    }
}

/// The first read of a register that is older than what its process wrote before: every write of what it gave had returned before
/// that process's own write was called.
pub(crate) fn read_your_writes(operations: &[&Operation]) -> Broken {
    let mut writers: BTreeMap<&Value, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        if let Some(value) = writes(operation) {
            writers.entry(value).or_default().push(operation);
        }
    }
    let mut own: BTreeMap<u32, &Operation> = BTreeMap::new();
    for operation in operations {
        if writes(operation).is_some() && operation.happened() {
            own.insert(operation.process, operation);
        }
        let (Call::Read, Outcome::Done(given)) = (&operation.call, &operation.outcome) else { continue };
        let Some(wrote) = own.get(&operation.process) else { continue };
        let sources = writers.get(given).map_or(&[][..], Vec::as_slice);
        // The newest source decides; the initial value was there before all.
        if sources.iter().all(|source| source.precedes(wrote)) {
            let newest = sources.iter().max_by_key(|source| source.returned);
            let mut shown: Vec<Operation> = newest.into_iter().map(|source| (*source).clone()).collect();
            shown.extend([(*wrote).clone(), (*operation).clone()]);
            let own = writes(wrote).map_or_else(String::new, ToString::to_string);
            let why = match newest {
                Some(_) => format!("a process read {given}, which was there before it wrote {own}"),
                None if *given == Value::Nothing => {
                    format!("a process wrote {own} and read nothing")
                }
                None => format!("a process read {given}, which nobody wrote"),
            };
            return Some((shown, why));
        }
    }
    None
}

/// Two compare-and-sets that both succeeded against one value, which was there only once: the later one undid the earlier.
pub(crate) fn lost_compare_and_set(operations: &[&Operation]) -> Broken {
    let mut installed: BTreeMap<&Value, usize> = BTreeMap::from([(&Value::Nothing, 1)]);
    for operation in operations {
        if let Some(value) = writes(operation) {
            *installed.entry(value).or_default() += 1;
        }
    }
    let mut based_on: BTreeMap<&Value, &Operation> = BTreeMap::new();
    for operation in operations {
        let (Call::CompareAndSet { expected, new }, Outcome::Done(_)) = (&operation.call, &operation.outcome) else {
            continue;
        };
        // One that leaves its value as it is replaces nothing.
        if installed.get(expected) != Some(&1) || expected == new {
            continue;
        }
        if let Some(first) = based_on.insert(expected, operation) {
            let why = format!("two compare-and-sets replaced one {expected}: what one of them wrote was lost");
            return Some((vec![first.clone(), (*operation).clone()], why));
        }
    }
    None
}

/// A counter that gave less than had been added for certain, or more than may have been.
pub(crate) fn lost_addition(operations: &[&Operation]) -> Broken {
    let amount = |operation: &Operation| match (&operation.call, &operation.outcome) {
        (_, Outcome::Failed) => None,
        (Call::Add(amount), _) => Some(u64::from(*amount)),
        _ => None,
    };
    for read in operations {
        let (Call::Read, Outcome::Done(given)) = (&read.call, &read.outcome) else { continue };
        let given = match given {
            Value::Nothing => 0,
            Value::Number(number) if *number >= 0 => number.unsigned_abs(),
            other => return Some((vec![(*read).clone()], format!("a counter gave {other}, which is no count"))),
        };
        let mut certain: Vec<&Operation> = operations
            .iter()
            .copied()
            .filter(|add| amount(add).is_some() && add.happened() && add.precedes(read))
            .collect();
        let sum = |adds: &[&Operation]| adds.iter().filter_map(|add| amount(add)).sum::<u64>();
        let least = sum(&certain);
        if given < least {
            certain.sort_by_key(|add| std::cmp::Reverse(amount(add)));
            let enough = (1..=certain.len()).find(|count| sum(&certain[..*count]) > given).unwrap_or(certain.len());
            let mut shown: Vec<Operation> = certain[..enough].iter().map(|add| (*add).clone()).collect();
            shown.push((*read).clone());
            return Some((shown, format!("{least} had been added before the read, which gave {given}")));
        }
        // What was called after the read returned cannot be in it.
        let most: u64 = operations.iter().filter(|add| !read.precedes(add)).filter_map(|add| amount(add)).sum();
        if given > most {
            return Some((
                vec![(*read).clone()],
                format!("at most {most} was added by then, and the read gave {given}"),
            ));
        }
    }
    None
}
