// SPDX-License-Identifier: AGPL-3.0-or-later
//! What handlers work on: the registers, the memory path and what the current instruction has to say.

use crate::access::AccessLog;
use crate::config::{Config, TscBase};
use crate::exit::Exit;
use crate::flags::{LazyFlags, bit};
use crate::memory::GuestRam;
use crate::model::Topology;
use crate::op::{CodeMode, NO_REGISTER, Op, Step, Trap, attr};
use crate::segment::desc;
use crate::state::{DescriptorTable, Msrs, Segment, X87, seg};
use crate::tlb::{CODE_LONG, CODE_SHORT, CODE_USER, Privilege, Tlb};
use crate::width::Width;

/// A fault, trap or software interrupt that is to be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fault {
    pub vector: u8,
    pub error: Option<u32>,
    /// Value for CR2 (page faults).
    pub address: u64,
    /// INT n, INT3 or INTO: the gate's DPL is checked and the saved RIP is that of the next instruction.
    pub software: bool,
}

/// Exception vectors.
#[allow(missing_docs)]
pub(crate) mod vector {
    pub const DE: u8 = 0;
    pub const DB: u8 = 1;
    pub const NMI: u8 = 2;
    pub const BP: u8 = 3;
    pub const OF: u8 = 4;
    pub const BR: u8 = 5;
    pub const UD: u8 = 6;
    pub const NM: u8 = 7;
    pub const DF: u8 = 8;
    pub const TS: u8 = 10;
    pub const NP: u8 = 11;
    pub const SS: u8 = 12;
    pub const GP: u8 = 13;
    pub const PF: u8 = 14;
    pub const MF: u8 = 16;
    pub const AC: u8 = 17;
    pub const XM: u8 = 19;
}

/// Control register bits.
#[allow(missing_docs)]
pub(crate) mod cr {
    pub const CR0_PE: u64 = 1 << 0;
    pub const CR0_MP: u64 = 1 << 1;
    pub const CR0_EM: u64 = 1 << 2;
    pub const CR0_TS: u64 = 1 << 3;
    pub const CR0_ET: u64 = 1 << 4;
    pub const CR0_NE: u64 = 1 << 5;
    pub const CR0_WP: u64 = 1 << 16;
    pub const CR0_AM: u64 = 1 << 18;
    pub const CR0_NW: u64 = 1 << 29;
    pub const CR0_CD: u64 = 1 << 30;
    pub const CR0_PG: u64 = 1 << 31;
    pub const CR4_VME: u64 = 1 << 0;
    pub const CR4_PVI: u64 = 1 << 1;
    pub const CR4_TSD: u64 = 1 << 2;
    pub const CR4_DE: u64 = 1 << 3;
    pub const CR4_PSE: u64 = 1 << 4;
    pub const CR4_PAE: u64 = 1 << 5;
    pub const CR4_MCE: u64 = 1 << 6;
    pub const CR4_PGE: u64 = 1 << 7;
    pub const CR4_PCE: u64 = 1 << 8;
    pub const CR4_OSFXSR: u64 = 1 << 9;
    pub const CR4_OSXMMEXCPT: u64 = 1 << 10;
    pub const CR4_SMEP: u64 = 1 << 20;
    pub const CR4_SMAP: u64 = 1 << 21;
    pub const EFER_SCE: u64 = 1 << 0;
    pub const EFER_LME: u64 = 1 << 8;
    pub const EFER_LMA: u64 = 1 << 10;
    pub const EFER_NXE: u64 = 1 << 11;
    /// Every bit of CR4 this CPU model has.
    pub const CR4_OFFERED: u64 = CR4_VME
        | CR4_PVI
        | CR4_TSD
        | CR4_DE
        | CR4_PSE
        | CR4_PAE
        | CR4_MCE
        | CR4_PGE
        | CR4_PCE
        | CR4_OSFXSR
        | CR4_OSXMMEXCPT
        | CR4_SMEP
        | CR4_SMAP;
    /// Every bit of EFER this CPU model has.
    pub const EFER_OFFERED: u64 = EFER_SCE | EFER_LME | EFER_LMA | EFER_NXE;
}

/// The L and G bits of DR7.
pub(crate) const DR7_ENABLES: u64 = 0xff;

/// The CPU as handlers see it.
#[derive(Debug)]
pub(crate) struct Core {
    /// The sixteen general registers; slot [`NO_REGISTER`] stays zero, and the rest only make indexing cheap.
    pub gpr: [u64; 32],
    pub flags: LazyFlags,
    /// Operations of the current block up to here may run; cleared to stop after the current one.
    pub block_end: usize,
    /// Effective segment bases (zero for ES, CS, SS, DS in 64-bit mode).
    pub segment_base: [u64; 8],
    /// The next boundary must look at more than the next block.
    pub attention: bool,
    /// An exit to return at the next boundary.
    pub boundary_exit: Option<Exit>,
    pub tlb: Tlb,
    pub privilege: Privilege,
    /// Next instruction, valid between blocks and inside handlers that set it.
    pub rip: u64,
    /// RFLAGS without the status flags.
    pub system_flags: u64,
    /// Counted events since reset, up to the start of the current block.
    pub instructions: u64,
    /// The count at which `run` must stop.
    pub limit: u64,
    pub pending_fault: Fault,
    pub pending_exit: Exit,
    pub log: AccessLog,
    pub ram: GuestRam,
    /// Physical pages whose decoded code was overwritten since the last block boundary.
    pub code_writes: Vec<u64>,

    pub segments: [Segment; 6],
    pub tr: Segment,
    pub ldtr: Segment,
    pub gdtr: DescriptorTable,
    pub idtr: DescriptorTable,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub cr8: u64,
    pub dr: [u64; 4],
    pub dr6: u64,
    pub dr7: u64,
    pub msrs: Msrs,
    pub x87: X87,
    pub xmm: [u128; 16],
    pub mxcsr: u32,
    /// The count at which interrupts are held, because STI, MOV SS or POP SS has just retired; whatever counts next ends that.
    pub shadow_at: u64,
    /// `run` is to stop where an interrupt can be delivered.
    pub window_wanted: bool,
    pub nmi_blocked: bool,
    pub halted: bool,
    /// Debug conditions (DR6 bits) that raise #DB at the next boundary.
    pub pending_debug: u16,
    /// Data breakpoints the executing instruction has hit.
    pub noted_breakpoints: u16,
    pub tsc_base: TscBase,
    /// The CPU has shut down (triple fault).
    pub shutdown: bool,
    /// Exceptions delivered so far; tells a retired instruction from one that faulted.
    pub faults: u64,
    /// Where blocks were found no longer holds: translation tags repeat, or the code segment moved.
    pub forget_code: bool,
    /// What compiled code keeps.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub frame: crate::compiled::Frame,
    /// Which CPU of the machine this is.
    pub topology: Topology,
    /// Among them are tables of two-level paging, whose entries have four bytes.
    pub short_entries: bool,
}

/// In [`Core::shadow_at`]: a count that is never reached.
pub(crate) const NO_SHADOW: u64 = u64::MAX;

impl Core {
    pub fn new(ram: GuestRam, config: &Config) -> Self {
        Self {
            gpr: [0; 32],
            flags: LazyFlags::from_bits(0),
            block_end: 0,
            segment_base: [0; 8],
            tlb: Tlb::new(config.tlb_entries),
            privilege: Privilege::Supervisor,
            attention: true,
            boundary_exit: None,
            rip: 0,
            system_flags: bit::FIXED,
            instructions: 0,
            limit: 0,
            pending_fault: Fault::default(),
            pending_exit: Exit::BudgetUsed,
            log: AccessLog::default(),
            ram,
            code_writes: Vec::new(),
            segments: [Segment::default(); 6],
            tr: Segment::default(),
            ldtr: Segment::default(),
            gdtr: DescriptorTable::default(),
            idtr: DescriptorTable::default(),
            cr0: 0,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            cr8: 0,
            dr: [0; 4],
            dr6: 0,
            dr7: 0,
            msrs: Msrs::default(),
            x87: X87::default(),
            xmm: [0; 16],
            mxcsr: 0x1f80,
            shadow_at: NO_SHADOW,
            window_wanted: false,
            nmi_blocked: false,
            halted: false,
            pending_debug: 0,
            noted_breakpoints: 0,
            tsc_base: TscBase::default(),
            shutdown: false,
            faults: 0,
            forget_code: false,
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            frame: crate::compiled::Frame::default(),
            topology: config.topology,
            short_entries: false,
        }
    }

    /// Reads a general register at a width; byte registers 16..=19 are AH, CH, DH, BH.
    #[inline(always)]
    pub fn reg<T: Width>(&self, register: u8) -> T {
        if T::BITS == 8 {
            let high = (register & 16) >> 1;
            T::cut(self.gpr[usize::from(register & 15)] >> high)
        } else {
            T::cut(self.gpr[usize::from(register & 31)])
        }
    }

    /// Writes a general register: 32-bit writes clear the upper half, 8- and 16-bit writes keep the rest.
    #[inline(always)]
    pub fn set_reg<T: Width>(&mut self, register: u8, value: T) {
        if T::BITS == 8 {
            let high = (register & 16) >> 1;
            let slot = &mut self.gpr[usize::from(register & 15)];
            *slot = (*slot & !(0xff << high)) | value.zx() << high;
        } else if T::BITS == 16 {
            let slot = &mut self.gpr[usize::from(register & 15)];
            *slot = (*slot & !0xffff) | value.zx();
        } else {
            self.gpr[usize::from(register & 15)] = value.zx();
        }
    }

    /// The sum of an operation's address parts.
    #[inline(always)]
    pub fn sum(&self, op: &Op) -> u64 {
        let base = self.gpr[usize::from(op.base & 31)];
        let index = self.gpr[usize::from(op.index & 31)];
        base.wrapping_add(index << (op.scale & 3)).wrapping_add(op.displacement)
    }

    /// The offset of an operation's memory operand inside its segment, cut to the address size.
    #[inline(always)]
    pub fn effective(&self, op: &Op) -> u64 {
        let address = self.sum(op);
        if op.attributes & (attr::ADDRESS_32 | attr::ADDRESS_16) == 0 { address } else { cut_address(op, address) }
    }

    /// Current privilege level.
    #[inline(always)]
    pub fn cpl(&self) -> u8 {
        // SS.DPL is the CPL in every mode this CPU runs.
        ((self.segments[seg::SS].attributes >> 5) & 3) as u8
    }

    /// Runs 64-bit code.
    pub fn in_long_code(&self) -> bool {
        self.msrs.efer & cr::EFER_LMA != 0 && self.segments[seg::CS].attributes & desc::LONG != 0
    }

    /// Protection is off.
    pub fn in_real_mode(&self) -> bool {
        self.cr0 & cr::CR0_PE == 0
    }

    /// Long mode is active, in 64-bit or compatibility code.
    pub fn in_long_mode(&self) -> bool {
        self.msrs.efer & cr::EFER_LMA != 0
    }

    /// How code is decoded.
    pub fn code_mode(&self) -> CodeMode {
        if self.in_long_code() {
            CodeMode::Bits64
        } else if self.segments[seg::CS].attributes & desc::BIG != 0 {
            CodeMode::Bits32
        } else {
            CodeMode::Bits16
        }
    }

    /// Whether interrupts are held for one instruction.
    pub fn interrupt_shadow(&self) -> bool {
        self.shadow_at == self.instructions
    }

    /// Holds interrupts until the instruction behind `op`, which is about to retire, has retired too.
    pub fn hold_interrupts(&mut self, op: &Op) {
        self.shadow_at = self.instructions + u64::from(op.position) + 1;
    }

    /// RFLAGS as PUSHF would see it.
    pub fn rflags(&self) -> u64 {
        self.system_flags | self.flags.bits() | bit::FIXED
    }

    /// Replaces RFLAGS; reserved bits are dropped.
    pub fn set_rflags(&mut self, flags: u64) {
        self.flags = LazyFlags::from_bits(flags);
        self.system_flags = (flags & bit::ALL & !bit::STATUS) | bit::FIXED;
        self.attention = true;
        self.update_privilege();
    }

    /// Recomputes what the translation cache must know after CPL, AC, CR0.AM or DR7 changed.
    pub fn update_privilege(&mut self) {
        self.privilege = match (self.cpl(), self.system_flags & bit::AC != 0) {
            (3, _) => Privilege::User,
            (_, false) => Privilege::Supervisor,
            (_, true) => Privilege::SupervisorOverride,
        };
        let cached = !self.alignment_checked() && self.dr7 & DR7_ENABLES == 0;
        self.tlb.set_privilege(self.privilege, cached);
        let user = if self.privilege == Privilege::User { CODE_USER } else { 0 };
        let mode = match self.code_mode() {
            CodeMode::Bits64 => CODE_LONG,
            CodeMode::Bits32 => 0,
            CodeMode::Bits16 => CODE_SHORT,
        };
        self.tlb.set_code_mode(user | mode);
    }

    /// The count before the operation that is executing.
    pub fn count_at(&self, op: &Op) -> u64 {
        self.instructions + u64::from(op.position)
    }

    /// Raises an exception without an error code.
    #[cold]
    #[inline(never)]
    pub fn fault(&mut self, vector: u8) -> Trap {
        self.pending_fault = Fault { vector, ..Fault::default() };
        Trap::Fault
    }

    /// Raises an exception with an error code.
    #[cold]
    #[inline(never)]
    pub fn fault_code(&mut self, vector: u8, error: u32) -> Trap {
        self.pending_fault = Fault { vector, error: Some(error), ..Fault::default() };
        Trap::Fault
    }

    /// #UD.
    #[cold]
    pub fn ud(&mut self) -> Trap {
        self.fault(vector::UD)
    }

    /// #GP(0).
    #[cold]
    pub fn gp0(&mut self) -> Trap {
        self.fault_code(vector::GP, 0)
    }

    /// Before any SSE instruction: CR0.EM, CR4.OSFXSR, CR0.TS.
    #[inline(always)]
    pub fn check_sse(&mut self) -> Step {
        if self.cr0 & (cr::CR0_EM | cr::CR0_TS) == 0 && self.cr4 & cr::CR4_OSFXSR != 0 { Ok(()) } else { self.no_sse() }
    }

    #[cold]
    fn no_sse(&mut self) -> Step {
        let undefined = self.cr0 & cr::CR0_EM != 0 || self.cr4 & cr::CR4_OSFXSR == 0;
        Err(self.fault(if undefined { vector::UD } else { vector::NM }))
    }

    /// An unmasked SIMD floating-point exception: #XM, or #UD while CR4.OSXMMEXCPT is clear.
    #[cold]
    pub fn simd_exception(&mut self) -> Trap {
        self.fault(if self.cr4 & cr::CR4_OSXMMEXCPT != 0 { vector::XM } else { vector::UD })
    }

    /// Before an x87 instruction: CR0.EM or TS gives #NM.
    #[inline(always)]
    pub fn check_x87_available(&mut self) -> Step {
        if self.cr0 & (cr::CR0_EM | cr::CR0_TS) == 0 { Ok(()) } else { Err(self.fault(vector::NM)) }
    }

    /// Before a waiting x87 instruction: available, and no unmasked exception pending (#MF when CR0.NE is set; with NE clear
    /// the external error line is ignored, as with IGNNE# asserted).
    #[inline(always)]
    pub fn check_x87(&mut self) -> Step {
        self.check_x87_available()?;
        self.check_x87_pending()
    }

    /// #MF when an unmasked x87 exception is pending.
    #[inline(always)]
    pub fn check_x87_pending(&mut self) -> Step {
        if self.x87.status & 0x80 != 0 && self.cr0 & cr::CR0_NE != 0 { Err(self.fault(vector::MF)) } else { Ok(()) }
    }

    /// Before an MMX instruction: CR0.EM gives #UD, TS gives #NM, a pending x87 exception #MF.
    #[inline(always)]
    pub fn check_mmx(&mut self) -> Step {
        if self.cr0 & cr::CR0_EM != 0 {
            return Err(self.ud());
        }
        self.check_x87()
    }

    /// FWAIT: #NM when both CR0.MP and TS are set, #MF when an exception is pending.
    pub fn check_wait(&mut self) -> Step {
        if self.cr0 & (cr::CR0_MP | cr::CR0_TS) == cr::CR0_MP | cr::CR0_TS {
            return Err(self.fault(vector::NM));
        }
        self.check_x87_pending()
    }
}

#[cold]
#[inline(never)]
fn cut_address(op: &Op, address: u64) -> u64 {
    if op.has(attr::ADDRESS_32) { address & 0xffff_ffff } else { address & 0xffff }
}

const _: () = assert!(NO_REGISTER < 32);
