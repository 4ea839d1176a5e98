// SPDX-License-Identifier: AGPL-3.0-or-later
//! Coverage as the campaign grew it, with the branches that found bugs.

use std::fmt::Write;

use super::markup::number;
use super::model::{BugPart, CampaignPart};
use super::overview::{scaled, step};

const LEFT: u64 = 58;
const RIGHT: u64 = 16;
const TOP: u64 = 26;
const BOTTOM: u64 = 34;

/// The chart, `width` by `height` units.
pub fn coverage(campaign: &CampaignPart, bugs: &[BugPart], width: u64, height: u64) -> String {
    let branches = campaign.branches.0.max(1);
    let reached = campaign.growth.last().map_or(0, |(_, edges)| *edges);
    let most = reached.max(u64::from(campaign.edges)).max(1);
    let x = |branch: u64| LEFT + scaled(branch.min(branches), branches, width - LEFT - RIGHT);
    let y = |edges: u64| height - BOTTOM - scaled(edges.min(most), most, height - TOP - BOTTOM);
    let mut out = format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"Edges reached over branches: {} after {}\">",
        number(most),
        number(branches)
    );
    marks(most, 5, |edges| {
        let at = y(edges);
        let _ = write!(out, "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\"/>", width - RIGHT);
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 6,
            at + 4,
            number(edges)
        );
    });
    marks(branches, if width < 500 { 4 } else { 10 }, |branch| {
        let (at, low) = (x(branch), height - BOTTOM + 16);
        let _ =
            write!(out, "<text class=\"tick\" x=\"{at}\" y=\"{low}\" text-anchor=\"middle\">{}</text>", number(branch));
    });
    let _ = write!(
        out,
        "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">branches</text>",
        width - RIGHT,
        height - 4
    );
    let _ = write!(out, "<text class=\"tick\" x=\"4\" y=\"12\">edges</text>");
    // A branch's edges are known once it has run: steps, up at the branch.
    let mut path = format!("M{} {}", x(0), y(0));
    for (branch, edges) in &campaign.growth {
        let _ = write!(path, "H{}V{}", x(branch.0), y(*edges));
    }
    let _ = write!(path, "H{}", x(branches));
    let _ = write!(out, "<path class=\"area\" d=\"{path}V{}H{}Z\"/><path class=\"curve\" d=\"{path}\"/>", y(0), x(0));
    for (branches, _, _) in campaign.rounds.iter().rev().skip(1) {
        let at = x(branches.0);
        let _ = write!(out, "<line class=\"round\" x1=\"{at}\" y1=\"{TOP}\" x2=\"{at}\" y2=\"{}\"/>", height - BOTTOM);
    }
    for bug in bugs {
        let Some(branch) = bug.branch else { continue };
        let at = x(branch.0);
        let _ =
            write!(out, "<line class=\"violation\" x1=\"{at}\" y1=\"{TOP}\" x2=\"{at}\" y2=\"{}\"/>", height - BOTTOM);
        let _ = write!(out, "<circle class=\"violation\" cx=\"{at}\" cy=\"{}\" r=\"9\"/>", TOP - 10);
        let _ = write!(
            out,
            "<text class=\"inmark\" x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            TOP - 6,
            bug.number
        );
    }
    out.push_str("</svg>");
    out
}

/// Calls `mark` for round values from 0 to `end`, about `count` of them.
fn marks(end: u64, count: u64, mut mark: impl FnMut(u64)) {
    let step = step(end, count);
    let mut at = 0u64;
    while at <= end {
        mark(at);
        let Some(next) = at.checked_add(step) else { return };
        at = next;
    }
}
