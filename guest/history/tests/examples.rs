// SPDX-License-Identifier: Apache-2.0
//! Histories that people would write on a board, and how they are reported.

use chaoscontrol_history::{
    Budget, BuildError, Builder, Call, Linear, Operation, Outcome, Property, Report, Value, check, linearizable,
};

fn done(process: u32, key: &str, call: Call, from: u64, to: u64, value: Value) -> Operation {
    Operation { process, key: key.into(), call, called: from, returned: Some(to), outcome: Outcome::Done(value) }
}

fn read(process: u32, from: u64, to: u64, value: i64) -> Operation {
    done(process, "x", Call::Read, from, to, value.into())
}

fn write(process: u32, from: u64, to: u64, value: i64) -> Operation {
    done(process, "x", Call::Write(value.into()), from, to, Value::Nothing)
}

fn checked(history: &[Operation]) -> Report {
    check(history, &Property::ALL, Budget::default()).expect("one kind a key")
}

#[test]
fn a_stale_read_is_shown_with_the_two_operations_that_it_takes() {
    let mut history: Vec<Operation> = (0..50).map(|n| write(0, 10 * n, 10 * n + 5, n as i64)).collect();
    history.extend((0..49).map(|n| read(1, 10 * n + 6, 10 * n + 9, n as i64)));
    history.push(read(1, 496, 499, 48));
    let report = checked(&history);
    assert_eq!(report.violations.len(), 1, "{:?}", report.violations);
    let violation = &report.violations[0];
    assert_eq!(violation.property, Property::Linearizable);
    let shown: Vec<String> = violation.operations.iter().map(|operation| operation.call.to_string()).collect();
    assert_eq!(shown, ["write 48", "write 49", "read"]);
}

#[test]
fn an_open_write_may_be_seen_late_or_never_but_not_undone() {
    let open = Operation { returned: None, outcome: Outcome::Unknown, ..write(0, 0, 0, 1) };
    let late = [open.clone(), read(1, 10, 11, 1)];
    assert!(checked(&late).violations.is_empty());
    let never = [open.clone(), write(1, 5, 6, 2), read(1, 10, 11, 2)];
    assert!(checked(&never).violations.is_empty());
    let undone = [open, write(1, 5, 6, 2), read(1, 10, 11, 1), read(1, 12, 13, 2)];
    assert_eq!(checked(&undone).violations.last().map(|violation| violation.property), Some(Property::Linearizable));
}

#[test]
fn a_process_that_does_not_see_its_own_write_breaks_read_your_writes() {
    let history = [write(0, 0, 1, 1), write(1, 2, 3, 2), read(1, 4, 5, 1)];
    let report = checked(&history);
    assert_eq!(report.violations[0].property, Property::ReadYourWrites);
    assert_eq!(report.violations[0].why, "a process read 1, which was there before it wrote 2");
    let concurrent = [write(0, 0, 9, 1), write(1, 2, 3, 2), read(1, 4, 5, 1)];
    assert!(checked(&concurrent).violations.is_empty());
}

#[test]
fn two_updates_of_one_value_lose_one() {
    let set = |process, from, new: i64| {
        let call = Call::CompareAndSet { expected: 7.into(), new: new.into() };
        done(process, "x", call, from, from + 5, Value::Nothing)
    };
    let report = checked(&[write(0, 0, 1, 7), set(1, 2, 8), set(2, 3, 9)]);
    assert_eq!(report.violations[0].property, Property::NoLostUpdates);
    assert_eq!(report.violations[0].operations.len(), 2);
}

#[test]
fn a_counter_that_forgets_names_the_additions() {
    let add = |from, amount| done(0, "c", Call::Add(amount), from, from + 1, Value::Nothing);
    let count = |from, value: i64| done(1, "c", Call::Read, from, from + 1, value.into());
    assert!(checked(&[add(0, 1), add(2, 5), count(4, 6)]).violations.is_empty());
    let less = checked(&[add(0, 1), add(2, 5), count(4, 4)]);
    assert_eq!(less.violations[0].why, "6 had been added before the read, which gave 4");
    assert_eq!(less.violations[0].operations.len(), 2, "the addition of 5 alone shows it");
    let more = checked(&[add(0, 1), count(2, 2), add(4, 5)]);
    assert_eq!(more.violations[0].why, "at most 1 was added by then, and the read gave 2");
}

#[test]
fn a_queue_that_gives_a_value_twice_or_out_of_order_is_convicted() {
    let put = |from, value: i64| done(0, "q", Call::Enqueue(value.into()), from, from + 1, Value::Nothing);
    let take = |from, value: i64| done(1, "q", Call::Dequeue, from, from + 1, value.into());
    assert!(checked(&[put(0, 1), put(2, 2), take(4, 1), take(6, 2)]).violations.is_empty());
    assert_eq!(checked(&[put(0, 1), take(4, 1), take(6, 1)]).violations.len(), 1);
    let swapped = checked(&[put(0, 1), put(2, 2), put(4, 3), take(6, 2), take(8, 1), take(10, 3)]);
    assert_eq!(swapped.violations[0].operations.len(), 4 - 1, "{:?}", swapped.violations[0].operations);
}

#[test]
fn a_search_without_budget_says_so() {
    let history: Vec<Operation> = (0..12).map(|n| write(n, 0, 100, n.into())).collect();
    let history: Vec<Operation> = history.into_iter().chain([read(20, 101, 102, 99)]).collect();
    let refs: Vec<&Operation> = history.iter().collect();
    assert_eq!(linearizable(chaoscontrol_history::Kind::Register, &refs, 10), Linear::Undecided);
    assert_eq!(linearizable(chaoscontrol_history::Kind::Register, &refs, 1_000_000), Linear::No);
}

#[test]
fn long_histories_of_a_real_register_are_decided_at_once() {
    let mut history = Vec::new();
    for n in 0..20_000u64 {
        history.push(write((n % 3) as u32, 10 * n, 10 * n + 12, n as i64));
        history.push(read(7, 10 * n + 13, 10 * n + 14, n as i64));
    }
    // Each read may also see the write that overlaps with it; none sees an older one.
    assert_eq!(checked(&history[..400]).violations, []);
    assert_eq!(checked(&history).undecided.len(), 0);
}

#[test]
fn calls_and_returns_that_fit_nothing_are_refused() {
    let mut builder = Builder::new();
    assert_eq!(builder.returned(1, 1, Outcome::Failed, 0), Err(BuildError::NothingOpen));
    builder.call(1, 5, "x", Call::Read, 10).unwrap();
    let wrong = BuildError::WrongOperation { called: 5, returned: 6 };
    assert_eq!(builder.returned(1, 6, Outcome::Failed, 11), Err(wrong));
    assert_eq!(builder.returned(1, 5, Outcome::Refused, 11), Err(BuildError::WrongOutcome));
    assert_eq!(builder.returned(1, 5, Outcome::Failed, 9), Err(BuildError::TimeWentBack));
    // The process starts again: what it had called stays open.
    builder.call(1, 1, "x", Call::Write(1.into()), 20).unwrap();
    builder.returned(1, 1, Outcome::Done(Value::Nothing), 21).unwrap();
    builder.call(1, 2, "x", Call::Enqueue(1.into()), 22).unwrap();
    let history = builder.finish();
    assert_eq!(history.iter().map(|operation| operation.returned).collect::<Vec<_>>(), [None, Some(21), None]);
    assert_eq!(check(&history, &Property::ALL, Budget::default()), Err(BuildError::MixedKinds { key: "x".into() }));
}
