// SPDX-License-Identifier: AGPL-3.0-or-later
//! Watching a branch: what guests said, what their consoles showed when, and what became of each frame. For people who look at
//! a replay; nothing is decided by it and no snapshot holds it.

use std::collections::VecDeque;

use chaoscontrol_protocol::{Outcome, Record};
use chaoscontrol_sim::{FrameLog, NetworkCounts};

use crate::branch::{BranchOutcome, BranchPlan};
use crate::cluster::{Cluster, SERIAL_TAIL_BYTES};
use crate::config::ClusterError;
use crate::node::{MessageBody, Node};
use crate::oracle::{Moment, Oracle};
use crate::snapshot::ClusterSnapshot;

/// Records of one branch that are kept; older ones are only counted.
pub const HEARD_MAX: usize = 65_536;

/// Bytes of a value of an agreement that are kept.
const VALUE_BYTES: usize = 64;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeardKind {
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
    /// A process began or ended, or the workload did.
    Process,
    /// A record that broke the protocol.
    Refused,
}

/// A record of a guest. Texts are the guest's own and must be escaped where they are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Which VM.
    pub vm: u16,
    /// When, in cluster ns.
    pub cluster_ns: u64,
    /// What it is about.
    pub kind: HeardKind,
    /// The event's name, the property, the namespace, or the line.
    pub name: String,
    /// A JSON text, the beginning of key and value, or empty.
    pub details: String,
}

/// What one VM's console showed in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsolePiece {
    /// Cluster ns of the round's end.
    pub cluster_ns: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The end of one VM's console output, round by round; first what there was when the branch began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleLog {
    /// The last [`SERIAL_TAIL_BYTES`].
    pub pieces: VecDeque<ConsolePiece>,
    bytes: usize,
}

impl ConsoleLog {
    /// What the console had shown when the branch began, as if it had been written then.
    pub(crate) fn beginning(cluster_ns: u64, tail: &[u8]) -> Self {
        let mut log = Self::default();
        log.push(cluster_ns, tail);
        log
    }

    fn push(&mut self, cluster_ns: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let bytes = &bytes[bytes.len().saturating_sub(SERIAL_TAIL_BYTES)..];
        self.bytes += bytes.len();
        self.pieces.push_back(ConsolePiece { cluster_ns, bytes: bytes.to_vec() });
        while self.bytes > SERIAL_TAIL_BYTES {
            let Some(first) = self.pieces.pop_front() else { break };
            self.bytes -= first.bytes.len();
        }
    }
}

/// What was watched of one branch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BranchLog {
    /// What the guests said, in the order in which it was heard: the last [`HEARD_MAX`].
    pub heard: VecDeque<Heard>,
    /// Records before those.
    pub heard_left_out: u64,
    /// Consoles, by VM.
    pub consoles: Vec<ConsoleLog>,
    /// Frames.
    pub frames: FrameLog,
    /// What happened to frames before the branch.
    pub network_before: NetworkCounts,
}

impl BranchLog {
    /// A message of a guest that the oracle has taken in already.
    pub(crate) fn hear(&mut self, moment: Moment, oracle: &Oracle, body: &MessageBody) {
        let Some((kind, name, details)) = describe(moment.vm, oracle, body) else { return };
        self.heard.push_back(Heard { vm: moment.vm, cluster_ns: moment.cluster_ns, kind, name, details });
        if self.heard.len() > HEARD_MAX {
            self.heard.pop_front();
            self.heard_left_out += 1;
        }
    }

    /// What a VM's console showed in the round that ends at `cluster_ns`.
    pub(crate) fn console(&mut self, vm: u16, cluster_ns: u64, bytes: &[u8]) {
        if let Some(console) = self.consoles.get_mut(usize::from(vm)) {
            console.push(cluster_ns, bytes);
        }
    }
}

/// Kind, name and details of what people want to see; none for catalogs, random numbers and guidance.
fn describe(vm: u16, oracle: &Oracle, body: &MessageBody) -> Option<(HeardKind, String, String)> {
    let none = String::new;
    match body {
        MessageBody::Record { slot, bytes } => record(vm, oracle, *slot, bytes),
        MessageBody::Refused { reason, .. } => Some((HeardKind::Refused, reason.clone(), none())),
        MessageBody::Random { .. } => None,
        MessageBody::InitFailed => Some((HeardKind::Process, "init could not start the workload".to_owned(), none())),
        MessageBody::WorkloadExited(code) => {
            Some((HeardKind::Process, format!("the workload exited with code {code}"), none()))
        }
        MessageBody::WorkloadKilled(signal) => {
            Some((HeardKind::Process, format!("signal {signal} ended the workload"), none()))
        }
        MessageBody::AgentAnswer { number, code: 0 } => {
            Some((HeardKind::Process, format!("the agent did request {number}"), none()))
        }
        MessageBody::AgentAnswer { number, code } => {
            Some((HeardKind::Process, format!("the agent could not do request {number}: error {code}"), none()))
        }
    }
}

fn record(vm: u16, oracle: &Oracle, slot: u32, bytes: &[u8]) -> Option<(HeardKind, String, String)> {
    let record = match Record::decode(bytes) {
        Ok(record) => record,
        Err(error) => return Some((HeardKind::Refused, error.to_string(), String::new())),
    };
    match record {
        Record::ProcessStart { pid, name, .. } => {
            Some((HeardKind::Process, format!("process {pid} started: {name}"), String::new()))
        }
        Record::ProcessExit { pid, signalled, code } => {
            let how = if signalled { "by signal" } else { "with code" };
            Some((HeardKind::Process, format!("process {pid} ended {how} {code}"), String::new()))
        }
        Record::Assertion { site, outcome, details } => {
            let (message, may_not_fail) = oracle.property_at(vm, slot, site)?;
            let kind = match outcome {
                Outcome::Pass => HeardKind::Passed,
                Outcome::Fail if may_not_fail => HeardKind::Failed,
                Outcome::Fail => HeardKind::Missed,
            };
            Some((kind, message.to_owned(), details.to_owned()))
        }
        Record::Event { name, details } => Some((HeardKind::Event, name.to_owned(), details.to_owned())),
        Record::SetupComplete { details } => Some((HeardKind::Setup, "setup complete".to_owned(), details.to_owned())),
        Record::Agree { namespace, key, value, .. } => {
            let details = format!("key {}, value {}", shown(key), shown(value));
            Some((HeardKind::Agree, namespace.to_owned(), details))
        }
        Record::Log { text, .. } => Some((HeardKind::Log, text.to_owned(), String::new())),
        Record::Quiet { lasts_ns: 0 } => Some((HeardKind::Event, "quiet period ended".to_owned(), String::new())),
        Record::Quiet { lasts_ns } => {
            Some((HeardKind::Event, format!("quiet period of {lasts_ns} ns asked for"), String::new()))
        }
        Record::Catalog(_) | Record::CatalogEnd { .. } | Record::Guidance { .. } | Record::Random { .. } => None,
    }
}

/// The beginning of a key or value: in quotes where it is plain text, else as hexadecimal digits.
fn shown(bytes: &[u8]) -> String {
    let kept = &bytes[..bytes.len().min(VALUE_BYTES)];
    let more = if kept.len() < bytes.len() { "…" } else { "" };
    if !kept.is_empty() && kept.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return format!("\"{}\"{more}", String::from_utf8_lossy(kept));
    }
    let digits: String = kept.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}{more}")
}

impl<N: Node> Cluster<N> {
    /// As [`Cluster::run_branch`], or from where the cluster stands without `from`, and gives what was watched. The outcome is
    /// the same to the last bit.
    pub fn run_watched(
        &mut self,
        from: Option<&ClusterSnapshot<N::Snapshot>>,
        plan: &BranchPlan,
    ) -> Result<(BranchOutcome, BranchLog), ClusterError<N::Error>> {
        if let Some(from) = from {
            self.restore(from)?;
        }
        self.start_watching();
        let outcome = self.run(plan);
        let log = self.stop_watching();
        Ok((outcome?, log))
    }
}
