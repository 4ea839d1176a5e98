// SPDX-License-Identifier: AGPL-3.0-or-later
//! Pre-decoded operations and what executing one returns.

use crate::core_state::Core;
use iced_x86::Code;

/// Why an operation did not retire. Details stay in [`Core`] so that a [`Step`] fits a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Trap {
    /// `Core::pending_fault` is to be delivered; the operation changed nothing else (or has made its defined partial progress).
    Fault = 1,
    /// `Core::pending_exit` is to be returned from `run`; the operation is executed again afterwards.
    Exit = 2,
}

/// The result of a handler.
pub(crate) type Step = Result<(), Trap>;

/// Executes one operation. On `Ok` it has retired; on `Err` nothing architectural has changed.
pub(crate) type Handler = fn(&mut Core, &Op) -> Step;

/// Register number that always reads zero (no base, no index).
pub(crate) const NO_REGISTER: u8 = 16;

/// What a code segment makes of bytes: its default operand and address size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeMode {
    /// Real mode, and segments without D.
    Bits16,
    /// Segments with D.
    Bits32,
    /// 64-bit mode.
    Bits64,
}

impl CodeMode {
    /// 64-bit mode, where segments hardly count.
    pub fn is_long(self) -> bool {
        self == Self::Bits64
    }

    /// As the decoder wants it.
    pub fn bits(self) -> u32 {
        match self {
            Self::Bits16 => 16,
            Self::Bits32 => 32,
            Self::Bits64 => 64,
        }
    }
}

/// Attributes of an [`Op`].
pub(crate) mod attr {
    /// Has a REP or REPE prefix.
    pub const REP: u16 = 1 << 0;
    /// Has a REPNE prefix.
    pub const REPNE: u16 = 1 << 1;
    /// Addresses are cut to 32 bits.
    pub const ADDRESS_32: u16 = 1 << 2;
    /// Addresses are cut to 16 bits.
    pub const ADDRESS_16: u16 = 1 << 3;
    /// The segment is checked and its base added (all but 64-bit mode).
    pub const SEGMENTED: u16 = 1 << 4;
    /// Decoded for a 64-bit code segment.
    pub const LONG: u16 = 1 << 5;
    /// Sets `Core::rip` itself when it retires.
    pub const SETS_RIP: u16 = 1 << 6;
    /// A control transfer in the sense of coverage edges.
    pub const EDGE: u16 = 1 << 7;
    /// The block ends here although the operation does not set `rip`.
    pub const ENDS_BLOCK: u16 = 1 << 8;
    /// Has a memory operand.
    pub const MEMORY: u16 = 1 << 9;
    /// Traps (single step, data breakpoints) are held after this operation (MOV SS, POP SS).
    pub const HOLDS_TRAPS: u16 = 1 << 10;
    /// Decoded for a code segment of 16 or 32 bits.
    pub const SEGMENTED_CODE: u16 = 1 << 11;
    /// In compiled blocks: compiled for CPL 3.
    pub const USER: u16 = 1 << 12;
}

/// One pre-decoded instruction.
///
/// General registers are numbered 0..=15; as byte registers AH, CH, DH and BH are 16..=19. Segment, control, debug, MMX, x87
/// and XMM registers are numbered from 0 in their class. `dst`, `src` and `third` are the registers of operands 0, 1 and 2
/// (unused where that operand is memory or an immediate).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub handler: Handler,
    /// Address of the next instruction.
    pub next_ip: u64,
    /// Displacement; RIP-relative operands are resolved to an absolute address without base.
    pub displacement: u64,
    /// Immediate, sign-extended where the instruction does; the target of a direct branch; two immediates as low and bits 32...
    pub imm: u64,
    pub dst: u8,
    pub src: u8,
    pub third: u8,
    /// Base register or [`NO_REGISTER`].
    pub base: u8,
    /// Index register or [`NO_REGISTER`].
    pub index: u8,
    /// Shift of the index: 0 to 3.
    pub scale: u8,
    /// Segment of the memory operand, overrides applied.
    pub segment: u8,
    /// Length in bytes.
    pub len: u8,
    pub attributes: u16,
    /// Position in its block.
    pub position: u8,
    pub code: Code,
}

const _: () = assert!(size_of::<Op>() <= 48);

impl Op {
    /// Address of this instruction.
    pub fn ip(&self) -> u64 {
        self.next_ip.wrapping_sub(u64::from(self.len))
    }

    pub fn has(&self, attribute: u16) -> bool {
        self.attributes & attribute != 0
    }
}
