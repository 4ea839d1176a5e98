// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a report says, apart from how it looks. `--format json` writes this; the page and the text are made of nothing else.
//!
//! Texts are as the guests wrote them: whoever renders escapes. Times are cluster ns since the cluster started unless their name
//! says that they count from the branch's start.

use std::collections::BTreeMap;

use chaoscontrol_artifact::journal::{Message, NetworkTotals, Said};
use chaoscontrol_artifact::schema::{AssertionSummary, FaultCounts, LabelCounts, ToolIdentity, Violation};
use chaoscontrol_artifact::{Digest, U64};
use serde::Serialize;

/// Version of the JSON form; a change of meaning bumps it.
pub const VERSION: u32 = 1;

/// A campaign for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `chaos-report`.
    pub format: &'static str,
    /// [`VERSION`].
    pub version: u32,
    /// Who made it.
    pub tool: ToolIdentity,
    /// The stage that the report was asked of.
    pub stage: String,
    /// Its descriptor.
    pub descriptor: Digest,
    /// The verdict's class, where the chain has one.
    pub class: Option<String>,
    /// The acceptance status, where the chain has one.
    pub status: Option<String>,
    /// What the guests are.
    pub cluster: Option<Guests>,
    /// What was explored, where the chain explored.
    pub campaign: Option<CampaignPart>,
    /// Every bug, in order of discovery.
    pub bugs: Vec<BugPart>,
    /// Every assertion.
    pub assertions: Vec<AssertionSummary>,
    /// What became of faults, by kind.
    pub faults: BTreeMap<String, FaultCounts>,
    /// The stages behind the report, first to last.
    pub stages: Vec<StagePart>,
}

/// The guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Guests {
    /// Number of VMs.
    pub vms: u16,
    /// RAM of each.
    pub memory_bytes: U64,
    /// Seed of everything random in the cluster.
    pub seed: U64,
    /// What ran them.
    pub engine: String,
    /// Kernel command line of all.
    pub append: String,
    /// Kernel command lines of single VMs.
    pub append_vm: Vec<String>,
    /// Sizes of each VM's disks.
    pub disk_bytes: Vec<U64>,
    /// Delay of each frame.
    pub latency_ns: U64,
    /// Largest random delay on top.
    pub jitter_ns: U64,
    /// The kernel.
    pub kernel: Digest,
    /// The initrd.
    pub initrd: Option<Digest>,
}

/// What was explored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CampaignPart {
    /// The corpus.
    pub corpus: Digest,
    /// Seed of the campaign.
    pub seed: U64,
    /// How branches were planned: `faults`, `inputs`, `hybrid` or `uniform`.
    pub mode: String,
    /// Branches run.
    pub branches: U64,
    /// Branches merged when the last new edge was reached.
    pub novel: U64,
    /// Branches that were kept, by where their schedules came from.
    pub origins: BTreeMap<String, u64>,
    /// What guests did, and how often. Names may hold text from guests.
    pub labels: BTreeMap<String, LabelCounts>,
    /// Length of one in cluster ns.
    pub horizon_ns: U64,
    /// Edges reached.
    pub edges: u32,
    /// Branches kept to build on.
    pub entries: u32,
    /// Instructions of all branches.
    pub instructions: U64,
    /// Cluster time of all branches.
    pub cluster_ns: U64,
    /// Edges known after each branch that found new ones: branch, edges.
    pub growth: Vec<(U64, u64)>,
    /// Where rounds ended: branches, edges, bugs.
    pub rounds: Vec<(U64, u32, u32)>,
}

/// One fault of a schedule and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FaultPart {
    /// When it was due, counted from the branch's start.
    pub due_ns: U64,
    /// Its kind.
    pub kind: String,
    /// The kind with its parameters, for people.
    pub text: String,
    /// VMs that it is aimed at; all, for faults of links.
    pub vms: Vec<u16>,
    /// When it took effect, counted from the branch's start.
    pub applied_ns: Option<U64>,
    /// When it ends by itself, counted from the branch's start; none where it has no end, or none is stated.
    pub until_ns: Option<U64>,
    /// What became of it, for people.
    pub fate: String,
    /// How often its effect was observed.
    pub observed: U64,
}

/// A stretch of time in which a VM's power was the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stretch {
    /// Its beginning, counted from the branch's start.
    pub from_ns: U64,
    /// Its end.
    pub to_ns: U64,
    /// `up`, `paused` or `down`.
    pub power: &'static str,
}

/// One VM over the whole branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lane {
    /// The VM.
    pub vm: u16,
    /// Its power.
    pub power: Vec<Stretch>,
    /// Frames it sent.
    pub frames_sent: U64,
    /// Frames that reached it.
    pub frames_delivered: U64,
    /// Records that it sent.
    pub records: U64,
    /// Frames it sent in each of [`BINS`] equal parts of the branch.
    pub traffic: Vec<u64>,
}

/// Parts into which a branch's traffic is divided.
pub const BINS: usize = 120;

/// Frames between two VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkPart {
    /// Sending VM.
    pub from: u16,
    /// Receiving VM.
    pub to: u16,
    /// Copies that were sent.
    pub sent: U64,
    /// Copies that arrived.
    pub delivered: U64,
    /// Copies that a fault, a queue or a VM that was down swallowed.
    pub dropped: U64,
    /// Bytes sent.
    pub bytes: U64,
    /// Shortest and longest way of those that arrived.
    pub delay_ns: Option<(U64, U64)>,
}

/// A message with what its headers say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessagePart {
    /// The message.
    #[serde(flatten)]
    pub message: Message,
    /// What it is: protocol, ports, flags, length.
    pub text: String,
}

/// What a replay saw around the violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moments {
    /// Where what follows begins.
    pub from_ns: U64,
    /// Messages that carried something, in order of sending.
    pub messages: Vec<MessagePart>,
    /// Acknowledgements and the like in the same time, which are not listed.
    pub bare: u64,
    /// What the guests said.
    pub said: Vec<Said>,
    /// How much more they said in the branch, before `from_ns`.
    pub said_before: U64,
    /// All links of the branch.
    pub links: Vec<LinkPart>,
    /// All frames of the branch.
    pub network: NetworkTotals,
    /// The end of each console: when, and which line.
    pub consoles: Vec<Vec<(U64, String)>>,
}

/// A bug.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BugPart {
    /// Its number, from 1 in order of discovery.
    pub number: u64,
    /// The bug, or the minimized bug.
    pub object: Digest,
    /// What is wrong.
    pub violation: Violation,
    /// What replaying it proved.
    pub class: Option<String>,
    /// What came of running it again, for people.
    pub reproduction: Option<String>,
    /// Branch of the campaign that found it.
    pub branch: Option<U64>,
    /// Whether each fault of the schedule is needed; none where it was not minimized.
    pub one_minimal: Option<bool>,
    /// Branches that minimizing ran.
    pub attempts: Option<u32>,
    /// Cluster time at which the branch starts.
    pub start_ns: U64,
    /// Cluster time that the branch took.
    pub cluster_ns: U64,
    /// Seed of the branch.
    pub seed: U64,
    /// Instructions of all VMs in the branch.
    pub instructions: U64,
    /// The schedule that shows the bug.
    pub schedule: Vec<FaultPart>,
    /// The schedule that found it, where that is another one.
    pub found_with: Option<Vec<FaultPart>>,
    /// Each VM over the whole branch, where the trace is there.
    pub lanes: Vec<Lane>,
    /// What a replay saw.
    pub moments: Option<Moments>,
    /// Why there is none.
    pub no_moments: Option<String>,
    /// Commands that run it again, each with a few words about it.
    pub replay: Vec<(String, String)>,
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StagePart {
    /// Its name.
    pub stage: String,
    /// The tool.
    pub tool: ToolIdentity,
    /// Its descriptor.
    pub descriptor: Digest,
    /// Its parameters.
    pub parameters: Vec<(String, String)>,
}

impl Report {
    /// Whether a bug was found.
    pub fn has_bugs(&self) -> bool {
        !self.bugs.is_empty()
    }
}
