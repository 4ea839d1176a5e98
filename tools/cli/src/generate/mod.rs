// SPDX-License-Identifier: AGPL-3.0-or-later
//! Manual page and shell completions, from the flag table.
//!
//! Invariants: the output is a function of the table alone (no date, no width, no locale), and every flag of a tool stands
//! in each rendering.

mod bash;
mod fish;
mod man;
mod zsh;

use crate::table::{GENERATED, Tool};

/// What `--generate` was asked for. The parser lets only names of [`GENERATED`] through.
pub(crate) fn generate(tool: &Tool, what: &str) -> String {
    let [man, bash, zsh, fish] = GENERATED;
    match what {
        _ if what == man => man::page(tool),
        _ if what == bash => bash::script(tool),
        _ if what == zsh => zsh::script(tool),
        _ if what == fish => fish::script(tool),
        _ => unreachable!("the parser checked {what:?} against the table"),
    }
}

/// The name of a tool's function in a shell.
fn function(tool: &Tool) -> String {
    format!("_{}", tool.name.replace('-', "_"))
}

/// A word in single quotes: nothing in it is expanded by bash and zsh.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{FROM, Flag, Positional, SEED, STORE};
    use chaoscontrol_artifact::ExitCode;

    const TOOL: Tool = Tool {
        name: "chaos-test",
        stage: "test",
        sources: &[],
        summary: "test what's here",
        about: ".leading dot, back\\slash and an isn't; it's a - test",
        reads: "'quoted' text",
        writes: "[brackets]: and colons",
        flags: &[
            STORE,
            FROM,
            SEED,
            Flag::one("only", "NAME", "One [of]: the two's").choices(&["boot", "raft"]).short('o'),
            Flag::one("qemu", "PROGRAM", "A program"),
            Flag::many("add", "SRC:DEST[:MODE]", "Add"),
        ],
        positional: Some(Positional { name: "COMMAND", help: "What", min: 1, max: 2, choices: &["ls", "gc"] }),
        exit_codes: &[ExitCode::BadInput],
        examples: [("One", "chaos-test ls \\\n  --store '.a'"), ("Two", ".b 'c")],
    };

    #[test]
    fn every_flag_and_choice_stands_in_every_rendering() {
        for what in GENERATED {
            let text = generate(&TOOL, what).replace("\\-", "-");
            for flag in TOOL.all_flags() {
                let name =
                    if what == "complete-fish" { format!("-l {}", flag.long) } else { format!("--{}", flag.long) };
                assert!(text.contains(&name), "{what}: no {name} in\n{text}");
            }
            for choice in ["boot", "raft", "complete-zsh"] {
                assert!(text.contains(choice), "{what}: no {choice}");
            }
            if what != "man" {
                assert!(text.contains("ls gc") || text.contains("(ls gc)"), "{what}: no commands in\n{text}");
            }
        }
    }

    #[test]
    fn quotes_cannot_end_a_word() {
        assert_eq!(quoted("isn't"), r"'isn'\''t'");
    }
}
