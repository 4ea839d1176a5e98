// SPDX-License-Identifier: AGPL-3.0-or-later
//! KVM behind the engine trait. How it runs is in `exits` (progress by exits) and in `run_steps` here (every instruction).

use std::collections::BTreeSet;
use std::sync::Arc;

use chaoscontrol_cpu::{Config, Cpu, CpuState, Exit, GuestRam, Tier, Topology};

use super::error::KvmError;
use super::exits::{Half, Limits};
use super::pmu::GuestCounter;
use super::probe;
use super::regs;
use super::step::{Step, Stepper};
use super::vcpu::{Event, Vcpu, open};
use super::watchdog::Watched;
use crate::config::{KvmMode, KvmOptions};
use crate::engine::{Capabilities, CoverageFilter, CpuModel, Engine, EngineError, ProgressUnit, TscBase};
use crate::exact::regions;
use crate::memory::GuestMemory;

/// The software CPU executes single instructions here: small caches, nothing to look ahead for.
fn soft_config(topology: Topology) -> Config {
    Config {
        topology,
        tlb_entries: 64,
        cached_operations: 4096,
        block_instructions: 1,
        tier: Tier::Reference,
        ..Config::default()
    }
}

/// The software CPU's view of a machine's memory.
fn soft_ram(memory: &GuestMemory) -> Result<GuestRam, EngineError> {
    // SAFETY: the pointers are the live mappings of `memory`, which each engine keeps alive (its software CPU is dropped before it);
    // the software CPUs, KVM and the machine's devices run one after the other, never at once.
    unsafe { GuestRam::new(&regions(memory)) }.map_err(|error| EngineError::State(error.to_string()))
}

/// One virtual CPU of KVM.
pub struct Kvm {
    pub(super) vcpu: Vcpu,
    /// Holds the state at every boundary (see the module's doc).
    pub(super) soft: Cpu,
    pub(super) memory: Arc<GuestMemory>,
    pub(super) mode: KvmMode,
    pub(super) model: CpuModel,
    pub(super) options: KvmOptions,
    pub(super) watched: Arc<Watched>,
    pub(super) stepper: Stepper,
    /// Counts guest instructions in PMU mode.
    pub(super) counter: Option<GuestCounter>,
    /// Units of progress, except by single steps, where the software CPU counts.
    pub(super) progress: u64,
    /// Why no run will succeed any more.
    failed: Option<KvmError>,
    /// What KVM has of the state, as of the last hand-over.
    pub(super) known: Option<CpuState>,
    /// An exit that is half answered.
    pub(super) half: Option<Half>,
    /// What the guest was left for, to be reported after its change of CR8.
    pub(super) deferred: Option<Event>,
    pub(super) halted: bool,
    pub(super) shutdown: bool,
    pub(super) tpr: u8,
    pub(super) window_wanted: bool,
    pub(super) tsc_base: TscBase,
    /// KVM ran since the software CPU last looked at memory.
    pub(super) soft_stale: bool,
    /// Pages that KVM was seen to write, until they are asked for.
    pub(super) dirty: BTreeSet<u64>,
    /// Whether KVM sees what the host writes to page tables; and whether the host wrote anything since the last entry.
    pub(super) sees_host_writes: bool,
    pub(super) host_wrote: bool,
    /// The thread that was pinned.
    pinned: i32,
}

impl Kvm {
    /// A CPU at power-on. Fails, with the reason, where the host lacks what `mode` needs or is not faithful.
    pub fn new(memory: Arc<GuestMemory>, mode: KvmMode, options: KvmOptions) -> Result<Self, EngineError> {
        let ram = soft_ram(&memory)?;
        Self::with_ram(memory, ram, Topology::default(), mode, options)
    }

    /// The CPUs of a machine, each in a VM of its own over the same memory. Their software CPUs share what they know of it, and in
    /// single steps every store goes through one of those: so only that mode may have several.
    pub fn all(
        memory: &Arc<GuestMemory>,
        count: u8,
        mode: KvmMode,
        options: KvmOptions,
    ) -> Result<Vec<Box<dyn Engine>>, EngineError> {
        let engine = |(number, ram)| -> Result<Box<dyn Engine>, EngineError> {
            Ok(Box::new(Self::with_ram(memory.clone(), ram, Topology { number, count }, mode, options)?))
        };
        (0..).zip(soft_ram(memory)?.share(usize::from(count))).map(engine).collect()
    }

    fn with_ram(
        memory: Arc<GuestMemory>,
        ram: GuestRam,
        topology: Topology,
        mode: KvmMode,
        options: KvmOptions,
    ) -> Result<Self, EngineError> {
        let kvm = open()?;
        let report = probe::report();
        if !report.faithful && !options.allow_unfaithful {
            return Err(KvmError::Unfaithful(report.reasons.clone()).into());
        }
        report.check(mode)?;
        if let Some(core) = options.pin_core {
            pin::check(core)?;
        }
        // Only where every RDTSC is executed by us, or the host's TSC can be made to stand still, may the guest see one.
        let model = match mode {
            KvmMode::SingleStep => CpuModel::Full,
            KvmMode::Exits | KvmMode::Pmu if report.tsc_scaling => CpuModel::Full,
            KvmMode::Exits | KvmMode::Pmu => CpuModel::WithoutTsc,
        };
        let mut vcpu = Vcpu::new(&kvm, memory.clone(), model)?;
        vcpu.set_single_step(mode == KvmMode::SingleStep)?;
        if model.is_full() && mode != KvmMode::SingleStep {
            vcpu.slow_tsc()?;
        }
        let counter = if mode == KvmMode::Pmu { Some(GuestCounter::new()?) } else { None };
        Ok(Self {
            vcpu,
            soft: Cpu::new(ram, &soft_config(topology)),
            memory,
            mode,
            model,
            watched: Watched::new(options.watchdog_s)?,
            options,
            // User code of a guest whose page tables the software CPU may have changed is not for such a KVM.
            stepper: Stepper::new(report.host_page_tables_seen),
            counter,
            progress: 0,
            failed: None,
            known: None,
            half: None,
            deferred: None,
            halted: false,
            shutdown: false,
            tpr: 0,
            window_wanted: false,
            tsc_base: TscBase::default(),
            soft_stale: true,
            dirty: BTreeSet::new(),
            sees_host_writes: report.host_page_tables_seen,
            host_wrote: false,
            pinned: 0,
        })
    }

    /// Whether the software CPU counts, and answers for exits.
    fn by_steps(&self) -> bool {
        self.mode == KvmMode::SingleStep
    }

    /// Every instruction on its own: KVM's where it has an exact step, else the software CPU's.
    fn run_steps(&mut self, budget: u64) -> Result<Exit, KvmError> {
        let limit = self.soft.progress().saturating_add(budget);
        loop {
            let window_open = self.window_wanted && self.soft.interrupt_ready();
            if self.soft.progress() < limit && !window_open && self.soft.at_instruction_boundary() {
                let mut state = self.soft.state();
                if let Some(step) = self.stepper.plan(&state, &self.memory)
                    && self.step(&mut state, &step)?
                {
                    self.adopt(&state, &step)?;
                    continue;
                }
            }
            let exit = self.soft.run((limit - self.soft.progress()).min(1));
            if exit != Exit::BudgetUsed || self.soft.progress() >= limit {
                return Ok(exit);
            }
        }
    }

    /// Lets KVM execute one instruction from `state`. False where it did not, and nothing happened.
    pub(super) fn step(&mut self, state: &mut CpuState, step: &Step) -> Result<bool, KvmError> {
        let rip = state.rip;
        let sregs = regs::to_sregs(state, &self.vcpu.sregs());
        if self.vcpu.sregs() != sregs {
            self.vcpu.set_sregs(&sregs)?;
        }
        let before = regs::to_regs(state);
        self.vcpu.set_cr8(state.cr8 as u8);
        loop {
            self.vcpu.set_regs(&before);
            match self.enter()? {
                Event::Stepped => break,
                // KVM says so before it has done anything; that it did not is checked.
                Event::Interrupted if self.vcpu.regs() == before => {}
                Event::NotEmulated if self.vcpu.regs() == before => return Ok(false),
                event => return Err(KvmError::Inexact { rip, why: format!("{event:?} in the place of one step") }),
            }
        }
        let after = self.vcpu.regs();
        if !step.ends.is_empty() && !step.ends.contains(&after.rip) {
            return Err(KvmError::Inexact { rip, why: format!("a step ended at {:#x}", after.rip) });
        }
        if self.vcpu.delivering() {
            return Err(KvmError::Inexact { rip, why: "a step raised an exception".to_owned() });
        }
        regs::from_regs(&after, state);
        state.rflags &= !step.clear;
        state.instructions += 1;
        Ok(true)
    }

    /// The software CPU goes on from what a step came to.
    pub(super) fn adopt(&mut self, state: &CpuState, step: &Step) -> Result<(), KvmError> {
        for (address, bytes) in &step.writes {
            self.soft.memory_changed(*address, *bytes);
        }
        self.load_soft(state)
    }

    /// Puts a state into the software CPU.
    pub(super) fn load_soft(&mut self, state: &CpuState) -> Result<(), KvmError> {
        let refused =
            |error: chaoscontrol_cpu::StateError| KvmError::Call { call: "its state", why: error.to_string() };
        self.soft.set_state(state).map_err(refused)
    }

    /// Enters the guest under the watchdog. An interruption by the host is reported; it counts nothing.
    pub(super) fn enter(&mut self) -> Result<Event, KvmError> {
        self.watched.begin();
        let event = self.vcpu.enter();
        self.watched.end();
        if self.watched.expired() && event == Ok(Event::Interrupted) {
            return Err(KvmError::Watchdog { seconds: self.watched.limit_s() });
        }
        event
    }

    fn pin(&mut self) -> Result<(), KvmError> {
        match self.options.pin_core {
            Some(core) => pin::this_thread(core, &mut self.pinned),
            None => Ok(()),
        }
    }
}

impl Engine for Kvm {
    fn capabilities(&self) -> Capabilities {
        let (exact_budget, progress_unit) = match self.mode {
            KvmMode::Exits => (false, ProgressUnit::Exits),
            KvmMode::SingleStep | KvmMode::Pmu => (true, ProgressUnit::Instructions),
        };
        Capabilities {
            name: self.mode.name(),
            cpu_model: self.model,
            exact_budget,
            progress_unit,
            edge_coverage: false,
        }
    }

    fn run(&mut self, budget: u64) -> Result<Exit, EngineError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone().into());
        }
        let ran = self.pin().and_then(|()| match self.mode {
            KvmMode::SingleStep => self.run_steps(budget),
            KvmMode::Exits | KvmMode::Pmu => self.run_exits(Limits::after(self.progress, budget)),
        });
        Ok(ran.inspect_err(|error| self.failed = Some(error.clone()))?)
    }

    fn complete_read(&mut self, value: u64) {
        match &mut self.half {
            Some(half) if !matches!(half, Half::Soft) => half.answer(value),
            _ => self.soft.complete_read(value),
        }
    }

    fn refuse_msr(&mut self) {
        self.soft.refuse_msr();
    }

    fn progress(&self) -> u64 {
        if self.by_steps() { self.soft.progress() } else { self.progress }
    }

    fn interrupt_ready(&self) -> bool {
        self.half.is_none() && self.deferred.is_none() && !self.shutdown && self.soft.interrupt_ready()
    }

    fn inject_interrupt(&mut self, vector: u8) {
        self.soft.inject_interrupt(vector);
        self.host_wrote = true;
        self.progress += 1;
        self.halted = false;
    }

    fn inject_nmi(&mut self) -> bool {
        let free = self.half.is_none() && self.deferred.is_none() && !self.shutdown;
        if !free || !self.soft.inject_nmi() {
            return false;
        }
        self.host_wrote = true;
        self.progress += 1;
        self.halted = false;
        true
    }

    fn request_interrupt_window(&mut self, wanted: bool) {
        self.window_wanted = wanted;
        if self.by_steps() {
            self.soft.request_interrupt_window(wanted);
        }
    }

    fn tpr(&self) -> u8 {
        if self.by_steps() { self.soft.tpr() } else { self.tpr }
    }

    fn set_tpr(&mut self, tpr: u8) {
        self.tpr = tpr & 15;
        self.soft.set_tpr(tpr);
    }

    fn state(&self) -> CpuState {
        let state = self.soft.state();
        if self.by_steps() { state } else { CpuState { instructions: self.progress, halted: self.halted, ..state } }
    }

    fn set_state(&mut self, state: &CpuState) -> Result<(), EngineError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone().into());
        }
        // What KVM cannot hold is found out now, not in the middle of a run.
        let refused = |error: KvmError| EngineError::State(error.to_string());
        regs::push(&mut self.vcpu, state, None).map_err(refused)?;
        self.soft.set_state(state).map_err(|error| EngineError::State(error.to_string()))?;
        self.known = Some(*state);
        self.progress = state.instructions;
        self.tpr = state.cr8 as u8 & 15;
        (self.half, self.deferred, self.shutdown) = (None, None, false);
        self.halted = state.halted;
        Ok(())
    }

    fn set_tsc_base(&mut self, base: TscBase) {
        self.tsc_base = base;
        self.soft.set_tsc_base(base);
    }

    fn take_dirty_pages(&mut self, page: &mut dyn FnMut(u64)) {
        let mut dirty = std::mem::take(&mut self.dirty);
        // By steps, every write of the host CPU is known from its plan.
        if !self.by_steps() {
            self.vcpu.take_dirty(&mut dirty);
        }
        self.soft.take_dirty_pages(&mut |number| {
            dirty.insert(number);
        });
        dirty.into_iter().for_each(page);
    }

    fn memory_changed(&mut self, address: u64, bytes: u64) {
        self.host_wrote = true;
        self.soft.memory_changed(address, bytes);
    }

    fn set_coverage(&mut self, _filter: Option<CoverageFilter>) {
        // Not offered: `Capabilities::edge_coverage`.
    }

    fn coverage(&self) -> Option<&[u8]> {
        None
    }

    fn clear_coverage(&mut self) {}
}

/// Keeping the thread that runs the guest on one core.
mod pin {
    use super::KvmError;

    fn lacks(core: usize) -> KvmError {
        KvmError::HostLacks(format!("core {core} cannot be pinned to: {}", std::io::Error::last_os_error()))
    }

    /// Whether this process may use the core.
    pub fn check(core: usize) -> Result<(), KvmError> {
        // SAFETY: an all-zero set is an empty set, and the call writes no more than its size.
        let allowed = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            core < libc::CPU_SETSIZE as usize
                && libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0
                && libc::CPU_ISSET(core, &set)
        };
        if allowed { Ok(()) } else { Err(KvmError::HostLacks(format!("this process may not run on core {core}"))) }
    }

    /// Pins the calling thread unless it is the one that was pinned last.
    pub fn this_thread(core: usize, pinned: &mut i32) -> Result<(), KvmError> {
        // SAFETY: the call takes nothing; the set is valid and of the stated size.
        unsafe {
            let thread = libc::gettid();
            if *pinned == thread {
                return Ok(());
            }
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            if libc::sched_setaffinity(0, size_of_val(&set), &raw const set) != 0 {
                return Err(lacks(core));
            }
            *pinned = thread;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::entry;
    use crate::memory::MEMORY_BYTES_MIN;

    const CODE: u64 = 0x10_0000;

    /// A CPU in single steps before `code`; says so and gives none where /dev/kvm does not open.
    fn stepping(code: &[u8]) -> Option<(Kvm, CpuState)> {
        if let Err(why) = std::fs::File::options().read(true).write(true).open("/dev/kvm") {
            eprintln!("skipped: /dev/kvm does not open: {why}");
            return None;
        }
        let memory = Arc::new(GuestMemory::new(MEMORY_BYTES_MIN).unwrap());
        entry::write_tables(&memory).unwrap();
        memory.write(CODE, code).unwrap();
        let options = KvmOptions { allow_unfaithful: true, ..KvmOptions::default() };
        let mut kvm = Kvm::new(memory, KvmMode::SingleStep, options).unwrap();
        let state = entry::state(CODE);
        kvm.set_state(&state).unwrap();
        Some((kvm, state))
    }

    fn to(end: u64) -> Step {
        Step { ends: vec![end], writes: Vec::new(), clear: 0 }
    }

    #[test]
    fn a_step_that_does_not_end_where_its_plan_says_is_no_evidence_of_progress() {
        // inc eax; nop
        let Some((mut kvm, mut state)) = stepping(&[0xff, 0xc0, 0x90]) else { return };
        assert_eq!(kvm.step(&mut state, &to(CODE + 2)), Ok(true));
        assert_eq!((state.rip, state.gpr[0], state.instructions), (CODE + 2, 1, 1));
        let error = kvm.step(&mut state, &to(CODE + 9)).unwrap_err();
        assert_eq!(error.to_string(), "kvm: progress without exact evidence at 0x100002: a step ended at 0x100003");
        assert_eq!(state.instructions, 1, "what is not proven is not counted");
    }

    #[test]
    fn an_exit_in_the_place_of_a_step_is_no_evidence_of_progress() {
        // out 0x80, al
        let Some((mut kvm, mut state)) = stepping(&[0xe6, 0x80]) else { return };
        let error = kvm.step(&mut state, &to(CODE + 2)).unwrap_err();
        assert!(matches!(&error, KvmError::Inexact { rip: CODE, why } if why.starts_with("PortWrite")), "{error}");
    }
}
