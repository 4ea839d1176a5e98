// SPDX-License-Identifier: AGPL-3.0-or-later
//! Where in a JSON text something stands: the path of the value at an offset, and the excerpt that underlines it.

use std::fmt::Write;
use std::ops::Range;

use chaoscontrol_artifact::escape;

/// Bytes of text shown at each side of what is underlined.
const AROUND: usize = 44;
/// Bytes of the underlined text that are shown.
const WIDEST: usize = 56;

/// A step into a value.
#[derive(Clone, Debug)]
enum Step {
    Field(String),
    Item(usize),
}

/// The path of the innermost value that begins at `offset`, for instance `record.schedule.events[2].vm`; empty for the whole
/// text. The text is JSON that was parsed before.
pub fn path_at(text: &str, offset: usize) -> String {
    let bytes = text.as_bytes();
    let mut path: Vec<Step> = Vec::new();
    // For each open map or list: whether a key comes next.
    let mut open: Vec<bool> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let is_key = open.last().copied().unwrap_or(false) && matches!(path.last(), Some(Step::Field(_)));
        match bytes[at] {
            _ if at == offset && !is_key && !matches!(bytes[at], b',' | b':' | b']' | b'}') => break,
            b'{' => {
                path.push(Step::Field(String::new()));
                open.push(true);
            }
            b'[' => {
                path.push(Step::Item(0));
                open.push(false);
            }
            b'}' | b']' => {
                path.pop();
                open.pop();
            }
            b':' => set_key_next(&mut open, false),
            b',' => match path.last_mut() {
                Some(Step::Item(index)) => *index += 1,
                _ => set_key_next(&mut open, true),
            },
            b'"' => {
                let end = string_end(bytes, at);
                if is_key && let Some(Step::Field(name)) = path.last_mut() {
                    *name = serde_json::from_str(&text[at..end]).unwrap_or_default();
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    render(&path)
}

fn set_key_next(open: &mut [bool], key: bool) {
    if let Some(last) = open.last_mut() {
        *last = key;
    }
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn render(path: &[Step]) -> String {
    let mut out = String::new();
    for step in path {
        // Writing to a string cannot fail.
        let _ = match step {
            Step::Field(name) if out.is_empty() => write!(out, "{}", escape::terminal(name)),
            Step::Field(name) => write!(out, ".{}", escape::terminal(name)),
            Step::Item(index) => write!(out, "[{index}]"),
        };
    }
    out
}

/// The line around a range with the range underlined, in two lines.
pub fn underline(text: &str, range: Range<usize>) -> (String, String) {
    let floor = |at: usize| escape::clip(text, at).len();
    let ceil =
        |at: usize| (at.min(text.len())..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let start = floor(range.start);
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let end = ceil(range.end.clamp(start, line_end)).min(floor(start + WIDEST)).max(start);
    let from = ceil(line_start.max(start.saturating_sub(AROUND))).min(start);
    let to = floor(line_end.min(end + AROUND)).max(end);
    let before = format!("{}{}", if from > line_start { "..." } else { "" }, escape::terminal(&text[from..start]));
    let marked = escape::terminal(&text[start..end]);
    let after = format!("{}{}", escape::terminal(&text[end..to]), if to < line_end { "..." } else { "" });
    let marks = "^".repeat(marked.chars().count().max(1));
    (format!("{before}{marked}{after}"), format!("{}{marks}", " ".repeat(before.chars().count())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_a_document_has_its_path() {
        let text = r#"{"a":{"b":[1,{"c\"d":[]},"x,]}"],"e":null},"f":-5}"#;
        for (value, path) in [
            ("{\"a\"", ""),
            ("{\"b\"", "a"),
            ("[1,", "a.b"),
            ("1,{", "a.b[0]"),
            ("{\"c", "a.b[1]"),
            ("[]}", "a.b[1].c\"d"),
            ("\"x,]", "a.b[2]"),
            ("null", "a.e"),
            ("-5", "f"),
        ] {
            assert_eq!(path_at(text, text.find(value).unwrap()), path, "{value}");
        }
    }

    #[test]
    fn white_space_changes_no_path() {
        let text = "{\n \"a\" : [ 1 ,\n 2 ] }";
        assert_eq!(path_at(text, text.find('2').unwrap()), "a[1]");
    }

    #[test]
    fn long_lines_are_cut_and_controls_escaped() {
        let text = format!("{{\"a\":\"{}\u{9b}\",\"vm\":99,\"z\":\"{}\"}}", "x".repeat(100), "y".repeat(100));
        let at = text.find("99").unwrap();
        let (line, marks) = underline(&text, at..at + 2);
        assert!(line.starts_with("...x") && line.ends_with("y..."), "{line}");
        assert_eq!(&line[marks.find('^').unwrap()..][..2], "99");
        assert!(line.contains("\\u{9b}"));
        assert_eq!(underline("", 0..0), (String::new(), "^".to_owned()));
    }
}
