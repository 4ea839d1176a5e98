// SPDX-License-Identifier: AGPL-3.0-or-later
//! The machine: configure, load, run, snapshot, restore, fork.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use chaoscontrol_cpu::CpuState;
use chaoscontrol_protocol::AgentAction;

use crate::board::{Board, Bus};
use crate::boot;
use crate::capacity::{CapacityPlan, HighWater};
use crate::config::{DISK_BYTES_MAX, DISKS_MAX, EngineKind, KvmMode, NS_PER_INSTRUCTION_MAX, VmConfig};
use crate::engine::{Capabilities, CoverageFilter, Engine, TscBase};
use crate::event_log::EventLog;
use crate::exact::Exact;
use crate::kvm::Kvm;
use crate::layout::SLOT_DISK;
use crate::memory::GuestMemory;
use crate::pages::{Digest, PageMap};
use crate::register_hash;
use crate::run::{Limit, bus};
use crate::sdk_window::SdkWindow;
use crate::smp::VirtualCpu;
use crate::smp::journal::{Journal, OpenSlice};
use crate::smp::schedule::Scheduler;
use crate::stop::{MachineError, Stop};
use crate::time::{GuestNs, TimeMap};
use crate::virtio::VirtioMmio;
use crate::virtio::block::Block;
use crate::virtio::net::{Frame, Net};

/// One deterministic virtual machine.
///
/// ```no_run
/// use std::sync::Arc;
/// use chaoscontrol_machine::{GuestNs, Machine, Stop, VmConfig};
///
/// let kernel = std::fs::read("vmlinux")?;
/// let initrd = std::fs::read("initrd.cpio")?;
/// let mut config = VmConfig::new(64 << 20, kernel.into());
/// config.initrd = Some(initrd.into());
/// let mut machine = Machine::new(Arc::new(config))?;
/// machine.load()?;
/// let stop = machine.run_until_serial("ready", GuestNs(20_000_000_000))?;
/// assert_eq!(stop, Stop::SerialMatch);
///
/// // From here two machines go on: this one, and a fork that shares its pages' contents.
/// let snapshot = machine.snapshot();
/// let mut other = machine.fork()?;
/// other.reseed_entropy([7; 32]);
/// other.run_until(machine.now().after(1_000_000_000))?;
/// machine.restore(&snapshot)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Machine {
    pub(crate) config: Arc<VmConfig>,
    /// Before `memory`: engines may point into it.
    pub(crate) cpus: Vec<VirtualCpu>,
    /// Index of the one that runs, or ran last.
    pub(crate) cpu: usize,
    /// Whose turn is next.
    pub(crate) scheduler: Scheduler,
    /// What the turns were, if that is kept.
    pub(crate) journal: Option<Journal>,
    /// The turn that is not over.
    pub(crate) open_slice: Option<OpenSlice>,
    /// Why nothing may be believed of this machine any more.
    pub(crate) poisoned: Option<String>,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) board: Board,
    pub(crate) time_map: TimeMap,
    /// Guest time = progress * ns_per_instruction + this, wrapping: an engine that counts another unit may be ahead.
    pub(crate) skipped_ns: u64,
    /// How the guest ended, if it did.
    pub(crate) ended: Option<Stop>,
    /// Pages written since `base`, as far as they have been collected.
    pub(crate) dirty: BTreeSet<u64>,
    /// The contents of all pages but the dirty ones.
    pub(crate) base: PageMap,
    /// Serial text that stops a run; empty for none.
    pub(crate) watch: Vec<u8>,
    /// What may wait for the host, and how much of it did.
    pub(crate) capacity: CapacityPlan,
    pub(crate) high_water: HighWater,
    /// How often a turn did not start because the journal was full.
    pub(crate) journal_refusals: u64,
    /// What happens, if that is kept.
    pub(crate) log: Option<Box<EventLog>>,
    /// A state of the one CPU, and its hash.
    last_hash: RefCell<Option<Box<(CpuState, Digest)>>>,
}

fn check(config: &VmConfig) -> Result<(), MachineError> {
    config.smp.check()?;
    let refuse = |field, rule: String| Err(MachineError::Config { field, rule });
    let several = [EngineKind::Exact, EngineKind::Kvm(KvmMode::SingleStep)];
    if config.smp.cpus > 1 && !several.contains(&config.engine) {
        let (name, able) = (config.engine.name(), several.map(EngineKind::name).join(" and "));
        return refuse("cpus", format!("engine {name} runs one CPU a machine, {able} up to 8"));
    }
    if !(1..=NS_PER_INSTRUCTION_MAX).contains(&config.ns_per_instruction) {
        return refuse(
            "ns_per_instruction",
            format!("{} is not 1..={NS_PER_INSTRUCTION_MAX}", config.ns_per_instruction),
        );
    }
    if config.disks.len() > DISKS_MAX {
        return refuse("disks", format!("{} disks, at most {DISKS_MAX}", config.disks.len()));
    }
    for disk in &config.disks {
        if disk.size_bytes == 0 || disk.size_bytes > DISK_BYTES_MAX || disk.size_bytes % 512 != 0 {
            return refuse("disks", format!("{} bytes is no multiple of 512 up to {DISK_BYTES_MAX}", disk.size_bytes));
        }
        if disk.image.iter().last().is_some_and(|(page, _)| page >= disk.size_bytes.div_ceil(4096)) {
            return refuse("disks", format!("the image is larger than the disk's {} bytes", disk.size_bytes));
        }
    }
    CapacityPlan::of(config).map(drop)
}

impl Machine {
    /// A machine at power-on with empty memory. Nothing is loaded yet.
    pub fn new(config: Arc<VmConfig>) -> Result<Self, MachineError> {
        check(&config)?;
        let memory = Arc::new(GuestMemory::new(config.memory_bytes)?);
        let engines: Vec<Box<dyn Engine>> = match config.engine {
            EngineKind::Exact => Exact::all(&memory, config.smp.cpus)?,
            EngineKind::Kvm(mode) => Kvm::all(&memory, config.smp.cpus, mode, config.kvm)?,
        };
        Self::with_engines(config, memory, engines)
    }

    /// A machine of one CPU over an engine that the caller made for `memory`.
    pub fn with_engine(
        config: Arc<VmConfig>,
        memory: Arc<GuestMemory>,
        engine: Box<dyn Engine>,
    ) -> Result<Self, MachineError> {
        Self::with_engines(config, memory, vec![engine])
    }

    /// A machine over engines, one a CPU, that the caller made for `memory`.
    pub fn with_engines(
        config: Arc<VmConfig>,
        memory: Arc<GuestMemory>,
        mut engines: Vec<Box<dyn Engine>>,
    ) -> Result<Self, MachineError> {
        check(&config)?;
        if engines.len() != usize::from(config.smp.cpus) {
            let rule = format!("{} engines for {} CPUs", engines.len(), config.smp.cpus);
            return Err(MachineError::Config { field: "cpus", rule });
        }
        let capacity = CapacityPlan::of(&config)?;
        for engine in &mut engines {
            engine.set_coverage(config.coverage);
        }
        let board = Board::new(&config);
        let mut machine = Self {
            scheduler: Self::scheduler(&config.smp, &config.rng_seed),
            journal: Self::new_journal(&config.smp),
            open_slice: None,
            poisoned: None,
            config,
            cpus: engines.into_iter().map(VirtualCpu::new).collect(),
            cpu: 0,
            memory,
            board,
            time_map: TimeMap::default(),
            skipped_ns: 0,
            ended: None,
            dirty: BTreeSet::new(),
            base: PageMap::default(),
            watch: Vec::new(),
            capacity,
            high_water: HighWater::default(),
            journal_refusals: 0,
            log: None,
            last_hash: RefCell::default(),
        };
        machine.set_tsc_base();
        Ok(machine)
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<VmConfig> {
        &self.config
    }

    /// What the engine can do.
    pub fn capabilities(&self) -> Capabilities {
        self.engine().capabilities()
    }

    /// Places kernel, initrd, command line and tables, and the CPU at the kernel's entry.
    pub fn load(&mut self) -> Result<(), MachineError> {
        let state = boot::load(&self.config, &self.memory, &self.board)?;
        SdkWindow::initialize(&self.memory);
        self.publish_writes();
        self.cpus[0].engine.set_state(&state)?;
        for each in &mut self.cpus[1..] {
            each.engine.set_state(&CpuState::never_started())?;
            each.waiting = true;
        }
        Ok(())
    }

    /// Runs until guest time is at or after `deadline`, or something stops the machine earlier. Timer events inside the
    /// span are met and idle time inside it is skipped.
    pub fn run_until(&mut self, deadline: GuestNs) -> Result<Stop, MachineError> {
        self.run(Limit { deadline, progress: u64::MAX })
    }

    /// Runs exactly `count` more units of progress, skipping idle time, unless something stops the machine earlier.
    pub fn run_instructions(&mut self, count: u64) -> Result<Stop, MachineError> {
        let progress = self.progress().saturating_add(count);
        self.run(Limit { deadline: GuestNs(u64::MAX), progress })
    }

    /// Runs, skipping idle time, until `pattern` was written to the serial console, at most to `limit`. Doorbells and the
    /// restart point do not stop it.
    pub fn run_until_serial(&mut self, pattern: &str, limit: GuestNs) -> Result<Stop, MachineError> {
        self.watch = pattern.as_bytes().to_vec();
        let stop = self.run_watching(limit);
        self.watch.clear();
        stop
    }

    fn run_watching(&mut self, limit: GuestNs) -> Result<Stop, MachineError> {
        loop {
            match self.run_until(limit)? {
                Stop::Idle { next_event: Some(_) } => self.skip_to(limit),
                Stop::Doorbell { .. } | Stop::RestartPoint => {}
                stop => return Ok(stop),
            }
        }
    }

    /// Lets guest time pass to `to` without running: an idle jump, or the end of a pause. Timers that fell due fire at the
    /// next run. A time at or before now changes nothing.
    pub fn skip_to(&mut self, to: GuestNs) {
        let ahead = to.since(self.now());
        if ahead > 0 {
            self.skipped_ns = self.skipped_ns.wrapping_add(ahead);
            self.set_tsc_base();
        }
    }

    /// The guest's TSC is its guest time: one tick a nanosecond.
    pub(crate) fn set_tsc_base(&mut self) {
        let base = TscBase {
            base_instructions: self.engine().progress(),
            base_tsc: self.now().0.wrapping_add(crate::canary::leaked_ns()),
            numerator: u64::from(self.config.ns_per_instruction),
            denominator: 1,
        };
        self.engine_mut().set_tsc_base(base);
    }

    /// Guest time at this boundary.
    pub fn now(&self) -> GuestNs {
        let run = self.progress().wrapping_mul(u64::from(self.config.ns_per_instruction));
        GuestNs(run.wrapping_add(self.skipped_ns))
    }

    /// Units of progress since power-on.
    pub fn instructions(&self) -> u64 {
        self.progress()
    }

    /// How many of them compiled code has made since this machine exists.
    pub fn compiled_instructions(&self) -> u64 {
        self.cpus.iter().map(|each| each.engine.compiled_progress()).sum()
    }

    /// Whether every CPU is halted (or was not started) with no interrupt to take.
    pub fn is_halted(&self) -> bool {
        let idle =
            |(cpu, each): (usize, &VirtualCpu)| each.waiting || each.halted && self.board.pending_for(cpu).is_none();
        self.cpus.iter().enumerate().all(idle)
    }

    /// How the guest ended, if it did.
    pub fn ended(&self) -> Option<&Stop> {
        self.ended.as_ref()
    }

    /// When the next timer event is due, if any.
    pub fn next_event(&self) -> Option<GuestNs> {
        self.board.next_event()
    }

    /// How this machine's guest time follows cluster time.
    pub fn time_map(&self) -> TimeMap {
        self.time_map
    }

    /// Replaces the map: a skew starts (same instant at both origins), or a restarted machine joins the cluster's present.
    pub fn set_time_map(&mut self, map: TimeMap) {
        self.time_map = map;
    }

    /// The wall clock now: nanoseconds since 1970.
    pub fn wall_clock_ns(&self) -> u64 {
        self.board.rtc.wall_ns(self.now())
    }

    /// Sets the wall clock as a step: the RTC, and the word that the guest's init follows. Guest time and TSC go on.
    pub fn set_wall_clock_ns(&mut self, wall_ns: u64) {
        let now = self.now();
        let change_ns = wall_ns.wrapping_sub(self.board.rtc.wall_ns(now)).cast_signed();
        self.board.rtc.set_wall_ns(wall_ns, now);
        SdkWindow::step_wall_clock(&self.memory, change_ns);
        self.publish_writes();
    }

    /// Restarts every random stream the guest can draw from (entropy device, SDK) from `seed`.
    pub fn reseed_entropy(&mut self, seed: [u8; 32]) {
        self.board.rng.device_mut().reseed(&seed);
        self.board.sdk.reseed(&seed);
        self.scheduler.reseed(&seed);
    }

    /// Gives the guest a new VM Generation ID and notifies it: it was forked or restarted.
    pub fn set_generation_id(&mut self, id: [u8; 16]) {
        self.board.generation_id = id;
        boot::acpi::write_generation_id(&self.memory, &id);
        let bus = bus!(self);
        self.board.notify_generation_id(&bus);
        self.publish_writes();
    }

    /// An interrupt line rises and falls although its device asked for nothing; a line that is high already stays so. Lines past
    /// the last do not exist.
    pub fn pulse_irq(&mut self, irq: u8) {
        self.board.pulse(irq);
    }

    /// The first CPU gets a non-maskable interrupt.
    pub fn raise_nmi(&mut self) {
        if let Some(lapic) = self.board.lapics.first_mut() {
            lapic.raise_nmi();
        }
    }

    /// Takes the frames sent since the last call, in order.
    pub fn take_frames(&mut self) -> Vec<Frame> {
        self.board.net.as_mut().map(|net| net.device_mut().take_transmitted()).unwrap_or_default()
    }

    /// Hands a frame to the network card. False where there is none or its receive queue is full (the frame is lost).
    pub fn deliver_frame(&mut self, frame: &[u8]) -> bool {
        let bus = bus!(self);
        let delivered = self.board.deliver_frame(frame, &bus);
        self.publish_writes();
        delivered
    }

    /// The network card, for counters and its link.
    pub fn net(&self) -> Option<&VirtioMmio<Net>> {
        self.board.net.as_ref()
    }

    /// A disk, for its counters, pending writes and medium.
    pub fn disk(&self, index: usize) -> Option<&VirtioMmio<Block>> {
        self.board.disks.get(index)
    }

    /// A disk, for faults, power cuts and replacing its medium. Nothing here touches guest memory.
    pub fn disk_mut(&mut self, index: usize) -> Option<&mut Block> {
        self.board.disks.get_mut(index).map(VirtioMmio::device_mut)
    }

    /// The virtio-mmio slot of a disk, as its device is numbered in the guest's bus.
    pub fn disk_slot(index: usize) -> usize {
        SLOT_DISK + index
    }

    /// The SDK window's messages, streams and forced choices.
    pub fn sdk(&self) -> &SdkWindow {
        &self.board.sdk
    }

    /// The SDK window's messages, streams and forced choices.
    pub fn sdk_mut(&mut self) -> &mut SdkWindow {
        &mut self.board.sdk
    }

    /// Asks the guest's agent for something; its answer names the number that this returns.
    pub fn ask_agent(&mut self, action: AgentAction) -> u16 {
        let number = SdkWindow::ask_agent(&self.memory, action);
        self.publish_writes();
        number
    }

    /// Reads every SDK slot, as at a barrier; the messages wait in [`Machine::sdk_mut`].
    pub fn drain_sdk(&mut self) {
        let now = self.now();
        self.board.sdk.drain_all(&self.memory, now);
        self.publish_writes();
    }

    /// Takes what the guest wrote to the serial port since the last call.
    pub fn take_serial(&mut self) -> Vec<u8> {
        self.board.serial.take_output()
    }

    /// Bytes that the guest wrote to the serial port since power-on.
    pub fn serial_written(&self) -> u64 {
        self.board.serial.capture().written
    }

    /// The first console line that announced a kernel panic (guest text: escape it).
    pub fn panic_line(&self) -> Option<&str> {
        self.board.serial.capture().panic_line.as_deref()
    }

    /// Types into the serial port; returns how many bytes were accepted (what the guest does not read waits, bounded).
    pub fn type_serial(&mut self, input: &[u8]) -> usize {
        let bus = bus!(self);
        self.board.type_serial(input, &bus)
    }

    /// Takes what the guest wrote to the virtio console since the last call.
    pub fn take_console(&mut self) -> Vec<u8> {
        self.board.console.device_mut().take_output()
    }

    /// Guest memory: reads by the host, and writes that both dirty tracking and the engine see.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The registers of the CPU that runs, or ran last.
    pub fn cpu(&self) -> CpuState {
        self.engine().state()
    }

    /// Switches edge coverage on or off.
    pub fn set_coverage(&mut self, filter: Option<CoverageFilter>) {
        self.cpus.iter_mut().for_each(|each| each.engine.set_coverage(filter));
    }

    /// Edge hit counts since the last clear, over all CPUs, if coverage is on.
    pub fn coverage(&self) -> Option<Cow<'_, [u8]>> {
        let mut counts = Cow::Borrowed(self.cpus[0].engine.coverage()?);
        for more in self.cpus[1..].iter().filter_map(|each| each.engine.coverage()) {
            counts.to_mut().iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        }
        Some(counts)
    }

    /// Zeroes the edge hit counts.
    pub fn clear_coverage(&mut self) {
        self.cpus.iter_mut().for_each(|each| each.engine.clear_coverage());
    }

    /// Hit counts that the guest wrote into its window itself, if there are any: a part of its memory, and so of snapshots.
    pub fn guest_coverage(&self) -> Option<Vec<u8>> {
        SdkWindow::coverage(&self.memory)
    }

    /// Zeroes the hit counts that the guest wrote into its window.
    pub fn clear_guest_coverage(&mut self) {
        SdkWindow::clear_coverage(&self.memory);
        self.publish_writes();
    }

    /// BLAKE3 of the CPU state's canonical bytes; of several CPUs, over those of each in order.
    pub fn register_hash(&self) -> Digest {
        match &self.cpus[..] {
            [only] => {
                // A machine that idles is asked again and again.
                let state = only.engine.state();
                let mut last = self.last_hash.borrow_mut();
                match &*last {
                    Some(known) if known.0 == state => known.1,
                    _ => last.insert(Box::new((state, register_hash::register_hash(&state)))).1,
                }
            }
            all => register_hash::register_hash_of_all(all.iter().map(|each| each.engine.state())),
        }
    }

    /// BLAKE3 over guest memory, as [`PageMap::hash`].
    pub fn memory_hash(&mut self) -> Digest {
        self.collect_pages();
        self.base.hash()
    }

    /// A second machine that goes on from here on its own.
    pub fn fork(&mut self) -> Result<Self, MachineError> {
        self.check_sound()?;
        let snapshot = self.snapshot();
        let mut copy = Self::new(self.config.clone())?;
        copy.restore(&snapshot)?;
        Ok(copy)
    }
}
