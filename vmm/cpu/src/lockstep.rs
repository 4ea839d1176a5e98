// SPDX-License-Identifier: AGPL-3.0-or-later
//! Both tiers side by side: the compiled one on the guest's memory, the reference on a copy. They run the same short stretches, and
//! after each everything a guest could see is compared: exits, counts, state, dirty pages and their bytes.
//!
//! Registers and flags of a block are in the state at the end of its stretch; a difference is narrowed down by running
//! the stretch again from its beginning with ever other lengths.

use crate::config::{Config, CoverageFilter, Tier, TscBase};
use crate::cpu::{Cpu, StateError};
use crate::exit::Exit;
use crate::memory::{GuestRam, OFFSET_MASK, PAGE_BYTES, RamError, RamRegion};
use crate::mmu::{Kind, Target};
use crate::segment::desc;
use crate::state::{CpuState, seg};
use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Counted events of a stretch.
const STRETCH: u64 = 20_000;
/// Instructions before a difference that are shown.
const SHOWN: u64 = 40;

/// The tiers came apart; the text says where and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tiers differ: {0}")]
pub struct TiersDiffer(pub String);

/// Bytes aligned to pages.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; PAGE_BYTES as usize]);

/// Both tiers over one guest.
pub struct Lockstep {
    compiled: Cpu,
    reference: Cpu,
    regions: Vec<RamRegion>,
    /// The reference's memory.
    copy: Vec<Vec<Page>>,
    /// Memory at the beginning of the stretch, except for pages that somebody else has changed since.
    before: Vec<Vec<Page>>,
    /// Pages written that nobody has asked for yet.
    dirty: BTreeSet<u64>,
    copied: bool,
}

fn regions_of(pages: &mut [Vec<Page>], regions: &[RamRegion]) -> Vec<RamRegion> {
    pages
        .iter_mut()
        .zip(regions)
        .map(|(pages, region)| RamRegion { pointer: pages.as_mut_ptr().cast(), ..*region })
        .collect()
}

impl Lockstep {
    /// Two CPUs after reset.
    ///
    /// # Safety
    /// As for [`GuestRam::new`].
    pub unsafe fn new(regions: &[RamRegion], config: &Config) -> Result<Self, RamError> {
        let pages = |region: &RamRegion| vec![Page([0; PAGE_BYTES as usize]); (region.bytes / PAGE_BYTES) as usize];
        // SAFETY: by contract.
        let ram = unsafe { GuestRam::new(regions) }?;
        let mut copy: Vec<Vec<Page>> = regions.iter().map(pages).collect();
        let copied = regions_of(&mut copy, regions);
        // SAFETY: the pages are owned by this value, never resized, and touched only between runs.
        let ram_copy = unsafe { GuestRam::new(&copied) }?;
        Ok(Self {
            compiled: Cpu::new(ram, &Config { tier: Tier::Compiled, ..*config }),
            reference: Cpu::new(ram_copy, &Config { tier: Tier::Reference, ..*config }),
            regions: regions.to_vec(),
            before: copy.clone(),
            copy,
            dirty: BTreeSet::new(),
            copied: false,
        })
    }

    /// Whether there are two tiers to compare: not where the host refuses memory for code, or is of another architecture.
    pub fn compares(&self) -> bool {
        self.compiled.compiles()
    }

    /// A page of the guest's memory, of the reference's and of the memory before.
    fn page(&mut self, number: u64) -> Option<[&mut [u8]; 3]> {
        let address = number * PAGE_BYTES;
        let inside = |region: &RamRegion| region.address <= address && address < region.address + region.bytes;
        let index = self.regions.iter().position(inside)?;
        let region = self.regions[index];
        let page = ((address - region.address) / PAGE_BYTES) as usize;
        // SAFETY: the page lies inside the region, and no CPU runs.
        let real = unsafe {
            let host = region.pointer.add(page * PAGE_BYTES as usize);
            std::slice::from_raw_parts_mut(host, PAGE_BYTES as usize)
        };
        Some([real, &mut self.copy[index][page].0, &mut self.before[index][page].0])
    }

    fn copy_page(&mut self, number: u64) {
        if let Some([real, copy, before]) = self.page(number) {
            copy.copy_from_slice(real);
            before.copy_from_slice(real);
        }
    }

    /// The guest's memory was filled before the first run, or the first interrupt, without telling anyone.
    fn copy_all(&mut self) {
        if !std::mem::replace(&mut self.copied, true) {
            for region in self.regions.clone() {
                let first = region.address / PAGE_BYTES;
                (first..first + region.bytes / PAGE_BYTES).for_each(|number| self.copy_page(number));
            }
        }
    }

    /// As [`Cpu::run`], on both.
    pub fn run(&mut self, budget: u64) -> Result<Exit, TiersDiffer> {
        self.copy_all();
        let mut left = budget;
        loop {
            let stretch = left.min(STRETCH);
            let start = self.compiled.progress();
            // Between two halves of an instruction there is no state to go back to.
            let state = self.compiled.at_instruction_boundary().then(|| self.compiled.state());
            let exits = [self.compiled.run(stretch), self.reference.run(stretch)];
            if let Some(what) = self.difference(exits, true) {
                return Err(TiersDiffer(self.explain(what, state, stretch)));
            }
            left -= (self.compiled.progress() - start).min(left);
            if exits[0] != Exit::BudgetUsed || left == 0 {
                return Ok(exits[0]);
            }
        }
    }

    /// What differs after a stretch. If nothing does and the stretch is `done`, what was written becomes the memory before.
    fn difference(&mut self, exits: [Exit; 2], done: bool) -> Option<String> {
        let mut written = [BTreeSet::new(), BTreeSet::new()];
        for (cpu, pages) in [&mut self.compiled, &mut self.reference].into_iter().zip(&mut written) {
            cpu.take_dirty_pages(&mut |page| {
                pages.insert(page);
            });
        }
        let [compiled, reference] = &written;
        let mut what = None;
        for &number in compiled.union(reference) {
            let Some([real, copy, _]) = self.page(number) else {
                what.get_or_insert_with(|| format!("page {number:#x} is dirty and no part of memory"));
                continue;
            };
            if let Some(at) = real.iter().zip(copy.iter()).position(|(a, b)| a != b) {
                let address = number * PAGE_BYTES + at as u64;
                let text = format!("byte {address:#x} is {:#x}, the reference has {:#x}", real[at], copy[at]);
                what.get_or_insert(text);
            }
        }
        if let Some(page) = compiled.symmetric_difference(reference).next() {
            what.get_or_insert_with(|| format!("page {page:#x} is dirty on one tier only"));
        }
        let what = registers(&self.compiled.state(), &self.reference.state()).or(what);
        let what = (exits[0] != exits[1])
            .then(|| format!("exit {:x?}, the reference has {:x?}", exits[0], exits[1]))
            .or(what)
            .or_else(|| (self.compiled.coverage() != self.reference.coverage()).then(|| "edge counts".to_owned()));
        if what.is_none() && done {
            for &number in compiled {
                if let Some([real, _, before]) = self.page(number) {
                    before.copy_from_slice(real);
                }
            }
        }
        self.dirty.extend(compiled);
        what
    }

    /// Goes back to the beginning of the stretch.
    fn back(&mut self, state: &CpuState) -> Option<()> {
        for number in self.dirty.clone() {
            let [real, copy, before] = self.page(number)?;
            real.copy_from_slice(before);
            copy.copy_from_slice(before);
        }
        for cpu in [&mut self.compiled, &mut self.reference] {
            for number in &self.dirty {
                cpu.memory_changed(number * PAGE_BYTES, PAGE_BYTES);
            }
            cpu.set_state(state).ok()?;
        }
        Some(())
    }

    /// Finds the shortest stretch that differs and shows the instructions before its end.
    fn explain(&mut self, what: String, state: Option<CpuState>, stretch: u64) -> String {
        let begun = state.map(|state| state.instructions).unwrap_or_default();
        let mut text = format!("{what} after at most {stretch} counted events from {begun}");
        let Some(state) = state else { return text };
        let (mut equal, mut different) = (0, stretch);
        while different - equal > 1 && self.back(&state).is_some() {
            let middle = equal + (different - equal) / 2;
            let exits = [self.compiled.run(middle), self.reference.run(middle)];
            match self.difference(exits, false) {
                Some(_) => different = middle,
                None => equal = middle,
            }
        }
        let _ = write!(text, "; differs within {different}; the reference executed:");
        if self.back(&state).is_some() {
            self.reference.run(different.saturating_sub(SHOWN));
            for _ in 0..SHOWN.min(different) {
                let now = self.reference.state();
                let _ = write!(text, "\n{:#x}: {}", now.rip, self.disassembled(&now));
                self.reference.run(1);
            }
        }
        text
    }

    /// The instruction at a state's instruction pointer, read through the reference's translations.
    fn disassembled(&mut self, state: &CpuState) -> String {
        let core = &mut self.reference.core;
        let linear = state.rip.wrapping_add(core.segment_base[seg::CS]);
        let Ok(Target::Ram { host, physical, .. }) = core.translate(linear, Kind::Execute) else { return "?".into() };
        let length = (PAGE_BYTES - (physical & OFFSET_MASK)).min(15) as usize;
        // SAFETY: `host` is the byte at `physical`, and the bytes end with its page.
        let bytes = unsafe { std::slice::from_raw_parts(host.cast_const(), length) };
        let bits = if state.segments[seg::CS].attributes & desc::LONG != 0 { 64 } else { 32 };
        let mut instruction = Instruction::default();
        Decoder::with_ip(bits, bytes, state.rip, DecoderOptions::NONE).decode_out(&mut instruction);
        let mut text = String::new();
        IntelFormatter::new().format(&instruction, &mut text);
        text
    }
}

/// The first register that differs.
fn registers(compiled: &CpuState, reference: &CpuState) -> Option<String> {
    if compiled == reference {
        return None;
    }
    if let Some(index) = (0..16).find(|&index| compiled.gpr[index] != reference.gpr[index]) {
        let (a, b) = (compiled.gpr[index], reference.gpr[index]);
        return Some(format!("register {index} is {a:#x}, the reference has {b:#x}"));
    }
    if (compiled.rip, compiled.rflags) != (reference.rip, reference.rflags) {
        let (a, b) = ((compiled.rip, compiled.rflags), (reference.rip, reference.rflags));
        return Some(format!("rip and rflags are {a:x?}, the reference has {b:x?}"));
    }
    if let Some(index) = (0..16).find(|&index| compiled.xmm[index] != reference.xmm[index]) {
        let (a, b) = (compiled.xmm[index], reference.xmm[index]);
        return Some(format!("xmm{index} is {a:#x}, the reference has {b:#x}"));
    }
    Some(format!("state is {compiled:x?}, the reference has {reference:x?}"))
}

// SAFETY: the regions' pointers belong to whoever made them, who keeps them alive by contract, as for `GuestRam`.
unsafe impl Send for Lockstep {}

/// What a user of one CPU does, done to both.
impl Lockstep {
    /// As [`Cpu::complete_read`].
    pub fn complete_read(&mut self, value: u64) {
        self.each(|cpu| cpu.complete_read(value));
    }

    /// As [`Cpu::refuse_msr`].
    pub fn refuse_msr(&mut self) {
        self.each(Cpu::refuse_msr);
    }

    /// As [`Cpu::inject_interrupt`].
    pub fn inject_interrupt(&mut self, vector: u8) {
        self.copy_all();
        self.each(|cpu| cpu.inject_interrupt(vector));
    }

    /// As [`Cpu::inject_nmi`].
    pub fn inject_nmi(&mut self) -> bool {
        self.copy_all();
        self.reference.inject_nmi();
        self.compiled.inject_nmi()
    }

    /// As [`Cpu::request_interrupt_window`].
    pub fn request_interrupt_window(&mut self, wanted: bool) {
        self.each(|cpu| cpu.request_interrupt_window(wanted));
    }

    /// As [`Cpu::set_tpr`].
    pub fn set_tpr(&mut self, tpr: u8) {
        self.each(|cpu| cpu.set_tpr(tpr));
    }

    /// As [`Cpu::set_tsc_base`].
    pub fn set_tsc_base(&mut self, base: TscBase) {
        self.each(|cpu| cpu.set_tsc_base(base));
    }

    /// As [`Cpu::set_state`].
    pub fn set_state(&mut self, state: &CpuState) -> Result<(), StateError> {
        self.reference.set_state(state)?;
        self.compiled.set_state(state)
    }

    /// As [`Cpu::take_dirty_pages`].
    pub fn take_dirty_pages(&mut self, page: &mut dyn FnMut(u64)) {
        let mut dirty = std::mem::take(&mut self.dirty);
        self.compiled.take_dirty_pages(&mut |number| {
            dirty.insert(number);
        });
        self.reference.take_dirty_pages(&mut |_| {});
        dirty.into_iter().for_each(page);
    }

    /// As [`Cpu::memory_changed`]; the bytes are copied.
    pub fn memory_changed(&mut self, address: u64, bytes: u64) {
        if let (true, Some(last)) = (self.copied, bytes.checked_sub(1).map(|more| address.saturating_add(more))) {
            for region in self.regions.clone() {
                let (from, to) = (address.max(region.address), last.min(region.address + region.bytes - 1));
                if from <= to {
                    (from / PAGE_BYTES..=to / PAGE_BYTES).for_each(|number| self.copy_page(number));
                }
            }
        }
        self.each(|cpu| cpu.memory_changed(address, bytes));
    }

    /// As [`Cpu::set_coverage`].
    pub fn set_coverage(&mut self, filter: Option<CoverageFilter>) {
        self.each(|cpu| cpu.set_coverage(filter));
    }

    /// As [`Cpu::clear_coverage`].
    pub fn clear_coverage(&mut self) {
        self.each(Cpu::clear_coverage);
    }

    /// The compiled tier, for what changes nothing.
    pub fn cpu(&self) -> &Cpu {
        &self.compiled
    }

    /// Changes a register of one tier.
    #[cfg(test)]
    pub(crate) fn plant_difference(&mut self) {
        self.compiled.core.gpr[3] ^= 1;
    }

    fn each(&mut self, mut change: impl FnMut(&mut Cpu)) {
        change(&mut self.compiled);
        change(&mut self.reference);
    }
}
