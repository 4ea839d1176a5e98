// SPDX-License-Identifier: AGPL-3.0-or-later
//! The one table of results that two correct x86 CPUs may disagree on. Every comparison with another CPU goes through it.
//!
//! A row says which instructions, what is left open, and where the manuals say so. "APM 3" is the AMD64 Architecture
//! Programmer's Manual volume 3 (24594), "SDM 2" Intel's Software Developer's Manual volume 2; both name the instruction's
//! own page unless a section is given. What our CPU does in each case is fixed all the same and covered by its own tests.

use crate::case::Case;
use iced_x86::{Instruction, Mnemonic, OpKind};

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
    /// x87 results may differ by this many units in the last place.
    Ulps(u64),
    /// Stored x87 instruction and data pointers and opcode.
    X87Pointers,
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
            Open::Ulps(2),
            "APM 1, 6.4.5: transcendental results are correct within 1 ulp, on each side",
        ),
        row(
            &[Fnstenv, Fnsave, Fxsave, Fxsave64],
            Open::X87Pointers,
            "APM 2, 11.4.4.3: AMD stores pointers only with an exception pending; SDM 1, 8.1.8: FCS and FDS deprecated",
        ),
    ]
};

/// The open flags of `instruction`, which starts with the registers of `case`.
pub fn open_flags(case: &Case, instruction: &Instruction) -> u64 {
    rows(instruction).map(|row| flags_of(row.open, case, instruction)).fold(0, |all, flags| all | flags)
}

/// The rows for an instruction.
pub fn rows(instruction: &Instruction) -> impl Iterator<Item = &'static Row> {
    let mnemonic = instruction.mnemonic();
    ROWS.iter().filter(move |row| row.mnemonics.contains(&mnemonic))
}

/// Whether `instruction` leaves the destination itself open (a double shift by more than the operand's size).
pub fn destination_open(case: &Case, instruction: &Instruction) -> bool {
    rows(instruction).any(|row| row.open == Open::DoubleShift) && count(case, instruction) > operand_bits(instruction)
}

fn operand_bits(instruction: &Instruction) -> u64 {
    match instruction.op0_kind() {
        OpKind::Memory => instruction.memory_size().size() as u64 * 8,
        _ => instruction.op0_register().size() as u64 * 8,
    }
}

/// The masked count of a shift or rotate.
fn count(case: &Case, instruction: &Instruction) -> u64 {
    let last = instruction.op_count() - 1;
    let raw = match instruction.op_kind(last) {
        OpKind::Register => case.gpr[1],
        _ => instruction.immediate(last),
    };
    raw & if operand_bits(instruction) == 64 { 63 } else { 31 }
}

fn flags_of(open: Open, case: &Case, instruction: &Instruction) -> u64 {
    let count = || count(case, instruction);
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
        Open::Rotate | Open::Approximate(_) | Open::Ulps(_) | Open::X87Pointers => 0,
    }
}
