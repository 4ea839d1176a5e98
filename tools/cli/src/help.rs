// SPDX-License-Identifier: AGPL-3.0-or-later
//! `--help` from the flag table.

use std::fmt::Write;

use crate::table::{Flag, Tool, Value};

/// Columns of text.
const WIDTH: usize = 96;
/// Column at which the text of a flag begins.
const INDENT: usize = 26;

/// The whole help of a tool.
pub(crate) fn help(tool: &Tool) -> String {
    let mut out = String::new();
    let positional = tool.positional.map_or(String::new(), |p| {
        let dots = if p.max > 1 { "..." } else { "" };
        if p.min == 0 { format!(" [{}{dots}]", p.name) } else { format!(" {}{dots}", p.name) }
    });
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{} - {}\n\nUsage: {} [FLAGS]{positional}\n", tool.name, tool.summary, tool.name);
    wrap(&mut out, 0, tool.about);
    if let Some(positional) = tool.positional {
        let _ = writeln!(out, "\nArguments:");
        row(&mut out, &format!("  {}", positional.name), positional.help);
    }
    let _ = writeln!(out, "\nFlags:");
    for flag in tool.all_flags() {
        row(&mut out, &flag_name(flag), &flag_help(flag));
    }
    for (title, text) in [("Reads", tool.reads), ("Writes", tool.writes)] {
        let _ = writeln!(out, "\n{title}:");
        wrap(&mut out, 2, text);
    }
    let _ = writeln!(out, "\nExit codes:");
    for code in tool.all_exit_codes() {
        let _ = writeln!(out, "  {:>2}  {}", code.number(), code.meaning());
    }
    let _ = writeln!(out, "\nExamples:");
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
    let value = match flag.value {
        Value::None => String::new(),
        Value::One(name) | Value::Many(name) => format!(" {name}"),
    };
    format!("  {short}--{}{value}", flag.long)
}

fn flag_help(flag: &Flag) -> String {
    let mut text = flag.help.to_owned();
    if matches!(flag.value, Value::Many(_)) {
        text.push_str("; may be repeated");
    }
    let environment = flag.environment.map(|name| format!("env {name}"));
    let default = flag.default.map(|text| format!("default {text}"));
    let notes: Vec<String> = environment.into_iter().chain(default).collect();
    if !notes.is_empty() {
        text.push_str(&format!(" [{}]", notes.join(", ")));
    }
    text
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
