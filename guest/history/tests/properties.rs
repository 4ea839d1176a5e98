// SPDX-License-Identifier: Apache-2.0
//! The checker against a second one that tries every order, on small random histories; and what reduction promises.

use chaoscontrol_history::{Budget, Call, Kind, Linear, Operation, Outcome, Property, Value, check, linearizable};
use proptest::prelude::*;
use std::collections::VecDeque;

const CONFIGURATIONS: u64 = 1_000_000;

/// The obvious object, written a second time.
#[derive(Clone)]
enum Object {
    Register(Value),
    Queue(VecDeque<Value>),
}

impl Object {
    fn new(kind: Kind) -> Self {
        if kind == Kind::Queue { Self::Queue(VecDeque::new()) } else { Self::Register(Value::Nothing) }
    }

    /// Performs the call; gives whether the answer is the recorded one.
    fn perform(&mut self, operation: &Operation) -> bool {
        let answer = match (self, &operation.call) {
            (Self::Register(held), Call::Read) => Outcome::Done(held.clone()),
            (Self::Register(held), Call::Write(value)) => {
                *held = value.clone();
                Outcome::Done(Value::Nothing)
            }
            (Self::Register(held), Call::CompareAndSet { expected, new }) => {
                if held == expected {
                    *held = new.clone();
                    Outcome::Done(Value::Nothing)
                } else {
                    Outcome::Refused
                }
            }
            (Self::Queue(held), Call::Enqueue(value)) => {
                held.push_back(value.clone());
                Outcome::Done(Value::Nothing)
            }
            (Self::Queue(held), Call::Dequeue) => Outcome::Done(held.pop_front().unwrap_or_default()),
            (_, other) => panic!("no such call: {other:?}"),
        };
        operation.outcome == Outcome::Unknown || operation.outcome == answer
    }
}

/// Tries every order of what happened and every part of what may have.
fn brute_force(object: &Object, left: &[&Operation]) -> bool {
    if left.iter().all(|operation| !operation.happened()) {
        return true;
    }
    (0..left.len()).any(|index| {
        let next = left[index];
        if next.outcome == Outcome::Failed || left.iter().any(|other| other.happened() && other.precedes(next)) {
            return false;
        }
        let mut object = object.clone();
        let rest: Vec<&Operation> = left.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, o)| *o).collect();
        object.perform(next) && brute_force(&object, &rest)
    })
}

fn value() -> impl Strategy<Value = Value> {
    (0i64..3).prop_map(|number| if number == 0 { Value::Nothing } else { Value::Number(number) })
}

fn call(kind: Kind) -> BoxedStrategy<Call> {
    if kind == Kind::Queue {
        prop_oneof![(1i64..4).prop_map(|n| Call::Enqueue(n.into())), Just(Call::Dequeue)].boxed()
    } else {
        prop_oneof![
            3 => Just(Call::Read),
            2 => value().prop_map(Call::Write),
            1 => (value(), value()).prop_map(|(expected, new)| Call::CompareAndSet { expected, new }),
        ]
        .boxed()
    }
}

fn operation(kind: Kind) -> impl Strategy<Value = Operation> {
    (call(kind), value(), 0u64..12, 0u64..6, 0u32..8, 0u32..3).prop_map(|(call, given, called, took, how, process)| {
        let outcome = match (how, &call) {
            (0, _) => Outcome::Unknown,
            (1, _) => Outcome::Failed,
            (_, Call::Read | Call::Dequeue) => Outcome::Done(given),
            (2..=4, Call::CompareAndSet { .. }) => Outcome::Refused,
            _ => Outcome::Done(Value::Nothing),
        };
        let returned = (outcome != Outcome::Unknown).then_some(called + took);
        Operation { process, key: "k".into(), call, called, returned, outcome }
    })
}

fn history(kind: Kind, most: usize) -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(kind), 0..=most)
}

fn refs(history: &[Operation]) -> Vec<&Operation> {
    history.iter().collect()
}

fn agree(kind: Kind, history: &[Operation]) -> Result<(), TestCaseError> {
    let expected = brute_force(&Object::new(kind), &refs(history));
    let found = linearizable(kind, &refs(history), CONFIGURATIONS);
    prop_assert_eq!(found, if expected { Linear::Yes } else { Linear::No });
    Ok(())
}

/// What is left of a broken history is broken, comes from it, and needs each of its parts that may go at all.
fn reduction_is_sound(kind: Kind, history: &[Operation]) -> Result<(), TestCaseError> {
    let report = check(history, &[Property::Linearizable], Budget::default()).expect("one kind");
    let expected = brute_force(&Object::new(kind), &refs(history));
    prop_assert_eq!(report.violations.is_empty(), expected);
    for violation in &report.violations {
        prop_assert!(!brute_force(&Object::new(kind), &refs(&violation.operations)));
        prop_assert!(violation.operations.len() <= history.len());
        for left in &violation.operations {
            let same = |whole: &&Operation| {
                (whole.process, &whole.call, whole.called) == (left.process, &left.call, left.called)
            };
            prop_assert!(history.iter().any(|whole| same(&whole)));
        }
    }
    Ok(())
}

/// The session properties only convict what is not linearizable.
fn sessions_are_sound(history: &[Operation]) -> Result<(), TestCaseError> {
    // A process is sequential: each gets operations that do not overlap.
    let mut free = [0u64; 3];
    let mut sequential = history.to_vec();
    sequential.sort_by_key(|operation| operation.called);
    sequential.retain(|operation| {
        let end = operation.returned.unwrap_or(u64::MAX);
        let fits = operation.called > free[operation.process as usize];
        if fits {
            free[operation.process as usize] = end;
        }
        fits
    });
    let report = check(&sequential, &[Property::ReadYourWrites, Property::NoLostUpdates], Budget::default());
    if !report.expect("one kind").violations.is_empty() {
        prop_assert!(!brute_force(&Object::new(Kind::Register), &refs(&sequential)));
    }
    Ok(())
}

fn config() -> ProptestConfig {
    // Without files: a failure prints its seed and its smallest history.
    ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn registers_agree_with_every_order_tried(history in history(Kind::Register, 7)) {
        agree(Kind::Register, &history)?;
    }

    #[test]
    fn queues_agree_with_every_order_tried(history in history(Kind::Queue, 7)) {
        agree(Kind::Queue, &history)?;
    }

    #[test]
    fn what_is_left_of_a_broken_register_convicts_it(history in history(Kind::Register, 7)) {
        reduction_is_sound(Kind::Register, &history)?;
    }

    #[test]
    fn what_is_left_of_a_broken_queue_convicts_it(history in history(Kind::Queue, 7)) {
        reduction_is_sound(Kind::Queue, &history)?;
    }

    #[test]
    fn session_properties_convict_only_what_is_not_linearizable(history in history(Kind::Register, 8)) {
        sessions_are_sound(&history)?;
    }

    /// Histories that one real object answered, with times spread around the moments, are never convicted.
    #[test]
    fn what_a_real_register_answered_is_never_convicted(
        calls in prop::collection::vec((call(Kind::Register), 0u64..4, 0u64..4, 0u32..4), 0..60)
    ) {
        let mut held = Object::new(Kind::Register);
        let mut history = Vec::new();
        for (index, (call, before, after, process)) in calls.into_iter().enumerate() {
            let at = 5 * (index as u64 + 1);
            let outcomes = [Outcome::Done(Value::Nothing), Outcome::Refused];
            let outcomes = outcomes.into_iter().chain((0..3).map(|n| Outcome::Done(if n == 0 { Value::Nothing } else { Value::Number(n) })));
            let mut operation = Operation {
                process, key: "k".into(), call, called: at - before, returned: Some(at + after), outcome: Outcome::Unknown,
            };
            for outcome in outcomes {
                operation.outcome = outcome;
                let mut next = held.clone();
                if next.perform(&operation) {
                    held = next;
                    break;
                }
            }
            history.push(operation);
        }
        let report = check(&history, &Property::ALL[2..], Budget::default()).expect("one kind");
        prop_assert_eq!(report.violations, vec![]);
        prop_assert_eq!(report.undecided.len(), 0);
    }
}
