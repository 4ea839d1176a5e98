// SPDX-License-Identifier: AGPL-3.0-or-later
//! The network: a switch that knows every VM's hardware address, and the links behind it.
//!
//! A frame to a known address goes to that VM, any other to all but its sender. Each copy is delayed by its link's latency at
//! rest and by the faults in effect when it was sent, in the order in which those were applied. A partition drops what is
//! sent during it and what arrives during it. A clog holds what arrives during it until it is over. What is due is delivered in
//! the order of (cluster ns, sender, sequence).

use std::collections::BTreeSet;

use chaoscontrol_fault::{Fault, Ledger, Stream};
use serde::{Deserialize, Serialize};

use crate::config::{SimConfig, mac_of};
use crate::effects::{Effect, Effects, covers};
use crate::log::{CopyFate, FrameCopy, FrameLog, HEAD_BYTES};

/// Longest frame that is passed on; no guest here has a larger MTU.
pub const FRAME_BYTES_MAX: usize = 9_216;

/// Shortest frame: two addresses and a type.
const FRAME_BYTES_MIN: usize = 14;

/// Most copies in flight; beyond it frames are lost, as in a switch without memory.
pub const IN_FLIGHT_MAX: usize = 16_384;

/// A link's queue holds what it passes in this time; what comes on top is lost.
const QUEUE_NS_MAX: u64 = 1_000_000_000;

/// What happened to frames, counted by copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkCounts {
    /// Frames that guests sent.
    pub sent: u64,
    /// Copies that reached a network card.
    pub delivered: u64,
    /// Copies lost by the network at rest.
    pub lost_at_rest: u64,
    /// Copies lost to a loss fault.
    pub lost: u64,
    /// Copies dropped by a partition.
    pub partitioned: u64,
    /// Copies made by a duplication fault.
    pub duplicated: u64,
    /// Copies with a flipped bit.
    pub corrupted: u64,
    /// Copies lost because a queue was full.
    pub overflowed: u64,
    /// Copies for a VM that was down.
    pub to_down: u64,
    /// Frames that were too short or too long.
    pub malformed: u64,
    /// Copies lost because they were longer than a fault let pass.
    pub over_mtu: u64,
}

/// A copy of a frame on its way. The order of fields is the order of delivery.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct InFlight {
    pub deliver_ns: u64,
    pub from: u16,
    pub sequence: u64,
    pub to: u16,
    pub copy: u8,
    pub bytes: Vec<u8>,
}

/// One sender's draws, a stream a purpose: a fault added to a schedule moves no other fault's draws.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Streams {
    rest: Stream,
    rest_loss: Stream,
    jitter: Stream,
    loss: Stream,
    duplication: Stream,
    reorder: Stream,
    corruption: Stream,
}

impl Streams {
    fn new(seed: u64, vm: u16) -> Self {
        let stream = |purpose| Stream::named(seed, purpose, u64::from(vm));
        Self {
            rest: stream("network rest"),
            rest_loss: stream("network rest loss"),
            jitter: stream("network jitter"),
            loss: stream("network loss"),
            duplication: stream("network duplication"),
            reorder: stream("network reorder"),
            corruption: stream("network corruption"),
        }
    }
}

/// One sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Port {
    sequence: u64,
    streams: Streams,
    /// For each receiver, when its link has passed all that was sent.
    link_free_ns: Vec<u64>,
}

/// The switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Switch {
    ports: Vec<Port>,
    in_flight: BTreeSet<InFlight>,
    /// Copies that are due and wait for the end of a clog.
    held: BTreeSet<InFlight>,
    counts: NetworkCounts,
    /// Only while someone watches; no part of the state.
    #[serde(skip)]
    log: Option<Box<FrameLog>>,
}

/// What faults make of one copy.
#[derive(Default)]
struct Fate {
    delay_ns: u64,
    second_copy_ns: Option<u64>,
    flip_bit: Option<u64>,
    bandwidth: Option<(u64, Option<u32>)>,
}

impl Switch {
    pub fn new(vms: u16, seed: u64) -> Self {
        let port = |vm| Port { sequence: 0, streams: Streams::new(seed, vm), link_free_ns: vec![0; usize::from(vms)] };
        Self {
            ports: (0..vms).map(port).collect(),
            in_flight: BTreeSet::new(),
            held: BTreeSet::new(),
            counts: NetworkCounts::default(),
            log: None,
        }
    }

    /// New draws from here on; what is in flight stays.
    pub fn reseed(&mut self, seed: u64) {
        for (vm, port) in (0..).zip(&mut self.ports) {
            port.streams = Streams::new(seed, vm);
        }
    }

    /// Whether the state is one of a switch for `vms` VMs, within its bounds.
    pub fn fits(&self, vms: usize) -> bool {
        self.ports.len() == vms
            && self.ports.iter().all(|port| port.link_free_ns.len() == vms)
            && self.in_flight.len() + self.held.len() <= IN_FLIGHT_MAX
    }

    pub fn counts(&self) -> NetworkCounts {
        self.counts
    }

    /// Begins to keep what becomes of each copy sent from here on, or ends it; gives what was kept until now.
    pub fn watch(&mut self, on: bool) -> Option<FrameLog> {
        let log = on.then(Box::default);
        std::mem::replace(&mut self.log, log).map(|log| *log)
    }

    /// When the next copy is due.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.in_flight.first().map(|copy| copy.deliver_ns)
    }

    /// Takes a frame that `from` sent at `sent_ns`.
    pub fn send(
        &mut self,
        config: &SimConfig,
        effects: &Effects,
        ledger: &mut Ledger,
        (from, sent_ns): (u16, u64),
        bytes: &[u8],
    ) {
        self.counts.sent += 1;
        let port = &mut self.ports[usize::from(from)];
        let sequence = port.sequence;
        port.sequence += 1;
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&bytes.len()) {
            self.counts.malformed += 1;
            return;
        }
        let vms = config.vms();
        let known = (0..vms).find(|vm| bytes[..6] == mac_of(*vm));
        let receivers = (0..vms).filter(|to| *to != from && known.is_none_or(|known| known == *to));
        for to in receivers {
            let link = (from, to);
            match self.fate(config, effects, ledger, link, bytes.len()) {
                Ok(fate) => self.queue(ledger, link, (sent_ns, sequence), fate, bytes),
                Err(fate) => self.note(link, (sent_ns, sequence), (sent_ns, 0), (fate, false), bytes),
            }
        }
    }

    /// Draws what the faults in effect do to a copy, or how it is lost.
    fn fate(
        &mut self,
        config: &SimConfig,
        effects: &Effects,
        ledger: &mut Ledger,
        (from, to): (u16, u16),
        bytes: usize,
    ) -> Result<Fate, CopyFate> {
        let streams = &mut self.ports[usize::from(from)].streams;
        let (latency_ns, jitter_ns) = config.link(from, to);
        let mut fate = Fate { delay_ns: latency_ns, ..Fate::default() };
        if jitter_ns > 0 {
            fate.delay_ns += streams.rest.between(0, jitter_ns);
        }
        if config.network.loss_ppm > 0 && streams.rest_loss.chance_ppm(config.network.loss_ppm) {
            self.counts.lost_at_rest += 1;
            return Err(CopyFate::Lost);
        }
        for Effect { event, index, .. } in effects.iter().filter(|effect| covers(&effect.event.fault, from, to)) {
            let hit = match event.fault {
                Fault::NetworkLatency { latency_ns, .. } => {
                    fate.delay_ns = fate.delay_ns.saturating_add(latency_ns);
                    true
                }
                Fault::NetworkJitter { jitter_ns, .. } => {
                    let draw = streams.jitter.between(0, jitter_ns);
                    fate.delay_ns = fate.delay_ns.saturating_add(draw);
                    draw > 0
                }
                Fault::NetworkLoss { loss_ppm, .. } => {
                    if streams.loss.chance_ppm(loss_ppm) {
                        self.counts.lost += 1;
                        observe(ledger, *index);
                        return Err(CopyFate::Lost);
                    }
                    false
                }
                Fault::NetworkDuplication { duplication_ppm, delay_ns, .. } => {
                    let hit = streams.duplication.chance_ppm(duplication_ppm);
                    if hit {
                        fate.second_copy_ns = Some(delay_ns);
                    }
                    hit
                }
                Fault::NetworkReorder { reorder_ppm, delay_ns, .. } => {
                    let hit = streams.reorder.chance_ppm(reorder_ppm);
                    if hit {
                        fate.delay_ns = fate.delay_ns.saturating_add(delay_ns);
                    }
                    hit
                }
                Fault::NetworkCorruption { corruption_ppm, .. } => {
                    let hit = bytes > FRAME_BYTES_MIN && streams.corruption.chance_ppm(corruption_ppm);
                    if hit {
                        // The addresses stay whole: a switch would not pass the frame on otherwise.
                        let (first, bits) = (FRAME_BYTES_MIN as u64 * 8, bytes as u64 * 8);
                        fate.flip_bit = Some(streams.corruption.between(first, bits - 1));
                    }
                    hit
                }
                Fault::NetworkBandwidth { bytes_per_second, .. } => {
                    let slower = fate.bandwidth.is_none_or(|(rate, _)| bytes_per_second < rate);
                    if slower {
                        fate.bandwidth = Some((bytes_per_second, *index));
                    }
                    false
                }
                Fault::NetworkMtu { mtu_bytes, .. } => {
                    if (bytes - FRAME_BYTES_MIN) as u64 > u64::from(mtu_bytes) {
                        self.counts.over_mtu += 1;
                        observe(ledger, *index);
                        return Err(CopyFate::Lost);
                    }
                    false
                }
                Fault::NetworkPartition { .. } | Fault::NetworkPartitionOneWay { .. } => {
                    self.counts.partitioned += 1;
                    observe(ledger, *index);
                    return Err(CopyFate::Partitioned);
                }
                _ => false,
            };
            if hit {
                observe(ledger, *index);
            }
        }
        Ok(fate)
    }

    /// Puts a copy, and its duplicate if there is one, on its way.
    fn queue(
        &mut self,
        ledger: &mut Ledger,
        (from, to): (u16, u16),
        (sent_ns, sequence): (u64, u64),
        fate: Fate,
        bytes: &[u8],
    ) {
        let mut left_ns = sent_ns;
        if let Some((bytes_per_second, index)) = fate.bandwidth {
            let free_ns = &mut self.ports[usize::from(from)].link_free_ns[usize::from(to)];
            let starts_ns = sent_ns.max(*free_ns);
            observe(ledger, index);
            if starts_ns - sent_ns > QUEUE_NS_MAX {
                self.counts.overflowed += 1;
                let (sent, end) = ((sent_ns, sequence), (sent_ns, 0));
                self.note((from, to), sent, end, (CopyFate::Overflowed, false), bytes);
                return;
            }
            let takes = (bytes.len() as u128 * 1_000_000_000).div_ceil(u128::from(bytes_per_second.max(1)));
            left_ns = starts_ns.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
            *free_ns = left_ns;
        }
        let (whole, corrupted) = (bytes, fate.flip_bit.is_some());
        let mut bytes = bytes.to_vec();
        if let Some(bit) = fate.flip_bit {
            bytes[usize::try_from(bit / 8).unwrap_or(0)] ^= 1 << (bit % 8);
            self.counts.corrupted += 1;
        }
        let deliver_ns = left_ns.saturating_add(fate.delay_ns);
        if let Some(behind_ns) = fate.second_copy_ns {
            self.counts.duplicated += 1;
            let deliver_ns = deliver_ns.saturating_add(behind_ns);
            let fate = self.insert(InFlight { deliver_ns, from, sequence, to, copy: 1, bytes: bytes.clone() });
            self.note((from, to), (sent_ns, sequence), (deliver_ns, 1), (fate, corrupted), whole);
        }
        let fate = self.insert(InFlight { deliver_ns, from, sequence, to, copy: 0, bytes });
        self.note((from, to), (sent_ns, sequence), (deliver_ns, 0), (fate, corrupted), whole);
    }

    fn insert(&mut self, copy: InFlight) -> CopyFate {
        if self.in_flight.len() + self.held.len() >= IN_FLIGHT_MAX {
            self.counts.overflowed += 1;
            return CopyFate::Overflowed;
        }
        self.in_flight.insert(copy);
        CopyFate::InFlight
    }

    /// Keeps what becomes of a copy, if someone watches. `end` is when it is due or was dropped, and which copy it is.
    fn note(
        &mut self,
        (from, to): (u16, u16),
        (sent_ns, sequence): (u64, u64),
        (due_ns, copy): (u64, u8),
        (fate, corrupted): (CopyFate, bool),
        frame: &[u8],
    ) {
        let Some(log) = &mut self.log else { return };
        let (bytes, head) = (frame.len(), frame[..frame.len().min(HEAD_BYTES)].to_vec());
        let kept = FrameCopy { from, to, sent_ns, due_ns, fate, corrupted, duplicate: copy > 0, bytes, head };
        log.sent((from, sequence, to, copy), kept);
    }

    /// Takes the copies that are due at `now_ns` and get through, in order.
    pub fn take_due(&mut self, now_ns: u64, effects: &Effects, ledger: &mut Ledger) -> Vec<InFlight> {
        // What a clog that is over held comes first: it was due before anything else.
        let held = std::mem::take(&mut self.held);
        let (held, over): (BTreeSet<InFlight>, BTreeSet<InFlight>) =
            held.into_iter().partition(|copy| effects.clog(copy.from, copy.to).is_some());
        self.held = held;
        let mut due: Vec<InFlight> = over.into_iter().collect();
        while self.in_flight.first().is_some_and(|copy| copy.deliver_ns <= now_ns) {
            let Some(copy) = self.in_flight.pop_first() else { break };
            let partition = effects.iter().find(|effect| {
                let fault = &effect.event.fault;
                matches!(fault, Fault::NetworkPartition { .. } | Fault::NetworkPartitionOneWay { .. })
                    && covers(fault, copy.from, copy.to)
            });
            if let Some(partition) = partition {
                self.counts.partitioned += 1;
                observe(ledger, partition.index);
                self.ended(&copy, now_ns, CopyFate::Partitioned);
            } else if let Some(clog) = effects.clog(copy.from, copy.to) {
                observe(ledger, clog.index);
                self.held.insert(copy);
            } else {
                due.push(copy);
            }
        }
        due
    }

    /// Counts a copy that was due: it reached its network card, or its VM was down.
    pub fn count_due(&mut self, copy: &InFlight, now_ns: u64, delivered: bool) {
        if delivered {
            self.counts.delivered += 1;
            self.ended(copy, now_ns, CopyFate::Delivered);
        } else {
            self.counts.to_down += 1;
            self.ended(copy, now_ns, CopyFate::ToDown);
        }
    }

    fn ended(&mut self, copy: &InFlight, now_ns: u64, fate: CopyFate) {
        if let Some(log) = &mut self.log {
            log.ended((copy.from, copy.sequence, copy.to, copy.copy), now_ns, fate);
        }
    }
}

fn observe(ledger: &mut Ledger, index: Option<u32>) {
    if let Some(index) = index {
        ledger.observe(index as usize, 1);
    }
}
