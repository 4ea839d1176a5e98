// SPDX-License-Identifier: AGPL-3.0-or-later
//! `--help` from the flag table.

use std::fmt::Write;

use crate::colour::{BOLD, paint};
use crate::table::{Flag, Tool};

/// Columns of text.
const WIDTH: usize = 96;
/// Column at which the text of a flag begins.
const INDENT: usize = 26;

/// The whole help of a tool, with bold headings where `colour` is on.
pub(crate) fn help(tool: &Tool, colour: bool) -> String {
    let mut out = String::new();
    let positional = tool.positional.map_or(String::new(), |p| format!(" {}", p.usage()));
    let title = |text: &str| paint(colour, BOLD, text);
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{} - {}\n", title(tool.name), tool.summary);
    let _ = writeln!(out, "{} {} [FLAGS]{positional}\n", title("Usage:"), tool.name);
    wrap(&mut out, 0, tool.about);
    if let Some(positional) = tool.positional {
        let _ = writeln!(out, "\n{}", title("Arguments:"));
        row(&mut out, &format!("  {}", positional.name), positional.help);
    }
    let _ = writeln!(out, "\n{}", title("Flags:"));
    for flag in tool.all_flags() {
        row(&mut out, &flag_name(flag), &flag.help_text());
    }
    for (name, text) in [("Reads:", tool.reads), ("Writes:", tool.writes)] {
        let _ = writeln!(out, "\n{}", title(name));
        wrap(&mut out, 2, text);
    }
    let _ = writeln!(out, "\n{}", title("Exit codes:"));
    for code in tool.all_exit_codes() {
        let _ = writeln!(out, "  {:>2}  {}", code.number(), code.meaning());
    }
    let _ = writeln!(out, "\n{}", title("Examples:"));
    for (what, command) in tool.examples {
        let _ = writeln!(out, "  # {what}");
        for line in command.lines() {
            let _ = writeln!(out, "  {line}");
        }
    }
    out
}

fn flag_name(flag: &Flag) -> String {
    let short = flag.short.map_or("    ".to_owned(), |letter| format!("-{letter}, "));
    let value = flag.value_name().map_or(String::new(), |name| format!(" {name}"));
    format!("  {short}--{}{value}", flag.long)
}

fn row(out: &mut String, name: &str, text: &str) {
    let mut rest = String::new();
    wrap(&mut rest, INDENT, text);
    if name.len() + 2 > INDENT {
        let _ = writeln!(out, "{name}");
        out.push_str(&rest);
    } else {
        let _ = write!(out, "{name:INDENT$}");
        out.push_str(rest.trim_start());
    }
}

fn wrap(out: &mut String, indent: usize, text: &str) {
    let mut line = " ".repeat(indent);
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(out, "{line}");
            line = " ".repeat(indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    let _ = writeln!(out, "{line}");
}
