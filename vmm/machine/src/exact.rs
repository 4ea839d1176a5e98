// SPDX-License-Identifier: AGPL-3.0-or-later
//! The exact engine: the software CPU behind the engine trait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use chaoscontrol_cpu::{Config, Cpu, CpuState, Exit, GuestRam, Lockstep, RamRegion, Tier, Topology};

use crate::engine::{Capabilities, CoverageFilter, CpuModel, Engine, EngineError, ProgressUnit, TscBase};
use crate::memory::GuestMemory;

/// How the software CPU executes. No result depends on it, so it is a choice of the process, as the number of threads is, and
/// no part of a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TierChoice {
    /// Interpreted.
    Reference,
    /// Compiled where that pays and the host can.
    #[default]
    Compiled,
    /// Both side by side, compared all the time; the first difference ends the run.
    Both,
}

static CHOICE: AtomicU8 = AtomicU8::new(TierChoice::Compiled as u8);

/// Chooses for all machines that are made from now on.
pub fn choose_tier(tier: TierChoice) {
    CHOICE.store(tier as u8, Ordering::Relaxed);
}

fn chosen() -> TierChoice {
    match CHOICE.load(Ordering::Relaxed) {
        0 => TierChoice::Reference,
        1 => TierChoice::Compiled,
        _ => TierChoice::Both,
    }
}

/// One CPU, or both tiers.
enum Inner {
    One(Box<Cpu>),
    Both(Box<Lockstep>),
}

/// The same call on whichever there is.
macro_rules! either {
    ($inner:expr, $cpu:ident => $call:expr) => {
        match $inner {
            Inner::One($cpu) => $call,
            Inner::Both($cpu) => $call,
        }
    };
}

/// The software CPU over a machine's memory.
pub struct Exact {
    inner: Inner,
    /// What the CPU points into; freed after it.
    _memory: Arc<GuestMemory>,
}

impl Exact {
    /// A CPU after reset, on the tier of [`choose_tier`].
    pub fn new(memory: Arc<GuestMemory>) -> Result<Self, EngineError> {
        let tier = if chosen() == TierChoice::Reference { Tier::Reference } else { Tier::Compiled };
        Self::build(memory, &Config { tier, ..Config::default() }, chosen() == TierChoice::Both)
    }

    /// A CPU after reset with caches of other sizes, which no guest can see.
    pub fn with_config(memory: Arc<GuestMemory>, config: &Config) -> Result<Self, EngineError> {
        Self::build(memory, config, false)
    }

    fn build(memory: Arc<GuestMemory>, config: &Config, both: bool) -> Result<Self, EngineError> {
        let regions = regions(&memory);
        let refused = |error: chaoscontrol_cpu::RamError| EngineError::State(error.to_string());
        // SAFETY: the pointers are the live mappings of `memory`, which this value keeps alive for longer than the CPU
        // (fields drop in order), and the machine, which owns both, calls devices only while the CPU does not run.
        let inner = unsafe {
            if both {
                let both = Lockstep::new(&regions, config).map_err(refused)?;
                if !both.compares() {
                    let why = "tier both: this host runs no compiled code, so there is nothing to compare; use --tier reference";
                    return Err(EngineError::HostLacks(why.to_owned()));
                }
                Inner::Both(Box::new(both))
            } else {
                Inner::One(Box::new(Cpu::new(GuestRam::new(&regions).map_err(refused)?, config)))
            }
        };
        Ok(Self { inner, _memory: memory })
    }

    fn cpu(&self) -> &Cpu {
        match &self.inner {
            Inner::One(cpu) => cpu,
            Inner::Both(both) => both.cpu(),
        }
    }

    /// The CPUs of a machine, which share what they know of its memory. Comparing both tiers all the time works on a copy of memory,
    /// which several CPUs cannot share.
    pub fn all(memory: &Arc<GuestMemory>, cpus: u8) -> Result<Vec<Box<dyn Engine>>, EngineError> {
        if cpus == 1 {
            return Ok(vec![Box::new(Self::new(memory.clone())?)]);
        }
        let tier = match chosen() {
            TierChoice::Reference => Tier::Reference,
            TierChoice::Compiled => Tier::Compiled,
            TierChoice::Both => {
                return Err(EngineError::State("both tiers side by side run one CPU a machine".to_owned()));
            }
        };
        // SAFETY: the pointers are the live mappings of `memory`, which each value keeps alive for longer than its CPU (fields
        // drop in order), and the machine, which owns all of them, runs one CPU at a time and calls devices only while none runs.
        let ram = unsafe { GuestRam::new(&regions(memory)) }.map_err(|error| EngineError::State(error.to_string()))?;
        let engine = |(number, ram)| -> Box<dyn Engine> {
            let config = Config { tier, topology: Topology { number, count: cpus }, ..Config::default() };
            Box::new(Self { inner: Inner::One(Box::new(Cpu::new(ram, &config))), _memory: memory.clone() })
        };
        Ok((0..).zip(ram.share(usize::from(cpus))).map(engine).collect())
    }
}

/// The CPU's view of a machine's memory.
pub(crate) fn regions(memory: &GuestMemory) -> Vec<RamRegion> {
    memory.regions().into_iter().map(|(address, bytes, pointer)| RamRegion { address, bytes, pointer }).collect()
}

impl Engine for Exact {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "exact",
            cpu_model: CpuModel::Full,
            exact_budget: true,
            progress_unit: ProgressUnit::Instructions,
            edge_coverage: true,
        }
    }

    fn run(&mut self, budget: u64) -> Result<Exit, EngineError> {
        match &mut self.inner {
            Inner::One(cpu) => Ok(cpu.run(budget)),
            Inner::Both(both) => both.run(budget).map_err(|error| EngineError::TiersDiffer(error.to_string())),
        }
    }

    fn complete_read(&mut self, value: u64) {
        either!(&mut self.inner, cpu => cpu.complete_read(value));
    }

    fn refuse_msr(&mut self) {
        either!(&mut self.inner, cpu => cpu.refuse_msr());
    }

    fn progress(&self) -> u64 {
        self.cpu().progress()
    }

    fn compiled_progress(&self) -> u64 {
        self.cpu().compiled_progress()
    }

    fn interrupt_ready(&self) -> bool {
        self.cpu().interrupt_ready()
    }

    fn inject_interrupt(&mut self, vector: u8) {
        either!(&mut self.inner, cpu => cpu.inject_interrupt(vector));
    }

    fn inject_nmi(&mut self) -> bool {
        either!(&mut self.inner, cpu => cpu.inject_nmi())
    }

    fn request_interrupt_window(&mut self, wanted: bool) {
        either!(&mut self.inner, cpu => cpu.request_interrupt_window(wanted));
    }

    fn tpr(&self) -> u8 {
        self.cpu().tpr()
    }

    fn set_tpr(&mut self, tpr: u8) {
        either!(&mut self.inner, cpu => cpu.set_tpr(tpr));
    }

    fn state(&self) -> CpuState {
        self.cpu().state()
    }

    fn set_state(&mut self, state: &CpuState) -> Result<(), EngineError> {
        either!(&mut self.inner, cpu => cpu.set_state(state)).map_err(|error| EngineError::State(error.to_string()))
    }

    fn set_tsc_base(&mut self, base: TscBase) {
        either!(&mut self.inner, cpu => cpu.set_tsc_base(base));
    }

    fn take_dirty_pages(&mut self, page: &mut dyn FnMut(u64)) {
        either!(&mut self.inner, cpu => cpu.take_dirty_pages(page));
    }

    fn memory_changed(&mut self, address: u64, bytes: u64) {
        either!(&mut self.inner, cpu => cpu.memory_changed(address, bytes));
    }

    fn set_coverage(&mut self, filter: Option<CoverageFilter>) {
        either!(&mut self.inner, cpu => cpu.set_coverage(filter));
    }

    fn coverage(&self) -> Option<&[u8]> {
        self.cpu().coverage()
    }

    fn clear_coverage(&mut self) {
        either!(&mut self.inner, cpu => cpu.clear_coverage());
    }
}
