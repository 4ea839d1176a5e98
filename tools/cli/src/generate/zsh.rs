// SPDX-License-Identifier: AGPL-3.0-or-later
//! Completions for zsh: specifications of `_arguments` (zshcompsys(1)).

use std::fmt::Write;

use super::{function, quoted};
use crate::table::{Completes, Flag, Tool, Value};

/// The script: a file `_TOOL` on `fpath`, or sourced after `compinit`.
pub(super) fn script(tool: &Tool) -> String {
    let mut out = String::new();
    let function = function(tool);
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "#compdef {0}\n# Completions of {0} for zsh; written by {0} --generate complete-zsh.\n{function}() {{\n    _arguments -s -S \\",
        tool.name
    );
    for flag in tool.all_flags() {
        let _ = writeln!(out, "        {} \\", specification(flag));
    }
    if let Some(positional) = tool.positional {
        let first = match positional.completes() {
            // A message here would keep zsh from inserting the only flag that fits; an empty choice does not.
            Completes::Nothing => "( )".to_owned(),
            other => action(other),
        };
        let first = format!(":{}:{first}", message(positional.name));
        let _ = writeln!(out, "        {} \\", quoted(&first));
        if positional.max > 1 {
            let rest = if positional.choices.is_empty() { action(positional.completes()) } else { "_files".to_owned() };
            let _ = writeln!(out, "        {} \\", quoted(&format!("*:{}:{rest}", message(positional.name))));
        }
    }
    // Autoloaded, the file is the function's body and runs it; sourced, it only makes it known.
    let _ = writeln!(
        out,
        "        && return 0\n}}\nif [[ ${{zsh_eval_context[-1]}} == loadautofunc ]]; then\n    {function} \"$@\"\nelse\n    \
         compdef {function} {}\nfi",
        tool.name
    );
    out
}

fn specification(flag: &Flag) -> String {
    let long = if flag.value == Value::None { format!("--{}", flag.long) } else { format!("--{}=", flag.long) };
    let value =
        flag.value_name().map_or(String::new(), |name| format!(":{}:{}", message(name), action(flag.completes())));
    let rest = quoted(&format!("[{}]{value}", description(&flag.help_text())));
    match (flag.short, flag.value) {
        (Some(letter), Value::None) => format!("'(-{letter} --{0})'{{-{letter},{long}}}{rest}", flag.long),
        (Some(letter), _) => format!("'(-{letter} --{0})'{{-{letter}+,{long}}}{rest}", flag.long),
        (None, Value::Many(_)) => format!("'*{long}'{rest}"),
        (None, _) => format!("'{long}'{rest}"),
    }
}

fn action(completes: Completes) -> String {
    match completes {
        // A message and nothing to choose from.
        Completes::Nothing => " ".to_owned(),
        Completes::Files => "_files".to_owned(),
        Completes::Folders => "_files -/".to_owned(),
        Completes::Programs => "_command_names -e".to_owned(),
        Completes::Choices(choices) => format!("({})", choices.join(" ")),
    }
}

fn description(text: &str) -> String {
    text.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]")
}

fn message(text: &str) -> String {
    text.replace('\\', "\\\\").replace(':', "\\:")
}
