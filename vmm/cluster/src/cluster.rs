// SPDX-License-Identifier: AGPL-3.0-or-later
//! The cluster: carries out what the pure core commands, round by round.

mod midway;
mod sdk_records;

use std::sync::Arc;

use chaoscontrol_fault::{Choice, RANDOMS_FROM, Schedule, Stream};
use chaoscontrol_machine::Machine;
use chaoscontrol_machine::engine::COVERAGE_MAP_BYTES;
use chaoscontrol_machine::smp::journal::SliceRecord;
use chaoscontrol_protocol::Record;
use chaoscontrol_protocol::layout::SLOTS;
use chaoscontrol_sim::{
    Command, Digest, Observation, Power, PowerCut, Round, RoundRecord, SentFrame, Sim, SimConfig, VmEnd,
};

use midway::{Keeping, Records};
use sdk_records::SdkRecords;

use crate::branch::{BranchOutcome, BranchPlan, EVENTS_MAX, EndReason, GuestEvent};
use crate::config::{BootFailure, ClusterError};
use crate::marks::Marks;
use crate::node::{MessageBody, Node, NodeStop};
use crate::oracle::{Moment, Oracle, Slots};
use crate::snapshot::{ClusterSnapshot, RestartPoint, VmMemo, VmSnapshot, WorkloadEnd};
use crate::spent::{HostClock, Spent, Stopwatch};
use crate::turns::TurnRecording;
use crate::violation::ViolationKind;
use crate::watch::{BranchLog, ConsoleLog};

pub use midway::Midway;

/// Console output that is kept of each VM.
pub const SERIAL_TAIL_BYTES: usize = 64 * 1024;

type Result<T, N> = std::result::Result<T, ClusterError<<N as Node>::Error>>;

/// One VM of a running cluster.
struct Vm<N: Node> {
    node: N,
    restart: Option<Arc<RestartPoint<N::Snapshot>>>,
    memo: VmMemo,
    /// SDK records of this round.
    sdk: SdkRecords,
    /// Frames of this round that were taken before its barrier.
    frames: Vec<SentFrame>,
    /// Edges that were counted before a restart in this branch, or before it went on from its middle.
    edges_before: Option<Vec<u8>>,
    /// Choices made before the branch; none for a VM that was restarted in it, and has no answers to come any more.
    choices_before: Option<u64>,
}

/// N machines, the core that decides, and the oracle that judges.
pub struct Cluster<N: Node = Machine> {
    sim: Sim,
    oracle: Oracle,
    vms: Vec<Vm<N>>,
    /// Instructions that all VMs ran since the branch started.
    ran_instructions: u64,
    /// Events of the branch, if they are kept.
    event_log: Option<Vec<GuestEvent>>,
    /// What the guests did in the branch, and what follows it.
    marks: Marks,
    /// What is watched of the branch, if someone looks.
    watched: Option<Box<BranchLog>>,
    /// The turns of CPUs in the branch.
    turns: TurnRecording,
    /// What the branch is held to.
    held_to: Option<TurnRecording>,
    /// Where the host's time goes.
    watch: Stopwatch,
    /// Why nothing may be believed of the cluster any more.
    poisoned: Option<String>,
}

impl<N: Node> Cluster<N> {
    /// A cluster of machines that are loaded and have not run yet.
    pub fn from_nodes(nodes: Vec<N>, config: SimConfig, seed: u64) -> Result<Self, N> {
        if nodes.len() != config.disks.len() {
            return Err(chaoscontrol_sim::ConfigError::Vms(nodes.len()).into());
        }
        let oracle = Oracle::new(config.vms());
        let sim = Sim::new(config, seed, u64::MAX)?;
        let vm = |node| Vm {
            node,
            restart: None,
            memo: VmMemo { wall_at_kill_ns: 0, workload: None, ended: false, serial: Vec::new() },
            sdk: SdkRecords::default(),
            frames: Vec::new(),
            edges_before: None,
            choices_before: None,
        };
        let vms: Vec<Vm<N>> = nodes.into_iter().map(vm).collect();
        Ok(Self {
            sim,
            oracle,
            turns: TurnRecording::new(vms.len()),
            vms,
            ran_instructions: 0,
            event_log: None,
            marks: Marks::default(),
            watched: None,
            held_to: None,
            watch: Stopwatch::default(),
            poisoned: None,
        })
    }

    /// The pure core, for reading.
    #[must_use]
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// The oracle, for reading.
    #[must_use]
    pub fn oracle(&self) -> &Oracle {
        &self.oracle
    }

    /// Measures from here on where the host's time goes.
    pub fn time(&mut self, clock: Option<HostClock>) {
        self.watch = Stopwatch::new(clock);
    }

    /// Where it went in the branch that ran last.
    #[must_use]
    pub fn spent(&self) -> Spent {
        self.watch.spent()
    }

    /// The machine of a VM.
    pub fn node_mut(&mut self, vm: u16) -> Option<&mut N> {
        self.vms.get_mut(usize::from(vm)).map(|vm| &mut vm.node)
    }

    /// The end of a VM's console output.
    #[must_use]
    pub fn serial_tail(&self, vm: u16) -> &[u8] {
        self.vms.get(usize::from(vm)).map_or(&[], |vm| &vm.memo.serial)
    }

    /// Why the cluster refuses everything, if it does. What it has recorded so far stays readable.
    #[must_use]
    pub fn poisoned(&self) -> Option<&str> {
        self.poisoned.as_deref()
    }

    /// The turns of CPUs in the running branch, also of one that failed.
    #[must_use]
    pub fn turns(&self) -> &TurnRecording {
        &self.turns
    }

    fn check_sound(&self) -> Result<(), N> {
        match &self.poisoned {
            None => Ok(()),
            Some(why) => Err(ClusterError::Poisoned(why.clone())),
        }
    }

    /// Runs without faults until every VM reported `setup_complete`, at most to `limit_ns` of cluster time.
    pub fn run_to_setup(&mut self, seed: u64, limit_ns: u64) -> Result<(), N> {
        self.check_sound()?;
        let horizon_ns = limit_ns.saturating_sub(self.sim.now_ns());
        self.sim.begin_branch(Schedule::default(), horizon_ns, seed)?;
        loop {
            let waiting = self.oracle.without_setup();
            if waiting.is_empty() {
                break;
            }
            if self.sim.finished() {
                return Err(BootFailure::NoSetup { vms: waiting, limit_ns }.into());
            }
            self.round()?;
            self.check_boot()?;
        }
        self.collect_counts();
        Ok(())
    }

    /// Whether the guests went wrong before setup.
    fn check_boot(&self) -> std::result::Result<(), BootFailure> {
        if let Some(limit) = self.oracle.limit() {
            let what = self.oracle.reports().last().map_or_else(String::new, |report| report.text.clone());
            return Err(BootFailure::Oracle { limit, what });
        }
        let Some(violation) = self.oracle.violations().first() else {
            let exited = (0..).zip(&self.vms).find(|(_, vm)| vm.over());
            return exited
                .map_or(Ok(()), |(vm, _)| Err(BootFailure::WorkloadExited { vm, how: "exit code 0".to_owned() }));
        };
        let vm = violation.vm;
        Err(match &violation.kind {
            ViolationKind::GuestPanic { hint } if NO_INIT.iter().any(|text| hint.contains(text)) => {
                BootFailure::NoInit { vm, hint: hint.clone() }
            }
            ViolationKind::GuestPanic { hint } => BootFailure::Panic { vm, hint: hint.clone() },
            ViolationKind::WorkloadExited { code, signalled } => {
                let what = if *signalled { "signal" } else { "exit code" };
                BootFailure::WorkloadExited { vm, how: format!("{what} {code}") }
            }
            ViolationKind::GuestShutdown { how } if how == INIT_FAILED => BootFailure::NoInit { vm, hint: how.clone() },
            ViolationKind::GuestShutdown { how } => BootFailure::Shutdown { vm, how: how.clone() },
            kind => BootFailure::Violation { vm, what: kind.signature() },
        })
    }

    /// Runs one branch from where the cluster stands.
    pub fn run(&mut self, plan: &BranchPlan) -> Result<BranchOutcome, N> {
        self.run_held_to(plan, None)
    }

    /// Runs one branch in which every VM's CPUs must take exactly these turns.
    pub fn run_held_to(&mut self, plan: &BranchPlan, turns: Option<TurnRecording>) -> Result<BranchOutcome, N> {
        self.start(plan, turns)?;
        self.run_on(plan, plan.full_trace.then(Vec::new), &mut Keeping::at(&[]))
    }

    /// Starts a branch here.
    fn start(&mut self, plan: &BranchPlan, turns: Option<TurnRecording>) -> Result<(), N> {
        self.check_sound()?;
        self.begin(plan)?;
        self.hold_to(turns)?;
        self.ran_instructions = 0;
        self.event_log = plan.full_trace.then(Vec::new);
        let flushes = self.vms.iter().map(|vm| vm.node.flushes());
        self.marks = Marks::begin(self.sim.now_ns(), flushes, plan.tactic.as_ref(), self.sim.config(), plan.horizon_ns);
        Ok(())
    }

    /// Runs a branch to its end. `records` are those of its rounds so far, where they are kept.
    fn run_on(
        &mut self,
        plan: &BranchPlan,
        records: Records,
        keeping: &mut Keeping<'_, N::Snapshot>,
    ) -> Result<BranchOutcome, N> {
        let mut records = (records, Vec::new());
        let end = loop {
            if !self.oracle.violations().is_empty() {
                break EndReason::Violation;
            }
            if let Some(limit) = self.oracle.limit() {
                break EndReason::OracleLimit(limit);
            }
            if self.vms.iter().all(Vm::over) {
                break EndReason::AllExited;
            }
            if self.sim.finished() {
                break EndReason::Horizon;
            }
            self.keep_midway(plan, &mut records, keeping);
            let record = self.round()?;
            if plan.full_trace {
                records.1.push(record);
            }
        };
        self.watch.lap(|spent| &mut spent.barriers_ns);
        self.close_turns()?;
        let (before, since) = records;
        let records = before.map(|before| {
            let before = before.iter().flat_map(|part| part.iter().cloned());
            before.chain(since).collect()
        });
        let outcome = self.outcome(plan, end, records);
        self.watch.lap(|spent| &mut spent.endings_ns);
        Ok(outcome)
    }

    /// Restores the snapshot and runs one branch from it.
    pub fn run_branch(&mut self, from: &ClusterSnapshot<N::Snapshot>, plan: &BranchPlan) -> Result<BranchOutcome, N> {
        self.restore(from)?;
        self.run(plan)
    }

    /// Keeps what is seen of the branch that begins now.
    pub(crate) fn start_watching(&mut self) {
        self.sim.watch_frames(true);
        let now_ns = self.sim.now_ns();
        let consoles = self.vms.iter().map(|vm| ConsoleLog::beginning(now_ns, &vm.memo.serial)).collect();
        let network_before = self.sim.network_counts();
        self.watched = Some(Box::new(BranchLog { consoles, network_before, ..BranchLog::default() }));
    }

    /// Gives what was seen.
    pub(crate) fn stop_watching(&mut self) -> BranchLog {
        let mut log = self.watched.take().map_or_else(BranchLog::default, |log| *log);
        log.frames = self.sim.watch_frames(false).unwrap_or_default();
        log
    }

    fn begin(&mut self, plan: &BranchPlan) -> Result<(), N> {
        self.sim.begin_branch(plan.schedule.clone(), plan.horizon_ns, plan.entropy_seed)?;
        for (index, vm) in (0..).zip(&mut self.vms) {
            let named = |purpose| Stream::named(plan.entropy_seed, purpose, u64::from(index));
            let (mut entropy, mut generation) = ([0; 32], [0; 16]);
            named("entropy device").fill(&mut entropy);
            named("generation id").fill(&mut generation);
            if !matches!(self.sim.power(index), Power::Down { .. }) {
                vm.node.reseed(entropy, generation);
            }
            vm.choices_before = Some(vm.node.choices_made());
            vm.answer(index, 0, plan);
            vm.node.set_coverage(plan.coverage);
            // Also where nobody asks for coverage: a guest's memory must not depend on that.
            vm.node.clear_guest_coverage();
            vm.edges_before = None;
        }
        Ok(())
    }

    /// Starts the branch's recording, and holds every VM to its first segment.
    fn hold_to(&mut self, turns: Option<TurnRecording>) -> Result<(), N> {
        self.turns = TurnRecording::new(self.vms.len());
        self.held_to = turns;
        self.vms.iter_mut().for_each(|vm| vm.node.begin_turns());
        (0..self.sim.config().vms()).try_for_each(|vm| self.hold_vm(vm))
    }

    /// Holds a VM to the segment that it is about to start.
    fn hold_vm(&mut self, index: u16) -> Result<(), N> {
        let Some(recording) = &self.held_to else { return Ok(()) };
        let at = usize::from(index);
        let segment = self.turns.vms[at].len() - 1;
        let Some(segment) = recording.vms.get(at).and_then(|segments| segments.get(segment)) else {
            return Err(ClusterError::Turns { vm: index, what: format!("there is no segment {segment}") });
        };
        let turns = segment.turns();
        self.vms[at].node.replay_turns(turns).map_err(|source| ClusterError::Machine { vm: index, source })
    }

    /// A VM stops here, or its recording does.
    fn end_segment(&mut self, index: u16) -> Result<(), N> {
        let node = &mut self.vms[usize::from(index)].node;
        let turns = node.close_turns().map_err(|source| ClusterError::Machine { vm: index, source })?;
        if self.held_to.is_some() && !node.replay_is_complete() {
            return Err(ClusterError::Turns { vm: index, what: "the run ended before its recording".to_owned() });
        }
        self.keep_turns(index, turns);
        Ok(())
    }

    fn keep_turns(&mut self, index: u16, turns: Vec<SliceRecord>) {
        let round = self.sim.state().rounds();
        if let Some(segment) = self.turns.current(index) {
            segment.push(round, turns);
        }
    }

    fn begin_segment(&mut self, index: u16) -> Result<(), N> {
        self.turns.vms[usize::from(index)].push(crate::turns::Segment::default());
        self.hold_vm(index)
    }

    fn close_turns(&mut self) -> Result<(), N> {
        (0..self.sim.config().vms()).try_for_each(|vm| self.end_segment(vm))
    }

    fn outcome(&mut self, plan: &BranchPlan, end: EndReason, records: Option<Vec<RoundRecord>>) -> BranchOutcome {
        self.collect_counts();
        let hashes: Vec<Digest> =
            self.vms.iter_mut().flat_map(|vm| [vm.node.memory_hash(), vm.node.disk_hash()]).collect();
        let coverage = plan.coverage.then(|| self.vms.iter().map(Vm::edges).collect());
        BranchOutcome {
            end,
            violations: self.oracle.violations().to_vec(),
            assertions: self.oracle.assertions(),
            events: self.oracle.events(),
            coverage,
            schedule: self.sim.schedule().clone(),
            randoms: self.marks.drawn(),
            closest: self.marks.closest().clone(),
            marks: self.marks.take(),
            ledger: self.sim.ledger().clone(),
            trace: *self.sim.trace(),
            digest: self.sim.trace().finish(&hashes),
            records,
            event_log: self.event_log.take(),
            instructions: self.ran_instructions,
            cluster_ns: self.sim.now_ns() - self.sim.branch_start_ns(),
            serial: self.vms.iter().map(|vm| vm.memo.serial.clone()).collect(),
            network: self.sim.network_counts(),
            turns: std::mem::take(&mut self.turns),
        }
    }

    /// The whole cluster.
    pub fn snapshot(&mut self) -> Result<ClusterSnapshot<N::Snapshot>, N> {
        self.check_sound()?;
        self.collect_counts();
        Ok(self.snapshot_as_it_stands())
    }

    /// The whole cluster; what the guests count waits in their memory for whoever collects it.
    fn snapshot_as_it_stands(&mut self) -> ClusterSnapshot<N::Snapshot> {
        let vm = |vm: &mut Vm<N>| VmSnapshot {
            machine: vm.node.snapshot(),
            restart: vm.restart.clone(),
            memo: vm.memo.clone(),
        };
        let vms = self.vms.iter_mut().map(vm).collect();
        ClusterSnapshot { sim: self.sim.state().clone(), oracle: self.oracle.clone(), vms }
    }

    /// Becomes the cluster of the snapshot. Costs what differs, not what it holds.
    pub fn restore(&mut self, snapshot: &ClusterSnapshot<N::Snapshot>) -> Result<(), N> {
        self.check_sound()?;
        let vms = self.sim.config().vms();
        if snapshot.sim.config() != self.sim.config() || snapshot.vms.len() != self.vms.len() {
            return Err(ClusterError::Snapshot("it is of a cluster with another configuration".to_owned()));
        }
        if !snapshot.oracle.fits(vms) {
            return Err(ClusterError::Snapshot("the oracle's state does not fit the cluster".to_owned()));
        }
        let sim = Sim::from_state(snapshot.sim.clone())?;
        for (index, (vm, from)) in (0..).zip(self.vms.iter_mut().zip(&snapshot.vms)) {
            vm.node.restore(&from.machine).map_err(|source| ClusterError::Machine { vm: index, source })?;
            vm.restart = from.restart.clone();
            vm.memo = from.memo.clone();
            vm.sdk = SdkRecords::default();
            vm.edges_before = None;
            vm.choices_before = None;
        }
        self.sim = sim;
        self.oracle = snapshot.oracle.clone();
        Ok(())
    }

    /// Runs one round. One that fails has changed some of the cluster and not the rest.
    fn round(&mut self) -> Result<RoundRecord, N> {
        self.check_sound()?;
        let result = self.round_or_part();
        if let Err(error) = &result {
            self.poisoned = Some(with_sources(error));
        }
        result
    }

    fn round_or_part(&mut self) -> Result<RoundRecord, N> {
        let round = self.sim.plan_round();
        for (command, event) in &round.commands {
            self.carry_out(command, *event)?;
        }
        self.watch.lap(|spent| &mut spent.barriers_ns);
        let vms = self.sim.config().vms();
        let observations = (0..vms).map(|vm| self.run_vm(vm, &round)).collect::<std::result::Result<Vec<_>, _>>()?;
        let record = self.sim.finish_round(&round, &observations);
        for event in self.marks.end_round(self.sim.now_ns()) {
            // One that does not fit any more is left out; a schedule has the faults that were.
            self.sim.add_event(event);
        }
        Ok(record)
    }

    fn carry_out(&mut self, command: &Command, event: Option<usize>) -> Result<(), N> {
        let index = command.vm();
        let failed = |source| ClusterError::Machine { vm: index, source };
        let Some(vm) = self.vms.get_mut(usize::from(index)) else { return Ok(()) };
        match command {
            Command::Kill { cut, .. } => {
                self.collect_vm(index);
                let vm = &mut self.vms[usize::from(index)];
                vm.memo.wall_at_kill_ns = vm.node.wall_clock_ns();
                vm.node.power_cut(*cut).map_err(failed)?;
            }
            Command::Restart { reset, down_ns, entropy, generation, .. } => {
                self.restart(index, *reset, *down_ns, (*entropy, *generation))?;
            }
            Command::SkipTo { guest_ns, .. } => vm.node.skip_to(*guest_ns),
            Command::SwitchCpu { cpu, hold_ns, .. } => vm.node.switch_cpu(*cpu, *hold_ns),
            Command::SetClock { clock, .. } => vm.node.set_clock(*clock),
            Command::StepWallClock { jump_ns, .. } => {
                let wall_ns = vm.node.wall_clock_ns().saturating_add_signed(*jump_ns);
                vm.node.set_wall_clock_ns(wall_ns);
            }
            Command::SetDiskFaults { disk, faults, .. } => {
                if let Err(error) = vm.node.set_disk_faults(*disk, *faults)
                    && let Some(event) = event
                {
                    self.sim.fail_event(event, error.to_string());
                }
            }
            Command::PulseIrq { irq, .. } => vm.node.pulse_irq(*irq),
            Command::Nmi { .. } => vm.node.raise_nmi(),
            Command::AskAgent { action, .. } => {
                let number = vm.node.ask_agent(*action);
                self.sim.agent_asked(index, number, event);
            }
            // A frame that finds the card's queue full is lost, as on any network.
            Command::Deliver { frame, .. } => drop(vm.node.deliver_frame(frame)),
        }
        Ok(())
    }

    /// Starts a VM again (semantics, point 10).
    fn restart(&mut self, index: u16, reset: bool, down_ns: u64, fresh: ([u8; 32], [u8; 16])) -> Result<(), N> {
        let failed = |source| ClusterError::Machine { vm: index, source };
        if reset {
            self.collect_vm(index);
        }
        let vm = &mut self.vms[usize::from(index)];
        if reset {
            vm.memo.wall_at_kill_ns = vm.node.wall_clock_ns();
            vm.node.power_cut(PowerCut { survivors: u64::MAX, torn_write: 0, torn_bytes: 0 }).map_err(failed)?;
        }
        let counting = vm.node.coverage().is_some();
        vm.edges_before = Some(vm.edges());
        let point = vm.restart.clone();
        self.end_segment(index)?;
        let vm = &mut self.vms[usize::from(index)];
        let resumed = vm.node.start(point.as_ref().map(|point| &point.machine)).map_err(failed)?;
        self.begin_segment(index)?;
        let vm = &mut self.vms[usize::from(index)];
        let slots = point.filter(|_| resumed).map_or_else(Slots::default, |point| point.slots.clone());
        (vm.memo.workload, vm.memo.ended) = (None, false);
        vm.choices_before = None;
        if let Some(clock) = self.sim.restarted(index, vm.node.now_guest_ns()) {
            vm.node.set_clock(clock);
        }
        vm.node.set_wall_clock_ns(vm.memo.wall_at_kill_ns.saturating_add(down_ns));
        vm.node.reseed(fresh.0, fresh.1);
        vm.node.set_coverage(counting);
        vm.node.clear_guest_coverage();
        self.oracle.set_slots(index, slots);
        Ok(())
    }

    /// Runs a VM to the barrier, if it gets run time, and collects what it did.
    fn run_vm(&mut self, index: u16, round: &Round) -> Result<Observation, N> {
        let before = self.vms[usize::from(index)].node.instructions();
        let end = match self.sim.deadline(round, index) {
            Some(deadline) if !self.vms[usize::from(index)].memo.ended => {
                let end = self.run_to(index, deadline)?;
                if let Some(barrier) = self.sim.throttled_until(round, index).filter(|_| end != VmEnd::Stopped) {
                    self.vms[usize::from(index)].node.skip_to(barrier);
                }
                end
            }
            _ => VmEnd::Stopped,
        };
        self.watch.lap(|spent| &mut spent.guests_ns);
        let turns = self.vms[usize::from(index)].node.take_turns();
        self.keep_turns(index, turns);
        self.vms[usize::from(index)].node.drain_sdk();
        self.hear(index);
        self.ran_instructions += self.vms[usize::from(index)].node.instructions() - before;
        self.hear_console(index);
        let vm = &mut self.vms[usize::from(index)];
        let mut frames = std::mem::take(&mut vm.frames);
        frames.extend(vm.node.take_frames());
        let (sdk_records, sdk) = vm.sdk.take();
        if let (Some(frame), Some(clock)) = (frames.first(), self.sim.clock(index)) {
            self.marks.sent(index, clock.to_cluster_ns(frame.at_guest_ns));
        }
        self.marks.flushed(index, vm.node.flushes(), round.end_ns);
        let observation = Observation {
            end,
            instructions: vm.node.instructions(),
            registers: vm.node.register_hash(),
            frames,
            sdk_records,
            sdk,
            disks: vm.node.disk_counts(),
        };
        self.watch.lap(|spent| &mut spent.reports_ns);
        Ok(observation)
    }

    fn run_to(&mut self, index: u16, deadline: u64) -> Result<VmEnd, N> {
        loop {
            let vm = &mut self.vms[usize::from(index)];
            let stop = vm.node.run_until(deadline).map_err(|source| ClusterError::Machine { vm: index, source })?;
            match stop {
                NodeStop::Deadline => return Ok(VmEnd::Busy),
                NodeStop::Idle { next_event_guest_ns } => {
                    vm.node.skip_to(deadline);
                    return Ok(VmEnd::Idle { next_event_guest_ns });
                }
                NodeStop::Doorbell => {
                    self.hear(index);
                    // A process that takes over a dead one's slot rings before it zeroes the counters.
                    self.collect_vm(index);
                }
                NodeStop::RestartPoint => self.take_restart_point(index),
                NodeStop::Panic(hint) => return Ok(self.guest_ended(index, Some(ViolationKind::GuestPanic { hint }))),
                NodeStop::PowerOff => {
                    self.hear(index);
                    let vm = &self.vms[usize::from(index)];
                    // A workload that said how it ended is followed by a power-off; anything else comes unasked.
                    let unasked = vm.memo.workload.is_none();
                    let how = "power-off".to_owned();
                    return Ok(self.guest_ended(index, unasked.then_some(ViolationKind::GuestShutdown { how })));
                }
                NodeStop::Ended(how) => {
                    return Ok(self.guest_ended(index, Some(ViolationKind::GuestShutdown { how })));
                }
            }
        }
    }

    /// Keeps the VM as it is, without what waits for the host: a restart must not say or send that again.
    fn take_restart_point(&mut self, index: u16) {
        self.hear(index);
        let slots = self.oracle.slots(index);
        let vm = &mut self.vms[usize::from(index)];
        vm.frames.extend(vm.node.take_frames());
        self.hear_console(index);
        let vm = &mut self.vms[usize::from(index)];
        vm.restart = Some(Arc::new(RestartPoint { machine: vm.node.snapshot(), slots }));
    }

    /// Takes in what the guest wrote to its console.
    fn hear_console(&mut self, index: u16) {
        let vm = &mut self.vms[usize::from(index)];
        let serial = vm.node.take_serial();
        keep_tail(&mut vm.memo.serial, &serial);
        if self.watched.is_some() {
            let cluster_ns = self.moment(index).cluster_ns;
            if let Some(watched) = &mut self.watched {
                watched.console(index, cluster_ns, &serial);
            }
        }
    }

    fn guest_ended(&mut self, index: u16, violation: Option<ViolationKind>) -> VmEnd {
        self.vms[usize::from(index)].memo.ended = true;
        if let Some(kind) = violation {
            let moment = self.moment(index);
            self.oracle.violate(moment, kind);
        }
        VmEnd::Stopped
    }

    /// Takes in what the guest said.
    fn hear(&mut self, index: u16) {
        let Moment { vm, instructions, .. } = self.moment(index);
        for message in self.vms[usize::from(index)].node.take_messages() {
            self.vms[usize::from(index)].sdk.push(&message);
            let guest_ns = message.at_guest_ns;
            let cluster_ns = self.sim.clock(index).map_or(0, |clock| clock.to_cluster_ns(guest_ns));
            let moment = Moment { vm, guest_ns, cluster_ns, instructions };
            let body = self.watched.is_some().then(|| message.body.clone());
            match message.body {
                MessageBody::Record { slot, bytes } => match Record::decode(&bytes) {
                    Ok(record) => {
                        self.log_event(moment, &record);
                        if let Record::Quiet { lasts_ns } = record {
                            self.sim.request_quiet(lasts_ns);
                        }
                        let property = self.oracle.property(vm, slot, &record);
                        self.marks.reported(vm, cluster_ns, &record, property);
                        self.oracle.take(moment, slot, &record);
                    }
                    Err(error) => self.oracle.refuse(vm, slot, &error.to_string()),
                },
                MessageBody::Refused { slot, reason } => self.oracle.refuse(vm, slot, &reason),
                // One that no schedule could have answered is none to plan for.
                MessageBody::Random { below: 0, .. } if self.vms[usize::from(index)].choices_before.is_none() => {}
                MessageBody::Random { below: 0, .. } => self.marks.drew(),
                MessageBody::Random { .. } => self.marks.chose(vm, cluster_ns),
                MessageBody::InitFailed => {
                    self.oracle.violate(moment, ViolationKind::GuestShutdown { how: INIT_FAILED.to_owned() });
                }
                MessageBody::AgentAnswer { number, code } => {
                    if !self.sim.agent_answered(vm, number, code, cluster_ns) {
                        self.oracle.refuse(vm, SLOTS, &format!("nobody asked the agent for request {number}"));
                    }
                }
                MessageBody::WorkloadExited(code) => self.workload_ended(moment, WorkloadEnd::Exited(code)),
                MessageBody::WorkloadKilled(signal) => self.workload_ended(moment, WorkloadEnd::Killed(signal)),
            }
            if let (Some(watched), Some(body)) = (&mut self.watched, body) {
                watched.hear(moment, &self.oracle, &body);
            }
        }
    }

    fn log_event(&mut self, moment: Moment, record: &Record<'_>) {
        if let (Some(log), Record::Event { name, details }) = (&mut self.event_log, record)
            && log.len() < EVENTS_MAX
        {
            let Moment { vm, cluster_ns, .. } = moment;
            log.push(GuestEvent { vm, cluster_ns, name: (*name).to_owned(), details: (*details).to_owned() });
        }
    }

    fn workload_ended(&mut self, moment: Moment, end: WorkloadEnd) {
        self.vms[usize::from(moment.vm)].memo.workload = Some(end);
        let (code, signalled) = match end {
            WorkloadEnd::Exited(0) => return,
            WorkloadEnd::Exited(code) => (code, false),
            WorkloadEnd::Killed(signal) => (signal, true),
        };
        self.oracle.violate(moment, ViolationKind::WorkloadExited { code, signalled });
    }

    fn moment(&self, index: u16) -> Moment {
        let node = &self.vms[usize::from(index)].node;
        let guest_ns = node.now_guest_ns();
        let cluster_ns = self.sim.clock(index).map_or(0, |clock| clock.to_cluster_ns(guest_ns));
        Moment { vm: index, guest_ns, cluster_ns, instructions: node.instructions() }
    }

    /// Takes over the counters of every slot of every VM.
    fn collect_counts(&mut self) {
        for vm in 0..self.sim.config().vms() {
            self.collect_vm(vm);
        }
    }

    fn collect_vm(&mut self, index: u16) {
        for slot in 0..SLOTS {
            self.collect_slot(index, slot);
        }
    }

    fn collect_slot(&mut self, index: u16, slot: u32) {
        if !self.oracle.has_sites(index, slot) {
            return;
        }
        let oracle = &mut self.oracle;
        let node = &self.vms[usize::from(index)].node;
        node.assertion_counts(slot, &mut |site, counts| oracle.count(index, slot, site, counts));
    }
}

/// How a kernel's panic says that it found no init to run.
const NO_INIT: [&str; 3] = ["No working init found", "Requested init", "Unable to mount root fs"];

/// Slot of a branch's hit counts where those begin that guests keep themselves: behind every edge, so that the two never share one.
pub const GUEST_SLOTS_FROM: usize = COVERAGE_MAP_BYTES;

/// How a failed init shows among violations.
const INIT_FAILED: &str = "init could not start the workload";

impl<N: Node> Vm<N> {
    /// Whether nothing more can come of it, short of a restart.
    fn over(&self) -> bool {
        self.memo.ended || self.memo.workload.is_some()
    }

    /// Gives the answers of the branch's schedule to what the VM has still to choose, and to draw after `drawn` in the branch.
    fn answer(&mut self, index: u16, drawn: u64, plan: &BranchPlan) {
        let Some(before) = self.choices_before else { return };
        let made = self.node.choices_made();
        let own = plan.schedule.choices().iter().filter(|choice| choice.vm == index);
        let (choices, randoms): (Vec<&Choice>, Vec<&Choice>) = own.partition(|choice| choice.nth < RANDOMS_FROM);
        let choices = choices.iter().map(|choice| (before.saturating_add(choice.nth.into()), choice.value));
        self.node.answer_choices(choices.filter(|(number, _)| *number >= made).collect());
        let randoms = randoms.iter().map(|choice| (u64::from(choice.nth - RANDOMS_FROM), choice.value));
        self.node.answer_randoms(drawn, randoms.filter(|(number, _)| *number >= drawn).collect());
    }

    /// Hit counts of this branch over all restarts: those of edges, and behind them, from [`GUEST_SLOTS_FROM`], those that the guest
    /// keeps, if there are any.
    fn edges(&self) -> Vec<u8> {
        let mut counts = self.edges_beside_memory();
        if let Some(of_guest) = self.node.guest_coverage() {
            add_counts(&mut counts, GUEST_SLOTS_FROM, &of_guest);
        }
        counts
    }

    /// The same without what the memory of the running guest holds.
    fn edges_beside_memory(&self) -> Vec<u8> {
        let mut counts = self.node.coverage().unwrap_or_default().into_owned();
        add_counts(&mut counts, 0, self.edges_before.as_deref().unwrap_or_default());
        counts
    }
}

/// Adds hit counts to those from slot `at` on.
fn add_counts(counts: &mut Vec<u8>, at: usize, more: &[u8]) {
    counts.resize(counts.len().max(at + more.len()), 0);
    counts[at..].iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
}

/// An error with what caused it.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// Appends and drops what is older than the last [`SERIAL_TAIL_BYTES`].
fn keep_tail(tail: &mut Vec<u8>, more: &[u8]) {
    tail.extend_from_slice(&more[more.len().saturating_sub(SERIAL_TAIL_BYTES)..]);
    let excess = tail.len().saturating_sub(SERIAL_TAIL_BYTES);
    if excess > 0 {
        tail.drain(..excess);
    }
}
