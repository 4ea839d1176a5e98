// SPDX-License-Identifier: AGPL-3.0-or-later
//! The SDK window: how a guest's processes report to the host (layout and records: `chaoscontrol-protocol`).
//!
//! ```text
//!   REGION_ADDRESS           doorbell page: this device; every access exits
//!   + 0x1000                 window: ordinary guest memory, so it is in snapshots and dirty tracking; costs no exits
//! ```
//!
//! A ring of the doorbell drains one slot before the guest goes on; the machine's owner drains all slots at each barrier with
//! [`SdkWindow::drain_all`] and takes what came with [`SdkWindow::take_messages`]. A ring for a slot that holds no record asks
//! the owner to take over the slot's counters: a process does so before it zeroes those of a dead one. The guest may write anything into the
//! window: the protocol's strict decoder answers malformed records with an error, which becomes a [`Body::Refused`] message and
//! a count, and nothing of such a record is used.
//!
//! Random requests are answered here, within the doorbell write, from the answers that the explorer forced: `get_random` else from
//! the machine's seeded stream, `random_choice` from a stream of its own. Every answer is also a message, so that traces hold
//! it and exploration can branch on it.

use std::collections::BTreeMap;

use chaoscontrol_protocol::host::{self, Counts, WindowMemory};
use chaoscontrol_protocol::layout::{COVERAGE_BYTES, RECORD_BYTES_MAX, SLOTS};
use chaoscontrol_protocol::{AgentAction, DOORBELL_BYTES, DecodeError, Doorbell, REGION_ADDRESS, Record};
use serde::{Deserialize, Serialize};

use crate::device::{Context, Device, Request, StateError, value_of};
use crate::entropy::{Purpose, Stream};
use crate::memory::GuestMemory;
use crate::time::GuestNs;

/// Bytes that waiting messages may take; what comes beyond is dropped and counted. A full round of every slot's ring is
/// half a megabyte.
pub const MESSAGE_BYTES_MAX: u64 = 16 << 20;
/// What a waiting message is counted as beside its record.
const MESSAGE_OVERHEAD_BYTES: u64 = 64;
/// Choices that one branch may force.
pub const FORCED_CHOICES_MAX: usize = 1 << 16;

/// Something a guest's process, or `chaos-init`, told the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Guest time at which the host read it.
    pub at: GuestNs,
    /// Messages of this machine before it.
    pub sequence: u64,
    /// What was said.
    pub body: Body,
}

/// What a [`Message`] says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// A well-formed record.
    Record {
        /// Slot it came through.
        slot: u32,
        /// Its encoding; [`Message::record`] decodes it.
        #[serde(with = "crate::byte_string")]
        bytes: Vec<u8>,
    },
    /// A record that breaks the protocol; nothing of it is used.
    Refused {
        /// Slot it came through.
        slot: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// A random request and its answer.
    Random {
        /// Slot it came through.
        slot: u32,
        /// The answer lies below this; 0 is a `get_random` of 64 bits.
        below: u64,
        /// The answer.
        value: u64,
        /// For a `random_choice`: how many this machine made before.
        choice: Option<u64>,
    },
    /// The workload is about to start.
    RestartPoint,
    /// `chaos-init` could not start the workload.
    InitFailed,
    /// The workload exited with this code.
    WorkloadExited(u8),
    /// A signal ended the workload.
    WorkloadKilled(u8),
    /// A doorbell value without a meaning.
    UnknownDoorbell(u64),
    /// The agent answers a request.
    AgentAnswer {
        /// The low half of the request's number.
        number: u16,
        /// 0 when it was carried out, else the system's error number.
        code: u8,
    },
}

impl Message {
    /// The record, if that is what the message is.
    pub fn record(&self) -> Option<Record<'_>> {
        match &self.body {
            Body::Record { bytes, .. } => Record::decode(bytes).ok(),
            _ => None,
        }
    }

    fn bytes(&self) -> u64 {
        let variable = match &self.body {
            Body::Record { bytes, .. } => bytes.len(),
            Body::Refused { reason, .. } => reason.len(),
            _ => 0,
        };
        MESSAGE_OVERHEAD_BYTES + variable as u64
    }
}

/// What went through the window so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SdkCounters {
    /// Doorbell writes that mean something.
    pub doorbells: u64,
    /// Accesses to the doorbell page that mean nothing.
    pub refused_doorbells: u64,
    /// Well-formed records.
    pub records: u64,
    /// Malformed records, or whole rings.
    pub refused_records: u64,
    /// Messages lost because too many waited.
    pub dropped_messages: u64,
    /// Forced choices that were not below their bound and were reduced to it.
    pub reduced_choices: u64,
}

/// Saved state of the SDK window; the window's memory is saved with guest memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SdkState {
    messages: Vec<Message>,
    sequence: u64,
    random: Stream,
    choice: Stream,
    choices_made: u64,
    forced: BTreeMap<u64, u64>,
    /// None until a branch says what it forces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    randoms: Option<Randoms>,
    counters: SdkCounters,
}

/// Where a branch is among its `get_random`s.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Randoms {
    /// Answered since the start of the branch.
    made: u64,
    /// From how many were made before to the answer.
    forced: BTreeMap<u64, u64>,
}

/// The SDK window's device half.
#[derive(Debug)]
pub struct SdkWindow {
    state: SdkState,
    /// Derived: bytes that `state.messages` take.
    waiting_bytes: u64,
}

/// The window as the protocol's host side sees it.
struct Window<'a>(&'a GuestMemory);

const WINDOW_MAPPED: &str = "the window is guest memory and the protocol stays inside it";

impl WindowMemory for Window<'_> {
    fn read(&self, offset: u32, into: &mut [u8]) {
        self.0.read(REGION_ADDRESS + DOORBELL_BYTES + u64::from(offset), into).expect(WINDOW_MAPPED);
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) {
        self.0.write(REGION_ADDRESS + DOORBELL_BYTES + u64::from(offset), bytes).expect(WINDOW_MAPPED);
    }
}

impl SdkWindow {
    /// The window of the machine with this root seed. Call [`SdkWindow::initialize`] once memory is there.
    pub fn new(root: &[u8; 32]) -> Self {
        let state = SdkState {
            messages: Vec::new(),
            sequence: 0,
            random: Stream::new(root, Purpose::SdkRandom),
            choice: Stream::new(root, Purpose::SdkChoice),
            choices_made: 0,
            forced: BTreeMap::new(),
            randoms: None,
            counters: SdkCounters::default(),
        };
        SdkWindow { state, waiting_bytes: 0 }
    }

    /// Writes the header of a fresh window.
    pub fn initialize(memory: &GuestMemory) {
        host::initialize(&mut Window(memory));
    }

    /// Tells the guest's init that the wall clock was stepped.
    pub fn step_wall_clock(memory: &GuestMemory, change_ns: i64) {
        host::step_wall_clock(&mut Window(memory), change_ns);
    }

    /// Asks the guest's agent for something and returns the low half of the request's number, which its answer names.
    pub fn ask_agent(memory: &GuestMemory, action: AgentAction) -> u16 {
        let [low, high, ..] = host::ask_agent(&mut Window(memory), action).to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Starts both random streams over under another root seed.
    pub fn reseed(&mut self, root: &[u8; 32]) {
        self.state.random.reseed(root);
        self.state.choice.reseed(root);
    }

    /// Forces the answers of coming choices: from the `n`-th choice since power-on to its answer. Replaces what was forced
    /// before; at most [`FORCED_CHOICES_MAX`] are kept, the earliest. An answer past its choice's bound is reduced to it.
    pub fn force_choices(&mut self, forced: BTreeMap<u64, u64>) {
        self.state.forced = forced.into_iter().take(FORCED_CHOICES_MAX).collect();
    }

    /// Choices answered since power-on.
    pub fn choices_made(&self) -> u64 {
        self.state.choices_made
    }

    /// Forces the answers of coming `get_random`s, of which a branch has `made` so many already: from how many it makes before to
    /// the answer. Replaces what was forced before; at most [`FORCED_CHOICES_MAX`] are kept, the earliest.
    pub fn force_randoms(&mut self, made: u64, forced: BTreeMap<u64, u64>) {
        self.state.randoms = Some(Randoms { made, forced: forced.into_iter().take(FORCED_CHOICES_MAX).collect() });
    }

    /// Numbers that `get_random` gave since a branch said with [`Self::force_randoms`] how many it had got.
    pub fn randoms_made(&self) -> u64 {
        self.state.randoms.as_ref().map_or(0, |randoms| randoms.made)
    }

    /// Bytes that messages take which wait to be taken.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// What went through the window so far.
    pub fn counters(&self) -> SdkCounters {
        self.state.counters
    }

    /// Reads every slot, as at a barrier.
    pub fn drain_all(&mut self, memory: &GuestMemory, now: GuestNs) {
        for slot in 0..SLOTS {
            self.drain(slot, memory, now);
        }
    }

    /// Takes the messages since the last call, in order.
    pub fn take_messages(&mut self) -> Vec<Message> {
        self.waiting_bytes = 0;
        std::mem::take(&mut self.state.messages)
    }

    /// Hands the counters of each assertion site in use by `slot` to `visit`; none for a slot that does not exist.
    pub fn assertion_counts(memory: &GuestMemory, slot: u32, visit: &mut dyn FnMut(u16, Counts)) {
        if slot < SLOTS {
            host::counters(&Window(memory), slot, visit);
        }
    }

    /// What the guest counts itself (SanCov, KCOV), if it counted anything since [`SdkWindow::clear_coverage`].
    pub fn coverage(memory: &GuestMemory) -> Option<Vec<u8>> {
        let mut map = [0; COVERAGE_BYTES as usize];
        host::coverage(&Window(memory), &mut map).then(|| map.to_vec())
    }

    /// Zeroes what the guest counts itself.
    pub fn clear_coverage(memory: &GuestMemory) {
        host::clear_coverage(&mut Window(memory));
    }

    /// Reads one slot; true when the machine's owner should look before the guest goes on: it held more than random requests,
    /// or nothing at all.
    fn drain(&mut self, slot: u32, memory: &GuestMemory, now: GuestNs) -> bool {
        let mut window = Window(memory);
        if !host::has_records(&window, slot) {
            return true;
        }
        let mut requests = Vec::new();
        let mut reports = false;
        host::drain(&mut window, slot, &mut |record| match record {
            Ok(Record::Random { id, below }) => requests.push((id, below)),
            other => {
                reports = true;
                self.report(slot, other, now);
            }
        });
        for (id, below) in requests {
            let value = self.answer(slot, below, now);
            host::answer_random(&mut window, slot, id, value);
        }
        reports
    }

    fn report(&mut self, slot: u32, record: Result<Record<'_>, DecodeError>, now: GuestNs) {
        let mut buffer = [0; RECORD_BYTES_MAX];
        let body = match record {
            Ok(record) => {
                self.state.counters.records += 1;
                let bytes = record.encode(&mut buffer).expect("a decoded record is within every bound");
                Body::Record { slot, bytes: buffer[..bytes].to_vec() }
            }
            Err(error) => {
                self.state.counters.refused_records += 1;
                Body::Refused { slot, reason: error.to_string() }
            }
        };
        self.push(body, now);
    }

    fn answer(&mut self, slot: u32, below: u64, now: GuestNs) -> u64 {
        self.state.counters.records += 1;
        if below == 0 {
            // Here too the stream moves on, so that forcing one leaves the later ones as they are.
            let drawn = self.state.random.next_u64();
            let value = self.state.randoms.as_mut().map_or(drawn, |randoms| randoms.next(drawn));
            self.push(Body::Random { slot, below, value, choice: None }, now);
            return value;
        }
        let choice = self.state.choices_made;
        self.state.choices_made += 1;
        // The stream moves on also where the answer is forced, so that forcing one choice leaves the later ones as they are.
        let drawn = self.state.choice.below(below);
        let value = match self.state.forced.remove(&choice) {
            Some(forced) if forced < below => forced,
            Some(forced) => {
                self.state.counters.reduced_choices += 1;
                forced % below
            }
            None => drawn,
        };
        self.push(Body::Random { slot, below, value, choice: Some(choice) }, now);
        value
    }

    fn push(&mut self, body: Body, now: GuestNs) {
        let message = Message { at: now, sequence: self.state.sequence, body };
        self.state.sequence += 1;
        if self.waiting_bytes + message.bytes() > MESSAGE_BYTES_MAX {
            self.state.counters.dropped_messages += 1;
            return;
        }
        self.waiting_bytes += message.bytes();
        self.state.messages.push(message);
    }

    fn ring(&mut self, bell: Doorbell, context: &mut Context<'_>) {
        self.state.counters.doorbells += 1;
        match bell {
            Doorbell::Drain(slot) => {
                if self.drain(slot, context.memory, context.now) {
                    *context.request = Some(Request::Doorbell { slot });
                }
            }
            Doorbell::RestartPoint => {
                self.push(Body::RestartPoint, context.now);
                *context.request = Some(Request::RestartPoint);
            }
            Doorbell::InitFailed => self.push(Body::InitFailed, context.now),
            Doorbell::WorkloadExited(code) => self.push(Body::WorkloadExited(code), context.now),
            Doorbell::WorkloadKilled(signal) => self.push(Body::WorkloadKilled(signal), context.now),
            Doorbell::AgentAnswer { number, code } => self.push(Body::AgentAnswer { number, code }, context.now),
        }
    }
}

impl Randoms {
    /// The answer to the next one.
    fn next(&mut self, drawn: u64) -> u64 {
        let value = self.forced.remove(&self.made).unwrap_or(drawn);
        self.made += 1;
        value
    }
}

impl Device for SdkWindow {
    type State = SdkState;

    fn read(&mut self, _offset: u64, data: &mut [u8], _context: &mut Context<'_>) {
        data.fill(0);
        self.state.counters.refused_doorbells += 1;
    }

    fn write(&mut self, offset: u64, data: &[u8], context: &mut Context<'_>) {
        let value = value_of(data);
        let bell = u32::try_from(value).ok().filter(|_| offset == 0 && data.len() == 4).and_then(Doorbell::decode);
        match bell {
            Some(bell) => self.ring(bell, context),
            None => {
                self.state.counters.refused_doorbells += 1;
                self.push(Body::UnknownDoorbell(value), context.now);
            }
        }
    }

    fn save(&self) -> SdkState {
        self.state.clone()
    }

    fn restore(&mut self, state: &SdkState) -> Result<(), StateError> {
        let waiting_bytes = state.messages.iter().map(Message::bytes).sum();
        let forced = state.forced.len() + state.randoms.as_ref().map_or(0, |randoms| randoms.forced.len());
        if waiting_bytes > MESSAGE_BYTES_MAX || forced > 2 * FORCED_CHOICES_MAX {
            return Err(StateError::new("sdk window", "more messages or forced choices than the bounds allow"));
        }
        if state
            .messages
            .iter()
            .any(|message| matches!(message.body, Body::Record { .. }) && message.record().is_none())
        {
            return Err(StateError::new("sdk window", "a waiting record is malformed"));
        }
        self.state = state.clone();
        self.waiting_bytes = waiting_bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
