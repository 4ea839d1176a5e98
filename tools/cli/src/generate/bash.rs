// SPDX-License-Identifier: AGPL-3.0-or-later
//! Completions for bash (4 or later): a function that looks at the word before the cursor.

use std::fmt::Write;

use super::{function, quoted};
use crate::table::{Completes, Tool};

/// The script, to be sourced or put where bash-completion finds it under the tool's name.
pub(super) fn script(tool: &Tool) -> String {
    let mut out = String::new();
    let function = function(tool);
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "# Completions of {0} for bash; written by {0} --generate complete-bash.\n\
         {function}() {{\n    \
             local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}\n    \
             COMPREPLY=()\n    \
             # --flag=value arrives as three words.\n    \
             if [[ $word == = ]]; then\n        \
                 word=\n    \
             elif [[ $before == = ]] && ((COMP_CWORD > 1)); then\n        \
                 before=${{COMP_WORDS[COMP_CWORD-2]}}\n    \
             fi\n    \
             case $before in",
        tool.name
    );
    for flag in tool.all_flags().filter(|flag| flag.value_name().is_some()) {
        let short = flag.short.map_or(String::new(), |letter| format!("-{letter} | "));
        let _ = writeln!(out, "        {short}--{})", flag.long);
        for line in replies(flag.completes()) {
            let _ = writeln!(out, "            {line}");
        }
        out.push_str("            return\n            ;;\n");
    }
    let flags: Vec<String> = tool
        .all_flags()
        .flat_map(|flag| [Some(format!("--{}", flag.long)), flag.short.map(|letter| format!("-{letter}"))])
        .flatten()
        .collect();
    let words = quoted(&flags.join(" "));
    let _ = writeln!(
        out,
        "    esac\n    if [[ $word == -* ]]; then\n        {}\n        return\n    fi",
        words_reply(&words)
    );
    if let Some(positional) = tool.positional {
        for line in replies(positional.completes()) {
            let _ = writeln!(out, "    {line}");
        }
        if !positional.choices.is_empty() && positional.max > 1 {
            out.push_str("    compopt -o default 2>/dev/null\n");
        }
    }
    let _ = writeln!(out, "}}\ncomplete -F {function} {}", tool.name);
    out
}

fn words_reply(words: &str) -> String {
    format!("mapfile -t COMPREPLY < <(compgen -W {words} -- \"$word\")")
}

fn replies(completes: Completes) -> Vec<String> {
    let by = |kind: &str| format!("mapfile -t COMPREPLY < <(compgen {kind} -- \"$word\")");
    // Outside a completion compopt fails; then there is nothing to set either.
    let names = "compopt -o filenames 2>/dev/null".to_owned();
    match completes {
        Completes::Nothing => Vec::new(),
        Completes::Files => vec![names, by("-f")],
        Completes::Folders => vec![names, by("-d")],
        Completes::Programs => vec![by("-c")],
        Completes::Choices(choices) => vec![words_reply(&quoted(&choices.join(" ")))],
    }
}
