// SPDX-License-Identifier: AGPL-3.0-or-later
//! A log of what a machine does: every exit with what was answered, every interrupt, and marks with hashes at fixed counts.
//!
//! Looking changes nothing: marks are stops, and no guest can see a stop. The log is bounded; what there is no room for does not
//! run. Nothing of it is part of a snapshot.

use chaoscontrol_cpu::{CpuState, Exit};

use crate::machine::Machine;
use crate::pages::Digest;
use crate::stop::MachineError;

/// Room that must be left before the CPU runs on: more than the accesses of one instruction.
const HEADROOM: usize = 2048;

/// What a log keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Units of progress between two marks; 0 sets none.
    pub interval: u64,
    /// Progress from which on events are kept.
    pub from: u64,
    /// Progress up to which they are.
    pub to: u64,
    /// Whether exits and interrupts are kept beside marks.
    pub exits: bool,
    /// Whether marks have all registers of the CPU that runs.
    pub registers: bool,
    /// Whether marks have a hash of memory.
    pub memory: bool,
    /// Most events.
    pub limit: usize,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { interval: 0, from: 0, to: u64::MAX, exits: true, registers: false, memory: false, limit: 1 << 20 }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// An exit, and the value that a read was answered with.
    Exit(Exit, Option<u64>),
    /// An interrupt was delivered.
    Interrupt(u8),
    /// An NMI was delivered.
    Nmi,
    /// A fixed count was reached.
    Mark {
        /// Hash over the registers of all CPUs.
        registers: Digest,
        /// Hash over memory.
        memory: Option<Digest>,
        /// Registers of the CPU that runs.
        state: Option<Box<CpuState>>,
    },
}

/// One entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Units of progress before it.
    pub progress: u64,
    /// Guest time.
    pub guest_ns: u64,
    /// The CPU that ran.
    pub cpu: u8,
    /// What happened.
    pub what: What,
}

/// The log of one machine.
#[derive(Debug)]
pub(crate) struct EventLog {
    config: LogConfig,
    events: Vec<Event>,
    /// Progress of the last mark.
    marked: Option<u64>,
}

impl EventLog {
    fn keeps(&self, progress: u64) -> bool {
        (self.config.from..=self.config.to).contains(&progress)
    }

    /// Progress at which the next mark is due, after `progress`.
    fn next_mark(&self, progress: u64) -> Option<u64> {
        let LogConfig { interval, from, to, .. } = self.config;
        if interval == 0 || progress >= to {
            return None;
        }
        let steps = progress.checked_sub(from).map_or(0, |past| past / interval + 1);
        steps.checked_mul(interval).and_then(|offset| from.checked_add(offset)).filter(|next| *next <= to)
    }
}

impl Machine {
    /// Starts a log, in the place of one that there may be.
    pub fn start_log(&mut self, config: LogConfig) {
        self.log = Some(Box::new(EventLog { config, events: Vec::new(), marked: None }));
    }

    /// Ends the log, where marks are set with one more: what comes behind the last of them must show, too.
    pub fn take_log(&mut self) -> Vec<Event> {
        let progress = self.progress();
        if self.log.as_ref().is_some_and(|log| log.config.interval > 0 && log.marked != Some(progress)) {
            self.set_mark();
        }
        self.log.take().map(|log| log.events).unwrap_or_default()
    }

    /// At a boundary: sets the mark that is due. Refuses to go on where there is no room for what may come.
    pub(crate) fn log_boundary(&mut self) -> Result<(), MachineError> {
        let progress = self.progress();
        let Some(log) = &self.log else { return Ok(()) };
        let LogConfig { interval, from, limit, .. } = log.config;
        if log.keeps(progress) && log.events.len() + HEADROOM > limit {
            return Err(MachineError::LogFull { limit });
        }
        let due = interval > 0 && log.keeps(progress) && (progress - from).is_multiple_of(interval);
        if !due || log.marked == Some(progress) {
            return Ok(());
        }
        self.set_mark();
        Ok(())
    }

    fn set_mark(&mut self) {
        let progress = self.progress();
        let Some(LogConfig { registers, memory, .. }) = self.log.as_ref().map(|log| log.config) else { return };
        let what = What::Mark {
            registers: self.register_hash(),
            memory: memory.then(|| self.memory_hash()),
            state: registers.then(|| Box::new(self.cpu())),
        };
        self.log_event(what);
        if let Some(log) = &mut self.log {
            log.marked = Some(progress);
        }
    }

    /// How far the CPU may run before the next mark.
    pub(crate) fn to_next_mark(&self) -> u64 {
        let progress = self.progress();
        let next = self.log.as_ref().and_then(|log| log.next_mark(progress));
        next.map_or(u64::MAX, |next| next - progress)
    }

    pub(crate) fn log_exit(&mut self, exit: Exit, answer: Option<u64>) {
        if self.log.as_ref().is_some_and(|log| log.config.exits) {
            self.log_event(What::Exit(exit, answer));
        }
    }

    pub(crate) fn log_interrupt(&mut self, vector: Option<u8>) {
        if self.log.as_ref().is_some_and(|log| log.config.exits) {
            self.log_event(vector.map_or(What::Nmi, What::Interrupt));
        }
    }

    #[cold]
    fn log_event(&mut self, what: What) {
        let (progress, guest_ns, cpu) = (self.progress(), self.now().0, self.cpu as u8);
        if let Some(log) = self.log.as_mut().filter(|log| log.keeps(progress)) {
            log.events.push(Event { progress, guest_ns, cpu, what });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_lie_at_multiples_of_the_interval_within_the_window() {
        let config = LogConfig { interval: 10, from: 5, to: 30, ..LogConfig::default() };
        let log = EventLog { config, events: Vec::new(), marked: None };
        let next: Vec<_> = [0, 4, 5, 14, 15, 24, 25, 30].into_iter().map(|at| log.next_mark(at)).collect();
        assert_eq!(next, [Some(5), Some(5), Some(15), Some(15), Some(25), Some(25), None, None]);
    }
}
