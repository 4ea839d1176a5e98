// SPDX-License-Identifier: AGPL-3.0-or-later
//! A [`Machine`] as a node of the cluster, and clusters of machines.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use chaoscontrol_machine::pages::PageMap;
use chaoscontrol_machine::sdk_window::{self, Body, SdkWindow};
use chaoscontrol_machine::smp::journal::SliceRecord;
use chaoscontrol_machine::virtio::VirtioMmio;
use chaoscontrol_machine::virtio::block::{Block, CERTAIN_PPM, DiskFault, Effect, EffectKind, Survivors};
use chaoscontrol_machine::virtio::net::Frame;
use chaoscontrol_machine::{ClusterNs, GuestNs, Machine, MachineError, MachineSnapshot, Rate, Stop, TimeMap};
use chaoscontrol_protocol::AgentAction as guest;
use chaoscontrol_protocol::host::Counts;
use chaoscontrol_protocol::layout::SLOTS;
use chaoscontrol_sim::{AgentAction, Clock, Digest, DiskCounts, DiskFaults, PowerCut, SentFrame};

use crate::cluster::Cluster;
use crate::config::{ClusterConfig, ClusterError};
use crate::node::{Message, MessageBody, Node, NodeStop};

impl Cluster<Machine> {
    /// A cluster that was just switched on: kernels are loaded, nothing has run.
    pub fn new(config: &ClusterConfig) -> Result<Self, ClusterError> {
        config.sim().check()?;
        let machine = |vm| {
            let load = || {
                let mut machine = Machine::new(Arc::new(config.vm(vm)))?;
                machine.load()?;
                // Counting starts with a branch.
                Machine::set_coverage(&mut machine, None);
                Ok(machine)
            };
            load().map_err(|source| ClusterError::Machine { vm, source })
        };
        let machines = (0..config.vms).map(machine).collect::<Result<Vec<_>, _>>()?;
        Self::from_nodes(machines, config.sim(), config.seed)
    }

    /// A cluster that booted: every VM reported `setup_complete`.
    pub fn boot(config: &ClusterConfig) -> Result<Self, ClusterError> {
        let mut cluster = Self::new(config)?;
        cluster.run_to_setup(config.seed, config.setup_limit_ns)?;
        Ok(cluster)
    }
}

impl Node for Machine {
    type Snapshot = MachineSnapshot;
    type Error = MachineError;

    fn run_until(&mut self, deadline_guest_ns: u64) -> Result<NodeStop, MachineError> {
        Ok(match Machine::run_until(self, GuestNs(deadline_guest_ns))? {
            Stop::Deadline | Stop::SerialMatch => NodeStop::Deadline,
            Stop::Idle { next_event } => NodeStop::Idle { next_event_guest_ns: next_event.map(|at| at.0) },
            Stop::Doorbell { .. } => NodeStop::Doorbell,
            Stop::RestartPoint => NodeStop::RestartPoint,
            Stop::PowerOff => NodeStop::PowerOff,
            Stop::Panic { hint } => NodeStop::Panic(hint.unwrap_or_default()),
            Stop::Reset => NodeStop::Ended("reset".to_owned()),
            Stop::TripleFault => NodeStop::Ended("triple fault".to_owned()),
            Stop::GuestError(error) => NodeStop::Ended(format!("{error:?}")),
        })
    }

    fn skip_to(&mut self, guest_ns: u64) {
        Machine::skip_to(self, GuestNs(guest_ns));
    }

    fn now_guest_ns(&self) -> u64 {
        self.now().0
    }

    fn instructions(&self) -> u64 {
        Machine::instructions(self)
    }

    fn set_clock(&mut self, clock: Clock) {
        self.set_time_map(TimeMap {
            cluster_origin: ClusterNs(clock.cluster_origin_ns),
            guest_origin: GuestNs(clock.guest_origin_ns),
            rate: Rate { numerator: clock.numerator.into(), denominator: clock.denominator.into() },
        });
    }

    fn wall_clock_ns(&self) -> u64 {
        Machine::wall_clock_ns(self)
    }

    fn set_wall_clock_ns(&mut self, wall_ns: u64) {
        Machine::set_wall_clock_ns(self, wall_ns);
    }

    fn reseed(&mut self, entropy: [u8; 32], generation: [u8; 16]) {
        self.reseed_entropy(entropy);
        for index in 0..disks(self).count() {
            if let Some(disk) = self.disk_mut(index) {
                disk.reseed(&entropy);
            }
        }
        self.set_generation_id(generation);
    }

    fn switch_cpu(&mut self, cpu: u16, hold_guest_ns: u64) {
        let ns_per_instruction = u64::from(self.config().ns_per_instruction);
        Machine::switch_cpu(self, cpu, hold_guest_ns.div_ceil(ns_per_instruction));
    }

    fn begin_turns(&mut self) {
        self.restart_journal();
    }

    fn take_turns(&mut self) -> Vec<SliceRecord> {
        self.take_schedule_journal()
    }

    fn close_turns(&mut self) -> Result<Vec<SliceRecord>, MachineError> {
        self.close_schedule_journal()
    }

    fn replay_turns(&mut self, turns: Vec<SliceRecord>) -> Result<(), MachineError> {
        self.replay_schedule(turns)
    }

    fn replay_is_complete(&self) -> bool {
        Machine::replay_is_complete(self)
    }

    fn choices_made(&self) -> u64 {
        self.sdk().choices_made()
    }

    fn answer_choices(&mut self, answers: BTreeMap<u64, u64>) {
        self.sdk_mut().force_choices(answers);
    }

    fn randoms_made(&self) -> u64 {
        self.sdk().randoms_made()
    }

    fn answer_randoms(&mut self, made: u64, answers: BTreeMap<u64, u64>) {
        self.sdk_mut().force_randoms(made, answers);
    }

    fn take_frames(&mut self) -> Vec<SentFrame> {
        let frame = |frame: Frame| SentFrame { at_guest_ns: frame.sent.0, bytes: frame.bytes };
        Machine::take_frames(self).into_iter().map(frame).collect()
    }

    fn deliver_frame(&mut self, frame: &[u8]) -> bool {
        Machine::deliver_frame(self, frame)
    }

    fn pulse_irq(&mut self, irq: u8) {
        Machine::pulse_irq(self, irq);
    }

    fn raise_nmi(&mut self) {
        Machine::raise_nmi(self);
    }

    fn ask_agent(&mut self, action: AgentAction) -> u16 {
        Machine::ask_agent(
            self,
            match action {
                AgentAction::KillProcess { process, down_ns } => guest::KillProcess { process, down_ns },
                AgentAction::PauseProcess { process, lasts_ns } => guest::PauseProcess { process, lasts_ns },
                AgentAction::RestartWorkload => guest::RestartWorkload,
                AgentAction::HoldMemory { part_ppm, lasts_ns } => guest::HoldMemory { part_ppm, lasts_ns },
                AgentAction::EndAll => guest::EndAll,
            },
        )
    }

    fn take_serial(&mut self) -> Vec<u8> {
        Machine::take_serial(self)
    }

    fn drain_sdk(&mut self) {
        Machine::drain_sdk(self);
    }

    fn take_messages(&mut self) -> Vec<Message> {
        self.sdk_mut().take_messages().into_iter().filter_map(message).collect()
    }

    fn assertion_counts(&self, slot: u32, visit: &mut dyn FnMut(u16, Counts)) {
        SdkWindow::assertion_counts(self.memory(), slot, visit);
    }

    fn set_coverage(&mut self, on: bool) {
        let filter = self.config().coverage;
        Machine::set_coverage(self, filter.filter(|_| on));
        self.clear_coverage();
    }

    fn coverage(&self) -> Option<Cow<'_, [u8]>> {
        Machine::coverage(self)
    }

    fn guest_coverage(&self) -> Option<Vec<u8>> {
        Machine::guest_coverage(self)
    }

    fn clear_guest_coverage(&mut self) {
        Machine::clear_guest_coverage(self);
    }

    fn register_hash(&self) -> Digest {
        Machine::register_hash(self)
    }

    fn memory_hash(&mut self) -> Digest {
        Machine::memory_hash(self)
    }

    fn disk_hash(&mut self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for disk in disks(self) {
            hasher.update(&disk.hash());
        }
        hasher.finalize().into()
    }

    fn set_disk_faults(&mut self, disk: u16, faults: DiskFaults) -> Result<(), MachineError> {
        let wanted = [
            (faults.read_error_ppm, Effect::ReadError),
            (faults.write_error_ppm, Effect::WriteError),
            (faults.torn_ppm, Effect::TornWrite { bytes: faults.torn_bytes }),
            (faults.corruption_ppm, Effect::CorruptRead { bit: None }),
            (if faults.full { CERTAIN_PPM } else { 0 }, Effect::Full),
            (if faults.latency_ns > 0 { CERTAIN_PPM } else { 0 }, Effect::Delay { ns: faults.latency_ns }),
        ];
        let active = wanted.into_iter().filter(|(chance_ppm, _)| *chance_ppm > 0);
        let active: Vec<DiskFault> =
            active.map(|(chance_ppm, effect)| DiskFault { effect, chance_ppm, sectors: None }).collect();
        let Some(block) = self.disk_mut(usize::from(disk)) else {
            let rule = format!("there is no disk {disk}");
            return Err(MachineError::Config { field: "disks", rule });
        };
        block.faults_mut().replace(&active);
        Ok(())
    }

    fn disk_counts(&self) -> Vec<DiskCounts> {
        let counts = |disk: &Block| {
            let of = |kind| disk.faults().counts().get(&kind).map_or(0, |count| count.observed);
            DiskCounts {
                read_errors: of(EffectKind::ReadError),
                write_errors: of(EffectKind::WriteError),
                torn: of(EffectKind::TornWrite),
                corrupted: of(EffectKind::CorruptRead),
                refused: of(EffectKind::Full),
                delayed: of(EffectKind::Delay),
            }
        };
        disks(self).map(counts).collect()
    }

    fn flushes(&self) -> u64 {
        disks(self).map(|disk| disk.counters().flushes).sum()
    }

    fn snapshot(&mut self) -> MachineSnapshot {
        Machine::snapshot(self)
    }

    fn restore(&mut self, snapshot: &MachineSnapshot) -> Result<(), MachineError> {
        Machine::restore(self, snapshot)
    }

    fn power_cut(&mut self, cut: PowerCut) -> Result<(), MachineError> {
        let PowerCut { survivors, torn_write, torn_bytes } = cut;
        let mut before = 0;
        for index in 0..disks(self).count() {
            if let Some(disk) = self.disk_mut(index) {
                let pending = disk.pending_writes().len();
                disk.power_cut(&Survivors::from_bits_behind(before, pending, survivors, torn_write, torn_bytes));
                before += pending;
            }
        }
        Ok(())
    }

    fn start(&mut self, point: Option<&MachineSnapshot>) -> Result<bool, MachineError> {
        let media: Vec<PageMap> = disks(self).map(|disk| disk.disk().medium().clone()).collect();
        let mut resumed = false;
        if let Some(point) = point {
            Machine::restore(self, point)?;
            resumed = disks(self).zip(&media).all(|(disk, medium)| disk.can_resume_on(medium));
        }
        if !resumed {
            *self = Machine::new(self.config().clone())?;
            self.load()?;
        }
        for (index, medium) in media.into_iter().enumerate() {
            if let Some(disk) = self.disk_mut(index) {
                disk.replace_medium(medium);
            }
        }
        Ok(resumed)
    }
}

fn disks(machine: &Machine) -> impl Iterator<Item = &Block> {
    (0..).map_while(|index| machine.disk(index)).map(VirtioMmio::device)
}

/// What the machine's window heard, but for the restart point, which is a stop of its own.
fn message(message: sdk_window::Message) -> Option<Message> {
    let body = match message.body {
        Body::Record { slot, bytes } => MessageBody::Record { slot, bytes },
        Body::Refused { slot, reason } => MessageBody::Refused { slot, reason },
        Body::Random { slot, below, value, .. } => MessageBody::Random { slot, below, value },
        Body::RestartPoint => return None,
        Body::InitFailed => MessageBody::InitFailed,
        Body::WorkloadExited(code) => MessageBody::WorkloadExited(code),
        Body::WorkloadKilled(signal) => MessageBody::WorkloadKilled(signal),
        Body::AgentAnswer { number, code } => MessageBody::AgentAnswer { number, code },
        Body::UnknownDoorbell(value) => {
            MessageBody::Refused { slot: SLOTS, reason: format!("doorbell value {value:#x} has no meaning") }
        }
    };
    Some(Message { at_guest_ns: message.at.0, body })
}
