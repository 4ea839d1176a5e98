// SPDX-License-Identifier: AGPL-3.0-or-later
//! The public face: one CPU over guest RAM.

use crate::blocks::Blocks;
use crate::changes::{Change, Changes};
use crate::config::{Config, CoverageFilter, TscBase};
use crate::core_state::{Core, NO_SHADOW, cr};
use crate::coverage::Coverage;
use crate::flags::bit;
use crate::memory::{GuestRam, PAGE_BYTES, PAGE_MASK, PHYSICAL_BITS, page_flag};
use crate::state::CpuState;

/// One x86-64 CPU. After an exit that asks for an answer (reads) or reports a write, call [`Cpu::complete_read`] or nothing,
/// then [`Cpu::run`] again; only after any other exit is the CPU at an instruction boundary, where its state may be stored.
pub struct Cpu {
    pub(crate) core: Core,
    pub(crate) blocks: Blocks,
    pub(crate) coverage: Option<Box<Coverage>>,
    /// Present if blocks are compiled.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub(crate) compiled: Option<Box<crate::compiled::Compiled>>,
}

/// Machines move between threads.
const _: fn() = || {
    fn needs_send<T: Send>() {}
    needs_send::<Cpu>();
};

/// Why a state was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A register holds bits that it cannot hold.
    #[error("{register} has reserved bits set: {value:#x}")]
    Reserved {
        /// Which.
        register: &'static str,
        /// Its value.
        value: u64,
    },
    /// An instruction is half done (see [`Cpu`]).
    #[error("an instruction waits for its answer; run on to a boundary first")]
    NotAtBoundary,
}

/// MXCSR bits that exist.
pub(crate) const MXCSR_MASK: u32 = 0xffff;

impl Cpu {
    /// A CPU after reset, over `ram`.
    pub fn new(ram: GuestRam, config: &Config) -> Self {
        let core = Core::new(ram, config);
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        let compiled = match config.tier {
            crate::config::Tier::Reference => None,
            crate::config::Tier::Compiled => crate::compiled::Compiled::new(config, core.tlb.table().1),
        };
        Self {
            core,
            blocks: Blocks::new(config.cached_operations, config.block_instructions),
            coverage: None,
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            compiled,
        }
    }

    /// Whether this CPU compiles: not on the reference tier, nor where the host refuses memory for code.
    pub fn compiles(&self) -> bool {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        return self.compiled.is_some();
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        return false;
    }

    /// Counted events that compiled code has retired: 0 where nothing is compiled.
    pub fn compiled_progress(&self) -> u64 {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        return self.compiled.as_ref().map_or(0, |compiled| compiled.retired);
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        return 0;
    }

    /// Code was compiled for other edges than are recorded now.
    fn forget_compiled(&mut self) {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if let Some(compiled) = &mut self.compiled {
            compiled.clear();
        }
    }

    /// Answers `PortRead`, `MmioRead` or `MsrRead`; the instruction goes on at the next `run`.
    pub fn complete_read(&mut self, value: u64) {
        self.core.log.answer(value);
    }

    /// Refuses `MsrRead` or `MsrWrite`: the instruction raises #GP(0) at the next `run`.
    pub fn refuse_msr(&mut self) {
        self.core.log.refuse();
    }

    /// Counted events since reset.
    pub fn progress(&self) -> u64 {
        self.core.instructions
    }

    /// No instruction is half done: the state can be stored.
    pub fn at_instruction_boundary(&self) -> bool {
        self.core.log.is_empty()
    }

    /// Whether a maskable interrupt can be delivered now.
    pub fn interrupt_ready(&self) -> bool {
        let core = &self.core;
        core.system_flags & bit::IF != 0
            && !core.interrupt_shadow()
            && core.pending_debug == 0
            && core.log.is_empty()
            && !core.shutdown
    }

    /// Delivers a maskable interrupt. Only when [`Cpu::interrupt_ready`]. Counts 1 and wakes a halted CPU. A delivery that
    /// shuts the CPU down shows at the next `run`.
    pub fn inject_interrupt(&mut self, vector: u8) {
        assert!(self.interrupt_ready(), "an interrupt was injected while none can be taken");
        self.external(vector);
    }

    /// Delivers an NMI now, or returns false where NMIs are held. Counts 1 when delivered.
    pub fn inject_nmi(&mut self) -> bool {
        let core = &self.core;
        if core.nmi_blocked
            || core.interrupt_shadow()
            || core.pending_debug != 0
            || !core.log.is_empty()
            || core.shutdown
        {
            return false;
        }
        self.external(crate::core_state::vector::NMI);
        self.core.nmi_blocked = true;
        true
    }

    fn external(&mut self, vector: u8) {
        self.catch_up();
        self.core.halted = false;
        self.core.deliver_external(vector);
        self.core.instructions += 1;
        self.core.attention = true;
        while let Some(physical) = self.core.code_writes.pop() {
            self.blocks.forget_page(&mut self.core, physical);
        }
    }

    /// Asks `run` to stop with `InterruptWindow` at the first boundary where an interrupt can be delivered.
    pub fn request_interrupt_window(&mut self, wanted: bool) {
        self.core.window_wanted = wanted;
        self.core.attention = true;
    }

    /// Task priority class (CR8).
    pub fn tpr(&self) -> u8 {
        self.core.cr8 as u8
    }

    /// Sets the task priority class; only the low four bits count.
    pub fn set_tpr(&mut self, tpr: u8) {
        self.core.cr8 = u64::from(tpr & 15);
    }

    /// How RDTSC follows progress.
    pub fn set_tsc_base(&mut self, base: TscBase) {
        self.core.tsc_base = base;
    }

    /// What RDTSC would read now.
    pub fn tsc(&self) -> u64 {
        self.core.tsc_base.tsc_at(self.core.instructions).wrapping_add(self.core.msrs.tsc_offset)
    }

    /// The whole architectural state. Meaningful at a boundary.
    pub fn state(&self) -> CpuState {
        let core = &self.core;
        let mut gpr = [0; 16];
        gpr.copy_from_slice(&core.gpr[..16]);
        CpuState {
            gpr,
            rip: core.rip,
            rflags: core.rflags(),
            segments: core.segments,
            tr: core.tr,
            ldtr: core.ldtr,
            gdtr: core.gdtr,
            idtr: core.idtr,
            cr0: core.cr0,
            cr2: core.cr2,
            cr3: core.cr3,
            cr4: core.cr4,
            cr8: core.cr8,
            dr: core.dr,
            dr6: core.dr6,
            dr7: core.dr7,
            msrs: core.msrs,
            x87: core.x87,
            xmm: core.xmm,
            mxcsr: core.mxcsr,
            interrupt_shadow: core.interrupt_shadow(),
            nmi_blocked: core.nmi_blocked,
            halted: core.halted,
            pending_debug: core.pending_debug,
            instructions: core.instructions,
        }
    }

    /// Replaces the whole architectural state. Translations are forgotten, decoded code is kept.
    pub fn set_state(&mut self, state: &CpuState) -> Result<(), StateError> {
        check_state(state)?;
        self.catch_up();
        let core = &mut self.core;
        core.gpr[..16].copy_from_slice(&state.gpr);
        core.rip = state.rip;
        core.segments = state.segments;
        core.tr = state.tr;
        core.ldtr = state.ldtr;
        core.gdtr = state.gdtr;
        core.idtr = state.idtr;
        core.cr0 = state.cr0;
        core.cr2 = state.cr2;
        core.cr3 = state.cr3;
        core.cr4 = state.cr4;
        core.cr8 = state.cr8;
        core.dr = state.dr;
        core.dr6 = state.dr6;
        core.dr7 = state.dr7;
        core.msrs = state.msrs;
        core.x87 = state.x87;
        core.xmm = state.xmm;
        core.mxcsr = state.mxcsr;
        core.shadow_at = if state.interrupt_shadow { state.instructions } else { NO_SHADOW };
        core.nmi_blocked = state.nmi_blocked;
        core.halted = state.halted;
        core.pending_debug = state.pending_debug;
        core.instructions = state.instructions;
        core.boundary_exit = None;
        core.shutdown = false;
        core.log.clear();
        core.update_segment_bases();
        core.set_rflags(state.rflags);
        core.flush_translations();
        core.attention = true;
        Ok(())
    }

    /// Other CPUs of the machine may have run since this one last did.
    pub(crate) fn catch_up(&mut self) {
        if self.core.ram.changes.as_ref().is_some_and(Changes::is_behind) {
            self.blocks.catch_up(&mut self.core);
        }
    }

    /// Calls `page` with each guest-physical page number written since the last call, ascending, and forgets them.
    pub fn take_dirty_pages(&mut self, page: &mut dyn FnMut(u64)) {
        self.catch_up();
        self.core.tlb.forbid_all_writes();
        self.core.tell(Change::AllWrites);
        self.core.ram.take_flagged(page_flag::DIRTY, page);
    }

    /// Guest memory in `[address, address + bytes)` was changed by someone else. Such pages count as written, too.
    pub fn memory_changed(&mut self, address: u64, bytes: u64) {
        let Some(last) = bytes.checked_sub(1).map(|more| address.saturating_add(more)) else { return };
        self.catch_up();
        let mut physical = address & PAGE_MASK;
        while physical <= last {
            let Some((page, _)) = self.core.ram.page(physical) else {
                match self.core.ram.next_region(physical) {
                    Some(next) => physical = next,
                    None => return,
                }
                continue;
            };
            let flags = self.core.ram.flags(page);
            self.core.ram.set_flags(page, page_flag::DIRTY);
            if flags & page_flag::CODE != 0 {
                self.blocks.forget_page(&mut self.core, physical);
            }
            if flags & page_flag::WALKED != 0 {
                self.core.flush_translations();
            }
            physical += PAGE_BYTES;
        }
    }

    /// Checks what the caches promise and what no result shows while it is kept: hits of the translation cache lead to RAM, those for
    /// writing to pages where stores need no notice, and compiled code leads to compiled code. For tests.
    ///
    /// # Panics
    /// If a promise is broken.
    pub fn check_caches(&mut self) {
        self.catch_up();
        let ram = &self.core.ram;
        for (linear, write, entry) in self.core.tlb.hits() {
            let (page, host) = ram.page(entry.physical).expect("a hit leads outside of RAM");
            assert_eq!(linear.wrapping_add(entry.addend), host as u64, "a hit leads elsewhere than it says");
            let quiet = ram.flags(page) & (page_flag::DIRTY | page_flag::CODE | page_flag::WALKED) == page_flag::DIRTY;
            assert!(!write || quiet, "a store to page {:#x} would not be noticed", entry.physical);
        }
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if let Some(compiled) = &mut self.compiled {
            compiled.check(&mut self.blocks);
        }
    }

    /// Any guest memory may have changed in a way nobody can name: forgets decoded code and translations. No page counts as
    /// written because of it.
    pub fn forget_memory(&mut self) {
        self.blocks.clear(&mut self.core);
        self.forget_compiled();
        self.core.flush_translations();
    }

    /// Switches edge coverage on with a filter (counts so far are kept), or off.
    pub fn set_coverage(&mut self, filter: Option<CoverageFilter>) {
        if self.coverage.as_ref().map(|coverage| coverage.filter()) != filter {
            self.forget_compiled();
        }
        match (filter, &mut self.coverage) {
            (None, coverage) => *coverage = None,
            (Some(filter), Some(coverage)) => coverage.set_filter(filter),
            (Some(filter), coverage) => *coverage = Some(Box::new(Coverage::new(filter))),
        }
    }

    /// The edge hit counts so far, if coverage is on.
    pub fn coverage(&self) -> Option<&[u8]> {
        self.coverage.as_ref().map(|coverage| coverage.map())
    }

    /// Zeroes the edge hit counts.
    pub fn clear_coverage(&mut self) {
        if let Some(coverage) = &mut self.coverage {
            coverage.clear();
        }
    }
}

fn check_state(state: &CpuState) -> Result<(), StateError> {
    let high = !((1u64 << 32) - 1);
    let checks: [(&'static str, u64, u64); 9] = [
        ("rflags", state.rflags, !(bit::ALL | bit::FIXED)),
        ("cr0", state.cr0, high),
        ("cr3", state.cr3, !((1 << PHYSICAL_BITS) - 1)),
        ("cr4", state.cr4, !cr::CR4_OFFERED),
        ("cr8", state.cr8, !15),
        ("dr6", state.dr6, high),
        ("dr7", state.dr7, high),
        ("efer", state.msrs.efer, !cr::EFER_OFFERED),
        ("mxcsr", u64::from(state.mxcsr), !u64::from(MXCSR_MASK)),
    ];
    match checks.into_iter().find(|(_, value, reserved)| value & reserved != 0) {
        Some((register, value, _)) => Err(StateError::Reserved { register, value }),
        None => Ok(()),
    }
}
