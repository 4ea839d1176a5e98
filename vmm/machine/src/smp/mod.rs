// SPDX-License-Identifier: AGPL-3.0-or-later
//! Several CPUs in one machine, one running at a time.
//!
//! Which CPU runs, and for how long, is a function of the configuration, of seeded draws and of explicit switches: nothing of
//! the host decides. Between two switches the machine is the machine of one CPU; everything here happens at boundaries.

pub mod journal;
pub mod schedule;

use chaoscontrol_cpu::CpuState;
use serde::{Deserialize, Serialize};

use crate::chips::lapic::{CpuRequest, LapicState};
use crate::engine::Engine;
use crate::machine::Machine;
use crate::stop::MachineError;
use journal::Journal;
use schedule::{ScheduleState, Scheduler};

/// Most CPUs of a machine.
pub const CPUS_MAX: u8 = 8;
/// Units of progress a CPU runs before the next one's turn, unless configured.
pub const QUANTUM_INSTRUCTIONS: u64 = 2_000;
/// Largest quantum: ten seconds of guest time at the default pace.
pub const QUANTUM_INSTRUCTIONS_MAX: u64 = 1_000_000_000;

/// How the next CPU is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuSchedule {
    /// The next one that can run, each for one quantum.
    #[default]
    RoundRobin,
    /// Any one that can run, for one unit of progress to two quanta; drawn from a stream that each branch seeds anew.
    Random,
}

/// The CPUs of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmpConfig {
    /// How many: 1..=[`CPUS_MAX`].
    pub cpus: u8,
    /// Units of progress a CPU runs before the next one's turn.
    pub quantum_instructions: u64,
    /// How the next one is chosen.
    pub schedule: CpuSchedule,
    /// Most records that the schedule journal holds before it is taken; 0 keeps none.
    pub journal_limit: u32,
}

impl Default for SmpConfig {
    fn default() -> Self {
        Self {
            cpus: 1,
            quantum_instructions: QUANTUM_INSTRUCTIONS,
            schedule: CpuSchedule::RoundRobin,
            journal_limit: 0,
        }
    }
}

impl SmpConfig {
    /// Which field breaks which rule, if one does.
    pub(crate) fn check(&self) -> Result<(), MachineError> {
        let refuse = |field, rule| Err(MachineError::Config { field, rule });
        if !(1..=CPUS_MAX).contains(&self.cpus) {
            return refuse("cpus", format!("{} is not 1..={CPUS_MAX}", self.cpus));
        }
        if !(1..=QUANTUM_INSTRUCTIONS_MAX).contains(&self.quantum_instructions) {
            let rule = format!("{} is not 1..={QUANTUM_INSTRUCTIONS_MAX}", self.quantum_instructions);
            return refuse("quantum_instructions", rule);
        }
        if self.journal_limit > journal::RECORDS_MAX {
            let rule = format!("{} is more than {}", self.journal_limit, journal::RECORDS_MAX);
            return refuse("smp_schedule_journal_limit", rule);
        }
        Ok(())
    }
}

/// One CPU of the machine.
pub(crate) struct VirtualCpu {
    pub engine: Box<dyn Engine>,
    /// It halted and nothing was injected since.
    pub halted: bool,
    /// What the engine was last told about windows.
    pub window_wanted: bool,
    /// INIT, or never started: a start-up message makes it run.
    pub waiting: bool,
}

impl VirtualCpu {
    pub fn new(engine: Box<dyn Engine>) -> Self {
        Self { engine, halted: false, window_wanted: false, waiting: false }
    }
}

/// Saved state of one CPU with its local APIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuSnapshot {
    /// Registers.
    pub cpu: CpuState,
    /// Whether it waits for a start-up message.
    pub waiting: bool,
    /// Its local APIC.
    pub lapic: LapicState,
}

/// What a snapshot of several CPUs holds beside that of the first. The first CPU's registers and local APIC stand where those
/// of a machine with one CPU do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SmpState {
    /// The configuration; a machine of another refuses the snapshot. The journal's limit does not count.
    pub config: SmpConfig,
    /// Whether the first CPU waits for a start-up message.
    pub first_waiting: bool,
    /// The second CPU and those behind it.
    pub others: Vec<CpuSnapshot>,
    /// Whose turn it is, and until when.
    pub schedule: ScheduleState,
}

impl Machine {
    /// The CPU that runs, or ran last.
    pub(crate) fn current(&self) -> &VirtualCpu {
        &self.cpus[self.cpu]
    }

    pub(crate) fn current_mut(&mut self) -> &mut VirtualCpu {
        &mut self.cpus[self.cpu]
    }

    /// Whether a CPU has something to do: it was started, and it is not halted or has an interrupt that it would take.
    fn can_run(&self, cpu: usize) -> bool {
        let each = &self.cpus[cpu];
        if each.waiting {
            return false;
        }
        !each.halted
            || self.board.lapics[cpu].nmi() && !each.engine.state().nmi_blocked
            || self.board.pending_for(cpu).is_some() && each.engine.interrupt_ready()
    }

    /// At a boundary: gives the turn to whom it belongs. What it does depends on the boundary alone, so that asking twice
    /// changes nothing.
    pub(crate) fn take_turns(&mut self) -> Result<(), MachineError> {
        if self.cpus.len() == 1 {
            return Ok(());
        }
        self.carry_out_cpu_requests()?;
        let progress = self.progress();
        let mut able = [false; CPUS_MAX as usize];
        let able = &mut able[..self.cpus.len()];
        able.iter_mut().enumerate().for_each(|(cpu, able)| *able = self.can_run(cpu));
        let turn = self.scheduler.turn(self.cpu, progress, able);
        if let Some(next) = turn {
            self.close_slice()?;
            self.switch_to(next);
        }
        self.open_slice()
    }

    fn switch_to(&mut self, cpu: usize) {
        self.cpu = cpu;
        self.board.cpu = cpu;
        // The time that passed while others ran.
        self.set_tsc_base();
    }

    /// INIT and start-up messages that a CPU sent to others.
    fn carry_out_cpu_requests(&mut self) -> Result<(), MachineError> {
        for (cpu, request) in std::mem::take(&mut self.board.cpu_requests) {
            let each = &mut self.cpus[cpu];
            match request {
                CpuRequest::Init => {
                    let state = each.engine.state().after_init();
                    each.engine.set_state(&state)?;
                    (each.halted, each.waiting) = (false, true);
                }
                CpuRequest::StartUp(vector) if each.waiting => {
                    let state = each.engine.state().after_start_up(vector);
                    each.engine.set_state(&state)?;
                    each.waiting = false;
                }
                CpuRequest::StartUp(_) => {}
            }
        }
        Ok(())
    }

    /// An explicit switch: from this boundary on only `cpu` (modulo the number of CPUs) runs, until `hold_instructions` have
    /// passed or it has nothing to do.
    pub fn switch_cpu(&mut self, cpu: u16, hold_instructions: u64) {
        if self.cpus.len() > 1 {
            let cpu = usize::from(cpu) % self.cpus.len();
            self.scheduler.hold(cpu, self.progress(), hold_instructions);
        }
    }

    /// How many CPUs the machine has.
    pub fn cpus(&self) -> u8 {
        self.cpus.len() as u8
    }

    /// The CPU that runs, or ran last.
    pub fn running_cpu(&self) -> u8 {
        self.cpu as u8
    }

    pub(crate) fn save_smp(&self) -> Option<SmpState> {
        let (_, others) = self.cpus.split_first()?;
        if others.is_empty() {
            return None;
        }
        let other = |(index, each): (usize, &VirtualCpu)| CpuSnapshot {
            cpu: each.engine.state(),
            waiting: each.waiting,
            lapic: crate::device::Device::save(&self.board.lapics[index + 1]),
        };
        Some(SmpState {
            config: self.config.smp,
            first_waiting: self.cpus[0].waiting,
            others: others.iter().enumerate().map(other).collect(),
            schedule: self.scheduler.state().clone(),
        })
    }

    pub(crate) fn restore_smp(&mut self, state: Option<&SmpState>) -> Result<(), MachineError> {
        self.restart_journal();
        self.cpu = 0;
        self.board.cpu = 0;
        self.board.cpu_requests.clear();
        let Some(state) = state else { return Ok(()) };
        self.scheduler.restore(&state.schedule);
        for (index, saved) in state.others.iter().enumerate() {
            crate::device::Device::restore(&mut self.board.lapics[index + 1], &saved.lapic)?;
            let each = &mut self.cpus[index + 1];
            each.engine.set_state(&saved.cpu)?;
            (each.halted, each.waiting) = (saved.cpu.halted, saved.waiting);
        }
        self.cpus[0].waiting = state.first_waiting;
        self.cpu = usize::from(state.schedule.current);
        self.board.cpu = self.cpu;
        Ok(())
    }

    /// Why a snapshot of another shape does not fit.
    pub(crate) fn check_smp_fit(&self, state: Option<&SmpState>) -> Result<(), MachineError> {
        let refuse = |what: String| Err(MachineError::Snapshot(what));
        let cpus = state.map_or(1, |state| state.others.len() + 1);
        if cpus != self.cpus.len() {
            return refuse(format!("{cpus} CPUs, the machine has {}", self.cpus.len()));
        }
        let Some(state) = state else { return Ok(()) };
        let ours = SmpConfig { journal_limit: 0, ..self.config.smp };
        if (SmpConfig { journal_limit: 0, ..state.config }) != ours {
            return refuse(format!("taken under CPU schedule {:?}, the machine has {ours:?}", state.config));
        }
        if usize::from(state.schedule.current) >= cpus
            || state.schedule.hold.is_some_and(|hold| usize::from(hold.cpu) >= cpus)
        {
            return refuse(format!("the turn of a CPU that is none of {cpus}"));
        }
        Ok(())
    }

    /// Units of progress of all CPUs.
    pub(crate) fn progress(&self) -> u64 {
        self.cpus.iter().fold(0, |sum, each| sum.wrapping_add(each.engine.progress()))
    }

    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.current().engine
    }

    pub(crate) fn engine_mut(&mut self) -> &mut dyn Engine {
        &mut *self.cpus[self.cpu].engine
    }

    /// No result of this machine can be trusted from here on.
    pub(crate) fn poison(&mut self, why: String) {
        self.poisoned.get_or_insert(why);
    }

    /// Why the machine refuses to go on, if it does.
    pub fn poisoned(&self) -> Option<&str> {
        self.poisoned.as_deref()
    }

    pub(crate) fn check_sound(&self) -> Result<(), MachineError> {
        match &self.poisoned {
            None => Ok(()),
            Some(why) => Err(MachineError::Poisoned(why.clone())),
        }
    }

    /// The scheduler of a configuration.
    pub(crate) fn scheduler(config: &SmpConfig, seed: &[u8; 32]) -> Scheduler {
        Scheduler::new(config, seed)
    }

    /// The journal of a configuration.
    pub(crate) fn new_journal(config: &SmpConfig) -> Option<Journal> {
        (config.journal_limit > 0 && config.cpus > 1).then(|| Journal::new(config.journal_limit))
    }
}
