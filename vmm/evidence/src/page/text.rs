// SPDX-License-Identifier: AGPL-3.0-or-later
//! The report as text for terminals and logs. Everything that may have come from a guest is escaped.

use std::fmt::Write;

use chaoscontrol_artifact::escape::terminal;

use super::html::{Standing, firsts, headline, standing};
use super::markup::{counted, distance, span, written};
use super::model::{BugPart, FaultPart, Moments, Report};
use super::sequence::sentence;
use super::words::{fact, lead};
use crate::report::seconds;

/// Messages and records that are listed of each bug, and lines of its console.
const MOMENTS: usize = 30;
const LINES: usize = 15;

/// The report as text.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let headline = headline(report);
    let _ = writeln!(out, "{}", terminal(&headline.text));
    let _ = writeln!(out, "{}", terminal(&headline.means));
    if let (Some(class), Some(status)) = (&report.class, &report.status) {
        let _ = writeln!(out, "class {class}, status {status}");
    }
    if let Some(campaign) = &report.campaign {
        let _ = writeln!(
            out,
            "{} branches of {}, mode {}, seed {}: {} edges, the last new one by branch {}, {} of cluster time, {} instructions",
            campaign.branches,
            seconds(campaign.horizon_ns.0),
            campaign.mode,
            campaign.seed,
            campaign.edges,
            campaign.novel,
            seconds(campaign.cluster_ns.0),
            campaign.instructions
        );
    }
    for each in &report.bugs {
        bug(&mut out, each);
    }
    assertions(&mut out, report);
    if !report.faults.is_empty() {
        let _ = writeln!(out, "\nfaults: selected, rejected, applied, failed, observed");
        for (kind, counts) in &report.faults {
            let [selected, rejected, applied, failed, observed] =
                [counts.selected, counts.rejected, counts.applied, counts.failed, counts.observed].map(|count| count.0);
            let _ = writeln!(
                out,
                "  {:26} {selected:>6} {rejected:>6} {applied:>6} {failed:>6} {observed:>6}",
                terminal(kind)
            );
        }
    }
    let _ = writeln!(out, "\nstages");
    for stage in &report.stages {
        let _ = writeln!(out, "  {:14} {}", terminal(&stage.stage), stage.descriptor);
    }
    out
}

fn bug(out: &mut String, bug: &BugPart) {
    let violation = &bug.violation;
    let (kind, property) = (terminal(&violation.identity.kind), terminal(&violation.identity.property));
    let _ = writeln!(out, "\nbug {}: {kind}: {property}", bug.number);
    let _ = writeln!(out, "  {}", terminal(&lead(violation)));
    let at_ns = violation.cluster_ns.0;
    let into = span(at_ns.saturating_sub(bug.start_ns.0));
    let _ = writeln!(out, "  at {} of cluster time, {into} into the branch", seconds(at_ns));
    for (name, value) in &violation.facts {
        let _ = writeln!(out, "  {}: {}", terminal(name), terminal(&fact(name, value)));
    }
    let how = match bug.one_minimal {
        Some(true) => "minimal: none can be left out",
        Some(false) => "the budget ran out before each was tried without",
        None => "not minimized",
    };
    let branch = bug.branch.map_or(String::new(), |branch| format!("found in branch {branch}; "));
    let _ = writeln!(out, "  {branch}{}, {how}", counted(bug.schedule.len() as u64, "fault", "faults"));
    bug.schedule.iter().for_each(|each| fault(out, each));
    if let Some(reproduction) = &bug.reproduction {
        let _ = writeln!(out, "  {}", terminal(reproduction));
    }
    match (&bug.moments, &bug.no_moments) {
        (Some(seen), _) => moments(out, bug, seen),
        (None, why) => {
            let _ = writeln!(out, "  not replayed here: {}", terminal(why.as_deref().unwrap_or("nobody asked")));
        }
    }
    for (what, command) in &bug.replay {
        let _ = writeln!(out, "  {what}:\n    {command}");
    }
}

fn fault(out: &mut String, fault: &FaultPart) {
    let due = seconds(fault.due_ns.0);
    let _ = writeln!(out, "    +{due:<16} {}  [{}]", terminal(&fault.text), terminal(&fault.fate));
}

fn moments(out: &mut String, bug: &BugPart, moments: &Moments) {
    let at_ns = bug.violation.cluster_ns.0;
    let mut rows: Vec<(u64, String)> = Vec::new();
    for part in &moments.messages {
        let message = &part.message;
        let what = format!("vm {} to vm {}: {}, {}", message.from, message.to, part.text, message.fate.name());
        rows.push((message.sent_ns.0, what));
    }
    rows.extend(moments.said.iter().map(|said| (said.at_ns.0, format!("vm {}: {}", said.vm, sentence(said)))));
    rows.sort();
    let _ = writeln!(out, "  before it:");
    for (when, what) in rows.iter().skip(rows.len().saturating_sub(MOMENTS)) {
        let _ = writeln!(out, "    {:>12}  {}", distance(*when, at_ns), terminal(what));
    }
    let Some(console) = moments.consoles.get(usize::from(bug.violation.vm)).filter(|console| !console.is_empty())
    else {
        return;
    };
    let _ = writeln!(out, "  console of vm {}:", bug.violation.vm);
    for (when, line) in console.iter().skip(console.len().saturating_sub(LINES)) {
        let _ = writeln!(out, "    {:>12}  {}", written(when.0, bug), terminal(line));
    }
}

fn assertions(out: &mut String, report: &Report) {
    if report.assertions.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nassertions: passed, failed, in branches");
    for assertion in &report.assertions {
        let standing = match standing(report, assertion) {
            Standing::Held => String::new(),
            other => format!("  {}", other.name().to_uppercase()),
        };
        let _ = writeln!(
            out,
            "  {:>10} {:>8} {:>8}  {}: {} ({}){standing}",
            assertion.passes.0,
            assertion.failures.0,
            assertion.branches.0,
            terminal(&assertion.kind),
            terminal(&assertion.property),
            terminal(&assertion.site)
        );
        for first in firsts(assertion) {
            let _ = writeln!(out, "{:32}{first}", "");
        }
    }
}
