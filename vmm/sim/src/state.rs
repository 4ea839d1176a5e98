// SPDX-License-Identifier: AGPL-3.0-or-later
//! The core's state, and what the shell asks of it between rounds.

use chaoscontrol_fault::{FaultEvent, Ledger, Schedule, ScheduleError, Stream};
use serde::{Deserialize, Serialize};

use crate::agent::{ASKED_MAX, Asked, Quiet};
use crate::clock::Clock;
use crate::command::{DiskCounts, Round, VmEnd};
use crate::config::{ConfigError, SimConfig};
use crate::effects::Effects;
use crate::log::FrameLog;
use crate::switch::{NetworkCounts, Switch};
use crate::trace::Trace;

/// Whether a VM gets run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Power {
    /// It runs.
    On,
    /// It gets no run time.
    Paused {
        /// Cluster ns at which it runs again.
        until_ns: u64,
        /// The fault's place in the running schedule.
        index: Option<u32>,
        /// Guest ns at which its clocks stand; none where they go on.
        frozen_ns: Option<u64>,
    },
    /// Its power is off.
    Down {
        /// Cluster ns at which it went down.
        since_ns: u64,
        /// Cluster ns at which it starts again by itself.
        restart_ns: Option<u64>,
    },
}

/// One VM as the core sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VmState {
    pub power: Power,
    pub clock: Clock,
    /// How it came to the last barrier.
    pub end: VmEnd,
    /// Entropy and generation ids of restarts.
    pub restarts: Stream,
    /// Distances of a jittering wall clock.
    pub jitter: Stream,
    pub instructions: u64,
    pub disks: Vec<DiskCounts>,
    /// Requests that its agent has not answered.
    pub asked: Vec<Asked>,
}

impl VmState {
    /// Its clock as it goes on from `now_ns`: from where it stands, if it is frozen.
    pub fn clock_at(&self, now_ns: u64) -> Clock {
        match self.power {
            Power::Paused { frozen_ns: Some(guest_ns), .. } => self.clock.resumed(now_ns, guest_ns),
            _ => self.clock,
        }
    }
}

/// The whole state of the pure core, as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimState {
    pub(crate) config: SimConfig,
    pub(crate) now_ns: u64,
    pub(crate) rounds: u64,
    pub(crate) vms: Vec<VmState>,
    pub(crate) effects: Effects,
    pub(crate) switch: Switch,
    pub(crate) quiet: Option<Quiet>,
    pub(crate) branch_start_ns: u64,
    pub(crate) branch_end_ns: u64,
    pub(crate) schedule: Schedule,
    pub(crate) next_event: usize,
    pub(crate) ledger: Ledger,
    pub(crate) trace: Trace,
}

/// The pure core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sim {
    pub(crate) state: SimState,
}

impl SimState {
    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &SimConfig {
        &self.config
    }

    /// Cluster time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Rounds that were run.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds
    }
}

impl Sim {
    /// A cluster at cluster time 0 with every VM up, no schedule, and `horizon_ns` to run.
    pub fn new(config: SimConfig, seed: u64, horizon_ns: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let vm = |(index, disks): (u64, &u16)| VmState {
            power: Power::On,
            clock: Clock::starting(0, 0),
            end: VmEnd::Busy,
            restarts: Stream::named(seed, "restart", index),
            jitter: Stream::named(seed, "clock jitter", index),
            instructions: 0,
            disks: vec![DiskCounts::default(); usize::from(*disks)],
            asked: Vec::new(),
        };
        let state = SimState {
            vms: (0..).zip(&config.disks).map(vm).collect(),
            switch: Switch::new(config.vms(), seed),
            config,
            now_ns: 0,
            rounds: 0,
            effects: Effects::default(),
            quiet: None,
            branch_start_ns: 0,
            branch_end_ns: horizon_ns,
            schedule: Schedule::default(),
            next_event: 0,
            ledger: Ledger::default(),
            trace: Trace::default(),
        };
        Ok(Self { state })
    }

    /// Goes on from a stored state, which is checked as far as the core relies on it.
    pub fn from_state(state: SimState) -> Result<Self, ConfigError> {
        state.config.check()?;
        let vms = state.config.disks.len();
        if state.vms.len() != vms || !state.switch.fits(vms) {
            return Err(ConfigError::State("the number of VMs differs between its parts"));
        }
        if state.vms.iter().any(|vm| vm.clock.numerator == 0 || vm.clock.denominator == 0) {
            return Err(ConfigError::State("a clock has a zero rate"));
        }
        if state.vms.iter().zip(&state.config.disks).any(|(vm, disks)| vm.disks.len() != usize::from(*disks)) {
            return Err(ConfigError::State("the number of disks differs between its parts"));
        }
        if state.vms.iter().any(|vm| vm.asked.len() > ASKED_MAX) {
            return Err(ConfigError::State("an agent has more requests to answer than it can have got"));
        }
        if !state.effects.fit(&state.config.disks) {
            return Err(ConfigError::State("a fault in effect has a target that the cluster does not have"));
        }
        Ok(Self { state })
    }

    /// The state between two rounds.
    #[must_use]
    pub fn state(&self) -> &SimState {
        &self.state
    }

    /// Starts a branch here: a schedule whose times count from now, a horizon, and new draws from `entropy_seed`. The trace
    /// starts anew, so that a branch's trace does not depend on how its snapshot was reached.
    pub fn begin_branch(
        &mut self,
        schedule: Schedule,
        horizon_ns: u64,
        entropy_seed: u64,
    ) -> Result<(), ScheduleError> {
        let state = &mut self.state;
        schedule.check(&state.config.shape(horizon_ns))?;
        state.effects.leave_schedule();
        state.switch.reseed(entropy_seed);
        for (index, vm) in (0..).zip(&mut state.vms) {
            vm.restarts = Stream::named(entropy_seed, "restart", index);
            vm.jitter = Stream::named(entropy_seed, "clock jitter", index);
            if let Power::Paused { index, .. } = &mut vm.power {
                *index = None;
            }
            vm.asked.iter_mut().for_each(|asked| asked.index = None);
        }
        state.branch_start_ns = state.now_ns;
        state.branch_end_ns = state.now_ns.saturating_add(horizon_ns);
        state.ledger = Ledger::new(&schedule);
        state.schedule = schedule;
        state.next_event = 0;
        state.trace = Trace::default();
        Ok(())
    }

    /// Adds a fault to the running schedule, between two rounds. One that lies in the past, or that no longer fits, is refused.
    ///
    /// A branch runs to the same bits when the fault stood in its schedule from the start: a barrier looks at the next fault
    /// only to stop at it, and every barrier so far lies at or before this one's time.
    pub fn add_event(&mut self, event: FaultEvent) -> bool {
        let state = &mut self.state;
        let horizon_ns = state.branch_end_ns - state.branch_start_ns;
        let past = state.branch_start_ns.saturating_add(event.time_ns) < state.now_ns;
        if past || event.check(0, &state.config.shape(horizon_ns)).is_err() {
            return false;
        }
        let Some(place) = state.schedule.insert(event, state.next_event) else { return false };
        state.ledger.insert(place, event);
        true
    }

    /// Puts another schedule in place of the running one, between two rounds. Both must have the same faults up to now.
    ///
    /// The branch then runs to the same bits as one that had `schedule` from the start: of faults that lie behind it a barrier
    /// sees only where the next one is, to stop there, and none of the barriers so far did.
    pub fn change_rest(&mut self, schedule: Schedule) -> Result<(), ScheduleError> {
        let state = &mut self.state;
        schedule.check(&state.config.shape(state.branch_end_ns - state.branch_start_ns))?;
        let now_ns = state.now_ns - state.branch_start_ns;
        assert!(state.schedule.agrees_until(&schedule, now_ns), "the schedules differ before {now_ns} ns");
        state.ledger = state.ledger.under(&schedule, state.next_event);
        state.schedule = schedule;
        Ok(())
    }

    /// The running schedule.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.state.schedule
    }

    /// Whether the branch reached its horizon.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.state.now_ns >= self.state.branch_end_ns
    }

    /// Cluster time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.state.now_ns
    }

    /// Cluster time at which the branch started.
    #[must_use]
    pub fn branch_start_ns(&self) -> u64 {
        self.state.branch_start_ns
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &SimConfig {
        &self.state.config
    }

    /// The ledger of the running schedule.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.state.ledger
    }

    /// The rolling trace.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.state.trace
    }

    /// What happened to frames since the cluster started.
    #[must_use]
    pub fn network_counts(&self) -> NetworkCounts {
        self.state.switch.counts()
    }

    /// Begins to keep what becomes of each frame sent from here on, or ends it; gives what was kept until now. Changes nothing else.
    pub fn watch_frames(&mut self, on: bool) -> Option<FrameLog> {
        self.state.switch.watch(on)
    }

    /// Whether a VM gets run time; down for one that does not exist.
    #[must_use]
    pub fn power(&self, vm: u16) -> Power {
        let vm = self.state.vms.get(usize::from(vm));
        vm.map_or(Power::Down { since_ns: 0, restart_ns: None }, |vm| vm.power)
    }

    /// The clock of a VM, if it exists.
    #[must_use]
    pub fn clock(&self, vm: u16) -> Option<Clock> {
        self.state.vms.get(usize::from(vm)).map(|vm| vm.clock)
    }

    /// Says at which guest time a restarted VM came up, and returns its clock from here on.
    pub fn restarted(&mut self, vm: u16, guest_ns: u64) -> Option<Clock> {
        let now_ns = self.state.now_ns;
        let (numerator, denominator, _) = self.state.effects.skew(vm).unwrap_or((1, 1, None));
        let each = self.state.vms.get_mut(usize::from(vm))?;
        each.clock = Clock::starting(now_ns, guest_ns).at_pace(now_ns, numerator, denominator);
        Some(each.clock)
    }

    /// Guest time to which the VM runs in the round: to the first instruction boundary at or after it. None for one that
    /// gets no run time. Asked once the round's commands are carried out.
    #[must_use]
    pub fn deadline(&self, round: &Round, vm: u16) -> Option<u64> {
        let each = self.state.vms.get(usize::from(vm))?;
        (each.power == Power::On).then(|| each.clock.to_guest_ns(self.run_end_ns(round, vm)))
    }

    /// Guest time at the barrier for a VM whose CPU gets a part of the round only: the rest passes without run time.
    #[must_use]
    pub fn throttled_until(&self, round: &Round, vm: u16) -> Option<u64> {
        let clock = self.state.vms.get(usize::from(vm))?.clock;
        self.state.effects.throttle(vm).map(|_| clock.to_guest_ns(round.end_ns))
    }

    /// Cluster time to which the VM runs in the round.
    fn run_end_ns(&self, round: &Round, vm: u16) -> u64 {
        let Some((speed_ppm, _)) = self.state.effects.throttle(vm) else { return round.end_ns };
        let length_ns = u128::from(round.end_ns.saturating_sub(round.start_ns));
        let part_ns = length_ns * u128::from(speed_ppm) / 1_000_000;
        round.start_ns + u64::try_from(part_ns).unwrap_or(0)
    }

    /// Records that the shell could not carry out a command of the event at `index`.
    pub fn fail_event(&mut self, index: usize, reason: String) {
        self.state.ledger.fail(index, reason);
    }
}
