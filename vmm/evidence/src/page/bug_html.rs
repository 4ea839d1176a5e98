// SPDX-License-Identifier: AGPL-3.0-or-later
//! One bug on the page: what broke, when, under which faults, what went on around it, and how to see it again.

use std::fmt::Write;

use super::html::{cell, facts, figure};
use super::markup::{bytes, counted, distance, esc, number, span, written};
use super::model::{BugPart, FaultPart, Moments};
use super::overview::overview;
use super::sequence::{sentence, sequence};
use super::words::{fact, lead};
use crate::report::seconds;

/// The section.
pub(super) fn bug(out: &mut String, bug: &BugPart) {
    let violation = &bug.violation;
    let _ = write!(
        out,
        "<section id=\"bug-{}\"><h2>Bug {}: {}</h2>\n<p><span class=\"pill is-bad\">{}</span>",
        bug.number,
        bug.number,
        esc(&violation.identity.property),
        esc(&violation.identity.kind.replace('_', " "))
    );
    if let Some(class) = &bug.class {
        let tone = if super::gather::is_proved(class) { "is-good" } else { "is-warn" };
        let _ = write!(out, "<span class=\"pill {tone}\">{}</span>", esc(&class.replace('_', " ")));
    }
    let _ = write!(out, "</p>\n<p>{}</p>\n", esc(&lead(violation)));
    let into = violation.cluster_ns.0.saturating_sub(bug.start_ns.0);
    let branch = bug.branch.map_or("-".to_owned(), |branch| number(branch.0));
    facts(
        out,
        &[
            ("machine", format!("vm {}", violation.vm)),
            ("into the branch", span(into)),
            ("cluster time", seconds(violation.cluster_ns.0)),
            ("instructions of that machine", number(violation.instructions.0)),
            ("found in branch", branch),
            ("faults needed", number(bug.schedule.len() as u64)),
        ],
    );
    said_facts(out, bug);
    schedule(out, bug);
    if !bug.lanes.is_empty() {
        out.push_str("<h3>The whole branch</h3>\n");
        figure(
            out,
            &|width| overview(bug, width),
            "Green: the machine runs; amber: paused; dashed red: without power. Blue bars: frames that it sent. Numbers below are \
             faults of the schedule. Time counts from the branch's start.",
        );
    }
    match (&bug.moments, &bug.no_moments) {
        (Some(moments), _) => around(out, bug, moments),
        (None, why) => {
            let why = why.as_deref().unwrap_or("it was not replayed");
            let _ = write!(
                out,
                "<p class=\"soft\">Messages, records and consoles around the violation are not shown: {}.</p>",
                esc(why)
            );
        }
    }
    replay(out, bug);
    out.push_str("</section>\n");
}

fn said_facts(out: &mut String, bug: &BugPart) {
    if bug.violation.facts.is_empty() {
        return;
    }
    out.push_str("<dl class=\"pairs\">");
    for (name, value) in &bug.violation.facts {
        let _ =
            write!(out, "<dt>{}</dt><dd class=\"mono\">{}</dd>", esc(&name.replace('_', " ")), esc(&fact(name, value)));
    }
    out.push_str("</dl>\n");
}

fn schedule(out: &mut String, bug: &BugPart) {
    let (title, words) = match (bug.one_minimal, bug.attempts) {
        (Some(true), attempts) => (
            "The minimal schedule",
            format!(
                "Leave out any one of these faults and the bug does not show ({} tried).",
                counted(u64::from(attempts.unwrap_or(0)), "branch", "branches")
            ),
        ),
        (Some(false), _) => {
            ("The smallest schedule found", "The budget ran out before each fault was tried without.".to_owned())
        }
        (None, _) => (
            "The schedule that found it",
            "Not minimized yet: chaos-minimize shrinks it to the faults that matter.".to_owned(),
        ),
    };
    let _ = write!(out, "<h3>{title}</h3>\n<p>{}</p>\n", esc(&words));
    fault_table(out, &bug.schedule);
    if let Some(found) = &bug.found_with {
        let _ = write!(
            out,
            "<details><summary>The schedule that found it: {}</summary>",
            counted(found.len() as u64, "fault", "faults")
        );
        fault_table(out, found);
        out.push_str("</details>\n");
    }
}

fn fault_table(out: &mut String, faults: &[FaultPart]) {
    if faults.is_empty() {
        out.push_str("<p>No fault: the bug shows by itself.</p>\n");
        return;
    }
    out.push_str(
        "<div class=\"scroll\"><table><thead><tr><th class=\"n\">#</th><th>after the start</th><th>fault</th><th>what became of it</th></tr></thead><tbody>",
    );
    for (number, fault) in (1..).zip(faults) {
        let _ = write!(
            out,
            "<tr><td class=\"n\">{number}</td><td class=\"t\">+{}</td><td class=\"mono w\">{}</td><td>{}</td></tr>",
            seconds(fault.due_ns.0),
            esc(&fault.text),
            esc(&fault.fate)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn around(out: &mut String, bug: &BugPart, moments: &Moments) {
    let at_ns = bug.violation.cluster_ns.0;
    let _ = writeln!(out, "<h3>The last {} before it</h3>", span(at_ns.saturating_sub(moments.from_ns.0)));
    let width = |width: u64| i64::try_from(width).unwrap_or(i64::MAX);
    let caption = format!(
        "Time runs downward, from the violation's point of view; arrows are messages, a cross is one that was lost. {} without \
         payload and {} from before are not drawn.",
        counted(moments.bare, "frame", "frames"),
        counted(moments.said_before.0, "record", "records")
    );
    figure(out, &|wide| sequence(bug, moments, width(wide)), &caption);
    listed(out, moments, at_ns);
    consoles(out, bug, moments);
    network(out, moments);
}

/// The same moments as a table: for search, for screen readers, and for whoever wants every word.
fn listed(out: &mut String, moments: &Moments, at_ns: u64) {
    let mut rows: Vec<(u64, String, String)> = Vec::new();
    for part in &moments.messages {
        let message = &part.message;
        let way = span(message.due_ns.0.saturating_sub(message.sent_ns.0));
        let what = format!(
            "{}, {} after {way}{}{}",
            part.text,
            message.fate.name(),
            bent(message.corrupted),
            again(message.duplicate)
        );
        rows.push((message.sent_ns.0, format!("vm {} to vm {}", message.from, message.to), what));
    }
    rows.extend(moments.said.iter().map(|said| (said.at_ns.0, format!("vm {}", said.vm), sentence(said))));
    rows.sort();
    let _ = write!(
        out,
        "<details><summary>The same as a table: {}</summary><div class=\"scroll\"><table><thead><tr><th>when</th><th>who</th><th>what</th></tr></thead><tbody>",
        counted(rows.len() as u64, "row", "rows")
    );
    for (when, who, what) in rows {
        let _ = write!(
            out,
            "<tr><td class=\"t\">{}</td><td class=\"t\">{who}</td><td class=\"mono w\">{}</td></tr>",
            distance(when, at_ns),
            esc(&what)
        );
    }
    out.push_str("</tbody></table></div></details>\n");
}

fn bent(corrupted: bool) -> &'static str {
    if corrupted { ", a bit flipped" } else { "" }
}

fn again(duplicate: bool) -> &'static str {
    if duplicate { ", a second copy" } else { "" }
}

fn consoles(out: &mut String, bug: &BugPart, moments: &Moments) {
    if moments.consoles.iter().all(Vec::is_empty) {
        out.push_str("<h3>Consoles</h3>\n<p class=\"soft\">No machine wrote to its console.</p>\n");
        return;
    }
    out.push_str("<h3>Consoles at that moment</h3>\n");
    for (vm, lines) in (0u16..).zip(&moments.consoles) {
        let is_it = vm == bug.violation.vm;
        let open = if is_it { " open" } else { "" };
        let what = if lines.is_empty() { "nothing".to_owned() } else { counted(lines.len() as u64, "line", "lines") };
        let _ = write!(
            out,
            "<details{open}><summary>vm {vm}: {what}{}</summary>",
            if is_it { ", the machine that reported it" } else { "" }
        );
        if !lines.is_empty() {
            let _ = write!(out, "<pre class=\"{}\">", if is_it { "last" } else { "" });
            for (when, line) in lines {
                let _ = writeln!(out, "<span class=\"when\">{:>12} </span>{}", written(when.0, bug), esc(line));
            }
            out.push_str("</pre>");
        }
        out.push_str("</details>\n");
    }
}

fn network(out: &mut String, moments: &Moments) {
    let totals = &moments.network;
    out.push_str("<h3>Network in the branch</h3>\n<p>");
    let counts = [
        (totals.sent, "sent"),
        (totals.delivered, "delivered"),
        (totals.lost, "lost"),
        (totals.partitioned, "dropped by a partition"),
        (totals.duplicated, "duplicated"),
        (totals.corrupted, "with a flipped bit"),
        (totals.overflowed, "lost in full queues"),
        (totals.to_down, "for a machine without power"),
        (totals.malformed, "malformed"),
    ];
    let said: Vec<String> = counts
        .iter()
        .filter(|(count, _)| count.0 > 0)
        .map(|(count, what)| format!("{} {what}", number(count.0)))
        .collect();
    let _ = writeln!(out, "Frames: {}.</p>", if said.is_empty() { "none".to_owned() } else { said.join(", ") });
    if moments.links.is_empty() {
        return;
    }
    out.push_str(
        "<details><summary>Link by link</summary><div class=\"scroll\"><table><thead><tr><th>link</th><th class=\"n\">sent</th><th class=\"n\">delivered</th>\
         <th class=\"n\">dropped</th><th class=\"n\">volume</th><th class=\"n\">shortest way</th><th class=\"n\">longest way</th></tr></thead><tbody>",
    );
    for link in &moments.links {
        let (least, most) =
            link.delay_ns.map_or(("-".to_owned(), "-".to_owned()), |(least, most)| (span(least.0), span(most.0)));
        let _ = write!(
            out,
            "<tr><td class=\"t\">vm {} to vm {}</td>{}{}{}<td class=\"n\">{}</td><td class=\"n\">{least}</td><td class=\"n\">{most}</td></tr>",
            link.from,
            link.to,
            cell(link.sent.0),
            cell(link.delivered.0),
            cell(link.dropped.0),
            bytes(link.bytes.0)
        );
    }
    out.push_str("</tbody></table></div></details>\n");
}

fn replay(out: &mut String, bug: &BugPart) {
    out.push_str("<h3>See it again</h3>\n");
    if let Some(reproduction) = &bug.reproduction {
        let _ = writeln!(out, "<p>{}.</p>", esc(&sentence_case(reproduction)));
    }
    for (what, command) in &bug.replay {
        let _ = writeln!(out, "<p class=\"soft\">{}</p><pre>{}</pre>", esc(&sentence_case(what)), esc(command));
    }
    if bug.replay.is_empty() {
        let _ = writeln!(out, "<p>The bug is object <code>{}</code>.</p>", bug.object);
    } else {
        out.push_str("<p class=\"soft\">Name the campaign's store with <code>--store</code>, <code>--from</code> or <code>CHAOS_STORE</code>.</p>\n");
    }
}

fn sentence_case(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
