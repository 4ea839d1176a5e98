// SPDX-License-Identifier: AGPL-3.0-or-later
//! The manual page, in the man macros (groff_man(7)).

use std::fmt::Write;

use chaoscontrol_artifact::ExitCode;

use crate::table::{Flag, Tool};

/// The whole page. It has no date: the same sources give the same page.
pub(super) fn page(tool: &Tool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        ".TH \"{}\" 1 \"\" \"ChaosControl {}\" \"ChaosControl\"",
        text(&tool.name.to_uppercase()),
        version()
    );
    // Neither hyphenated nor adjusted: names of flags stay whole and can be copied.
    out.push_str(".nh\n.ad l\n");
    let _ = writeln!(out, ".SH NAME\n{} \\- {}", text(tool.name), text(tool.summary));
    let positional = tool.positional.map_or(String::new(), |p| format!("\n.I {}", text(&p.usage())));
    let _ = writeln!(out, ".SH SYNOPSIS\n.B {}\n.RI [ FLAGS ]{positional}", text(tool.name));
    paragraph(&mut out, "DESCRIPTION", tool.about);
    if let Some(positional) = tool.positional {
        let choices = positional.choices;
        let known = if choices.is_empty() { String::new() } else { format!(" One of {}.", choices.join(", ")) };
        let _ = writeln!(
            out,
            ".SH ARGUMENTS\n.TP\n.I {}\n{}.{}",
            text(positional.name),
            text(positional.help),
            text(&known)
        );
    }
    out.push_str(".SH OPTIONS\n");
    tool.all_flags().for_each(|flag| option(&mut out, flag));
    paragraph(&mut out, "READS", tool.reads);
    paragraph(&mut out, "WRITES", tool.writes);
    out.push_str(".SH ENVIRONMENT\n");
    for flag in tool.all_flags() {
        if let Some(name) = flag.environment {
            let _ = writeln!(out, ".TP\n.B {}\nRead where \\-\\-{} is not given.", text(name), text(flag.long));
        }
    }
    out.push_str(".TP\n.B NO_COLOR\nNothing is coloured where this holds anything.\n.SH EXIT STATUS\n");
    tool.all_exit_codes().into_iter().for_each(|code| status(&mut out, code));
    out.push_str(".SH EXAMPLES\n");
    for (what, command) in tool.examples {
        let _ = writeln!(out, "{}:\n.PP\n.EX", line(what));
        command.lines().for_each(|command| {
            let _ = writeln!(out, "    {}", text(command));
        });
        out.push_str(".EE\n.PP\n");
    }
    out
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn paragraph(out: &mut String, title: &str, body: &str) {
    let _ = writeln!(out, ".SH {title}\n{}", line(body));
}

fn option(out: &mut String, flag: &Flag) {
    let short = flag.short.map_or(String::new(), |letter| format!("\\fB\\-{letter}\\fR, "));
    let value = flag.value_name().map_or(String::new(), |name| format!(" \\fI{}\\fR", text(name)));
    let _ = writeln!(out, ".TP\n{short}\\fB\\-\\-{}\\fR{value}\n{}", text(flag.long), line(&flag.help_text()));
}

fn status(out: &mut String, code: ExitCode) {
    let _ = writeln!(out, ".TP\n.B {}\n{}", code.number(), line(code.meaning()));
}

/// Text in a line of its own: a dot or a quote at its beginning is no request.
fn line(body: &str) -> String {
    let joined = body.split_whitespace().collect::<Vec<_>>().join(" ");
    let guard = if joined.starts_with(['.', '\'']) { "\\&" } else { "" };
    format!("{guard}{}", text(&joined))
}

/// Text that roff shows as it is, whatever the output's character set.
fn text(body: &str) -> String {
    let mut out = String::with_capacity(body.len());
    for c in body.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '"' => out.push_str("\\(dq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            c if c.is_ascii() => out.push(c),
            c => out.push_str(&format!("\\[u{:04X}]", u32::from(c))),
        }
    }
    out
}
