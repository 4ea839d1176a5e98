// SPDX-License-Identifier: AGPL-3.0-or-later
//! Text that came from a guest, made safe to show on a terminal.

/// Escapes control characters (C0, DEL, C1), bidirectional overrides and the backslash, so that a guest can neither move the
/// cursor nor reorder or forge what a tool prints. Everything else stays readable.
pub fn terminal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || is_bidi(c) => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// As [`terminal`], but line by line: line ends stay, for console output.
pub fn terminal_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| terminal(line.strip_suffix('\r').unwrap_or(line))).collect();
    lines.join("\n")
}

/// Text of our own that may quote others': line ends and backslashes stay as they are, other control characters do not.
pub fn controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && (c.is_control() || is_bidi(c)) {
            out.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// At most the first `max` bytes, cut between characters.
pub fn clip(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

fn is_bidi(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_survives() {
        let all: String = (0..0x3000u32).filter_map(char::from_u32).collect();
        assert!(!terminal(&all).chars().any(|c| c.is_control() || is_bidi(c)));
        assert_eq!(terminal("a\x1b[2J\\\u{9b}é"), "a\\u{1b}[2J\\\\\\u{9b}é");
        assert_eq!(controls(&terminal("a\x1b\\")), "a\\u{1b}\\\\", "what is safe stays as it is");
        assert_eq!(controls("one\n\x1b[2Jtwo\\\u{202e}"), "one\n\\u{1b}[2Jtwo\\\\u{202e}");
        assert_eq!((clip("aéz", 2), clip("aéz", 3), clip("aéz", 9)), ("a", "aé", "aéz"));
        assert_eq!(terminal_lines("one\r\n\x07two"), "one\n\\u{7}two");
    }
}
