// SPDX-License-Identifier: AGPL-3.0-or-later
//! A violation in a sentence. What comes from a guest stays as it is: whoever shows it escapes.

use chaoscontrol_artifact::schema::Violation;

/// What broke, for someone who has not seen the tool before.
pub fn lead(violation: &Violation) -> String {
    let (vm, property) = (violation.vm, &violation.identity.property);
    let known = |name: &str| violation.facts.get(name).map(|value| fact(name, value)).unwrap_or_default();
    match violation.identity.kind.as_str() {
        "disagreement" if known("value").is_empty() || known("first_value").is_empty() => {
            format!("Machines must agree on \"{property}\". vm {vm} reported something else than was reported before.")
        }
        "disagreement" => format!(
            "Machines must agree on \"{property}\". For key {} vm {} had reported {}; vm {vm} then reported {}.",
            known("key"),
            known("first_vm"),
            known("first_value"),
            known("value")
        ),
        "assertion" => {
            let site = known("site");
            let place = if site.is_empty() { String::new() } else { format!(" at {site}") };
            format!("The workload on vm {vm} says that \"{property}\" must hold. It did not{place}.")
        }
        "guest_panic" => format!("The kernel of vm {vm} panicked. {}", known("hint")),
        "workload_exited" => format!("The workload on vm {vm} ended, which it should not have: {property}."),
        "guest_shutdown" => format!("vm {vm} ended although nobody asked it to: {property}."),
        "oracle_limit" => format!("The guests exceeded a bound of what can be judged: {property}."),
        kind => format!("vm {vm}, {kind}: {property}."),
    }
}

/// The value of a fact; keys and values of agreements, which are hexadecimal digits, also as text where they are text.
pub fn fact(name: &str, value: &str) -> String {
    if !matches!(name, "key" | "value" | "first_value") {
        return value.to_owned();
    }
    let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let pairs = value.as_bytes().chunks_exact(2);
    let is_whole = pairs.remainder().is_empty();
    let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
    match bytes {
        Some(bytes) if is_whole && !bytes.is_empty() && bytes.iter().all(|byte| (0x20..0x7f).contains(byte)) => {
            format!("{value} (\"{}\")", String::from_utf8_lossy(&bytes))
        }
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_read_where_they_are_text() {
        assert_eq!(fact("key", "6869"), "6869 (\"hi\")");
        for same in ["", "686", "00ff", "zz", "+1+1", "é"] {
            assert_eq!(fact("key", same), same);
        }
        assert_eq!(fact("site", "6869"), "6869");
    }
}
