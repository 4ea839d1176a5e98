// SPDX-License-Identifier: AGPL-3.0-or-later
//! One round: faults and frames at its start, how far it goes, and what came of it (semantics, point 5).

use chaoscontrol_fault::{Fault, FaultEvent, Rejection};

use crate::agent::action_of;
use crate::clock::Clock;
use crate::command::{Command, DiskCounts, Observation, PowerCut, Round, VmEnd};
use crate::effects::{Effect, every_ns};
use crate::state::{Power, Sim, SimState, VmState};
use crate::trace::{RoundRecord, VmRecord};

/// Commands so far, each with the event that caused it.
pub(crate) type Commands = Vec<(Command, Option<usize>)>;

impl Sim {
    /// Plans the round that starts now: what happens at its start, and where its barrier is. The shell carries the commands
    /// out, runs each VM to its [`Self::deadline`] and calls [`Self::finish_round`].
    pub fn plan_round(&mut self) -> Round {
        let state = &mut self.state;
        let start_ns = state.now_ns;
        let mut commands = Commands::new();
        state.end_effects(&mut commands);
        state.end_waits(&mut commands);
        let quiet = state.is_quiet(&mut commands);
        let faults = state.apply_due(quiet, &mut commands);
        state.strike(&mut commands);
        let delivered = state.deliver_due(&mut commands);
        let end_ns = state.barrier(&delivered);
        Round { start_ns, end_ns, commands, faults, delivered }
    }

    /// Takes what every VM did (one observation a VM, in order), moves time to the barrier and returns the round's record.
    ///
    /// # Panics
    /// When there is not exactly one observation a VM: a mistake of the shell.
    pub fn finish_round(&mut self, round: &Round, observations: &[Observation]) -> RoundRecord {
        let state = &mut self.state;
        assert_eq!(observations.len(), state.vms.len(), "one observation a VM");
        let mut frames = Vec::new();
        let mut records = Vec::with_capacity(observations.len());
        for (vm, observation) in (0..).zip(observations) {
            let clock = state.vms[usize::from(vm)].clock;
            let mut hasher = blake3::Hasher::new();
            for (sequence, frame) in observation.frames.iter().enumerate() {
                hasher.update(&frame.at_guest_ns.to_le_bytes());
                hasher.update(&(frame.bytes.len() as u64).to_le_bytes());
                hasher.update(&frame.bytes);
                frames.push((clock.to_cluster_ns(frame.at_guest_ns), vm, sequence, &frame.bytes));
            }
            state.observe(vm, round, observation);
            records.push(VmRecord {
                power: match state.vms[usize::from(vm)].power {
                    Power::On => 0,
                    Power::Paused { .. } => 1,
                    Power::Down { .. } => 2,
                },
                instructions: observation.instructions,
                registers: observation.registers,
                frames_sent: observation.frames.len() as u64,
                frames: if observation.frames.is_empty() { [0; 32] } else { hasher.finalize().into() },
                frames_delivered: round.delivered[usize::from(vm)],
                sdk_records: observation.sdk_records,
                sdk: observation.sdk,
            });
        }
        frames.sort_unstable_by_key(|(sent_ns, vm, sequence, _)| (*sent_ns, *vm, *sequence));
        for (sent_ns, vm, _, bytes) in frames {
            state.switch.send(&state.config, &state.effects, &mut state.ledger, (vm, sent_ns), bytes);
        }
        let record = RoundRecord {
            round: state.rounds,
            start_ns: round.start_ns,
            end_ns: round.end_ns,
            faults: round.faults.clone(),
            vms: records,
        };
        state.trace.push(&record);
        state.now_ns = round.end_ns;
        state.rounds += 1;
        record
    }
}

impl SimState {
    /// Ends what has run its time.
    fn end_effects(&mut self, commands: &mut Commands) {
        for ended in self.effects.take_ended(self.now_ns) {
            self.end(&ended, commands);
        }
    }

    /// Tells the VM that a fault is over.
    pub(crate) fn end(&mut self, ended: &Effect, commands: &mut Commands) {
        let index = ended.index.map(|index| index as usize);
        if let Fault::ClockJitter { vm, .. } = ended.event.fault
            && ended.moved_ns != 0
            && self.expect_up(vm).is_ok()
        {
            commands.push((Command::StepWallClock { vm, jump_ns: ended.moved_ns.saturating_neg() }, index));
        }
        self.refresh(&ended.event.fault, commands, index);
    }

    /// Lets every fault that does something again and again, and whose time came, do it.
    fn strike(&mut self, commands: &mut Commands) {
        for (place, effect) in self.effects.take_strokes(self.now_ns) {
            let index = effect.index.map(|index| index as usize);
            let Some(vm) = effect.event.fault.vm().filter(|vm| self.expect_up(*vm).is_ok()) else { continue };
            match effect.event.fault {
                Fault::ClockJitter { jitter_ns, .. } => {
                    let wide = self.vm(vm).jitter.between(0, jitter_ns.saturating_mul(2));
                    let moved_ns = wide.cast_signed().saturating_sub(jitter_ns.cast_signed());
                    let jump_ns = moved_ns.saturating_sub(effect.moved_ns);
                    self.effects.set_moved(place, moved_ns);
                    self.observe_at(effect.index, u64::from(jump_ns != 0));
                    commands.push((Command::StepWallClock { vm, jump_ns }, index));
                }
                Fault::CpuStall { stall_ns, .. } if self.vm(vm).power == Power::On => {
                    let until_ns = self.now_ns.saturating_add(stall_ns);
                    self.vm(vm).power = Power::Paused { until_ns, index: effect.index, frozen_ns: None };
                }
                Fault::InterruptIrq { irq, .. } => {
                    self.interrupted(vm);
                    self.observe_at(effect.index, 1);
                    commands.push((Command::PulseIrq { vm, irq: u8::try_from(irq).unwrap_or(0) }, index));
                }
                _ => {}
            }
        }
    }

    /// A VM that gets an interrupt has something to do.
    fn interrupted(&mut self, vm: u16) {
        self.vm(vm).end = VmEnd::Busy;
    }

    fn observe_at(&mut self, index: Option<u32>, count: u64) {
        if let Some(index) = index {
            self.ledger.observe(index as usize, count);
        }
    }

    /// Tells the VM what a fault that came or went changes for it.
    fn refresh(&mut self, fault: &Fault, commands: &mut Commands, index: Option<usize>) {
        let Some(vm) = fault.vm() else { return };
        if let Some(disk) = fault.disk() {
            let faults = self.effects.disk(vm, disk);
            commands.push((Command::SetDiskFaults { vm, disk, faults }, index));
        } else if matches!(fault, Fault::ClockSkew { .. }) && !matches!(self.vm(vm).power, Power::Down { .. }) {
            let (numerator, denominator, _) = self.effects.skew(vm).unwrap_or((1, 1, None));
            let now_ns = self.now_ns;
            let clock = self.vm(vm).clock_at(now_ns).at_pace(now_ns, numerator, denominator);
            self.vm(vm).clock = clock;
            commands.push((Command::SetClock { vm, clock }, index));
        }
    }

    fn vm(&mut self, vm: u16) -> &mut VmState {
        &mut self.vms[usize::from(vm)]
    }

    /// Resumes pauses and starts VMs whose time has come.
    fn end_waits(&mut self, commands: &mut Commands) {
        for vm in 0..self.config.vms() {
            match self.vms[usize::from(vm)].power {
                Power::Paused { until_ns, .. } if until_ns <= self.now_ns => self.resume(vm, commands),
                Power::Down { restart_ns: Some(at_ns), .. } if at_ns <= self.now_ns => {
                    self.restart(vm, commands, None);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn resume(&mut self, vm: u16, commands: &mut Commands) {
        let now_ns = self.now_ns;
        let each = self.vm(vm);
        let clock = each.clock_at(now_ns);
        let frozen = clock != each.clock;
        // What fell due in the pause makes it busy.
        (each.clock, each.power, each.end) = (clock, Power::On, VmEnd::Busy);
        if frozen {
            commands.push((Command::SetClock { vm, clock }, None));
        } else {
            commands.push((Command::SkipTo { vm, guest_ns: clock.to_guest_ns(now_ns) }, None));
        }
    }

    pub(crate) fn restart(&mut self, vm: u16, commands: &mut Commands, index: Option<usize>) {
        let now_ns = self.now_ns;
        self.forget_asked(vm);
        let each = self.vm(vm);
        let (reset, down_ns) = match each.power {
            Power::Down { since_ns, .. } => (false, now_ns.saturating_sub(since_ns)),
            Power::On | Power::Paused { .. } => (true, 0),
        };
        let (mut entropy, mut generation) = ([0; 32], [0; 16]);
        each.restarts.fill(&mut entropy);
        each.restarts.fill(&mut generation);
        // The shell says in a moment at which guest time it comes up.
        (each.clock, each.power, each.end) = (Clock::starting(now_ns, 0), Power::On, VmEnd::Busy);
        let disks = each.disks.len();
        each.disks.fill(DiskCounts::default());
        commands.push((Command::Restart { vm, reset, down_ns, entropy, generation }, index));
        for disk in (0..).take(disks) {
            let faults = self.effects.disk(vm, disk);
            if faults != crate::DiskFaults::default() {
                commands.push((Command::SetDiskFaults { vm, disk, faults }, index));
            }
        }
    }

    /// Applies the schedule's faults that are due and returns their places in it.
    fn apply_due(&mut self, quiet: bool, commands: &mut Commands) -> Vec<u32> {
        let mut reached = Vec::new();
        while let Some(event) = self.schedule.events().get(self.next_event).copied() {
            if self.branch_start_ns.saturating_add(event.time_ns) > self.now_ns {
                break;
            }
            let index = self.next_event;
            self.next_event += 1;
            reached.push(u32::try_from(index).unwrap_or(u32::MAX));
            let applied = if quiet { Err(Rejection::QuietPeriod) } else { self.apply(event, index, commands) };
            match applied {
                Ok(()) if event.fault.is_for_agent() => self.ledger.request(index, self.now_ns),
                Ok(()) => self.ledger.apply(index, self.now_ns),
                Err(rejection) => self.ledger.reject(index, rejection),
            }
        }
        reached
    }

    fn apply(&mut self, event: FaultEvent, index: usize, commands: &mut Commands) -> Result<(), Rejection> {
        let now_ns = self.now_ns;
        if let Some(vm) = event.fault.vm()
            && vm >= self.config.vms()
        {
            return Err(Rejection::NoSuchTarget);
        }
        if let (Some(action), Some(vm)) = (action_of(&event.fault), event.fault.vm()) {
            self.expect_up(vm)?;
            commands.push((Command::AskAgent { vm, action }, Some(index)));
            return Ok(());
        }
        match event.fault {
            Fault::NetworkHeal {} => match self.effects.heal() {
                0 => return Err(Rejection::NothingToHeal),
                ended => self.ledger.observe(index, ended),
            },
            Fault::VmKill { vm, survivors, torn_write, torn_bytes, down_ns } => {
                self.expect_up(vm)?;
                let restart_ns = (down_ns > 0).then(|| now_ns.saturating_add(down_ns));
                self.vm(vm).power = Power::Down { since_ns: now_ns, restart_ns };
                self.vm(vm).end = VmEnd::Stopped;
                self.forget_asked(vm);
                self.ledger.observe(index, 1);
                let cut = PowerCut { survivors, torn_write, torn_bytes };
                commands.push((Command::Kill { vm, cut }, Some(index)));
            }
            Fault::VmPause { vm, duration_ns } | Fault::ClockFreeze { vm, duration_ns } => {
                self.expect_up(vm)?;
                if matches!(self.vm(vm).power, Power::Paused { .. }) {
                    return Err(Rejection::VmPaused);
                }
                let (until_ns, place) = (now_ns.saturating_add(duration_ns), u32::try_from(index).ok());
                let freezes = matches!(event.fault, Fault::ClockFreeze { .. });
                let frozen_ns = freezes.then(|| self.vm(vm).clock.to_guest_ns(now_ns));
                self.ledger.observe(index, u64::from(freezes));
                self.vm(vm).power = Power::Paused { until_ns, index: place.filter(|_| !freezes), frozen_ns };
            }
            Fault::VmRestart { vm } => {
                self.restart(vm, commands, Some(index));
                self.ledger.observe(index, 1);
            }
            Fault::ClockJump { vm, jump_ns } => {
                self.expect_up(vm)?;
                commands.push((Command::StepWallClock { vm, jump_ns }, Some(index)));
                self.ledger.observe(index, 1);
            }
            Fault::CpuSwitch { vm, cpu, hold_ns } => {
                self.expect_up(vm)?;
                commands.push((Command::SwitchCpu { vm, cpu, hold_ns }, Some(index)));
                self.ledger.observe(index, 1);
            }
            Fault::InterruptNmi { vm } => {
                self.expect_up(vm)?;
                self.interrupted(vm);
                commands.push((Command::Nmi { vm }, Some(index)));
                self.ledger.observe(index, 1);
            }
            Fault::ClockSkew { vm, .. }
            | Fault::ClockJitter { vm, .. }
            | Fault::CpuStall { vm, .. }
            | Fault::CpuThrottle { vm, .. }
            | Fault::InterruptIrq { vm, .. } => {
                self.expect_up(vm)?;
                self.start(event, index, commands);
            }
            _ => self.start(event, index, commands),
        }
        Ok(())
    }

    fn expect_up(&mut self, vm: u16) -> Result<(), Rejection> {
        if matches!(self.vm(vm).power, Power::Down { .. }) { Err(Rejection::VmDown) } else { Ok(()) }
    }

    /// Puts a fault that lasts into effect.
    fn start(&mut self, event: FaultEvent, index: usize, commands: &mut Commands) {
        let lasts_ns = event.fault.duration_ns().filter(|duration| *duration > 0);
        let until_ns = lasts_ns.map(|lasts| self.now_ns.saturating_add(lasts));
        let stroke_ns = every_ns(&event.fault).map(|_| self.now_ns);
        self.effects.push(Effect { event, index: u32::try_from(index).ok(), until_ns, stroke_ns, moved_ns: 0 });
        self.refresh(&event.fault, commands, Some(index));
    }

    /// Hands over the frames that are due; returns how many each VM got.
    fn deliver_due(&mut self, commands: &mut Commands) -> Vec<u64> {
        let mut delivered = vec![0; self.vms.len()];
        for copy in self.switch.take_due(self.now_ns, &self.effects, &mut self.ledger) {
            let Some(vm) = self.vms.get(usize::from(copy.to)) else { continue };
            let up = !matches!(vm.power, Power::Down { .. });
            self.switch.count_due(&copy, self.now_ns, up);
            if up {
                delivered[usize::from(copy.to)] += 1;
                commands.push((Command::Deliver { vm: copy.to, frame: copy.bytes }, None));
            }
        }
        delivered
    }

    /// Cluster time of the next barrier: a full round on, or the earliest event when nobody has anything to do before it;
    /// never past a fault, the end of one, or the end of the branch.
    fn barrier(&self, delivered: &[u64]) -> u64 {
        let mut end_ns = self.now_ns.saturating_add(self.config.round_ns());
        if let Some(event_ns) = self.idle_until(delivered) {
            end_ns = end_ns.max(event_ns);
        }
        let fault = self.schedule.events().get(self.next_event);
        let waits = self.vms.iter().filter_map(|vm| match vm.power {
            Power::On => None,
            Power::Paused { until_ns, .. } => Some(until_ns),
            Power::Down { restart_ns, .. } => restart_ns,
        });
        let stops = waits
            .chain(fault.map(|event| self.branch_start_ns.saturating_add(event.time_ns)))
            .chain(self.effects.next_change_ns())
            .chain([self.branch_end_ns]);
        stops.filter(|stop| *stop > self.now_ns).fold(end_ns, u64::min)
    }

    /// When the first timer or frame is due, if every VM that runs is halted and got no frame; the end of time when there
    /// is none.
    fn idle_until(&self, delivered: &[u64]) -> Option<u64> {
        let mut first_ns = self.switch.next_due_ns().unwrap_or(u64::MAX);
        for (vm, delivered) in self.vms.iter().zip(delivered) {
            match (vm.power, vm.end) {
                (Power::On, VmEnd::Busy) => return None,
                (Power::On, _) if *delivered > 0 => return None,
                (Power::On, VmEnd::Idle { next_event_guest_ns: Some(event) }) => {
                    first_ns = first_ns.min(vm.clock.reaches_ns(event));
                }
                _ => {}
            }
        }
        // With no event at all, whoever set the horizon decides how far that is.
        Some(first_ns)
    }

    /// Takes over what a VM reported and counts observed effects.
    fn observe(&mut self, vm: u16, round: &Round, observation: &Observation) {
        let index = usize::from(vm);
        let had_work = match self.vms[index].end {
            VmEnd::Busy => true,
            VmEnd::Idle { next_event_guest_ns } => {
                let due = |event| self.vms[index].clock.reaches_ns(event) < round.end_ns;
                next_event_guest_ns.is_some_and(due) || round.delivered[index] > 0
            }
            VmEnd::Stopped => false,
        };
        match self.vms[index].power {
            Power::Paused { index: Some(event), .. } if had_work => self.ledger.observe(event as usize, 1),
            Power::On => {
                let ran = observation.instructions != self.vms[index].instructions;
                if let (true, Some((_, _, Some(event)))) = (ran, self.effects.skew(vm)) {
                    self.ledger.observe(event as usize, 1);
                }
                if let (true, VmEnd::Busy, Some((_, event))) = (ran, observation.end, self.effects.throttle(vm)) {
                    self.observe_at(event, 1);
                }
                self.vms[index].end = observation.end;
            }
            _ => {}
        }
        self.vms[index].instructions = observation.instructions;
        for (disk, counts) in (0..).zip(&observation.disks) {
            self.observe_disk(vm, disk, counts);
        }
    }

    /// Counts what a disk's faults did in the round for the latest fault of each kind.
    fn observe_disk(&mut self, vm: u16, disk: u16, counts: &DiskCounts) {
        let Some(before) = self.vms[usize::from(vm)].disks.get(usize::from(disk)).copied() else { return };
        let hits = |fault: &Fault| match fault {
            Fault::DiskReadError { .. } => counts.read_errors.saturating_sub(before.read_errors),
            Fault::DiskWriteError { .. } => counts.write_errors.saturating_sub(before.write_errors),
            Fault::DiskTornWrite { .. } => counts.torn.saturating_sub(before.torn),
            Fault::DiskCorruption { .. } => counts.corrupted.saturating_sub(before.corrupted),
            Fault::DiskFull { .. } => counts.refused.saturating_sub(before.refused),
            Fault::DiskLatency { .. } => counts.delayed.saturating_sub(before.delayed),
            _ => 0,
        };
        let mut latest = std::collections::BTreeMap::new();
        for effect in self.effects.on_disk(vm, disk) {
            latest.insert(effect.event.fault.kind(), (effect.index, hits(&effect.event.fault)));
        }
        for (index, hits) in latest.into_values() {
            if let Some(index) = index {
                self.ledger.observe(index as usize, hits);
            }
        }
        self.vms[usize::from(vm)].disks[usize::from(disk)] = *counts;
    }
}
