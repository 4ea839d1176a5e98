// SPDX-License-Identifier: AGPL-3.0-or-later
//! The moments before the violation as a sequence diagram: a column a VM, time downward. Rows stand in the order of events, not
//! in proportion to time, so that a burst can be read; the gutter says when each row was.

use std::collections::BTreeSet;
use std::fmt::Write;

use chaoscontrol_artifact::journal::{MessageFate, Said, SaidKind};

use super::markup::{distance, esc, short, span};
use super::model::{BugPart, MessagePart, Moments};

const GUTTER: i64 = 74;
const TOP: i64 = 34;
/// Height of a row that only a message's end stands in.
const THIN: i64 = 13;
/// Height of a row with text beside it, and with text below it.
const BESIDE: i64 = 19;
const BELOW: i64 = 33;
/// Least distance between two times in the gutter.
const TIME_APART: i64 = 12;
/// Width of one letter of a label, in tenths: a guess, since fonts differ.
const LETTER_TENTHS: i64 = 64;

/// Up to so many VMs all have a column; of more, those that take part.
const COLUMNS: usize = 8;

/// What happens in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    FaultEnds(usize),
    FaultBegins(usize),
    Power(usize, usize),
    Arrives(usize),
    Sends(usize),
    Says(usize),
    Violation,
}

/// A row at its place.
#[derive(Clone, Copy, Debug)]
struct Row {
    at_ns: u64,
    kind: Kind,
    y: i64,
}

struct Diagram<'a> {
    bug: &'a BugPart,
    moments: &'a Moments,
    width: i64,
    /// The VMs that have a column.
    columns: Vec<u16>,
    /// Whether labels stand right of the columns, else below their row.
    is_wide: bool,
    rows: Vec<Row>,
    bottom: i64,
}

/// The diagram, `width` units wide.
pub fn sequence(bug: &BugPart, moments: &Moments, width: i64) -> String {
    let columns = columns(bug, moments);
    let mut diagram = Diagram { bug, moments, width, columns, is_wide: width > 500, rows: Vec::new(), bottom: TOP };
    diagram.place();
    diagram.draw()
}

/// The VMs that take part in the window; where there are few, all.
fn columns(bug: &BugPart, moments: &Moments) -> Vec<u16> {
    let all = bug.lanes.iter().map(|lane| lane.vm);
    if bug.lanes.len() <= COLUMNS {
        return all.collect();
    }
    let ends = moments.messages.iter().flat_map(|part| [part.message.from, part.message.to]);
    let taking_part: BTreeSet<u16> =
        ends.chain(moments.said.iter().map(|said| said.vm)).chain([bug.violation.vm]).collect();
    all.filter(|vm| taking_part.contains(vm)).collect()
}

impl Diagram<'_> {
    fn vms(&self) -> i64 {
        self.columns.len().max(1) as i64
    }

    /// Where the columns end.
    fn columns_end(&self) -> i64 {
        if self.is_wide { GUTTER + (self.vms() * 120).min(480) } else { self.width }
    }

    fn x(&self, vm: u16) -> i64 {
        let wide = (self.columns_end() - GUTTER) / self.vms();
        let column = self.columns.binary_search(&vm).unwrap_or(self.columns.len());
        GUTTER + wide * column as i64 + wide / 2
    }

    /// Every event of the window, in order, each at its height.
    fn place(&mut self) {
        let mut events: Vec<(u64, Kind)> = Vec::new();
        for (index, part) in self.moments.messages.iter().enumerate() {
            let message = &part.message;
            events.push((message.sent_ns.0, Kind::Sends(index)));
            if message.due_ns > message.sent_ns && message.fate != MessageFate::InFlight {
                events.push((message.due_ns.0, Kind::Arrives(index)));
            }
        }
        events.extend(self.moments.said.iter().enumerate().map(|(index, said)| (said.at_ns.0, Kind::Says(index))));
        let start_ns = self.bug.start_ns.0;
        for (index, fault) in self.bug.schedule.iter().enumerate() {
            let Some(applied) = fault.applied_ns else { continue };
            events.push((start_ns + applied.0, Kind::FaultBegins(index)));
            events.extend(fault.until_ns.map(|until| (start_ns.saturating_add(until.0), Kind::FaultEnds(index))));
        }
        for (lane, each) in self.bug.lanes.iter().enumerate() {
            let is_shown = self.columns.contains(&each.vm);
            let changes = each.power.iter().enumerate().skip(1).filter(|_| is_shown);
            events.extend(changes.map(|(index, stretch)| (start_ns + stretch.from_ns.0, Kind::Power(lane, index))));
        }
        let end_ns = self.bug.violation.cluster_ns.0;
        let window = self.moments.from_ns.0..=end_ns.max(start_ns + self.bug.cluster_ns.0);
        events.retain(|(at_ns, _)| window.contains(at_ns));
        events.push((end_ns, Kind::Violation));
        events.sort_unstable();
        for (at_ns, kind) in events {
            let joins = |row: &&Row| row.at_ns == at_ns && is_thin(row.kind) && is_thin(kind);
            let (y, height) = match self.rows.last().filter(joins) {
                Some(row) => (row.y, 0),
                None if is_thin(kind) => (self.bottom + THIN / 2, THIN),
                None if self.is_wide => (self.bottom + BESIDE / 2, BESIDE),
                None => (self.bottom + 9, BELOW),
            };
            self.rows.push(Row { at_ns, kind, y });
            self.bottom += height;
        }
    }

    /// The height of a moment: that of the first row at or after it.
    fn y(&self, at_ns: u64) -> i64 {
        self.rows.iter().find(|row| row.at_ns >= at_ns).map_or(self.bottom, |row| row.y)
    }

    fn draw(&self) -> String {
        let (width, height) = (self.width, self.bottom + 14);
        let mut out = format!(
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"Messages between the VMs before the violation\">"
        );
        for vm in &self.columns {
            self.lifeline(&mut out, *vm);
        }
        for part in self.moments.messages.iter() {
            self.arrow(&mut out, part);
        }
        let mut free = 0;
        for row in &self.rows {
            if row.y >= free {
                let when = distance(row.at_ns, self.bug.violation.cluster_ns.0);
                let _ = write!(
                    out,
                    "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{when}</text>",
                    GUTTER - 8,
                    row.y + 4
                );
                free = row.y + TIME_APART;
            }
            self.row(&mut out, row);
        }
        out.push_str("</svg>");
        out
    }

    fn lifeline(&self, out: &mut String, vm: u16) {
        let x = self.x(vm);
        // Names of narrow columns are numbers alone, in two rows where even those would touch.
        let room = (self.columns_end() - GUTTER) / self.vms();
        let name = if room < 38 { vm.to_string() } else { format!("vm {vm}") };
        let y = if room < 18 && vm % 2 == 1 { 20 } else { 10 };
        let _ = write!(out, "<text class=\"name\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>");
        let Some(lane) = self.bug.lanes.iter().find(|lane| lane.vm == vm) else { return };
        for stretch in &lane.power {
            let start_ns = self.bug.start_ns.0;
            if start_ns + stretch.to_ns.0 <= self.moments.from_ns.0 {
                continue;
            }
            let from = if start_ns + stretch.from_ns.0 <= self.moments.from_ns.0 {
                TOP - 10
            } else {
                self.y(start_ns + stretch.from_ns.0)
            };
            let is_last = lane.power.last() == Some(stretch);
            let to = if is_last { self.bottom + 6 } else { self.y(start_ns + stretch.to_ns.0) };
            let (power, tall) = (stretch.power, (to - from).max(0));
            let _ = write!(
                out,
                "<rect class=\"life {power}\" x=\"{}\" y=\"{from}\" width=\"3\" height=\"{tall}\"/>",
                x - 1
            );
        }
    }

    fn arrow(&self, out: &mut String, part: &MessagePart) {
        let message = &part.message;
        let (from, to) = (self.x(message.from), self.x(message.to));
        let y1 = self.y(message.sent_ns.0);
        let right = if to > from { 1 } else { -1 };
        let class = match message.fate {
            MessageFate::Delivered if message.corrupted => "message bent",
            MessageFate::Delivered => "message",
            MessageFate::InFlight => "message late",
            _ => "message dropped",
        };
        let way = span(message.due_ns.0.saturating_sub(message.sent_ns.0));
        let title = format!(
            "vm {} to vm {}: {}, {}{}{} ({way})",
            message.from,
            message.to,
            part.text,
            message.fate.name(),
            if message.corrupted { ", a bit flipped" } else { "" },
            if message.duplicate { ", a second copy" } else { "" },
        );
        let _ = write!(out, "<g class=\"{class}\"><title>{}</title>", esc(&title));
        let y2 = match message.fate {
            _ if message.due_ns == message.sent_ns => y1 + THIN / 2,
            MessageFate::InFlight => y1 + THIN,
            _ => self.y(message.due_ns.0),
        };
        // What did not arrive before the end is drawn as far as it says where it was going; what was lost ends in a cross.
        let part_of = |from: i64, to: i64| match message.fate {
            MessageFate::Delivered => to,
            MessageFate::InFlight => from + (to - from) / 3,
            _ => from + (to - from) * 3 / 4,
        };
        let (x, y) = (part_of(from, to - 3 * right), if is_lost(message.fate) { part_of(y1, y2) } else { y2 });
        let _ = write!(out, "<line x1=\"{}\" y1=\"{y1}\" x2=\"{x}\" y2=\"{y}\"/>", from + 2 * right);
        match message.fate {
            MessageFate::InFlight => {}
            MessageFate::Delivered => {
                let back = x - 6 * right;
                let _ = write!(out, "<path d=\"M{x} {y}L{back} {}L{back} {}Z\"/>", y - 4, y + 3);
            }
            _ => {
                let _ = write!(out, "<path d=\"M{} {}l8 8m0 -8l-8 8\"/>", x - 4, y - 4);
            }
        }
        out.push_str("</g>");
    }

    fn row(&self, out: &mut String, row: &Row) {
        let y = row.y;
        match row.kind {
            Kind::Arrives(_) => {}
            Kind::Sends(index) => self.sending(out, y, index),
            Kind::Says(index) => {
                let said = &self.moments.said[index];
                let _ = write!(
                    out,
                    "<circle class=\"said {}\" cx=\"{}\" cy=\"{y}\" r=\"5\"/>",
                    class_of(said.kind),
                    self.x(said.vm)
                );
                self.label(out, y, Some(said.vm), "label", &sentence(said));
            }
            Kind::FaultBegins(index) | Kind::FaultEnds(index) => {
                let fault = &self.bug.schedule[index];
                let begins = matches!(row.kind, Kind::FaultBegins(_));
                let (from, to) = (GUTTER, self.columns_end() - 4);
                let _ = write!(out, "<line class=\"faultline\" x1=\"{from}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\"/>");
                for vm in fault.vms.iter().filter(|vm| self.columns.contains(vm)) {
                    let _ = write!(
                        out,
                        "<rect class=\"fault\" x=\"{}\" y=\"{}\" width=\"10\" height=\"10\"/>",
                        self.x(*vm) - 5,
                        y - 5
                    );
                }
                let text = if begins {
                    format!("fault {}: {}", index + 1, fault.text)
                } else {
                    format!("fault {} ends", index + 1)
                };
                self.label(out, y, None, "label faulttext", &text);
            }
            Kind::Power(lane, index) => {
                let power = self.bug.lanes[lane].power[index].power;
                let _ = write!(
                    out,
                    "<rect class=\"powermark\" x=\"{}\" y=\"{}\" width=\"8\" height=\"8\"/>",
                    self.x(lane as u16) - 4,
                    y - 4
                );
                self.label(out, y, Some(lane as u16), "label", &format!("vm {lane} is {power}"));
            }
            Kind::Violation => {
                let violation = &self.bug.violation;
                let to = self.columns_end() - 4;
                let _ = write!(out, "<line class=\"violation\" x1=\"{GUTTER}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\"/>");
                let _ = write!(out, "<circle class=\"violation\" cx=\"{}\" cy=\"{y}\" r=\"7\"/>", self.x(violation.vm));
                self.label(out, y, None, "bad", &format!("violation: {}", violation.identity.property));
            }
        }
    }

    /// What is sent at a moment, where there is room beside the columns: once for all messages of that moment.
    fn sending(&self, out: &mut String, y: i64, index: usize) {
        let messages = &self.moments.messages;
        let sent_ns = messages[index].message.sent_ns;
        let is_first = messages[..index].iter().all(|part| part.message.sent_ns != sent_ns);
        if !self.is_wide || !is_first {
            return;
        }
        let together = messages[index..].iter().filter(|part| part.message.sent_ns == sent_ns);
        let words: Vec<String> =
            together.map(|part| format!("{} → {} {}", part.message.from, part.message.to, part.text)).collect();
        let (x, text) = (self.columns_end() + 10, words.join("; "));
        let room = usize::try_from((self.width - x) * 10 / LETTER_TENTHS).unwrap_or(0);
        let _ = write!(out, "<text class=\"tick\" x=\"{x}\" y=\"{}\">{}</text>", y + 4, esc(&short(&text, room)));
    }

    /// A row's words: right of the columns with a line to them, or below.
    fn label(&self, out: &mut String, y: i64, vm: Option<u16>, class: &str, text: &str) {
        let (x, at) = if self.is_wide { (self.columns_end() + 10, y + 4) } else { (8, y + 18) };
        if let Some(vm) = vm.filter(|_| self.is_wide) {
            let (from, to) = (self.x(vm) + 8, self.columns_end() + 4);
            let _ = write!(out, "<line class=\"leader\" x1=\"{from}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\"/>");
        }
        let room = usize::try_from((self.width - x) * 10 / LETTER_TENTHS).unwrap_or(0);
        let _ = write!(
            out,
            "<text class=\"{class}\" x=\"{x}\" y=\"{at}\">{}<title>{}</title></text>",
            esc(&short(text, room)),
            esc(text)
        );
    }
}

fn is_lost(fate: MessageFate) -> bool {
    !matches!(fate, MessageFate::Delivered | MessageFate::InFlight)
}

fn is_thin(kind: Kind) -> bool {
    matches!(kind, Kind::Sends(_) | Kind::Arrives(_))
}

fn class_of(kind: SaidKind) -> &'static str {
    match kind {
        SaidKind::Passed => "passed",
        SaidKind::Failed | SaidKind::Refused => "failed",
        SaidKind::Agree => "agree",
        SaidKind::Missed => "missed",
        SaidKind::Event | SaidKind::Setup | SaidKind::Log | SaidKind::Process => "event",
    }
}

/// A record in one line.
pub fn sentence(said: &Said) -> String {
    let what = match said.kind {
        SaidKind::Event => "event ",
        SaidKind::Passed => "first pass: ",
        SaidKind::Failed => "FAILED: ",
        SaidKind::Missed => "not this time: ",
        SaidKind::Agree => "agree: ",
        SaidKind::Log => "log: ",
        SaidKind::Refused => "refused: ",
        SaidKind::Setup | SaidKind::Process => "",
    };
    let details = if said.details.is_empty() { String::new() } else { format!(" {}", said.details) };
    format!("{what}{}{details}", said.name)
}
