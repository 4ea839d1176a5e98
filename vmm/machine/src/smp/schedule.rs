// SPDX-License-Identifier: AGPL-3.0-or-later
//! Whose turn it is: a pure function of configuration, seed, explicit switches and who can run.

use serde::{Deserialize, Serialize};

use super::{CpuSchedule, SmpConfig};
use crate::entropy::{Purpose, Stream};

/// An explicit switch in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The only CPU that runs.
    pub cpu: u8,
    /// Progress of all CPUs at which it ends.
    pub until: u64,
}

/// Saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// Whose turn it is.
    pub current: u8,
    /// Progress of all CPUs at which the turn ends.
    pub turn_end: u64,
    /// Explicit switch in effect.
    pub hold: Option<Hold>,
    /// Draws of the random schedule.
    pub stream: Stream,
}

/// The scheduler of one machine.
#[derive(Debug)]
pub(crate) struct Scheduler {
    kind: CpuSchedule,
    quantum: u64,
    state: ScheduleState,
}

impl Scheduler {
    pub fn new(config: &SmpConfig, seed: &[u8; 32]) -> Self {
        let stream = Stream::new(seed, Purpose::CpuSchedule);
        let state = ScheduleState { current: 0, turn_end: 0, hold: None, stream };
        Self { kind: config.schedule, quantum: config.quantum_instructions, state }
    }

    pub fn state(&self) -> &ScheduleState {
        &self.state
    }

    pub fn restore(&mut self, state: &ScheduleState) {
        self.state = state.clone();
    }

    /// Draws come from `seed` from now on.
    pub fn reseed(&mut self, seed: &[u8; 32]) {
        self.state.stream = Stream::new(seed, Purpose::CpuSchedule);
    }

    /// Only `cpu` runs for `count` units of progress from `progress` on.
    pub fn hold(&mut self, cpu: usize, progress: u64, count: u64) {
        self.state.hold = Some(Hold { cpu: cpu as u8, until: progress.saturating_add(count.max(1)) });
    }

    /// Progress of all CPUs at which the next turn is due.
    pub fn turn_end(&self) -> u64 {
        self.state.hold.map_or(self.state.turn_end, |hold| hold.until)
    }

    /// The CPU of a new turn that starts at this boundary, which may be the same one; none while the turn lasts, or when
    /// nobody can run.
    pub fn turn(&mut self, current: usize, progress: u64, able: &[bool]) -> Option<usize> {
        if let Some(hold) = self.state.hold {
            let cpu = usize::from(hold.cpu);
            if progress < hold.until && able[cpu] {
                if current == cpu {
                    return None;
                }
                self.state.current = hold.cpu;
                return Some(cpu);
            }
            if !able.contains(&true) {
                // Nobody can run now; the switch is not over for that.
                return None;
            }
            // A switch ends a turn.
            self.state.hold = None;
            self.state.turn_end = progress;
        }
        if progress < self.state.turn_end && able[current] || !able.contains(&true) {
            return None;
        }
        let next = self.next(current, able);
        self.state.current = next as u8;
        self.state.turn_end = progress.saturating_add(self.length());
        Some(next)
    }

    fn next(&mut self, current: usize, able: &[bool]) -> usize {
        let count = able.len();
        match self.kind {
            CpuSchedule::RoundRobin => {
                (1..=count).map(|step| (current + step) % count).find(|cpu| able[*cpu]).unwrap_or(current)
            }
            CpuSchedule::Random => {
                let able: Vec<usize> = (0..count).filter(|cpu| able[*cpu]).collect();
                let draw = self.state.stream.below(able.len() as u64) as usize;
                able.get(draw).copied().unwrap_or(current)
            }
        }
    }

    fn length(&mut self) -> u64 {
        match self.kind {
            CpuSchedule::RoundRobin => self.quantum,
            CpuSchedule::Random => 1 + self.state.stream.below(self.quantum * 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduler(schedule: CpuSchedule) -> Scheduler {
        let config = SmpConfig { cpus: 3, quantum_instructions: 10, schedule, journal_limit: 0 };
        Scheduler::new(&config, &[7; 32])
    }

    #[test]
    fn round_robin_gives_each_able_cpu_its_quantum_in_turn() {
        let mut scheduler = scheduler(CpuSchedule::RoundRobin);
        let mut turns = Vec::new();
        let mut current = 2;
        for progress in 0..60 {
            if let Some(next) = scheduler.turn(current, progress, &[true, false, true]) {
                turns.push((progress, next));
                current = next;
            }
            assert_eq!(scheduler.turn(current, progress, &[true, false, true]), None, "asking twice changes nothing");
        }
        assert_eq!(turns, [(0, 0), (10, 2), (20, 0), (30, 2), (40, 0), (50, 2)]);
    }

    #[test]
    fn a_cpu_that_cannot_run_loses_its_turn_at_once_and_nobody_gets_it_when_none_can() {
        let mut scheduler = scheduler(CpuSchedule::RoundRobin);
        assert_eq!(scheduler.turn(0, 0, &[true, true, true]), Some(1));
        assert_eq!(scheduler.turn(1, 4, &[true, false, false]), Some(0));
        assert_eq!(scheduler.turn(0, 5, &[false, false, false]), None);
    }

    #[test]
    fn random_turns_follow_the_seed_and_reach_every_cpu() {
        let turns = |seed: [u8; 32]| {
            let mut scheduler = scheduler(CpuSchedule::Random);
            scheduler.reseed(&seed);
            let mut progress = 0;
            (0..200)
                .map(|_| {
                    let next = scheduler.turn(0, progress, &[true; 3]).expect("a turn is due");
                    let length = scheduler.turn_end() - progress;
                    progress = scheduler.turn_end();
                    (next, length)
                })
                .collect::<Vec<_>>()
        };
        let first = turns([1; 32]);
        assert_eq!(first, turns([1; 32]));
        assert_ne!(first, turns([2; 32]));
        assert!((0..3).all(|cpu| first.iter().any(|(next, _)| *next == cpu)));
        assert!(first.iter().all(|(_, length)| (1..=20).contains(length)));
    }

    #[test]
    fn an_explicit_switch_holds_its_cpu_until_it_ends_or_cannot_run() {
        let mut scheduler = scheduler(CpuSchedule::RoundRobin);
        assert_eq!(scheduler.turn(2, 0, &[true; 3]), Some(0));
        scheduler.hold(2, 3, 100);
        assert_eq!(scheduler.turn(0, 3, &[true; 3]), Some(2));
        assert_eq!(scheduler.turn(2, 60, &[true; 3]), None);
        assert_eq!(scheduler.turn(2, 61, &[true, true, false]), Some(0), "it halted");
        scheduler.hold(1, 62, 5);
        assert_eq!(scheduler.turn(0, 62, &[true; 3]), Some(1));
        assert_eq!(scheduler.turn(1, 67, &[true; 3]), Some(2), "it ended");
    }
}
