// SPDX-License-Identifier: AGPL-3.0-or-later
//! The architectural state of one x86-64 CPU, as plain data.
//!
//! This is what a snapshot stores, what a round's register hash covers and what both engines read and write. It holds
//! nothing an engine derives (translations, decoded blocks, lazy flags), so two engines, or one engine before and after a
//! restore, compare equal exactly when a guest could not tell them apart.

use serde::{Deserialize, Serialize};

/// A segment register with its hidden part (AMD64 APM vol. 2, 4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Visible selector.
    pub selector: u16,
    /// Base address; 64 bits matter for FS, GS, TR and LDTR only.
    pub base: u64,
    /// Limit in bytes after the granularity bit was applied.
    pub limit: u32,
    /// Attributes as bits 8..=23 of the descriptor's high word, shifted down by 8: type, S, DPL, P, (limit), AVL, L, D/B, G.
    pub attributes: u16,
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorTable {
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes.
    pub limit: u16,
}

/// x87 state. `st` is indexed by physical register, not by stack position; MM*n* is the significand of physical register *n*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct X87 {
    /// Significands (bits 63..0) of the eight physical registers.
    pub significand: [u64; 8],
    /// Sign and exponent (bits 79..64) of the eight physical registers.
    pub sign_exponent: [u16; 8],
    /// Control word.
    pub control: u16,
    /// Status word, TOP included.
    pub status: u16,
    /// Full tag word, two bits a physical register (3 is empty).
    pub tag: u16,
    /// Last instruction's opcode (11 bits).
    pub opcode: u16,
    /// Last instruction pointer.
    pub instruction_pointer: u64,
    /// Last data pointer.
    pub data_pointer: u64,
}

impl Default for X87 {
    /// As FNINIT leaves it.
    fn default() -> Self {
        Self {
            significand: [0; 8],
            sign_exponent: [0; 8],
            control: 0x37f,
            status: 0,
            tag: 0xffff,
            opcode: 0,
            instruction_pointer: 0,
            data_pointer: 0,
        }
    }
}

/// Index of each segment register in [`CpuState::segments`], in the encoding order of the instruction set.
pub mod seg {
    #![allow(missing_docs)]
    pub const ES: usize = 0;
    pub const CS: usize = 1;
    pub const SS: usize = 2;
    pub const DS: usize = 3;
    pub const FS: usize = 4;
    pub const GS: usize = 5;
}

/// Model-specific registers that the CPU itself keeps. MSRs of the local APIC and of the platform leave as exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Msrs {
    /// EFER (0xC000_0080).
    pub efer: u64,
    /// STAR (0xC000_0081).
    pub star: u64,
    /// LSTAR (0xC000_0082).
    pub lstar: u64,
    /// CSTAR (0xC000_0083).
    pub cstar: u64,
    /// SFMASK (0xC000_0084).
    pub sfmask: u64,
    /// KERNEL_GS_BASE (0xC000_0102).
    pub kernel_gs_base: u64,
    /// SYSENTER_CS (0x174).
    pub sysenter_cs: u64,
    /// SYSENTER_ESP (0x175).
    pub sysenter_esp: u64,
    /// SYSENTER_EIP (0x176).
    pub sysenter_eip: u64,
    /// PAT (0x277).
    pub pat: u64,
    /// TSC_AUX (0xC000_0103).
    pub tsc_aux: u64,
    /// What WRMSR to the TSC added: TSC read = time base's TSC + this (wrapping).
    pub tsc_offset: u64,
    /// MTRR default type (0x2FF); the variable and fixed ranges read as zero.
    pub mtrr_def_type: u64,
}

/// Everything architectural. `Default` is the state after power-on reset as far as long-mode boot code cares; loaders
/// overwrite it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuState {
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8..R15 (encoding order).
    pub gpr: [u64; 16],
    /// Instruction pointer of the next instruction.
    pub rip: u64,
    /// RFLAGS, bit 1 always set.
    pub rflags: u64,
    /// ES, CS, SS, DS, FS, GS (see [`seg`]).
    pub segments: [Segment; 6],
    /// Task register.
    pub tr: Segment,
    /// Local descriptor table register.
    pub ldtr: Segment,
    /// GDTR.
    pub gdtr: DescriptorTable,
    /// IDTR.
    pub idtr: DescriptorTable,
    /// CR0.
    pub cr0: u64,
    /// CR2.
    pub cr2: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// CR8, the task priority class (0..=15).
    pub cr8: u64,
    /// DR0..DR3.
    pub dr: [u64; 4],
    /// DR6.
    pub dr6: u64,
    /// DR7.
    pub dr7: u64,
    /// MSRs kept by the CPU.
    pub msrs: Msrs,
    /// x87 and MMX.
    pub x87: X87,
    /// XMM0..XMM15.
    pub xmm: [u128; 16],
    /// MXCSR.
    pub mxcsr: u32,
    /// Maskable interrupts and traps are held for one instruction (after STI, MOV SS or POP SS).
    pub interrupt_shadow: bool,
    /// NMIs are held until IRET.
    pub nmi_blocked: bool,
    /// The CPU executed HLT and waits for an interrupt.
    pub halted: bool,
    /// Debug conditions (bits of DR6: B0 to B3, BS) of a retired instruction that raise #DB before anything else happens.
    pub pending_debug: u16,
    /// Progress since reset in the engine's unit; for the exact engine every counted event of the semantics, point 1.
    pub instructions: u64,
}

/// RFLAGS after INIT: the bit that is always set.
const FLAGS_AFTER_INIT: u64 = 2;
/// CR0 bits that INIT keeps: CD and NW.
const CR0_KEPT: u64 = 3 << 29;
const CR0_ET: u64 = 1 << 4;

impl CpuState {
    /// The state after INIT (AMD64 APM vol. 2, table 14-1): real mode at the reset vector, with x87, SSE, MSRs but EFER, the
    /// time stamp counter and the progress count as they were.
    #[must_use]
    pub fn after_init(&self) -> Self {
        let data = Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0x93 };
        let mut segments = [data; 6];
        segments[seg::CS] = Segment { selector: 0xf000, base: 0xffff_0000, limit: 0xffff, attributes: 0x9b };
        let table = DescriptorTable { base: 0, limit: 0xffff };
        let mut gpr = [0; 16];
        gpr[2] = u64::from(crate::model::SIGNATURE);
        Self {
            gpr,
            rip: 0xfff0,
            rflags: FLAGS_AFTER_INIT,
            segments,
            tr: Segment { attributes: 0x8b, ..data },
            ldtr: Segment { attributes: 0x82, ..data },
            gdtr: table,
            idtr: table,
            cr0: self.cr0 & CR0_KEPT | CR0_ET,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            cr8: 0,
            dr: [0; 4],
            dr6: 0xffff_0ff0,
            dr7: 0x400,
            msrs: Msrs { efer: 0, ..self.msrs },
            interrupt_shadow: false,
            nmi_blocked: false,
            halted: false,
            pending_debug: 0,
            ..*self
        }
    }

    /// The state after a start-up message with `vector` reached a CPU that INIT had left waiting: execution starts at
    /// `vector << 12` (Intel SDM vol. 3A, 9.4.4.1).
    #[must_use]
    pub fn after_start_up(&self, vector: u8) -> Self {
        let mut state = *self;
        state.rip = 0;
        state.segments[seg::CS].selector = u16::from(vector) << 8;
        state.segments[seg::CS].base = u64::from(vector) << 12;
        state
    }

    /// A CPU that was never started, as power-on and firmware leave all but the first.
    #[must_use]
    pub fn never_started() -> Self {
        let msrs = Msrs { pat: 0x0007_0406_0007_0406, ..Msrs::default() };
        Self { mxcsr: 0x1f80, cr0: CR0_KEPT, msrs, ..Self::default() }.after_init()
    }
}
