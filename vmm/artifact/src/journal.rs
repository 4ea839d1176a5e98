// SPDX-License-Identifier: AGPL-3.0-or-later
//! What one branch did, moment by moment: every message with what became of it, what the guests said, and when the console
//! said what. A replay makes it, for people; it is no document, has no digest, and nothing is decided by it.
//!
//! All times are cluster ns since the cluster started. Every list is bounded and keeps its end, where a violation stands.

use serde::Serialize;

use crate::U64;

/// What became of a copy of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageFate {
    /// The branch ended before it was due.
    InFlight,
    /// It reached its network card.
    Delivered,
    /// A loss fault took it.
    Lost,
    /// A partition dropped it.
    Partitioned,
    /// A queue was full.
    Overflowed,
    /// Its VM was down when it was due.
    ToDown,
}

impl MessageFate {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::InFlight => "in flight",
            Self::Delivered => "delivered",
            Self::Lost => "lost",
            Self::Partitioned => "dropped by a partition",
            Self::Overflowed => "lost in a full queue",
            Self::ToDown => "its VM was down",
        }
    }
}

/// One copy of a frame that a guest sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Sending VM.
    pub from: u16,
    /// Receiving VM.
    pub to: u16,
    /// When it was sent.
    pub sent_ns: U64,
    /// When it was due, or when it was dropped.
    pub due_ns: U64,
    /// What became of it.
    pub fate: MessageFate,
    /// Whether a fault flipped one of its bits.
    pub corrupted: bool,
    /// Whether it is the copy that a duplication fault made.
    pub duplicate: bool,
    /// Length of the frame.
    pub bytes: u32,
    /// The frame's first bytes, as they were sent: enough for the headers.
    #[serde(skip)]
    pub head: Vec<u8>,
}

/// What a record from a guest is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SaidKind {
    /// An event of the workload.
    Event,
    /// The first pass of an assertion in its process.
    Passed,
    /// The first failure of an assertion in its process that may not fail.
    Failed,
    /// The first evaluation that did not hold of an assertion that need not always hold.
    Missed,
    /// A value reported for a key on which all must agree.
    Agree,
    /// Setup is complete.
    Setup,
    /// A line for the report.
    Log,
    /// A process began, ended, or the workload did.
    Process,
    /// A record that broke the protocol.
    Refused,
}

/// Something that a guest said through its SDK. Texts are the guest's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said {
    /// Which VM.
    pub vm: u16,
    /// When.
    pub at_ns: U64,
    /// What it is about.
    pub kind: SaidKind,
    /// The event's name, the property, the namespace, or the line.
    pub name: String,
    /// A JSON text, the beginning of key and value, or empty.
    pub details: String,
}

/// Console output of one VM in one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConsoleText {
    /// End of the round in which it was written.
    pub at_ns: U64,
    /// The bytes.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// What happened to frames in the branch, counted by copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkTotals {
    /// Frames that guests sent.
    pub sent: U64,
    /// Copies that reached a network card.
    pub delivered: U64,
    /// Copies lost to a loss fault.
    pub lost: U64,
    /// Copies dropped by a partition.
    pub partitioned: U64,
    /// Copies made by a duplication fault.
    pub duplicated: U64,
    /// Copies with a flipped bit.
    pub corrupted: U64,
    /// Copies lost because a queue was full.
    pub overflowed: U64,
    /// Copies for a VM that was down.
    pub to_down: U64,
    /// Frames that were too short or too long.
    pub malformed: U64,
}

/// A whole branch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Journal {
    /// Messages in the order in which they were sent.
    pub messages: Vec<Message>,
    /// How many more came before them.
    pub messages_left_out: U64,
    /// What the guests said, in the order in which it was heard.
    pub said: Vec<Said>,
    /// How much more came before.
    pub said_left_out: U64,
    /// Console output of each VM, round by round.
    pub consoles: Vec<Vec<ConsoleText>>,
    /// All frames of the branch.
    pub network: NetworkTotals,
}
