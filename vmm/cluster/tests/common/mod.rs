// SPDX-License-Identifier: AGPL-3.0-or-later
//! A VM without a CPU: a list of steps that run in guest time, over a real disk with a write cache.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use chaoscontrol_cluster::sim::{AgentAction, Clock, Digest, DiskCounts, DiskFaults, PowerCut, SentFrame, mac_of};
use chaoscontrol_cluster::{Cluster, Message, MessageBody, Node, NodeStop};
use chaoscontrol_fault::{Fault, FaultEvent, Schedule};
use chaoscontrol_machine::entropy::{Purpose, Stream};
use chaoscontrol_machine::pages::PageMap;
use chaoscontrol_machine::virtio::block::{Disk, Survivors};
use chaoscontrol_protocol::digest::Sha256;
use chaoscontrol_protocol::host::Counts;
use chaoscontrol_protocol::layout::PAYLOAD_BYTES_MAX;
use chaoscontrol_protocol::{AssertionKind, CatalogEntry, Outcome, Record};
use chaoscontrol_sim::{NetworkConfig, SimConfig};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;
const NS_PER_INSTRUCTION: u64 = 10;

/// What the guest does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Runs so many instructions.
    Work(u64),
    /// Halts for so many guest ns, or until a frame arrives.
    Sleep(u64),
    /// Sends a frame with its loop count to a VM.
    Send(u16),
    /// Reports records and rings the doorbell if the flag is set.
    Report(Vec<Vec<u8>>, bool),
    /// Counts passes of site 0 in slot 0.
    Count(u64),
    /// Adds a hit to a slot of the coverage map in its memory.
    Hit(usize),
    /// Leaves a choice among so many to the host, prints it, and works as many thousand instructions.
    Choose(u64),
    /// Gets a random number and prints it.
    Draw,
    /// Is about to start its workload.
    RestartPoint,
    /// Writes a sector full of a byte.
    Write(u64, u8),
    /// Makes completed writes durable.
    Flush,
    /// Prints the first byte of a sector.
    Print(u64),
    /// Prints the wall clock in ms, guest time in ms, the generation id's first byte and a random byte.
    PrintClocks,
    /// Prints a text.
    Say(&'static str),
    /// Goes back to this step.
    Loop(usize),
    /// The workload ends with this code; the power goes off.
    Exit(u8),
    /// The kernel panics.
    Panic(&'static str),
    /// The power goes off without a word.
    PowerOff,
    /// The machine itself fails.
    Fail,
}

#[derive(Clone, Debug)]
struct State {
    step: usize,
    /// Instructions left of a `Work`.
    working: u64,
    sleeping_until: Option<u64>,
    guest_ns: u64,
    instructions: u64,
    loops: u64,
    frames: Vec<SentFrame>,
    received: Vec<Vec<u8>>,
    messages: Vec<Message>,
    /// Records that wait for a drain.
    ring: Vec<Vec<u8>>,
    counts: Counts,
    /// The coverage map.
    hits: [u8; 8],
    serial: Vec<u8>,
    wall_offset_ns: u64,
    entropy: [u8; 32],
    generation: [u8; 16],
    disk: Disk,
    faults: DiskFaults,
    disk_counts: DiskCounts,
    /// Requests to the agent, which carries them out at once, cannot pause and never answers about memory.
    asked: u16,
    choices_made: u64,
    forced: BTreeMap<u64, u64>,
    randoms: (u64, BTreeMap<u64, u64>),
}

pub struct Fake {
    vm: u16,
    program: Arc<Vec<Step>>,
    edges: Option<Vec<u8>>,
    state: State,
}

#[derive(Clone, Debug)]
pub struct FakeSnapshot(Arc<State>);

#[derive(Debug, thiserror::Error)]
#[error("a fake failed")]
pub struct FakeError;

fn power_on(disk: Disk) -> State {
    State {
        step: 0,
        working: 0,
        sleeping_until: None,
        guest_ns: 0,
        instructions: 0,
        loops: 0,
        frames: Vec::new(),
        received: Vec::new(),
        messages: Vec::new(),
        ring: Vec::new(),
        counts: Counts::default(),
        hits: [0; 8],
        serial: Vec::new(),
        wall_offset_ns: 1_000 * SECOND,
        entropy: [0; 32],
        generation: [0; 16],
        disk,
        faults: DiskFaults::default(),
        disk_counts: DiskCounts::default(),
        asked: 0,
        choices_made: 0,
        forced: BTreeMap::new(),
        randoms: (0, BTreeMap::new()),
    }
}

impl Fake {
    pub fn new(vm: u16, program: Vec<Step>) -> Self {
        let disk = Disk::new(PageMap::default(), 1 << 20, 1 << 20, Stream::new(&[0; 32], Purpose::DiskWriteBack(0)));
        Self { vm, program: Arc::new(program), edges: None, state: power_on(disk) }
    }

    fn say(&mut self, text: &str) {
        self.state.serial.extend_from_slice(text.as_bytes());
        self.state.serial.push(b'\n');
    }

    /// One step, which costs at least one instruction; a stop, if it makes one.
    fn step(&mut self) -> Option<NodeStop> {
        let program = self.program.clone();
        let Some(step) = program.get(self.state.step) else {
            return Some(NodeStop::Idle { next_event_guest_ns: None });
        };
        if let Some(edges) = &mut self.edges {
            edges[self.state.step % 64] = edges[self.state.step % 64].saturating_add(1);
        }
        self.state.instructions += 1;
        self.state.guest_ns += NS_PER_INSTRUCTION;
        self.state.step += 1;
        match step {
            Step::Work(instructions) => self.state.working = *instructions,
            Step::Sleep(ns) => self.state.sleeping_until = Some(self.state.guest_ns + ns),
            Step::Send(to) => {
                let mut bytes = mac_of(*to).to_vec();
                bytes.extend_from_slice(&mac_of(self.vm));
                bytes.extend_from_slice(&[8, 0, self.state.loops as u8, self.state.entropy[0]]);
                self.state.frames.push(SentFrame { at_guest_ns: self.state.guest_ns, bytes });
            }
            Step::Report(records, ring) => {
                self.state.ring.extend(records.iter().cloned());
                if *ring {
                    self.drain_sdk();
                    return Some(NodeStop::Doorbell);
                }
            }
            Step::Choose(below) => {
                let drawn = self.state.choices_made.wrapping_add(self.state.entropy[1].into());
                let value = self.state.forced.remove(&self.state.choices_made).unwrap_or(drawn) % below;
                self.state.choices_made += 1;
                self.state.working = 1_000 * value;
                self.say(&format!("chose {value}"));
                let body = MessageBody::Random { slot: 0, below: *below, value };
                self.state.messages.push(Message { at_guest_ns: self.state.guest_ns, body });
            }
            Step::Draw => {
                let (made, forced) = &mut self.state.randoms;
                let value = forced.remove(made).unwrap_or(u64::from(self.state.entropy[2]) << 40);
                *made += 1;
                self.say(&format!("drew {value}"));
                let body = MessageBody::Random { slot: 0, below: 0, value };
                self.state.messages.push(Message { at_guest_ns: self.state.guest_ns, body });
            }
            Step::Hit(slot) => self.state.hits[*slot] = self.state.hits[*slot].saturating_add(1),
            Step::Count(passes) => self.state.counts.passes += passes,
            Step::RestartPoint => return Some(NodeStop::RestartPoint),
            Step::Write(sector, byte) => self.write(*sector, *byte),
            Step::Flush => self.state.disk.flush(u64::MAX),
            Step::Print(sector) => {
                let mut bytes = [0; 512];
                self.state.disk.read(*sector, &mut bytes);
                let torn = bytes.iter().any(|byte| *byte != bytes[0]);
                self.say(&format!("sector {sector}: {}{}", bytes[0], if torn { " torn" } else { "" }));
            }
            Step::PrintClocks => {
                let (wall, guest) = (self.wall_clock_ns() / MS, self.state.guest_ns / MS);
                let (generation, entropy) = (self.state.generation[0], self.state.entropy[0]);
                self.say(&format!("wall {wall} guest {guest} generation {generation} entropy {entropy}"));
            }
            Step::Say(text) => self.say(text),
            Step::Loop(step) => {
                self.state.step = *step;
                self.state.loops += 1;
            }
            Step::Exit(code) => {
                let body = MessageBody::WorkloadExited(*code);
                self.state.messages.push(Message { at_guest_ns: self.state.guest_ns, body });
                return Some(NodeStop::PowerOff);
            }
            Step::Panic(text) => return Some(NodeStop::Panic((*text).to_owned())),
            Step::PowerOff | Step::Fail => return Some(NodeStop::PowerOff),
        }
        None
    }

    fn write(&mut self, sector: u64, byte: u8) {
        if self.state.faults.full {
            self.state.disk_counts.refused += 1;
            self.say("write failed");
        } else {
            self.state.disk.write(sector, vec![byte; 512], false);
        }
    }
}

impl Node for Fake {
    type Snapshot = FakeSnapshot;
    type Error = FakeError;

    fn run_until(&mut self, deadline: u64) -> Result<NodeStop, FakeError> {
        while self.state.guest_ns < deadline {
            if let Some(until) = self.state.sleeping_until {
                if !self.state.received.is_empty() {
                    self.state.received.clear();
                } else if until >= deadline {
                    return Ok(NodeStop::Idle { next_event_guest_ns: Some(until) });
                } else {
                    self.state.guest_ns = self.state.guest_ns.max(until);
                }
                self.state.sleeping_until = None;
            } else if self.state.working > 0 {
                let left = (deadline - self.state.guest_ns).div_ceil(NS_PER_INSTRUCTION);
                let now = left.min(self.state.working);
                self.state.working -= now;
                self.state.instructions += now;
                self.state.guest_ns += now * NS_PER_INSTRUCTION;
            } else if self.program.get(self.state.step) == Some(&Step::Fail) {
                return Err(FakeError);
            } else if let Some(stop) = self.step() {
                return Ok(stop);
            }
        }
        Ok(NodeStop::Deadline)
    }

    fn skip_to(&mut self, guest_ns: u64) {
        self.state.guest_ns = self.state.guest_ns.max(guest_ns);
    }

    fn now_guest_ns(&self) -> u64 {
        self.state.guest_ns
    }

    fn instructions(&self) -> u64 {
        self.state.instructions
    }

    fn set_clock(&mut self, _clock: Clock) {}

    fn wall_clock_ns(&self) -> u64 {
        self.state.wall_offset_ns.wrapping_add(self.state.guest_ns)
    }

    fn set_wall_clock_ns(&mut self, wall_ns: u64) {
        // A clock that was set back may read less than the time since power-on: the difference is modulo 2^64.
        self.state.wall_offset_ns = wall_ns.wrapping_sub(self.state.guest_ns);
    }

    fn reseed(&mut self, entropy: [u8; 32], generation: [u8; 16]) {
        (self.state.entropy, self.state.generation) = (entropy, generation);
    }

    fn choices_made(&self) -> u64 {
        self.state.choices_made
    }

    fn answer_choices(&mut self, answers: BTreeMap<u64, u64>) {
        self.state.forced = answers;
    }

    fn randoms_made(&self) -> u64 {
        self.state.randoms.0
    }

    fn answer_randoms(&mut self, made: u64, answers: BTreeMap<u64, u64>) {
        self.state.randoms = (made, answers);
    }

    fn take_frames(&mut self) -> Vec<SentFrame> {
        std::mem::take(&mut self.state.frames)
    }

    fn deliver_frame(&mut self, frame: &[u8]) -> bool {
        self.state.received.push(frame.to_vec());
        true
    }

    fn pulse_irq(&mut self, irq: u8) {
        self.say(&format!("irq {irq}"));
        self.state.received.push(Vec::new());
    }

    fn ask_agent(&mut self, action: AgentAction) -> u16 {
        self.say(&format!("agent {action:?}"));
        self.state.received.push(Vec::new());
        self.state.asked += 1;
        let (number, code) = (self.state.asked, u8::from(matches!(action, AgentAction::PauseProcess { .. })) * 3);
        if !matches!(action, AgentAction::HoldMemory { .. }) {
            let body = MessageBody::AgentAnswer { number, code };
            self.state.messages.push(Message { at_guest_ns: self.state.guest_ns, body });
        }
        number
    }

    fn raise_nmi(&mut self) {
        self.say("nmi");
        self.state.received.push(Vec::new());
    }

    fn take_serial(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.state.serial)
    }

    fn drain_sdk(&mut self) {
        let at_guest_ns = self.state.guest_ns;
        let message = |bytes| Message { at_guest_ns, body: MessageBody::Record { slot: 0, bytes } };
        self.state.messages.extend(self.state.ring.drain(..).map(message));
    }

    fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.state.messages)
    }

    fn assertion_counts(&self, slot: u32, visit: &mut dyn FnMut(u16, Counts)) {
        if slot == 0 {
            visit(0, self.state.counts);
        }
    }

    fn set_coverage(&mut self, on: bool) {
        self.edges = on.then(|| vec![0; 64]);
    }

    fn coverage(&self) -> Option<std::borrow::Cow<'_, [u8]>> {
        self.edges.as_deref().map(Into::into)
    }

    fn guest_coverage(&self) -> Option<Vec<u8>> {
        (self.state.hits != [0; 8]).then(|| self.state.hits.to_vec())
    }

    fn clear_guest_coverage(&mut self) {
        self.state.hits = [0; 8];
    }

    fn register_hash(&self) -> Digest {
        let registers = [self.state.step as u64, self.state.working, self.state.guest_ns, self.state.loops];
        blake3::hash(registers.map(u64::to_le_bytes).as_flattened()).into()
    }

    fn memory_hash(&mut self) -> Digest {
        blake3::hash(&[&self.state.entropy[..], &self.state.hits].concat()).into()
    }

    fn disk_hash(&mut self) -> Digest {
        self.state.disk.visible().hash()
    }

    fn set_disk_faults(&mut self, disk: u16, faults: DiskFaults) -> Result<(), FakeError> {
        self.state.faults = faults;
        if disk == 0 { Ok(()) } else { Err(FakeError) }
    }

    fn disk_counts(&self) -> Vec<DiskCounts> {
        vec![self.state.disk_counts]
    }

    fn flushes(&self) -> u64 {
        0
    }

    fn snapshot(&mut self) -> FakeSnapshot {
        FakeSnapshot(Arc::new(self.state.clone()))
    }

    fn restore(&mut self, snapshot: &FakeSnapshot) -> Result<(), FakeError> {
        self.state = (*snapshot.0).clone();
        Ok(())
    }

    fn power_cut(&mut self, cut: PowerCut) -> Result<(), FakeError> {
        let pending = self.state.disk.cache().len();
        let survivors = Survivors::from_bits(pending, cut.survivors, cut.torn_write, cut.torn_bytes);
        self.state.disk.power_cut(Vec::new(), &survivors);
        Ok(())
    }

    fn start(&mut self, point: Option<&FakeSnapshot>) -> Result<bool, FakeError> {
        let medium = self.state.disk.medium().clone();
        let resumes = point.filter(|point| point.0.disk.reads_agree_with(&medium));
        let mut disk = Disk::new(medium, 1 << 20, 1 << 20, Stream::new(&[0; 32], Purpose::DiskWriteBack(0)));
        self.state = match resumes {
            Some(point) => {
                std::mem::swap(&mut disk, &mut self.state.disk);
                State { disk: self.state.disk.clone(), ..(*point.0).clone() }
            }
            None => power_on(disk),
        };
        Ok(resumes.is_some())
    }
}

pub fn encoded(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = [0; chaoscontrol_protocol::layout::RECORD_BYTES_MAX];
    let length = record.encode(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

/// Site 0 of every process: an `always`.
fn always() -> CatalogEntry<'static> {
    CatalogEntry {
        site: 0,
        kind: AssertionKind::Always,
        must_hit: true,
        line: 7,
        column: 5,
        message: "holds",
        package: "fake",
        version: "0.1.0",
        file: "src/main.rs",
        module: "fake",
        namespace: "",
        key: "",
    }
}

/// What a process says when it starts: its catalog, then that setup is complete.
fn start(catalog: &[CatalogEntry<'static>]) -> Step {
    let mut hash = Sha256::new();
    for entry in catalog {
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let bytes = entry.encode_payload(&mut payload).unwrap();
        hash.update(&payload[..bytes]);
    }
    let mut records = vec![Record::ProcessStart { pid: 2, generation: 1, name: "fake" }];
    records.extend(catalog.iter().copied().map(Record::Catalog));
    records.push(Record::CatalogEnd { sites: catalog.len() as u16, digest: hash.finish() });
    records.push(Record::SetupComplete { details: "" });
    Step::Report(records.iter().map(encoded).collect(), false)
}

/// A process starts with one `always` site.
pub fn hello() -> Step {
    start(&[always()])
}

/// A process starts with that and, as site 1, an agreement.
pub fn hello_of_agreement() -> Step {
    start(&[always(), CatalogEntry { site: 1, kind: AssertionKind::Agree, line: 9, message: "n", ..always() }])
}

/// An assertion that fails, reported at once.
pub fn failure() -> Step {
    Step::Report(vec![encoded(&Record::Assertion { site: 0, outcome: Outcome::Fail, details: "{}" })], true)
}

/// A program that sets up, then does `steps` over and over.
pub fn looping(steps: Vec<Step>) -> Vec<Step> {
    let mut program = vec![Step::RestartPoint, hello()];
    program.extend(steps);
    program.push(Step::Loop(2));
    program
}

/// VMs of these programs.
pub fn cluster(programs: Vec<Vec<Step>>) -> Cluster<Fake> {
    let config = SimConfig { disks: vec![1; programs.len()], network: NetworkConfig::default(), cpus: 1 };
    let nodes = (0..).zip(programs).map(|(vm, program)| Fake::new(vm, program)).collect();
    Cluster::from_nodes(nodes, config, 1).unwrap()
}

/// VMs of these programs after their setup.
pub fn booted(programs: Vec<Vec<Step>>) -> Cluster<Fake> {
    let mut cluster = cluster(programs);
    cluster.run_to_setup(1, 10 * SECOND).unwrap();
    cluster
}

pub fn schedule(events: &[(u64, Fault)]) -> Schedule {
    let event = |(time_ns, fault): &(u64, Fault)| FaultEvent { time_ns: *time_ns, fault: *fault };
    Schedule::new(events.iter().map(event).collect()).unwrap()
}

/// Console text of a VM.
pub fn text(serial: &[u8]) -> String {
    String::from_utf8(serial.to_vec()).unwrap()
}
