// SPDX-License-Identifier: AGPL-3.0-or-later
//! The one table of results that two correct x86 CPUs may disagree on. Every comparison with another CPU goes through it.
//!
//! A row says which instructions, what is left open, and where the manuals say so. "APM 3" is the AMD64 Architecture
//! Programmer's Manual volume 3 (24594), "SDM 2" Intel's Software Developer's Manual volume 2; both name the instruction's
//! own page unless a section is given. What our CPU does in each case is fixed all the same and covered by its own tests.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

const CF: u64 = 1;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;
/// All status flags.
pub const STATUS_FLAGS: u64 = CF | PF | AF | ZF | SF | OF;

/// What a row leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// These flags.
    Flags(u64),
    /// Shifts: AF unless the count is 0, OF unless it is 0 or 1, CF of SHL and SHR beyond the operand's size.
    Shift,
    /// Rotates: OF unless the count is 0 or 1.
    Rotate,
    /// Double shifts: AF; OF unless the count is 1; everything beyond the operand's size.
    DoubleShift,
    /// Results in the destination XMM register are approximations within this relative error, as a power of two.
    Approximate(i32),
    /// x87 results may differ by some units in the last place, see [`transcendental_ulps`]; C1, which says how the result was
    /// rounded, is open with them.
    Transcendental,
    /// Stored x87 instruction and data pointers and opcode.
    X87Pointers,
    /// The bytes of the stack above a pushed selector, and whether they are accessed at all when one is pushed or popped.
    Selector,
    /// Flags after a fault in the middle of repetitions.
    RepeatedFlags,
    /// Upper halves of the count and index registers of a repeated string instruction with 32-bit addresses in 64-bit code
    /// that makes no iteration: its count is zero, or the first one faults.
    NoIteration,
    /// Of several NaNs, which one is the result.
    WhichNan,
    /// In which order an instruction checks what it was given, and so with which error code it ends.
    CheckOrder,
    /// In which order an instruction accesses its several operands, and so which one's fault comes first and what was
    /// written before it.
    AccessOrder,
}

/// One row.
pub struct Row {
    /// The instructions.
    pub mnemonics: &'static [Mnemonic],
    /// What is open.
    pub open: Open,
    /// Where that is said.
    pub source: &'static str,
}

/// The table.
pub const ROWS: &[Row] = {
    use Mnemonic::*;
    const fn row(mnemonics: &'static [Mnemonic], open: Open, source: &'static str) -> Row {
        Row { mnemonics, open, source }
    }
    &[
        row(&[Aaa, Aas], Open::Flags(OF | SF | ZF | PF), "APM 3, AAA and AAS: OF, SF, ZF, PF undefined"),
        row(&[Aam, Aad], Open::Flags(OF | AF | CF), "APM 3, AAM and AAD: OF, AF, CF undefined"),
        row(&[Daa, Das], Open::Flags(OF), "APM 3, DAA and DAS: OF undefined"),
        row(&[And, Or, Xor, Test], Open::Flags(AF), "APM 3, AND, OR, XOR, TEST: AF undefined"),
        row(&[Bsf, Bsr], Open::Flags(OF | SF | AF | PF | CF), "APM 3, BSF and BSR: all but ZF undefined"),
        row(&[Bt, Bts, Btr, Btc], Open::Flags(OF | SF | AF | PF), "APM 3, BT: OF, SF, AF, PF undefined"),
        row(&[Mul, Imul], Open::Flags(SF | ZF | AF | PF), "APM 3, MUL and IMUL: SF, ZF, AF, PF undefined"),
        row(&[Div, Idiv], Open::Flags(STATUS_FLAGS), "APM 3, DIV and IDIV: all status flags undefined"),
        row(&[Lzcnt, Tzcnt], Open::Flags(OF | SF | AF | PF), "APM 3, LZCNT and TZCNT: OF, SF, AF, PF undefined"),
        row(
            &[Shl, Shr, Sar, Sal],
            Open::Shift,
            "APM 3, SHL, SHR, SAR: AF; OF for counts other than 1; SDM 2: CF for counts beyond the size",
        ),
        row(&[Rol, Ror, Rcl, Rcr], Open::Rotate, "APM 3, ROL, ROR, RCL, RCR: OF undefined for counts other than 1"),
        row(
            &[Shld, Shrd],
            Open::DoubleShift,
            "APM 3, SHLD and SHRD: AF, OF for counts other than 1; all beyond the size",
        ),
        row(
            &[Rcpss, Rcpps, Rsqrtss, Rsqrtps],
            Open::Approximate(-11),
            "APM 4, RCPPS and RSQRTPS: relative error at most 1.5 * 2^-12",
        ),
        row(
            &[F2xm1, Fyl2x, Fyl2xp1, Fptan, Fpatan, Fsin, Fcos, Fsincos],
            Open::Transcendental,
            "APM 1, 6.4.5: transcendental results are correct within 1 ulp, on each side",
        ),
        row(
            &[Fnstenv, Fnsave, Fxsave, Fxsave64],
            Open::X87Pointers,
            "APM 2, 11.4.4.3: AMD stores pointers only with an exception pending; SDM 1, 8.1.8: FCS and FDS deprecated",
        ),
        row(
            &[Push, Pop],
            Open::Selector,
            "SDM 2, PUSH: a segment register may be written as 16 bits; APM 3: zero-extended",
        ),
        row(
            &[Cmpsb, Cmpsw, Cmpsd, Cmpsq, Scasb, Scasw, Scasd, Scasq],
            Open::RepeatedFlags,
            "SDM 2, REP: a fault restores EFLAGS to what they were before the first iteration; APM 3 says nothing",
        ),
        row(
            &[Movsb, Movsw, Movsd, Movsq, Stosb, Stosw, Stosd, Stosq, Lodsb, Lodsw, Lodsd, Lodsq],
            Open::NoIteration,
            "SDM 2 and APM 3, REP: whether registers are zero-extended where nothing is done is not said",
        ),
        row(
            &[Cmpsb, Cmpsw, Cmpsd, Cmpsq, Scasb, Scasw, Scasd, Scasq, Insb, Insw, Insd, Outsb, Outsw, Outsd],
            Open::NoIteration,
            "as above",
        ),
        row(
            &[Dpps, Dppd],
            Open::WhichNan,
            "SDM 2, DPPS: the order of the additions is not said, and with it which of several NaNs is passed on",
        ),
        row(
            &[Iret, Iretd, Iretq],
            Open::CheckOrder,
            "APM 3 and SDM 2, IRET: whether RIP or the stack's selector is checked first; AMD's check RIP",
        ),
        row(
            &[Maskmovq, Maskmovdqu],
            Open::AccessOrder,
            "SDM 2, MASKMOVDQU: with a zero mask faults are implementation specific",
        ),
        row(
            &[
                Retf, Iret, Iretd, Iretq, Call, Jmp, Fnstenv, Fldenv, Fnsave, Frstor, Fxsave, Fxsave64, Fxrstor,
                Fxrstor64, Cmpsb, Cmpsw, Cmpsd, Cmpsq, Enter, Pusha, Pushad, Popa, Popad, Les, Lds, Lss, Lfs, Lgs,
                Bound, Fld, Fstp, Fbld, Fbstp,
            ],
            Open::AccessOrder,
            "SDM 3A, 8.2: no order among the accesses of one instruction is defined (ten bytes are two accesses)",
        ),
    ]
};

/// The open flags of `instruction`, which starts with the count register `rcx`.
pub fn open_flags(rcx: u64, instruction: &Instruction) -> u64 {
    rows(instruction).map(|row| flags_of(row.open, rcx, instruction)).fold(0, |all, flags| all | flags)
}

/// The rows for an instruction.
pub fn rows(instruction: &Instruction) -> impl Iterator<Item = &'static Row> + use<> {
    let mnemonic = instruction.mnemonic();
    let selector = instruction.op0_register().is_segment_register();
    ROWS.iter().filter(move |row| row.mnemonics.contains(&mnemonic) && (selector || row.open != Open::Selector))
}

/// Whether `instruction` leaves the destination itself open (a double shift by more than the operand's size).
pub fn destination_open(rcx: u64, instruction: &Instruction) -> bool {
    rows(instruction).any(|row| row.open == Open::DoubleShift) && count(rcx, instruction) > operand_bits(instruction)
}

fn operand_bits(instruction: &Instruction) -> u64 {
    match instruction.op0_kind() {
        OpKind::Memory => instruction.memory_size().size() as u64 * 8,
        _ => instruction.op0_register().size() as u64 * 8,
    }
}

/// The masked count of a shift or rotate.
fn count(rcx: u64, instruction: &Instruction) -> u64 {
    let last = instruction.op_count() - 1;
    let raw = match instruction.op_kind(last) {
        OpKind::Register => rcx,
        _ => instruction.immediate(last),
    };
    raw & if operand_bits(instruction) == 64 { 63 } else { 31 }
}

fn flags_of(open: Open, rcx: u64, instruction: &Instruction) -> u64 {
    let count = || count(rcx, instruction);
    match open {
        Open::Flags(flags) => flags,
        Open::Shift => match count() {
            0 => 0,
            1 => AF,
            n if n > operand_bits(instruction) => AF | OF | CF,
            n if n == operand_bits(instruction) && instruction.mnemonic() != Mnemonic::Sar => AF | OF | CF,
            _ => AF | OF,
        },
        Open::Rotate if count() > 1 => OF,
        Open::DoubleShift => match count() {
            0 => 0,
            1 => AF,
            n if n > operand_bits(instruction) => STATUS_FLAGS,
            _ => AF | OF,
        },
        Open::Rotate
        | Open::Approximate(_)
        | Open::Transcendental
        | Open::X87Pointers
        | Open::Selector
        | Open::RepeatedFlags
        | Open::NoIteration
        | Open::WhichNan
        | Open::CheckOrder
        | Open::AccessOrder => 0,
    }
}

/// Whether either of two exceptions may answer an access.
///
/// - In a 32-bit segment that spans 4 GiB an access across its end may wrap around or raise #GP or #SS (SDM 3A, 5.3:
///   "may or may not cause the indicated exceptions").
/// - With alignment checking on, the order of #AC and the other faults of one access is not defined; FXSAVE and FXRSTOR say
///   so themselves (SDM 2, FXSAVE: "#AC or #GP").
/// - Several accesses of one instruction, of which each may fault differently, have no order ([`Open::AccessOrder`]).
/// - An operand relative to FS or GS whose offset is not canonical while its linear address, in the upper half, is: Intel's CPUs look
///   at the latter (SDM 1, 3.3.7.1), AMD's were seen to raise #GP for the former.
/// - A 16-byte operand that is neither aligned nor canonical raises #GP for the first; for the second it would be #SS in the
///   stack segment, and which one comes first is not said.
pub fn fault_class_open(bits: u32, rflags: u64, instruction: &Instruction, vectors: [u32; 2], cr2: [u64; 2]) -> bool {
    const ALIGNMENT_CHECK: u32 = 17;
    const PAGE_FAULT: u32 = 14;
    let accesses = vectors.iter().all(|vector| matches!(vector, 12 | 13 | 14 | 17));
    let wraps = |(vector, cr2): (u32, u64)| vector == PAGE_FAULT && !(0x1000..0xffff_f000).contains(&cr2);
    let across = bits == 32 && vectors.into_iter().zip(cr2).any(wraps);
    let unaligned = rflags & 0x4_0000 != 0 && vectors.contains(&ALIGNMENT_CHECK);
    let is_open = |open: Open| rows(instruction).any(|row| row.open == open);
    let sixteen = instruction.memory_size().size() == 16 && !vectors.contains(&PAGE_FAULT);
    let zero_mask = matches!(instruction.mnemonic(), Mnemonic::Maskmovq | Mnemonic::Maskmovdqu);
    // SDM 2, BOUND: whether both bounds are read before the first is compared is not said.
    let bound = instruction.mnemonic() == Mnemonic::Bound && vectors.contains(&5);
    let based = matches!(instruction.memory_segment(), Register::FS | Register::GS)
        && vectors.iter().all(|vector| matches!(vector, 13 | 14))
        && vectors.into_iter().zip(cr2).any(|(vector, cr2)| vector == PAGE_FAULT && cr2 >> 63 == 1);
    bound
        || based
        || accesses && (across || unaligned || sixteen || is_open(Open::AccessOrder))
        || is_open(Open::Selector)
        || zero_mask
}

/// Units in the last place that a transcendental result may differ by, or `None` where the result is not defined at all.
///
/// F2XM1 and FYL2XP1 are defined near zero only (SDM 2: -1 to 1, and -(1 - sqrt(1/2)) to sqrt(2) - 1). Intel's CPUs reduce
/// arguments of the trigonometric ones by a value of pi with 66 bits (SDM 1, 8.3.8), so that their error grows with the
/// argument's exponent.
pub fn transcendental_ulps(instruction: &Instruction, argument: (u64, u16), result: (u64, u16)) -> Option<u64> {
    const ULPS: u64 = 2;
    let exponent = |value: (u64, u16)| i32::from(value.1 & 0x7fff) - 0x3fff;
    match instruction.mnemonic() {
        Mnemonic::F2xm1 if exponent(argument) >= 0 => None,
        Mnemonic::Fyl2xp1 if exponent(argument) >= -2 => None,
        Mnemonic::Fsin | Mnemonic::Fcos | Mnemonic::Fsincos | Mnemonic::Fptan => {
            let spread = exponent(argument) - exponent(result) - 1;
            // Near a pole the tangent's error grows with its square.
            let near_pole = exponent(argument) + exponent(result) + 1;
            let grows = if instruction.mnemonic() == Mnemonic::Fptan { spread.max(near_pole) } else { spread };
            (grows < 62).then(|| ULPS + (1 << grows.max(0)) / 2)
        }
        _ => Some(ULPS),
    }
}
