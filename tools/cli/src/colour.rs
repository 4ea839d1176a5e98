// SPDX-License-Identifier: AGPL-3.0-or-later
//! Colour: on terminals only, and never where the user asked for none.

use std::io::Write;

use chaoscontrol_artifact::escape;

use crate::table::Tool;

/// Bold text.
pub(crate) const BOLD: &str = "1";
/// How the name of a failed tool looks.
const FAILED: &str = "1;31";

/// Whether a stream may be coloured: a terminal that can, unless `NO_COLOR` holds anything (<https://no-color.org>).
pub(crate) fn wanted(is_terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    is_terminal && set("NO_COLOR").is_none() && set("TERM").is_some_and(|term| term != "dumb")
}

/// `text` with these attributes (parameters of SGR, ECMA-48 8.3.117), if they are wanted.
pub(crate) fn paint(wanted: bool, attributes: &str, text: &str) -> String {
    if wanted { format!("\x1b[{attributes}m{text}\x1b[0m") } else { text.to_owned() }
}

/// One line on stderr that says how a tool failed. Whatever the line was made from, it cannot steer the terminal. That it
/// cannot be written is no reason to fail.
pub(crate) fn complain(tool: &Tool, line: &str) {
    use std::io::IsTerminal;
    let mut stderr = std::io::stderr().lock();
    let name = paint(wanted(stderr.is_terminal()), FAILED, tool.name);
    let _ = writeln!(stderr, "{name}: {}", escape::controls(line));
}
