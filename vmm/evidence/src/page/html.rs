// SPDX-License-Identifier: AGPL-3.0-or-later
//! The page: one file that loads nothing, runs nothing, and is the same bytes for the same report.

use std::fmt::Write;

use chaoscontrol_artifact::schema::{AssertionMoment, AssertionSummary};

use super::bug_html::bug;
use super::chart::coverage;
use super::gather::is_proved;
use super::markup::{bytes, counted, esc, number, policy, span};
use super::model::{CampaignPart, Guests, Report, StagePart};

/// The whole style sheet.
const STYLE: &str = include_str!("style.css");

/// The report as a page.
pub fn html(report: &Report) -> String {
    let mut out = String::new();
    let headline = headline(report);
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{} · ChaosControl</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        policy(STYLE),
        esc(&headline.text)
    );
    top(&mut out, report, &headline);
    out.push_str("<main>\n");
    for each in &report.bugs {
        bug(&mut out, each);
    }
    campaign(&mut out, report);
    assertions(&mut out, report);
    faults(&mut out, report);
    guests(&mut out, report.cluster.as_ref());
    stages(&mut out, &report.stages);
    let _ = write!(
        out,
        "</main>\n<footer><p>Made by {} {} (source {}) from descriptor <code>{}</code>. The same campaign gives this page byte for \
         byte. It loads nothing and runs no script.</p></footer>\n</body>\n</html>\n",
        esc(&report.tool.name),
        esc(&report.tool.version),
        report.tool.source.short(),
        report.descriptor
    );
    out
}

/// The verdict in words.
pub(super) struct Headline {
    pub text: String,
    pub tone: &'static str,
    pub means: String,
}

/// What the report comes down to.
pub(super) fn headline(report: &Report) -> Headline {
    let bugs = report.bugs.len() as u64;
    let branches = report.campaign.as_ref().map_or(0, |campaign| campaign.branches.0);
    let gaps = report.assertions.iter().filter(|assertion| assertion.is_gap()).count() as u64;
    if bugs == 0 {
        let unreached = match gaps {
            0 => "Everything that had to be reached was reached.".to_owned(),
            _ => format!("{} that had to be reached never was.", counted(gaps, "property", "properties")),
        };
        let text = match branches {
            0 => "Nothing was explored yet".to_owned(),
            _ => format!("No bug found in {}", counted(branches, "branch", "branches")),
        };
        let tone = if branches == 0 || gaps > 0 { "is-warn" } else { "is-good" };
        let means = match branches {
            0 => "There is a cluster that completed its setup, and no branch that was run from it.".to_owned(),
            _ => format!("This is worth what the exploration covered. {unreached}"),
        };
        return Headline { text, tone, means };
    }
    let what = counted(bugs, "bug", "bugs");
    let who = if bugs == 1 { "it" } else { "each" };
    let (text, means) = match report.class.as_deref() {
        Some(class) if is_proved(class) => (
            format!("{what} found, and replayed bit for bit"),
            format!("Run again from its snapshot, {who} showed the same violation and the same trace to the last bit."),
        ),
        Some(class) => (
            format!("{what} found, not all proved"),
            format!("The verdict's class is {class}: that of the bug whose replay went worst."),
        ),
        None => (
            format!("{what} found"),
            "No verdict stands behind this report: nothing was replayed and judged yet.".to_owned(),
        ),
    };
    Headline { text, tone: "is-bad", means }
}

fn top(out: &mut String, report: &Report, headline: &Headline) {
    let _ = write!(
        out,
        "<header><div><p class=\"brand\">ChaosControl report</p><div class=\"verdict {}\"><h1>{}</h1><p>{}</p></div>",
        headline.tone,
        esc(&headline.text),
        esc(&headline.means)
    );
    if let (Some(class), Some(status)) = (&report.class, &report.status) {
        let _ = write!(
            out,
            "<p><span class=\"pill {}\">{}</span><span class=\"pill is-plain\">status {}</span></p>",
            headline.tone,
            esc(class),
            esc(status)
        );
    }
    if let Some(campaign) = &report.campaign {
        let applied: u64 = report.faults.values().map(|counts| counts.applied.0).sum();
        let vms = report.cluster.as_ref().map_or(0, |guests| u64::from(guests.vms));
        facts(
            out,
            &[
                ("branches", number(campaign.branches.0)),
                ("virtual machines", number(vms)),
                ("faults applied", number(applied)),
                ("edges reached", number(u64::from(campaign.edges))),
                ("cluster time", span(campaign.cluster_ns.0)),
                ("guest instructions", number(campaign.instructions.0)),
                ("seed", campaign.seed.to_string()),
            ],
        );
    }
    out.push_str("<nav>");
    for each in &report.bugs {
        let _ = write!(out, "<a href=\"#bug-{}\">Bug {}</a> ", each.number, each.number);
    }
    let sections = [
        ("coverage", "Coverage", report.campaign.is_some()),
        ("assertions", "Assertions", !report.assertions.is_empty()),
        ("faults", "Faults", !report.faults.is_empty()),
        ("guests", "Guests", report.cluster.is_some()),
        ("stages", "Stages", true),
    ];
    for (id, name, _) in sections.iter().filter(|(.., is_there)| *is_there) {
        let _ = write!(out, "<a href=\"#{id}\">{name}</a> ");
    }
    out.push_str("</nav></div></header>\n");
}

/// Names and values side by side.
pub(super) fn facts(out: &mut String, facts: &[(&str, String)]) {
    out.push_str("<dl class=\"facts\">");
    for (name, value) in facts {
        let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", esc(name), esc(value));
    }
    out.push_str("</dl>\n");
}

/// A picture for wide screens and paper, and one for narrow screens.
pub(super) fn figure(out: &mut String, draw: &dyn Fn(u64) -> String, caption: &str) {
    let _ = writeln!(
        out,
        "<figure><div class=\"wide\">{}</div><div class=\"narrow\">{}</div><figcaption>{}</figcaption></figure>",
        draw(940),
        draw(360),
        esc(caption)
    );
}

fn campaign(out: &mut String, report: &Report) {
    let Some(campaign) = &report.campaign else { return };
    out.push_str("<section id=\"coverage\"><h2>Coverage</h2>\n");
    let since = campaign.branches.0.saturating_sub(campaign.novel.0);
    let origins: Vec<String> = campaign.origins.iter().map(|(origin, count)| format!("{count} {origin}")).collect();
    let _ = write!(
        out,
        "<p>{} control-flow edges in {}, planned in mode {}. Kept to build on: {} ({}). No new edge came in the last {}.</p>",
        number(u64::from(campaign.edges)),
        counted(campaign.branches.0, "branch", "branches"),
        esc(&campaign.mode),
        counted(u64::from(campaign.entries), "branch", "branches"),
        esc(&origins.join(", ")),
        counted(since, "branch", "branches")
    );
    let height = |width: u64| if width < 500 { 220 } else { 280 };
    figure(
        out,
        &|width| coverage(campaign, &report.bugs, width, height(width)),
        "Edges reached over branches. Red marks are the branches that found a bug, by its number; dotted lines are ends of rounds.",
    );
    labels(out, campaign);
    out.push_str("</section>\n");
}

/// What guests did, rarest first: what seldom happened is where to look.
fn labels(out: &mut String, campaign: &CampaignPart) {
    if campaign.labels.is_empty() {
        return;
    }
    let mut sorted: Vec<_> = campaign.labels.iter().collect();
    sorted.sort_by_key(|(label, counts)| (counts.branches, *label));
    let _ = write!(
        out,
        "<details><summary>What guests did: {}, rarest first</summary><div class=\"scroll\"><table><thead><tr><th>what</th>\
         <th class=\"n\">in branches</th><th class=\"n\">times</th><th class=\"n\">most in one</th></tr></thead><tbody>",
        counted(sorted.len() as u64, "thing", "things")
    );
    for (label, counts) in sorted {
        let _ = write!(out, "<tr><td class=\"w\">{}</td>", esc(label));
        for count in [counts.branches, counts.marks, counts.most] {
            out.push_str(&cell(count.0));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div></details>\n");
}

fn assertions(out: &mut String, report: &Report) {
    if report.assertions.is_empty() {
        return;
    }
    out.push_str(
        "<section id=\"assertions\"><h2>Assertions</h2>\n<div class=\"scroll\"><table><thead><tr><th>verdict</th><th>property</th>\
         <th>kind</th><th class=\"n\">passed</th><th class=\"n\">failed</th><th class=\"n\">in branches</th></tr></thead><tbody>",
    );
    let mut sorted: Vec<(Standing, &AssertionSummary)> =
        report.assertions.iter().map(|assertion| (standing(report, assertion), assertion)).collect();
    sorted.sort_by_key(|(standing, assertion)| (*standing, &assertion.kind, &assertion.property));
    for (standing, assertion) in sorted {
        let (class, pill) = match standing {
            Standing::Violated => ("bad", "is-bad"),
            Standing::NeverPassed | Standing::NeverReached => ("warn", "is-warn"),
            Standing::NotReached => ("", "is-plain"),
            Standing::Held => ("", "is-good"),
        };
        let _ = write!(
            out,
            "<tr class=\"{class}\"><td><span class=\"pill {pill}\">{}</span></td><td class=\"w\">{}<br>\
             <span class=\"mono soft\">{}</span>{}</td><td>{}</td>{}{}{}</tr>",
            standing.name(),
            esc(&assertion.property),
            esc(&assertion.site),
            firsts(assertion)
                .iter()
                .map(|first| format!("<br><span class=\"soft\">{first}</span>"))
                .collect::<String>(),
            esc(&assertion.kind.replace('_', " ")),
            cell(assertion.passes.0),
            cell(assertion.failures.0),
            cell(assertion.branches.0)
        );
    }
    out.push_str("</tbody></table></div></section>\n");
}

/// When it passed and failed for the first time, where it did.
pub(super) fn firsts(assertion: &AssertionSummary) -> Vec<String> {
    let moments = [("passed", assertion.first_pass), ("failed", assertion.first_failure)];
    let known = moments.into_iter().filter_map(|(what, first)| Some((what, first?)));
    known
        .map(|(what, AssertionMoment { branch, vm, cluster_ns })| {
            let place = branch.map_or_else(|| "before the snapshot".to_owned(), |branch| format!("in branch {branch}"));
            format!("first {what} {place} on vm {vm} at {} of cluster time", span(cluster_ns.0))
        })
        .collect()
}

/// How an assertion stands after the campaign, what needs a look first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    Violated,
    NeverPassed,
    NeverReached,
    NotReached,
    Held,
}

impl Standing {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Violated => "violated",
            Self::NeverPassed => "never passed",
            Self::NeverReached => "never reached",
            Self::NotReached => "not reached",
            Self::Held => "held",
        }
    }
}

/// How an assertion stands. Its failures count where it may not fail; a disagreement is no failure of its site, so the bugs say that.
pub(super) fn standing(report: &Report, assertion: &AssertionSummary) -> Standing {
    let kind = assertion.kind.as_str();
    let may_not_fail = matches!(kind, "always" | "always_or_unreachable" | "unreachable");
    let is_bug = report.bugs.iter().any(|bug| {
        let identity = &bug.violation.identity;
        let fits = if kind == "agree" {
            identity.kind == "disagreement"
        } else {
            identity.kind == "assertion" && may_not_fail
        };
        fits && identity.property == assertion.property
    });
    match () {
        () if is_bug || may_not_fail && assertion.failures.0 > 0 => Standing::Violated,
        () if assertion.judged() == "never_passed" => Standing::NeverPassed,
        () if assertion.is_gap() => Standing::NeverReached,
        () if assertion.passes.0 == 0 && kind != "unreachable" => Standing::NotReached,
        () => Standing::Held,
    }
}

/// A number in a table; zeros stand back.
pub(super) fn cell(value: u64) -> String {
    let class = if value == 0 { "n zero" } else { "n" };
    format!("<td class=\"{class}\">{}</td>", number(value))
}

fn faults(out: &mut String, report: &Report) {
    if report.faults.is_empty() {
        return;
    }
    out.push_str(
        "<section id=\"faults\"><h2>Faults</h2>\n<p>What became of every fault of every schedule of the campaign, by kind.</p>\
         <div class=\"scroll\"><table><thead><tr><th>kind</th><th class=\"n\">selected</th><th class=\"n\">applicable</th>\
         <th class=\"n\">rejected</th><th class=\"n\">applied</th><th class=\"n\">failed</th><th class=\"n\">observed</th></tr></thead><tbody>",
    );
    for (kind, counts) in &report.faults {
        let _ = write!(out, "<tr><td>{}</td>", esc(&kind.replace('_', " ")));
        for count in
            [counts.selected, counts.applicable, counts.rejected, counts.applied, counts.failed, counts.observed]
        {
            out.push_str(&cell(count.0));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div></section>\n");
}

fn guests(out: &mut String, guests: Option<&Guests>) {
    let Some(guests) = guests else { return };
    out.push_str("<section id=\"guests\"><h2>Guests</h2>\n<dl class=\"pairs\">");
    let disks: Vec<String> = guests.disk_bytes.iter().map(|size| bytes(size.0)).collect();
    let mut pairs = vec![
        ("machines", format!("{} of {}, engine {}", guests.vms, bytes(guests.memory_bytes.0), guests.engine)),
        ("disks of each", if disks.is_empty() { "none".to_owned() } else { disks.join(", ") }),
        ("links", format!("{}, jitter up to {}", span(guests.latency_ns.0), span(guests.jitter_ns.0))),
        ("seed", guests.seed.to_string()),
        ("command line", if guests.append.is_empty() { "nothing added".to_owned() } else { guests.append.clone() }),
    ];
    pairs.extend(
        guests.append_vm.iter().filter(|append| !append.is_empty()).map(|append| ("of one machine", append.clone())),
    );
    pairs.push(("kernel", guests.kernel.to_string()));
    pairs.extend(guests.initrd.map(|initrd| ("initrd", initrd.to_string())));
    for (name, value) in pairs {
        let _ = write!(out, "<dt>{name}</dt><dd class=\"mono\">{}</dd>", esc(&value));
    }
    out.push_str("</dl></section>\n");
}

fn stages(out: &mut String, stages: &[StagePart]) {
    out.push_str(
        "<section id=\"stages\"><h2>How it was made</h2>\n<p>Each stage's descriptor is an object of the store: \
         <code>chaos-show</code> with the beginning of its digest shows it.</p>\
         <div class=\"scroll\"><table><thead><tr><th>stage</th><th>descriptor</th><th>parameters</th><th>tool</th></tr></thead><tbody>",
    );
    for stage in stages {
        let parameters: Vec<String> =
            stage.parameters.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=\"mono t\">{}</td><td class=\"mono w\">{}</td><td class=\"t\">{} {} <span class=\"mono soft\">{}</span></td></tr>",
            esc(&stage.stage),
            &stage.descriptor.to_string()[..16],
            parameters.iter().map(|text| esc(text)).collect::<Vec<_>>().join("<br>"),
            esc(&stage.tool.name),
            esc(&stage.tool.version),
            stage.tool.source.short()
        );
    }
    out.push_str("</tbody></table></div></section>\n");
}
