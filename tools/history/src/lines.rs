// SPDX-License-Identifier: AGPL-3.0-or-later
//! From JSON lines to a history.
//!
//! A line is an object. Two shapes hold a step of a history: what `chaos-reproduce --events` and `chaos-diverge --events` write,
//! with the name `chaos_history`, and what the SDK writes outside a VM, `{"chaos_history": {…}}`. Others are counted and left. The
//! step itself:
//!
//! | field | what |
//! |---|---|
//! | `process` | number of the caller, in its VM |
//! | `operation` | number of the operation, of the caller's choosing |
//! | `key` | of a call: which object |
//! | `call` | of a call: `read`, `write`, `compare_and_set`, `enqueue`, `dequeue`, `add` |
//! | `value`, `expected` | what is written, or given back: a number, a text or null; a return may leave out null, a call may not |
//! | `outcome` | of a return: `ok`, `refused` (a compare-and-set), `failed` (it did not happen), `unknown` |
//!
//! Time is cluster time, or the number of the line where there is none.

use std::collections::BTreeMap;

use chaoscontrol_history::{Builder, Call, Operation, Outcome, TEXT_BYTES_MAX, Value};
use serde::{Deserialize, Deserializer};

/// The name of an event that is a step of a history.
pub const EVENT: &str = "chaos_history";
/// Bytes of one line.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What was read.
#[derive(Debug)]
pub struct Parsed {
    /// The operations.
    pub history: Vec<Operation>,
    /// Of each process in the history: its VM and its number there. Lines without a VM have none.
    pub processes: Vec<(Option<u16>, u32)>,
    /// Lines that hold something else.
    pub others: usize,
}

#[derive(Deserialize)]
struct Line {
    vm: Option<u16>,
    cluster_ns: Option<String>,
    name: Option<String>,
    details: Option<serde_json::Value>,
    chaos_history: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    process: u32,
    operation: u64,
    key: Option<String>,
    call: Option<String>,
    outcome: Option<String>,
    #[serde(default, deserialize_with = "given")]
    value: Option<Option<Scalar>>,
    #[serde(default, deserialize_with = "given")]
    expected: Option<Option<Scalar>>,
}

/// A field that is there, if only with null.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Scalar>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Number(i64),
    Text(String),
}

impl Scalar {
    fn into_value(scalar: Option<Self>) -> Result<Value, String> {
        match scalar {
            None => Ok(Value::Nothing),
            Some(Self::Number(number)) => Ok(Value::Number(number)),
            Some(Self::Text(text)) if text.len() > TEXT_BYTES_MAX => {
                Err(format!("a value has {} bytes, at most {TEXT_BYTES_MAX} are allowed", text.len()))
            }
            Some(Self::Text(text)) => Ok(Value::Text(text.into())),
        }
    }
}

/// Reads a whole file of lines. An error names its line.
pub fn parse(text: &str) -> Result<Parsed, String> {
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        reader.line(line, index as u64 + 1).map_err(|error| format!("line {}: {error}", index + 1))?;
    }
    Ok(Parsed { history: reader.builder.finish(), processes: reader.order, others: reader.others })
}

#[derive(Default)]
struct Reader {
    builder: Builder,
    numbers: BTreeMap<(Option<u16>, u32), u32>,
    order: Vec<(Option<u16>, u32)>,
    others: usize,
    /// Whether times are cluster times; the first step decides.
    timed: Option<bool>,
}

impl Reader {
    fn line(&mut self, line: &str, number: u64) -> Result<(), String> {
        if line.trim().is_empty() {
            return Ok(());
        }
        if line.len() > LINE_BYTES_MAX {
            return Err(format!("it has {} bytes, at most {LINE_BYTES_MAX} are allowed", line.len()));
        }
        let line: Line = serde_json::from_str(line).map_err(|error| format!("no event: {error}"))?;
        let step = match (line.chaos_history, line.name.as_deref() == Some(EVENT)) {
            (Some(step), _) => step,
            (None, true) => line.details.unwrap_or_default(),
            (None, false) => {
                self.others += 1;
                return Ok(());
            }
        };
        let at = match &line.cluster_ns {
            Some(text) => text.parse().map_err(|_| format!("cluster_ns is {text:?}, which is no number"))?,
            None => number,
        };
        if *self.timed.get_or_insert(line.cluster_ns.is_some()) != line.cluster_ns.is_some() {
            return Err("some steps have a cluster time and others do not".to_owned());
        }
        let step: Step = serde_json::from_value(step).map_err(|error| format!("no step of a history: {error}"))?;
        self.step(line.vm, step, at)
    }

    fn step(&mut self, vm: Option<u16>, step: Step, at: u64) -> Result<(), String> {
        let next = self.numbers.len() as u32;
        let process = *self.numbers.entry((vm, step.process)).or_insert_with(|| {
            self.order.push((vm, step.process));
            next
        });
        let value = step.value.map(Scalar::into_value).transpose()?;
        let expected = step.expected.map(Scalar::into_value).transpose()?;
        let done = match (step.call, step.outcome) {
            (Some(call), None) => {
                let key = step.key.ok_or("a call without a key")?;
                self.builder.call(process, step.operation, &key, call_of(&call, value, expected)?, at)
            }
            (None, Some(outcome)) => {
                let outcome = outcome_of(&outcome, value.unwrap_or(Value::Nothing))?;
                self.builder.returned(process, step.operation, outcome, at)
            }
            _ => return Err("a step has either a call or an outcome".to_owned()),
        };
        done.map_err(|error| error.to_string())
    }
}

fn call_of(name: &str, value: Option<Value>, expected: Option<Value>) -> Result<Call, String> {
    let of = |field: &str, value: Option<Value>| value.ok_or_else(|| format!("the call {name} without its {field}"));
    Ok(match name {
        "read" => Call::Read,
        "write" => Call::Write(of("value", value)?),
        "compare_and_set" => Call::CompareAndSet { expected: of("expected", expected)?, new: of("value", value)? },
        "enqueue" => match of("value", value)? {
            Value::Nothing => return Err("nothing cannot be enqueued".to_owned()),
            value => Call::Enqueue(value),
        },
        "dequeue" => Call::Dequeue,
        "add" => match of("value", value)? {
            Value::Number(number) => {
                let amount = u32::try_from(number).map_err(|_| format!("{number} cannot be added to a counter"))?;
                Call::Add(amount)
            }
            other => return Err(format!("{other} cannot be added to a counter")),
        },
        other => return Err(format!("no object has the call {other:?}")),
    })
}

fn outcome_of(name: &str, value: Value) -> Result<Outcome, String> {
    Ok(match name {
        "ok" => Outcome::Done(value),
        "refused" => Outcome::Refused,
        "failed" => Outcome::Failed,
        "unknown" => Outcome::Unknown,
        other => return Err(format!("no operation ends with {other:?}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = r#"{"vm":1,"cluster_ns":"5","name":"chaos_history","details":{"process":0,"operation":1,"key":"x","call":"write","value":7}}"#;
    const RETURN: &str =
        r#"{"vm":1,"cluster_ns":"9","name":"chaos_history","details":{"process":0,"operation":1,"outcome":"ok"}}"#;

    #[test]
    fn events_of_guests_and_lines_of_the_sdk_become_operations() {
        let parsed = parse(&format!("{CALL}\n\n{{\"name\":\"other\",\"details\":3}}\n{RETURN}\n")).unwrap();
        assert_eq!(parsed.others, 1);
        assert_eq!(parsed.processes, [(Some(1), 0)]);
        let operation = &parsed.history[0];
        assert_eq!((operation.called, operation.returned), (5, Some(9)));
        assert_eq!(operation.call, Call::Write(7.into()));
        let local = r#"{"antithesis_setup":{}}
            {"chaos_history":{"process":4,"operation":1,"key":"q","call":"dequeue"}}
            {"chaos_history":{"process":4,"operation":1,"outcome":"ok","value":"a"}}"#;
        let parsed = parse(local).unwrap();
        assert_eq!(parsed.history[0].outcome, Outcome::Done("a".into()));
        assert_eq!((parsed.history[0].called, parsed.history[0].returned), (2, Some(3)));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let step = |step: &str| format!("{{\"chaos_history\":{step}}}");
        let call = step(r#"{"process":0,"operation":1,"key":"x","call":"write","value":7}"#);
        let wrong = [
            ("[1]", "line 1: no event"),
            (&step("{\"process\":0}"), "line 1: no step of a history: missing field `operation`"),
            (&step(r#"{"process":0,"operation":1}"#), "line 1: a step has either a call or an outcome"),
            (&step(r#"{"process":0,"operation":1,"call":"read"}"#), "line 1: a call without a key"),
            (&step(r#"{"process":0,"operation":1,"key":"x","call":"jump"}"#), "line 1: no object has the call"),
            (
                &step(r#"{"process":0,"operation":1,"key":"x","call":"write"}"#),
                "line 1: the call write without its value",
            ),
            (
                &step(r#"{"process":0,"operation":1,"key":"x","call":"compare_and_set","value":1}"#),
                "line 1: the call compare_and_set without its expected",
            ),
            (&step(r#"{"process":0,"operation":1,"key":"x","call":"add","value":-1}"#), "line 1: -1 cannot be added"),
            (&step(r#"{"process":0,"operation":1,"outcome":"ok"}"#), "line 1: a return without a call"),
            (&format!("{call}\n{RETURN}"), "line 2: some steps have a cluster time"),
            (&format!("{CALL}\n{}", RETURN.replace("\"9\"", "\"4\"")), "line 2: the time is before"),
            (&format!("{CALL}\n{}", RETURN.replace("\"9\"", "\"x\"")), "line 2: cluster_ns is"),
            (&(" ".repeat(LINE_BYTES_MAX) + &call), "line 1: it has"),
        ];
        for (text, expected) in wrong {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{error} for {text}");
        }
    }
}
