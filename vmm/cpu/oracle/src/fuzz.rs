// SPDX-License-Identifier: AGPL-3.0-or-later
//! Arbitrary bytes as a guest: state, page tables, descriptor tables and code, run on both tiers with other cache sizes. Nothing may
//! panic or reach outside RAM, and exits, counts, state, RAM and dirty pages must be the same.
//!
//! RAM lies between two pages without access, so that reaching outside ends the process.

use crate::generate::encode::encode;
use crate::native::Mapping;
use crate::ram::{P, PAGE, U, W};
use crate::random::{below, one_in, pick, stream};
use chaoscontrol_cpu::state::{DescriptorTable, Segment, seg};
use chaoscontrol_cpu::table::{Status, status};
use chaoscontrol_cpu::{Config, Cpu, CpuState, Exit, GuestRam, RamRegion, Tier};
use iced_x86::Code;
use rand_core::Rng;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counted events, so that it can be seen that inputs do something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// On the reference.
    pub events: u64,
    /// Of them, those that compiled code retired on the other tier.
    pub compiled: u64,
}

impl std::ops::Add for Ran {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { events: self.events + other.events, compiled: self.compiled + other.compiled }
    }
}

/// Runs seeded inputs from `first` on, shared among `jobs` threads; `progress` hears how many are done.
///
/// # Panics
/// As [`Fuzzer::run`]; seed and index of the input are in the message.
pub fn run_inputs(
    seed: u64,
    first: u64,
    inputs: u64,
    jobs: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> std::io::Result<Ran> {
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let work = |job: usize| -> std::io::Result<Ran> {
            let mut fuzzer = Fuzzer::new()?;
            let mut all = Ran::default();
            for index in (first..first.saturating_add(inputs)).skip(job).step_by(jobs.max(1)) {
                let input = seeded(seed, index);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fuzzer.run(&input)));
                let failed = |_| panic!("input {index} of seed {seed} failed, as the message above says");
                all = all + result.unwrap_or_else(failed);
                progress(done.fetch_add(1, Ordering::Relaxed) + 1);
            }
            Ok(all)
        };
        let threads: Vec<_> = (0..jobs.max(1)).map(|job| scope.spawn(move || work(job))).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        results.into_iter().try_fold(Ran::default(), |all, result| Ok(all + result?))
    })
}

/// Input `index` of `seed`: a body of random bytes, or of random instructions, which get further.
fn seeded(seed: u64, index: u64) -> Vec<u8> {
    static CODES: LazyLock<Vec<Code>> = LazyLock::new(|| {
        let runs = |code: &Code| matches!(status(*code), Status::Implemented(_)) && code.op_code().mode64();
        Code::values().filter(runs).collect()
    });
    let mut rng = stream(seed, index);
    let mut input = vec![0; HEADER];
    rng.fill_bytes(&mut input);
    let body = below(&mut rng, 4096) as usize;
    if one_in(&mut rng, 4) {
        input.resize(HEADER + body, 0);
        rng.fill_bytes(&mut input[HEADER..]);
        return input;
    }
    while input.len() < HEADER + body / 8 {
        let code = pick(&mut rng, &CODES);
        input.extend(encode(&mut rng, code, 64, 0).unwrap_or_default());
    }
    input
}

/// Pages of RAM.
const PAGES: usize = 24;
const RAM_BYTES: usize = PAGES * PAGE as usize;
/// Counted events an input may run.
const EVENTS: u64 = 3_000;
/// Exits an input may cause.
const EXITS: usize = 200;
/// Bytes at the start of an input that make the state.
const HEADER: usize = 64;

/// RAM of the two CPUs that inputs run on, one after another.
pub struct Fuzzer {
    memory: [Mapping; 2],
}

/// What an input came to on one CPU; its RAM is in the mapping.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// Each exit, after how many counted events.
    exits: Vec<(u64, Exit)>,
    /// `None` where the last exit waits for an answer.
    state: Option<CpuState>,
    /// Ascending.
    dirty_pages: Vec<u64>,
}

impl Fuzzer {
    /// Maps the memory.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { memory: [Mapping::guarded(RAM_BYTES)?, Mapping::guarded(RAM_BYTES)?] })
    }

    /// Runs one input on the reference and on the other tier.
    ///
    /// # Panics
    /// If the two differ, a page outside RAM was written, or a cache does not keep what it promises (`Cpu::check_caches`).
    pub fn run(&mut self, input: &[u8]) -> Ran {
        let (header, body) = input.split_at(input.len().min(HEADER));
        let byte = |index: usize| header.get(index).copied().unwrap_or(0);
        let reference = Config { tier: Tier::Reference, ..Config::default() };
        let other = Config {
            tlb_entries: 16 << (byte(1) & 3),
            cached_operations: 64 + usize::from(byte(2)),
            block_instructions: 1 + usize::from(byte(3) & 31),
            // Now and then the reference too, whose caches have sizes of their own.
            tier: if byte(6) & 7 == 7 { Tier::Reference } else { Tier::Compiled },
            hot_executions: 1 + u32::from(byte(6) >> 1 & 3),
            code_bytes: 0,
            ..Config::default()
        };
        let (expected, _) = self.once(0, &reference, body, &byte);
        let (outcome, compiled) = self.once(1, &other, body, &byte);
        assert_eq!(outcome, expected, "the tiers or cache sizes differ: {other:?}");
        let left_alike = self.contents(0) == self.contents(1);
        assert!(left_alike, "the tiers or cache sizes leave different RAM: {other:?}");
        let events = expected.and_then(|outcome| outcome.exits.last().map(|(count, _)| *count)).unwrap_or(0);
        Ran { events, compiled }
    }

    /// The outcome is `None` if the input makes no state that can be; beside it the events that compiled code retired.
    fn once(
        &mut self,
        which: usize,
        config: &Config,
        body: &[u8],
        byte: &impl Fn(usize) -> u8,
    ) -> (Option<Outcome>, u64) {
        let ram = self.ram(which);
        ram.fill(0);
        lay_out(ram, body, byte);
        let region = RamRegion { address: 0, bytes: RAM_BYTES as u64, pointer: self.memory[which].address() };
        // SAFETY: the mapping lives as long as `self`, longer than the CPU, and nobody else uses it while the CPU runs.
        let view = unsafe { GuestRam::new(&[region]) }.expect("a mapping of whole pages is RAM");
        let mut cpu = Cpu::new(view, config);
        let outcome = cpu.set_state(&state(byte)).is_ok().then(|| drive(&mut cpu, byte));
        (outcome, cpu.compiled_progress())
    }

    fn contents(&self, which: usize) -> &[u8] {
        // SAFETY: the mapping has this many bytes and no CPU exists between two runs.
        unsafe { std::slice::from_raw_parts(self.memory[which].address(), RAM_BYTES) }
    }

    fn ram(&mut self, which: usize) -> &mut [u8] {
        // SAFETY: the mapping has this many bytes and no CPU exists between two runs.
        unsafe { std::slice::from_raw_parts_mut(self.memory[which].address(), RAM_BYTES) }
    }
}

/// Pages of what a plausible guest has: where its code starts, exception handlers, data and stacks.
const CODE: u64 = 0x8;
const HANDLERS: u64 = 0xc;
const DATA: u64 = 0x10;
/// Pages mapped behind RAM: accesses leave.
const OUTSIDE: u64 = 4;

/// Fills RAM with the input, then mostly puts plausible tables over a part of it, without which a guest ends at once. The input may
/// leave each of them out.
fn lay_out(ram: &mut [u8], body: &[u8], byte: &impl Fn(usize) -> u8) {
    if !body.is_empty() {
        ram.chunks_mut(body.len()).for_each(|part| part.copy_from_slice(&body[..part.len()]));
    }
    let mut put = |at: usize, value: u64| ram[at..at + 8].copy_from_slice(&value.to_le_bytes());
    let of_body = |index: u64| body.get(index as usize).copied().unwrap_or(1);
    let user = if ring(byte) == 3 { U } else { 0 };
    if byte(0) & 7 != 0 {
        // Tables at pages 1 to 4 that map the first pages one to one.
        for level in 0..3u64 {
            put((1 + level as usize) * 0x1000, ((2 + level) * PAGE) | P | W | U);
        }
        for page in 0..PAGES as u64 + OUTSIDE {
            let odd = of_body(page);
            let usual = if (HANDLERS..DATA).contains(&page) { W } else { W | user };
            let flags = if odd % 11 == 0 { u64::from(odd) & 0xe6 } else { usual };
            put(0x4000 + page as usize * 8, (page * PAGE) | flags | P);
        }
    }
    if byte(0) & 0x38 != 0 {
        for vector in 0..64 {
            let offset = of_body(vector);
            let stack = if offset % 5 == 0 { offset & 7 } else { 0 };
            let handler = HANDLERS * PAGE + u64::from(offset) * 16;
            let words = crate::ram::gate(0x10, handler, stack, 0x8e | offset & 0x60);
            put(0x5000 + vector as usize * 16, words[0]);
            put(0x5008 + vector as usize * 16, words[1]);
        }
        for (index, descriptor) in
            [0, 0x00cf_9b00_0000_ffff, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff].into_iter().enumerate()
        {
            put(0x6000 + index * 8, descriptor);
        }
        // Stacks of the rings, and of the interrupt stack table.
        for stack in [4, 12, 20, 36, 44, 52, 60, 68, 76, 84] {
            put(0x7000 + stack, RAM_BYTES as u64 - 8 * stack as u64);
        }
    }
}

fn ring(byte: &impl Fn(usize) -> u8) -> u16 {
    u16::from(byte(4) & 3)
}

fn state(byte: &impl Fn(usize) -> u8) -> CpuState {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| byte(at + index)));
    // What stops compiled code or ends most guests soon is rare.
    let rarely = |at: usize, value: u64| if byte(at) & 7 == 0 { value } else { 0 };
    let ring = ring(byte);
    let flags = word(8) & 0x4_0ed5 | rarely(8, word(8) & 0x3f_7fd5);
    let mut state = CpuState { rflags: 2 | flags, mxcsr: 0x1f80, ..CpuState::default() };
    state.rip = CODE * PAGE + (word(16) & 0xfff);
    for (index, register) in state.gpr.iter_mut().enumerate() {
        // Mostly addresses in RAM, or near its end.
        *register = match byte(24 + index) {
            low @ 0..=127 => DATA * PAGE + u64::from(low) * 0x38,
            low @ 128..=199 => u64::from(low) * 0x1d3,
            200..=219 => RAM_BYTES as u64 - 4,
            220..=239 => word(16),
            _ => u64::MAX,
        };
    }
    let code = if byte(5) & 7 == 0 { 0xc09b } else { 0xa09b };
    let data = Segment { selector: 0x18 | ring, base: 0, limit: u32::MAX, attributes: 0xc093 | ring << 5 };
    state.segments = [data; 6];
    state.segments[seg::CS] = Segment { selector: 0x10 | ring, base: 0, limit: u32::MAX, attributes: code | ring << 5 };
    state.segments[seg::FS].base = rarely(41, word(40));
    let task = 0x7000 + rarely(42, word(42) % 0x20000);
    state.tr = Segment { selector: 0x40, base: task, limit: 0x67, attributes: 0x8b };
    state.gdtr = DescriptorTable { base: 0x6000, limit: 0xfff ^ rarely(44, word(44)) as u16 };
    state.idtr = DescriptorTable { base: 0x5000, limit: 0xfff ^ rarely(46, word(46)) as u16 };
    state.cr0 = 0x8005_0033 | rarely(47, word(48) & 0xe);
    state.cr4 = 0x6a0 | word(49) & 0x30_0000;
    state.cr3 = 0x1000;
    state.msrs.efer = 0xd01;
    state.msrs.star = 0x0010_0010_0000_0000 ^ rarely(50, word(50));
    state.msrs.lstar = HANDLERS * PAGE + u64::from(byte(51)) * 16;
    state.dr6 = 0xffff_0ff0;
    state.dr7 = 0x400 | rarely(52, word(52) & 0xffff_03ff);
    state.dr = [(CODE * PAGE + word(53)) & 0xffff; 4];
    state.x87.status = word(54) as u16;
    state.x87.control = 0x37f ^ rarely(55, word(56)) as u16;
    state
}

/// Runs, answering everything that leaves with bytes of the input, and injecting interrupts now and then.
fn drive(cpu: &mut Cpu, byte: &impl Fn(usize) -> u8) -> Outcome {
    let mut exits = Vec::new();
    for exit in 0..EXITS {
        let left = EVENTS.saturating_sub(cpu.progress());
        let answer = u64::from(byte(exit % HEADER)) * 0x0101_0101_0101_0101;
        let why = cpu.run(left.min(1 + u64::from(byte(exit % 7)) * 4));
        exits.push((cpu.progress(), why));
        cpu.check_caches();
        match why {
            Exit::BudgetUsed | Exit::Halted if left == 0 => break,
            Exit::BudgetUsed | Exit::Halted | Exit::InterruptWindow | Exit::TprWrite => {
                cpu.request_interrupt_window(answer & 1 == 0);
                if cpu.interrupt_ready() {
                    cpu.inject_interrupt(answer as u8);
                } else if answer & 3 == 3 {
                    cpu.inject_nmi();
                }
            }
            Exit::PortRead { .. } | Exit::MmioRead { .. } => cpu.complete_read(answer),
            Exit::MsrRead { .. } if answer & 1 == 0 => cpu.complete_read(answer),
            Exit::MsrRead { .. } | Exit::MsrWrite { .. } => cpu.refuse_msr(),
            Exit::PortWrite { .. } | Exit::MmioWrite { .. } => {}
            Exit::Shutdown | Exit::GuestError(_) => break,
        }
    }
    // State, dirty pages and restores must work wherever that ended.
    let state = cpu.at_instruction_boundary().then(|| cpu.state());
    if let Some(state) = &state {
        let _ = cpu.set_state(state);
    }
    let mut dirty_pages = Vec::new();
    cpu.take_dirty_pages(&mut |page| dirty_pages.push(page));
    dirty_pages.sort_unstable();
    assert!(dirty_pages.last().is_none_or(|page| *page < PAGES as u64), "{dirty_pages:x?} are not all in RAM");
    Outcome { exits, state, dirty_pages }
}
