// SPDX-License-Identifier: AGPL-3.0-or-later
//! The whole branch in one picture: a lane a VM with its power and traffic, the faults below, the violation across.

use std::fmt::Write;

use super::markup::{esc, short, span};
use super::model::{BINS, BugPart, FaultPart};

/// Faults that get a row; more are in the table only.
const FAULT_ROWS: usize = 16;
const LANE: u64 = 38;
const ROW: u64 = 20;
const LEFT: u64 = 44;
const RIGHT: u64 = 10;

/// The picture, `width` units wide.
pub fn overview(bug: &BugPart, width: u64) -> String {
    let faults: Vec<(usize, &FaultPart)> =
        (1..).zip(&bug.schedule).filter(|(_, fault)| fault.applied_ns.is_some()).take(FAULT_ROWS).collect();
    let lanes_end = 20 + LANE * bug.lanes.len() as u64;
    let height = lanes_end + ROW * faults.len() as u64 + 34;
    let end_ns = bug.cluster_ns.0.max(1);
    let x = |ns: u64| LEFT + scaled(ns.min(end_ns), end_ns, width - LEFT - RIGHT);
    let mut out = format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"The whole branch: {} VMs, {} faults, the violation\">",
        bug.lanes.len(),
        bug.schedule.len()
    );
    axis(&mut out, end_ns, &x, height, width);
    let most = bug.lanes.iter().flat_map(|lane| &lane.traffic).copied().max().unwrap_or(0).max(1);
    for (index, lane) in (0u64..).zip(&bug.lanes) {
        let middle = 20 + LANE * index + LANE - 10;
        let _ = write!(out, "<text class=\"name\" x=\"2\" y=\"{}\">vm {}</text>", middle + 4, lane.vm);
        for (bin, frames) in (0u64..).zip(&lane.traffic).filter(|(_, frames)| **frames > 0) {
            let tall = scaled(*frames, most, 18).max(1);
            let (from, to) = (x(bin * end_ns / BINS as u64), x((bin + 1) * end_ns / BINS as u64));
            let (y, wide) = (middle - 5 - tall, to.saturating_sub(from).max(1));
            let _ = write!(out, "<rect class=\"traffic\" x=\"{from}\" y=\"{y}\" width=\"{wide}\" height=\"{tall}\"/>");
        }
        for stretch in &lane.power {
            let (from, to) = (x(stretch.from_ns.0), x(stretch.to_ns.0));
            let wide = to.saturating_sub(from).max(1);
            let _ = write!(
                out,
                "<rect class=\"{}\" x=\"{from}\" y=\"{}\" width=\"{wide}\" height=\"6\"><title>vm {} {} for {}</title></rect>",
                stretch.power,
                middle - 3,
                lane.vm,
                stretch.power,
                span(stretch.to_ns.0.saturating_sub(stretch.from_ns.0))
            );
        }
    }
    for (row, (number, fault)) in (0u64..).zip(&faults) {
        fault_row(&mut out, (*number, fault), lanes_end + ROW * row + 12, (&x, end_ns, width));
    }
    violation(&mut out, bug, &x, lanes_end + ROW * faults.len() as u64);
    out.push_str("</svg>");
    out
}

/// `value` of `of`, in `to` parts.
pub fn scaled(value: u64, of: u64, to: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(to) / u128::from(of.max(1))).unwrap_or(to)
}

/// The step between the marks of an axis that is `end` long and has room for about `marks`: 1, 2 or 5 times a power of ten.
pub fn step(end: u64, marks: u64) -> u64 {
    let mut step = 1;
    let mut factors = [2, 5, 10].iter().cycle();
    let mut base = 1u64;
    while end / step > marks {
        let factor = factors.next().copied().unwrap_or(10);
        step = base.saturating_mul(factor);
        if factor == 10 {
            base = step;
        }
        if step == u64::MAX {
            break;
        }
    }
    step
}

fn axis(out: &mut String, end_ns: u64, x: &dyn Fn(u64) -> u64, height: u64, width: u64) {
    let step = step(end_ns, if width < 500 { 4 } else { 10 });
    let mut at_ns = 0;
    while at_ns <= end_ns {
        let place = x(at_ns);
        let _ = write!(out, "<line class=\"grid\" x1=\"{place}\" y1=\"16\" x2=\"{place}\" y2=\"{}\"/>", height - 18);
        let anchor = if place + 30 > width { "end" } else { "middle" };
        let label = if at_ns == 0 { "0".to_owned() } else { crate::report::seconds(at_ns) };
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{place}\" y=\"{}\" text-anchor=\"{anchor}\">{label}</text>",
            height - 5
        );
        let Some(next) = at_ns.checked_add(step) else { break };
        at_ns = next;
    }
}

fn fault_row(
    out: &mut String,
    (number, fault): (usize, &FaultPart),
    y: u64,
    (x, end_ns, width): (&dyn Fn(u64) -> u64, u64, u64),
) {
    let from = x(fault.applied_ns.map_or(0, |ns| ns.0));
    // A fault with a length of its own fills it; a moment is a mark.
    let lasts = fault.until_ns.map(|until| x(until.0)).or(fault.text.contains("=no end").then(|| x(end_ns)));
    let wide = lasts.map_or(3, |to| to.saturating_sub(from).max(3));
    let _ = write!(
        out,
        "<rect class=\"fault\" x=\"{from}\" y=\"{}\" width=\"{wide}\" height=\"8\"><title>{}</title></rect>",
        y - 4,
        esc(&fault.text)
    );
    let label = format!("{number} {}", fault.kind.replace('_', " "));
    let letters = label.chars().count() as u64 * 6;
    if from > LEFT + letters + 8 {
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            from - 6,
            y + 4,
            esc(&label)
        );
    } else {
        let right = from + wide + 6;
        let room = usize::try_from(width.saturating_sub(right) / 6).unwrap_or(0);
        let (at, text) = if room >= label.chars().count() { (right, label) } else { (from + 6, short(&label, 40)) };
        let _ = write!(out, "<text class=\"label\" x=\"{at}\" y=\"{}\">{}</text>", y + 4, esc(&text));
    }
}

fn violation(out: &mut String, bug: &BugPart, x: &dyn Fn(u64) -> u64, bottom: u64) {
    let at = x(bug.violation.cluster_ns.0.saturating_sub(bug.start_ns.0));
    let _ = write!(out, "<line class=\"violation\" x1=\"{at}\" y1=\"14\" x2=\"{at}\" y2=\"{}\"/>", bottom + 8);
    let y = 20 + LANE * u64::from(bug.violation.vm) + LANE - 10;
    let _ = write!(out, "<circle class=\"violation\" cx=\"{at}\" cy=\"{y}\" r=\"6\"/>");
    let _ = write!(out, "<text class=\"bad\" x=\"{}\" y=\"11\" text-anchor=\"end\">violation</text>", at + 4);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_few_round_marks() {
        assert_eq!((step(5_000_000_000, 10), step(24, 10), step(1, 10)), (500_000_000, 5, 1));
        for end in [0, 1, 99, 12_345, u64::MAX] {
            assert!(end / step(end, 10) <= 10);
        }
        assert_eq!((scaled(u64::MAX, u64::MAX, 900), scaled(0, 0, 900)), (900, 0));
    }
}
