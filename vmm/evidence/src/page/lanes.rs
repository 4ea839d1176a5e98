// SPDX-License-Identifier: AGPL-3.0-or-later
//! Each VM over the whole branch, from the trace alone.

use chaoscontrol_artifact::U64;
use chaoscontrol_artifact::schema::TraceDocument;

use super::model::{BINS, Lane, Stretch};

/// One lane a VM.
pub fn lanes(trace: &TraceDocument) -> Vec<Lane> {
    let (Some(first), Some(last)) = (trace.rounds.first(), trace.rounds.last()) else { return Vec::new() };
    let span_ns = (last.end_ns - first.start_ns).max(1);
    let bin = |at_ns: u64| {
        let place = u128::from(at_ns.saturating_sub(first.start_ns)) * BINS as u128 / u128::from(span_ns);
        usize::try_from(place).unwrap_or(0).min(BINS - 1)
    };
    let lane = |vm: u16| {
        let mut lane = Lane {
            vm,
            power: Vec::new(),
            frames_sent: U64(0),
            frames_delivered: U64(0),
            records: U64(0),
            traffic: vec![0; BINS],
        };
        for round in &trace.rounds {
            let Some(did) = round.vms.get(usize::from(vm)) else { continue };
            let [from_ns, to_ns] = [round.start_ns, round.end_ns].map(|ns| U64(ns.saturating_sub(first.start_ns)));
            let power = ["up", "paused", "down"].get(usize::from(did.power)).copied().unwrap_or("down");
            match lane.power.last_mut() {
                Some(stretch) if stretch.power == power => stretch.to_ns = to_ns,
                _ => lane.power.push(Stretch { from_ns, to_ns, power }),
            }
            let more = |count: U64, more: u64| U64(count.0.saturating_add(more));
            lane.frames_sent = more(lane.frames_sent, did.frames_sent);
            lane.frames_delivered = more(lane.frames_delivered, did.frames_delivered);
            lane.records = more(lane.records, did.sdk_records);
            let traffic = &mut lane.traffic[bin(round.end_ns)];
            *traffic = traffic.saturating_add(did.frames_sent);
        }
        lane
    };
    (0..).take(first.vms.len()).map(lane).collect()
}
