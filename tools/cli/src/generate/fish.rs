// SPDX-License-Identifier: AGPL-3.0-or-later
//! Completions for fish: one `complete` command a flag.

use std::fmt::Write;

use crate::table::{Completes, Flag, Tool};

/// The script, to be sourced or put into a `completions` folder as `TOOL.fish`.
pub(super) fn script(tool: &Tool) -> String {
    let mut out = format!("# Completions of {0} for fish; written by {0} --generate complete-fish.\n", tool.name);
    // Writing to a string cannot fail.
    let _ = writeln!(out, "complete -c {} -f", tool.name);
    for flag in tool.all_flags() {
        let short = flag.short.map_or(String::new(), |letter| format!(" -s {letter}"));
        let (long, help) = (flag.long, quoted(&flag.help_text()));
        let _ = writeln!(out, "complete -c {}{short} -l {long}{} -d {help}", tool.name, value(flag));
    }
    if let Some(positional) = tool.positional {
        let rest = if positional.choices.is_empty() || positional.max == 1 { "" } else { " -F" };
        let _ = writeln!(
            out,
            "complete -c {}{}{rest} -d {}",
            tool.name,
            positional_value(positional.completes()),
            quoted(positional.help)
        );
    }
    out
}

fn value(flag: &Flag) -> String {
    if flag.value_name().is_none() {
        return String::new();
    }
    match flag.completes() {
        Completes::Nothing => " -x".to_owned(),
        Completes::Files => " -r -F".to_owned(),
        Completes::Folders => " -x -a '(__fish_complete_directories)'".to_owned(),
        Completes::Programs => " -x -a '(__fish_complete_command)'".to_owned(),
        Completes::Choices(choices) => format!(" -x -a {}", quoted(&choices.join(" "))),
    }
}

fn positional_value(completes: Completes) -> String {
    match completes {
        Completes::Nothing => String::new(),
        Completes::Files => " -F".to_owned(),
        Completes::Folders => " -a '(__fish_complete_directories)'".to_owned(),
        Completes::Programs => " -a '(__fish_complete_command)'".to_owned(),
        Completes::Choices(choices) => format!(" -a {}", quoted(&choices.join(" "))),
    }
}

/// In single quotes fish knows two escapes: of the quote and of the backslash.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
