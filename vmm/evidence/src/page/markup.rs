// SPDX-License-Identifier: AGPL-3.0-or-later
//! What every part of the page is made with: escaping, numbers and times for people, and the policy that keeps a page inert.

use chaoscontrol_artifact::escape::controls;
use chaoscontrol_protocol::digest::sha256;

use super::model::BugPart;

/// Text as it may stand in an element or in a quoted attribute. Control characters and bidirectional overrides are made visible,
/// so that a guest can neither leave its element nor reorder what is read.
pub fn esc(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in controls(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

/// At most so many characters; what is cut is said.
pub fn short(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(characters.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// A number with thin spaces between its thousands.
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// `1 bug`, `2 bugs`.
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(count), if count == 1 { one } else { many })
}

/// A number of bytes.
pub fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} bytes"),
        1024..1_048_576 => format!("{} KiB", number(count >> 10)),
        _ => format!("{} MiB", number(count >> 20)),
    }
}

/// A length of time, short: microseconds below a millisecond, else milliseconds or seconds with three places.
pub fn span(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{}.{:03} ms", ns / 1_000_000, ns / 1_000 % 1_000),
        _ => format!("{}.{:03} s", number(ns / 1_000_000_000), ns / 1_000_000 % 1_000),
    }
}

/// A moment as its distance from another one.
pub fn distance(at_ns: u64, from_ns: u64) -> String {
    match at_ns.cmp(&from_ns) {
        std::cmp::Ordering::Less => format!("−{}", span(from_ns - at_ns)),
        std::cmp::Ordering::Equal => "0".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", span(at_ns - from_ns)),
    }
}

/// When a console line was written, by its distance from the violation. What was there when the branch began is older.
pub fn written(at_ns: u64, bug: &BugPart) -> String {
    if at_ns <= bug.start_ns.0 { "before".to_owned() } else { distance(at_ns, bug.violation.cluster_ns.0) }
}

/// The page's policy: nothing may be loaded, run or sent, and only this style sheet applies.
pub fn policy(style: &str) -> String {
    let digest = base64(&sha256(style.as_bytes()));
    format!("default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'")
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().chain(&[0, 0]).take(3).fold(0, |group, byte| group << 8 | u32::from(*byte));
        for place in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * place) & 63) as usize];
            out.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_its_element_or_reorders_the_page() {
        let hostile = "</td><script>alert('x')</script>\"&\u{202e}\u{1b}[31m\n\u{85}";
        let safe = esc(hostile);
        assert!(!safe.contains(['<', '>', '"', '\'', '\u{202e}', '\u{1b}', '\n', '\u{85}']), "{safe}");
        assert!(safe.contains("&lt;script&gt;alert(&#39;x&#39;)"), "what was said can still be read: {safe}");
    }

    #[test]
    fn numbers_are_for_people() {
        assert_eq!((number(7), number(1234567)), ("7".to_owned(), "1\u{202f}234\u{202f}567".to_owned()));
        assert_eq!((span(999), span(1_500), span(12_345_678)), ("999 ns".into(), "1 µs".into(), "12.345 ms".into()));
        assert_eq!(span(4_757_754_184), "4.757 s");
        assert_eq!((distance(5, 5), distance(2_000, 5_000)), ("0".to_owned(), "−3 µs".to_owned()));
        assert_eq!((short("abc", 3), short("abcd", 3)), ("abc".to_owned(), "ab…".to_owned()));
        assert_eq!(counted(1, "bug", "bugs"), "1 bug");
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
