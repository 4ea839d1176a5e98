// SPDX-License-Identifier: AGPL-3.0-or-later
//! The answer, for people and as JSON.

use std::fmt::Write;

use chaoscontrol_artifact::escape;
use chaoscontrol_history::{Operation, Outcome, Property, Report, Value, Violation};
use serde_json::json;

use crate::lines::Parsed;

/// One line if all holds, else the operations that break what does not.
pub fn text(parsed: &Parsed, report: &Report) -> String {
    let mut out = String::new();
    let facts = format!("{} operations ({} open) on {} keys", report.operations, report.open, report.keys);
    match (report.violations.len(), report.undecided.len()) {
        (0, 0) => writeln!(out, "ok: {facts}"),
        (broken, undecided) => writeln!(out, "{broken} broken, {undecided} undecided: {facts}"),
    }
    .expect("a String takes everything");
    for violation in &report.violations {
        one(&mut out, parsed, violation);
    }
    for key in &report.undecided {
        writeln!(out, "\nkey {}: undecided, the search used up its budget", shown(key)).expect("as above");
    }
    out
}

fn one(out: &mut String, parsed: &Parsed, violation: &Violation) {
    let Violation { property, key, operations, why, .. } = violation;
    let title = format!("\nkey {}: not {}: {}", shown(key), title(*property), escape::controls(why));
    writeln!(out, "{title}").expect("a String takes everything");
    let end = operations.iter().map(|o| o.returned.unwrap_or(o.called)).max().unwrap_or(0);
    let start = operations.iter().map(|o| o.called).min().unwrap_or(0);
    writeln!(out, "  from {start} to {end}").expect("as above");
    for operation in operations {
        let returned = operation.returned.map_or_else(|| "open".to_owned(), |at| at.to_string());
        let line = format!(
            "  {:>16} .. {returned:<16} {:<12} {} => {}",
            operation.called,
            process(parsed, operation),
            operation.call,
            outcome(operation)
        );
        writeln!(out, "{}", escape::controls(&line)).expect("as above");
    }
}

fn title(property: Property) -> &'static str {
    match property {
        Property::Linearizable => "linearizable",
        Property::ReadYourWrites => "read-your-writes",
        Property::NoLostUpdates => "free of lost updates",
    }
}

fn shown(key: &str) -> String {
    escape::terminal(key)
}

fn process(parsed: &Parsed, operation: &Operation) -> String {
    match parsed.processes.get(operation.process as usize) {
        Some((Some(vm), number)) => format!("vm {vm}/{number}"),
        Some((None, number)) => format!("process {number}"),
        None => format!("process {}", operation.process),
    }
}

fn outcome(operation: &Operation) -> String {
    match &operation.outcome {
        Outcome::Done(Value::Nothing) if matches!(operation.call.to_string().as_str(), "read" | "dequeue") => {
            "null".to_owned()
        }
        Outcome::Done(Value::Nothing) => "done".to_owned(),
        Outcome::Done(value) => value.to_string(),
        Outcome::Refused => "refused".to_owned(),
        Outcome::Failed => "failed".to_owned(),
        Outcome::Unknown => "unknown".to_owned(),
    }
}

/// The same as one JSON document.
pub fn json(parsed: &Parsed, report: &Report) -> String {
    let violations: Vec<serde_json::Value> = report
        .violations
        .iter()
        .map(|violation| {
            let operations: Vec<serde_json::Value> = violation
                .operations
                .iter()
                .map(|operation| {
                    json!({
                        "process": process(parsed, operation),
                        "call": operation.call.to_string(),
                        "outcome": outcome(operation),
                        "called": operation.called.to_string(),
                        "returned": operation.returned.map(|at| at.to_string()),
                    })
                })
                .collect();
            json!({
                "property": violation.property.name(),
                "key": violation.key,
                "why": violation.why,
                "operations": operations,
            })
        })
        .collect();
    let document = json!({
        "schema": "chaoscontrol.history",
        "version": 1,
        "operations": report.operations,
        "open": report.open,
        "keys": report.keys,
        "undecided": report.undecided,
        "violations": violations,
    });
    document.to_string() + "\n"
}
