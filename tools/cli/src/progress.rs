// SPDX-License-Identifier: AGPL-3.0-or-later
//! Progress on stderr: a bar on a terminal, a plain line now and then elsewhere, nothing when asked.

use std::io::{IsTerminal, Write, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use chaoscontrol_artifact::escape;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::colour::wanted;

/// How often a plain line is written.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// What a stage shows while it works. Host time is used for display only and reaches nothing else.
pub struct Progress {
    tool: &'static str,
    kind: Kind,
    colour: bool,
}

enum Kind {
    Bar(ProgressBar),
    Plain(Mutex<Instant>),
    Quiet,
}

impl Progress {
    /// Progress of `tool`, or none at all.
    pub fn new(tool: &'static str, quiet: bool) -> Self {
        let kind = if quiet {
            Kind::Quiet
        } else if stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            Kind::Bar(bar)
        } else {
            Kind::Plain(Mutex::new(Instant::now()))
        };
        Self { tool, kind, colour: wanted(stderr().is_terminal()) }
    }

    /// `done` of `total` (0 where unknown) of something, with a note.
    pub fn at(&self, done: u64, total: u64, note: &str) {
        match &self.kind {
            Kind::Quiet => {}
            Kind::Bar(bar) => {
                let template = match (total, self.colour) {
                    (0, _) => "{prefix}: {pos} {msg}",
                    (_, true) => "{prefix}: {wide_bar:.cyan} {pos}/{len} {msg}",
                    (_, false) => "{prefix}: {wide_bar} {pos}/{len} {msg}",
                };
                let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
                bar.set_style(style.progress_chars("#>-"));
                bar.set_prefix(self.tool);
                if total > 0 {
                    bar.set_length(total);
                }
                bar.set_position(done);
                bar.set_message(escape::controls(note));
            }
            Kind::Plain(last) => {
                let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if last.elapsed() >= PLAIN_EVERY {
                    *last = Instant::now();
                    let of = if total == 0 { String::new() } else { format!(" of {total}") };
                    self.line(&format!("{done}{of} {note}"));
                }
            }
        }
    }

    /// One line that stays, for people.
    pub fn say(&self, line: &str) {
        match &self.kind {
            Kind::Quiet => {}
            Kind::Bar(bar) => bar.suspend(|| self.line(line)),
            Kind::Plain(_) => self.line(line),
        }
    }

    /// Text for people that stays as it is, without the tool's name. It was escaped where it came from others.
    pub fn show(&self, text: &str) {
        let show = || {
            let _ = writeln!(stderr(), "{}", escape::controls(text));
        };
        match &self.kind {
            Kind::Bar(bar) => bar.suspend(show),
            Kind::Plain(_) | Kind::Quiet => show(),
        }
    }

    /// That it cannot be written is no reason to fail.
    fn line(&self, line: &str) {
        let _ = writeln!(stderr(), "{}: {}", self.tool, escape::controls(line));
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Kind::Bar(bar) = &self.kind {
            bar.finish_and_clear();
        }
    }
}
