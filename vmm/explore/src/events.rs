// SPDX-License-Identifier: AGPL-3.0-or-later
//! What guests reported as events, as JSON lines: the form in which other programs read it.

use chaoscontrol_cluster::GuestEvent;
use serde_json::{Value, json};

/// One line an event, in the order in which they were heard: `vm`, `cluster_ns` (decimal text), `name`, and `details`, which is
/// text where the guest's was no JSON.
#[must_use]
pub fn json_lines(events: &[GuestEvent]) -> String {
    let mut out = String::new();
    for event in events {
        let details = match event.details.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())),
        };
        let line = json!({
            "vm": event.vm, "cluster_ns": event.cluster_ns.to_string(), "name": event.name, "details": details,
        });
        out.push_str(&line.to_string());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_the_guest_wrote() {
        let event = |name: &str, details: &str| GuestEvent {
            vm: 2,
            cluster_ns: u64::MAX,
            name: name.to_owned(),
            details: details.to_owned(),
        };
        let text = json_lines(&[event("a", "{\"n\": 1}"), event("b\n", "no\njson"), event("c", "")]);
        let expected = [
            r#"{"cluster_ns":"18446744073709551615","details":{"n":1},"name":"a","vm":2}"#,
            r#"{"cluster_ns":"18446744073709551615","details":"no\njson","name":"b\n","vm":2}"#,
            r#"{"cluster_ns":"18446744073709551615","details":null,"name":"c","vm":2}"#,
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
