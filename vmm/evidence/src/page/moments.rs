// SPDX-License-Identifier: AGPL-3.0-or-later
//! From a whole journal to what stands around the violation: a page shows the moments before it, and sums of the rest.

use std::collections::BTreeMap;

use chaoscontrol_artifact::U64;
use chaoscontrol_artifact::escape::clip;
use chaoscontrol_artifact::journal::{ConsoleText, Journal, Message, MessageFate, Said};
use chaoscontrol_artifact::schema::Violation;

use super::frame::describe;
use super::model::{LinkPart, MessagePart, Moments};

/// Messages shown: about as many as a reader follows.
const MESSAGES: usize = 40;
/// Records shown at most, beside them.
const SAID: usize = 60;
/// Lines of each console.
const LINES: usize = 60;
/// Bytes of a line or text; the rest is cut.
const TEXT_BYTES: usize = 400;

/// What the journal says around the violation.
pub fn moments(journal: &Journal, violation: &Violation) -> Moments {
    let described: Vec<_> = journal.messages.iter().map(|message| describe(&message.head, message.bytes)).collect();
    let carrying: Vec<usize> = (0..described.len()).filter(|index| !described[*index].is_bare).collect();
    let shown = &carrying[carrying.len().saturating_sub(MESSAGES)..];
    let sent_ns = |index: &usize| journal.messages[*index].sent_ns;
    // Without messages the last second is as good a beginning as any.
    let second_before = U64(violation.cluster_ns.0.saturating_sub(1_000_000_000));
    let from_ns = shown.iter().map(sent_ns).min().unwrap_or(second_before);
    let within = |message: &&Message| message.sent_ns >= from_ns;
    let in_window: Vec<Said> = journal.said.iter().filter(|said| said.at_ns >= from_ns).cloned().collect();
    let kept = &in_window[in_window.len().saturating_sub(SAID)..];
    let before = (journal.said.len() - kept.len()) as u64 + journal.said_left_out.0;
    Moments {
        from_ns,
        messages: shown
            .iter()
            .map(|index| MessagePart {
                message: journal.messages[*index].clone(),
                text: described[*index].text.clone(),
            })
            .collect(),
        bare: (journal.messages.iter().filter(within).count() - shown.len()) as u64,
        said: kept.iter().map(cut).collect(),
        said_before: U64(before),
        links: links(&journal.messages),
        network: journal.network,
        consoles: journal.consoles.iter().map(|console| lines(console)).collect(),
    }
}

/// A record whose texts fit a page.
fn cut(said: &Said) -> Said {
    let (name, details) = (clip(&said.name, TEXT_BYTES).to_owned(), clip(&said.details, TEXT_BYTES).to_owned());
    Said { name, details, ..said.clone() }
}

fn links(messages: &[Message]) -> Vec<LinkPart> {
    let mut links: BTreeMap<(u16, u16), LinkPart> = BTreeMap::new();
    for message in messages {
        let (from, to) = (message.from, message.to);
        let link = links.entry((from, to)).or_insert_with(|| LinkPart { from, to, ..LinkPart::default() });
        link.sent.0 += 1;
        link.bytes.0 += u64::from(message.bytes);
        match message.fate {
            MessageFate::Delivered => {
                link.delivered.0 += 1;
                let delay = U64(message.due_ns.0.saturating_sub(message.sent_ns.0));
                let (least, most) = link.delay_ns.unwrap_or((delay, delay));
                link.delay_ns = Some((least.min(delay), most.max(delay)));
            }
            MessageFate::InFlight => {}
            _ => link.dropped.0 += 1,
        }
    }
    links.into_values().collect()
}

/// The last lines of a console, each with the end of the round in which it began.
fn lines(console: &[ConsoleText]) -> Vec<(U64, String)> {
    let mut lines: Vec<(U64, Vec<u8>)> = Vec::new();
    let mut is_open = false;
    for piece in console {
        for part in piece.bytes.split_inclusive(|byte| *byte == b'\n') {
            if !is_open {
                lines.push((piece.at_ns, Vec::new()));
            }
            if let Some((_, line)) = lines.last_mut() {
                line.extend_from_slice(part);
            }
            is_open = !part.ends_with(b"\n");
        }
    }
    let kept = lines.split_off(lines.len().saturating_sub(LINES));
    let text = |line: &[u8]| {
        let text = String::from_utf8_lossy(line);
        clip(text.trim_end_matches(['\n', '\r']), TEXT_BYTES).to_owned()
    };
    kept.iter().map(|(at_ns, line)| (*at_ns, text(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_written_in_pieces_has_the_time_of_its_first() {
        let piece = |at_ns, text: &str| ConsoleText { at_ns: U64(at_ns), bytes: text.as_bytes().to_vec() };
        let console = [piece(1, "one\r\ntw"), piece(2, "o\nthr"), piece(3, "ee")];
        let expected = [(U64(1), "one"), (U64(1), "two"), (U64(2), "three")];
        let found = lines(&console);
        assert_eq!(found.iter().map(|(at, line)| (*at, line.as_str())).collect::<Vec<_>>(), expected);
    }
}
