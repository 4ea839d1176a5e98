// SPDX-License-Identifier: AGPL-3.0-or-later
//! Runs cases on our CPU, in ring 3 of a small guest that looks like a Linux process from inside.
//!
//! Every exception ends in a ring-0 handler of its own that halts; its frame and the registers are the outcome.

use crate::case::{Case, Fx, Outcome, Registers};
use crate::compare::{Difference, ENDLESS, compare};
use crate::layout::{
    CODE, CODE_BYTES, DATA, DATA_BYTES, FILLER, FS_BASE, GS_BASE, HIGH, READABLE_BYTES, USER_CS32, USER_CS64, USER_DS,
    base_image,
};
use crate::ram::{NX, P, PAGE, PageTables, Ram, U, W, gate, segment_descriptor, system_descriptor};
use chaoscontrol_cpu::state::{DescriptorTable, Segment, X87, seg};
use chaoscontrol_cpu::{Config, Cpu, CpuState, Exit, Tier};
use iced_x86::InstructionInfoFactory;

/// Where the kernel's pages are, in the upper half, which a Linux process cannot see either.
const KERNEL: u64 = 0xffff_ff00_0000_0000;
const GDT: u64 = 0x1000;
const TSS: u64 = 0x2000;
const IDT: u64 = 0x3000;
const HANDLERS: u64 = 0x4000;
const STACK_TOP: u64 = 0x6000;
const TEST_CODE: u64 = 0x10000;
const TEST_DATA: u64 = TEST_CODE + CODE_BYTES as u64;
const TABLES: u64 = 0x20000;
const RAM_PAGES: usize = 64;
/// Counted events a case may take; the longest string instruction stays far below.
const BUDGET: u64 = 1 << 17;
/// Bytes between two handlers.
const HANDLER_STRIDE: u64 = 8;
const HLT: u8 = 0xf4;
const TSS_SELECTOR: u16 = 0x40;
const KERNEL_CS: u16 = 0x10;
const GDT_ENTRIES: u16 = 16;

/// Our CPU, ready for cases.
pub struct GuestRunner {
    cpu: Cpu,
    ram: Ram,
    base: Vec<u8>,
    start: CpuState,
}

impl Default for GuestRunner {
    fn default() -> Self {
        Self::of_tier(Tier::Reference)
    }
}

/// Both tiers, which must agree on everything.
pub struct Guests {
    reference: GuestRunner,
    compiled: GuestRunner,
}

impl Default for Guests {
    fn default() -> Self {
        Self { reference: GuestRunner::of_tier(Tier::Reference), compiled: GuestRunner::of_tier(Tier::Compiled) }
    }
}

impl Guests {
    /// Runs a case on both and compares what they did, first with each other, then with the host.
    pub fn judge(
        &mut self,
        case: &Case,
        expected: &Outcome,
        factory: &mut InstructionInfoFactory,
    ) -> Option<Difference> {
        let got = self.reference.run(case);
        tiers_differ(&got, &self.compiled.run(case)).or_else(|| compare(case, expected, &got, factory))
    }

    /// Runs a case on both and compares them with each other alone.
    pub fn agree(&mut self, case: &Case) -> Option<Difference> {
        let got = self.reference.run(case);
        tiers_differ(&got, &self.compiled.run(case))
    }
}

/// The first difference between the tiers, of which none is allowed.
fn tiers_differ(reference: &Outcome, compiled: &Outcome) -> Option<Difference> {
    if reference == compiled {
        return None;
    }
    let (a, b) = (&reference.registers, &compiled.registers);
    let differ = |what: String, a: u64, b: u64| {
        Some(Difference {
            what: format!("{what} between the tiers (expected is the reference)"),
            expected: format!("{a:#x}"),
            got: format!("{b:#x}"),
        })
    };
    let general = (0..16).find(|&index| a.gpr[index] != b.gpr[index]);
    let vector = (0..16).find(|&index| a.fx.xmm(index) != b.fx.xmm(index));
    match (general, vector) {
        _ if a.vector != b.vector => differ("vector".into(), a.vector.into(), b.vector.into()),
        _ if a.rip != b.rip => differ("rip".into(), a.rip, b.rip),
        _ if a.rflags != b.rflags => differ("rflags".into(), a.rflags, b.rflags),
        (Some(index), _) => differ(format!("register {index}"), a.gpr[index], b.gpr[index]),
        (_, Some(index)) => differ(format!("low half of xmm{index}"), a.fx.xmm(index) as u64, b.fx.xmm(index) as u64),
        _ if a.fx != b.fx => differ("fxsave image, mxcsr".into(), a.fx.u32(24).into(), b.fx.u32(24).into()),
        _ => differ("memory or another register".into(), reference.memory.len() as u64, compiled.memory.len() as u64),
    }
}

impl GuestRunner {
    /// A guest on one tier. All code is compiled at once.
    pub fn of_tier(tier: Tier) -> Self {
        // Few operations: nearly every case is new code.
        Self::new(&Config {
            cached_operations: 1 << 12,
            tier,
            hot_executions: 1,
            code_bytes: 1 << 20,
            ..Config::default()
        })
    }

    /// Builds the guest.
    pub fn new(config: &Config) -> Self {
        let mut ram = Ram::new(RAM_PAGES);
        let base = base_image();
        ram.bytes_mut()[TEST_CODE as usize..TEST_DATA as usize].fill(FILLER);
        ram.write_bytes(TEST_DATA, &base);
        let root = page_tables(&mut ram);
        descriptor_tables(&mut ram);
        // SAFETY: `ram` lives beside the CPU and is only used between its runs.
        let cpu = Cpu::new(unsafe { ram.view() }, config);
        Self { cpu, ram, base, start: start_state(root) }
    }

    /// Runs one case from the base image.
    pub fn run(&mut self, case: &Case) -> Outcome {
        self.load(case);
        self.cpu.set_state(&self.state_of(case)).expect("cases hold valid states");
        let exit = self.cpu.run(BUDGET);
        let state = self.cpu.state();
        let registers = self.registers(exit, &state);
        let memory = self.restore(case);
        Outcome { registers, memory }
    }

    fn load(&mut self, case: &Case) {
        let at = TEST_CODE + (case.rip - CODE);
        self.ram.write_bytes(at, case.code());
        let data = TEST_DATA as usize;
        case.apply_patches(&mut self.ram.bytes_mut()[data..data + DATA_BYTES]);
        self.cpu.memory_changed(TEST_CODE, CODE_BYTES as u64);
        self.cpu.memory_changed(TEST_DATA, DATA_BYTES as u64);
    }

    /// Lists the changed words and puts everything back.
    fn restore(&mut self, case: &Case) -> Vec<(u32, u64)> {
        let at = (TEST_CODE + (case.rip - CODE)) as usize;
        self.ram.bytes_mut()[at..at + case.code_len as usize].fill(FILLER);
        let data = TEST_DATA as usize;
        let pages = &mut self.ram.bytes_mut()[data..data + DATA_BYTES];
        let mut changed = Vec::new();
        for (index, (now, was)) in pages.chunks_exact_mut(8).zip(self.base.chunks_exact(8)).enumerate() {
            if now != was {
                changed.push((index as u32, u64::from_le_bytes(now.try_into().expect("eight bytes"))));
                now.copy_from_slice(was);
            }
        }
        changed
    }

    fn state_of(&self, case: &Case) -> CpuState {
        let mut state = self.start;
        state.gpr = case.gpr;
        state.rip = case.rip;
        state.rflags = case.rflags;
        let (selector, attributes) = if case.bits == 64 { (USER_CS64, 0xa0fb) } else { (USER_CS32, 0xc0fb) };
        state.segments[seg::CS] = Segment { selector, base: 0, limit: u32::MAX, attributes };
        load_fx(&mut state, &case.fx);
        state
    }

    fn registers(&self, exit: Exit, state: &CpuState) -> Registers {
        let mut out = Registers { vector: ENDLESS, ..Registers::ZERO };
        let handlers = KERNEL + HANDLERS;
        let vector = state.rip.wrapping_sub(handlers) / HANDLER_STRIDE;
        if exit != Exit::Halted || vector > 31 {
            return out;
        }
        out.vector = vector as u32;
        out.gpr = state.gpr;
        out.cr2 = state.cr2;
        out.fx = store_fx(state);
        let mut frame = state.gpr[4].wrapping_sub(KERNEL);
        if matches!(vector, 8 | 10..=14 | 17 | 21) {
            out.error = self.ram.read(frame) as u32;
            frame += 8;
        }
        out.rip = self.ram.read(frame);
        out.rflags = self.ram.read(frame + 16);
        out.gpr[4] = self.ram.read(frame + 24);
        let selector = |index: usize| state.segments[index].selector;
        let (cs, ss) = (self.ram.read(frame + 8) as u16, self.ram.read(frame + 32) as u16);
        out.selectors = [selector(seg::ES), cs, ss, selector(seg::DS), selector(seg::FS), selector(seg::GS)];
        out
    }

    /// The CPU, for what the cases do not reach.
    pub fn cpu(&mut self) -> &mut Cpu {
        &mut self.cpu
    }
}

fn page_tables(ram: &mut Ram) -> u64 {
    let mut tables = PageTables::new(TABLES);
    tables.map_range(ram, KERNEL, 0, 8, P | W);
    tables.map_range(ram, CODE, TEST_CODE, CODE_BYTES as u64 / PAGE, P | U);
    let writable = DATA_BYTES as u64 / PAGE;
    tables.map_range(ram, DATA, TEST_DATA, writable, P | W | U | NX);
    let read_only = (READABLE_BYTES - DATA_BYTES) as u64 / PAGE;
    tables.map_range(ram, DATA + DATA_BYTES as u64, TEST_DATA + DATA_BYTES as u64, read_only, P | U | NX);
    tables.map_range(ram, HIGH, TEST_DATA, writable, P | W | U | NX);
    tables.root()
}

/// The same selectors as in a Linux process.
fn descriptor_tables(ram: &mut Ram) {
    let code = |dpl: u8, flags: u8| segment_descriptor(0x9b | dpl << 5, flags);
    let data = |dpl: u8, flags: u8| segment_descriptor(0x93 | dpl << 5, flags);
    let entries = [
        (1, code(0, 0xc)),
        (2, code(0, 0xa)),
        (3, data(0, 0xc)),
        (4, code(3, 0xc)),
        (5, data(3, 0xc)),
        (6, code(3, 0xa)),
    ];
    for (index, descriptor) in entries {
        ram.write(GDT + index * 8, descriptor);
    }
    let tss = system_descriptor(KERNEL + TSS, 0x67, 0x8b);
    ram.write(GDT + 0x40, tss[0]);
    ram.write(GDT + 0x48, tss[1]);
    // The CPU number's segment, which Linux has here.
    ram.write(GDT + 15 * 8, 0x0040_f500_0000_0000);
    ram.write(TSS + 4, KERNEL + STACK_TOP);
    // No I/O permission bitmap.
    ram.write_bytes(TSS + 102, &0x68u16.to_le_bytes());
    for vector in 0..256 {
        let dpl = if matches!(vector, 3 | 4) { 3 } else { 0 };
        let words = gate(KERNEL_CS, KERNEL + HANDLERS + vector * HANDLER_STRIDE, 0, 0x8e | dpl << 5);
        ram.write(IDT + vector * 16, words[0]);
        ram.write(IDT + vector * 16 + 8, words[1]);
    }
    ram.bytes_mut()[HANDLERS as usize..HANDLERS as usize + PAGE as usize].fill(HLT);
}

fn start_state(root: u64) -> CpuState {
    let data = Segment { selector: USER_DS, base: 0, limit: u32::MAX, attributes: 0xc0f3 };
    let mut state = CpuState { rip: CODE, rflags: 2, mxcsr: 0x1f80, ..CpuState::default() };
    state.segments = [data; 6];
    state.segments[seg::FS] = Segment { base: FS_BASE, ..Segment::default() };
    state.segments[seg::GS] = Segment { base: GS_BASE, ..Segment::default() };
    state.tr = Segment { selector: TSS_SELECTOR, base: KERNEL + TSS, limit: 0x67, attributes: 0x8b };
    state.gdtr = DescriptorTable { base: KERNEL + GDT, limit: GDT_ENTRIES * 8 - 1 };
    state.idtr = DescriptorTable { base: KERNEL + IDT, limit: 0xfff };
    // PE, MP, ET, NE, WP, AM, PG; PAE, PGE, OSFXSR, OSXMMEXCPT; SCE, LME, LMA, NXE.
    state.cr0 = 0x8005_0033;
    state.cr4 = 0x6a0;
    state.cr3 = root;
    state.msrs.efer = 0xd01;
    state.dr6 = 0xffff_0ff0;
    state.dr7 = 0x400;
    state
}

/// Loads an FXSAVE image into a state.
pub fn load_fx(state: &mut CpuState, fx: &Fx) {
    let status = fx.u16(2);
    let top = usize::from(status >> 11 & 7);
    let mut x87 = X87 { control: fx.u16(0), status, tag: 0, ..X87::default() };
    for index in 0..8 {
        let physical = (top + index) & 7;
        let (significand, sign_exponent) = fx.st(index);
        x87.significand[physical] = significand;
        x87.sign_exponent[physical] = sign_exponent;
        let empty = fx.0[4] >> physical & 1 == 0;
        x87.tag |= if empty { 3 } else { full_tag(significand, sign_exponent) } << (2 * physical);
    }
    state.x87 = x87;
    state.mxcsr = fx.u32(24);
    for (index, xmm) in state.xmm.iter_mut().enumerate() {
        *xmm = fx.xmm(index);
    }
}

/// The full tag of a register that is not empty (AMD64 APM vol. 2, 11.4.4.1): valid, zero or special.
fn full_tag(significand: u64, sign_exponent: u16) -> u16 {
    match (sign_exponent & 0x7fff, significand) {
        (0, 0) => 1,
        (0 | 0x7fff, _) => 2,
        (_, s) if s >> 63 == 0 => 2,
        _ => 0,
    }
}

/// The FXSAVE image of a state, without pointers.
pub fn store_fx(state: &CpuState) -> Fx {
    let mut fx = Fx([0; 512]);
    let x87 = &state.x87;
    fx.set_u16(0, x87.control);
    fx.set_u16(2, x87.status);
    let top = usize::from(x87.status >> 11 & 7);
    for index in 0..8 {
        let physical = (top + index) & 7;
        fx.set_st(index, x87.significand[physical], x87.sign_exponent[physical]);
        let empty = x87.tag >> (2 * physical) & 3 == 3;
        fx.0[4] |= u8::from(!empty) << physical;
    }
    fx.set_u32(24, state.mxcsr);
    for (index, &xmm) in state.xmm.iter().enumerate() {
        fx.set_xmm(index, xmm);
    }
    fx
}
