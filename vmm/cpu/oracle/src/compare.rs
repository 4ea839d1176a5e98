// SPDX-License-Identifier: AGPL-3.0-or-later
//! Tells two outcomes of one case apart, under the masks.

use crate::approx;
use crate::case::{Case, Outcome, Registers};
use crate::generate::encode::{decode, prefixes_of, straight};
use crate::generate::place;
use crate::layout::USER_CS32;
use crate::masks::{self, Open};
use crate::report;
use crate::vendors;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind};
use std::fmt;

/// The first difference, with both values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What differs.
    pub what: String,
    /// On the host, or on the other CPU.
    pub expected: String,
    /// On ours.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.what, self.expected, self.got)
    }
}

fn differ(what: impl Into<String>, expected: impl fmt::Debug, got: impl fmt::Debug) -> Option<Difference> {
    Some(Difference { what: what.into(), expected: format!("{expected:x?}"), got: format!("{got:x?}") })
}

/// Vector of a case that did not end.
pub const ENDLESS: u32 = 255;
const PAGE_FAULT: u32 = 14;
const RESUME_FLAG: u64 = 1 << 16;
/// C1 of the x87 status word.
const ROUNDED_UP: u16 = 1 << 9;
/// UE of the x87 status word: whether a result next to the subnormal ones is tiny depends on how it was rounded.
const UNDERFLOW: u16 = 1 << 4;
/// Linux leaves the last page of the lower half unused (TASK_SIZE_MAX).
const USER_SPACE_END: u64 = 0x7fff_ffff_f000;

/// Compares `got` (ours) with `expected`. `factory` is scratch space.
pub fn compare(
    case: &Case,
    expected: &Outcome,
    got: &Outcome,
    factory: &mut InstructionInfoFactory,
) -> Option<Difference> {
    let (a, b) = (&expected.registers, &got.registers);
    let instructions = Instructions::new(case);
    if instructions.0.iter().any(|one| one.ip() == b.rip && vendors::may_not_fault(one, b.vector)) {
        return None;
    }
    if a.vector != b.vector {
        let open = instructions.vector_open(case, a, b);
        return if open { None } else { differ("exception vector", a.vector, b.vector) };
    }
    if a.vector == ENDLESS {
        return None;
    }
    if a.rip != b.rip {
        let faulting = instructions.0.iter().find(|one| one.ip() == a.rip);
        let masked = |one: &Instruction| matches!(one.mnemonic(), Mnemonic::Maskmovq | Mnemonic::Maskmovdqu);
        // Some hypervisors report INT1 at the instruction and not behind it.
        let breaks =
            |one: &Instruction| one.mnemonic() == Mnemonic::Int1 && b.rip == a.rip.wrapping_add(one.len() as u64);
        let open = a.vector == PAGE_FAULT && instructions.any(Open::Selector)
            || faulting.is_some_and(|one| masked(one) || breaks(one));
        return if open { None } else { differ("rip", a.rip, b.rip) };
    }
    // Linux hides its page tables: a fault above what user space may map always reads as a protection fault.
    let hidden = a.vector == PAGE_FAULT && (a.cr2 >= USER_SPACE_END || a.cr2 != b.cr2 && instructions.open_order());
    let hidden = u32::from(hidden);
    if a.error & !hidden != b.error & !hidden && !instructions.any(Open::CheckOrder) {
        return differ("error code", a.error, b.error);
    }
    if a.vector == PAGE_FAULT && a.cr2 != b.cr2 && !instructions.open_order() {
        return differ("cr2", a.cr2, b.cr2);
    }
    // A null selector loses its RPL at the next return to ring 3, which may be that of a timer interrupt.
    let shown = |selectors: [u16; 6]| selectors.map(|selector| if selector < 4 { 0 } else { selector });
    if shown(a.selectors) != shown(b.selectors) {
        return differ("selectors (es cs ss ds fs gs)", a.selectors, b.selectors);
    }
    let open = instructions.open_flags(case, a) | instructions.repeated_flags(a.rip);
    if (a.rflags ^ b.rflags) & !open != 0 {
        return differ("rflags", a.rflags & !open, b.rflags & !open);
    }
    let fault = matches!(a.vector, 12 | 13 | 14 | 17 | 19);
    let mut opens = instructions.opens(case, fault, factory);
    // What was written before the access that faulted is as open as their order.
    opens.any_memory |= fault && instructions.open_order() || instructions.copies_through_alias(case);
    for (index, name) in report::GPR.iter().enumerate() {
        // Upper halves are undefined once the CPU has left 64-bit code (APM 1, 3.1.2; SDM 1, 3.4.1.1).
        let lower = a.selectors[1] == USER_CS32 || opens.upper & 1 << index != 0;
        let mask = if lower { 0xffff_ffff } else { u64::MAX };
        let open = opens.gpr & 1 << index != 0 || fault && instructions.pops_all();
        if (a.gpr[index] ^ b.gpr[index]) & mask != 0 && !open {
            return differ(*name, a.gpr[index], b.gpr[index]);
        }
    }
    if fault && instructions.uses_mmx() {
        // Whether the transition to MMX has happened when an instruction faults is not said.
        return memory(case, &opens, expected, got);
    }
    floating_point(case, &opens, expected, got).or_else(|| memory(case, &opens, expected, got))
}

/// Prefixes with which any opcode may become too long: eleven bytes are the most that can follow.
const LONG_PREFIXES: usize = 4;

/// The instructions of a case, decoded in a straight line.
struct Instructions(Vec<Instruction>);

/// What of a case's result is left open, besides flags.
#[derive(Default)]
struct Opens {
    gpr: u16,
    approximate: Option<i32>,
    /// Bytes of an element of which NaNs are not told apart.
    which_nan: Option<u32>,
    transcendental: Option<Instruction>,
    /// Registers of which only the lower half counts.
    upper: u16,
    pointers: bool,
    /// Bytes that a selector was pushed as.
    pushed: Option<u32>,
    any_memory: bool,
}

impl Instructions {
    fn new(case: &Case) -> Self {
        Self(straight(case).into_iter().map(|(_, one)| one).collect())
    }

    /// In sequences a compare stands behind an instruction that leaves flags open, so these matter only where the case
    /// ended right behind the instruction: in the next one's fault or trap, or in the INT3 behind the code. What counts a shift may
    /// have changed since the case began, but then it still stands where the case ended.
    fn open_flags(&self, case: &Case, end: &Registers) -> u64 {
        let counts = [case.gpr[1], if self.0.len() > 1 { end.gpr[1] } else { case.gpr[1] }];
        let behind = |one: &&Instruction| end.rip == one.next_ip() || end.rip == one.next_ip().wrapping_add(1);
        let last = self.0.iter().filter(behind);
        last.flat_map(|one| counts.map(|rcx| masks::open_flags(rcx, one))).fold(0, |all, flags| all | flags)
    }

    /// Whether either of two different exceptions may end the case.
    fn vector_open(&self, case: &Case, a: &Registers, b: &Registers) -> bool {
        let vectors = [a.vector, b.vector];
        if a.vector == ENDLESS
            && self.0.iter().any(|one| matches!(one.mnemonic(), Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq))
        {
            // Under some hypervisors an IRET that faults for its stack selector is tried again for ever.
            return true;
        }
        if self.0.first().is_some_and(Instruction::is_invalid) {
            // Whether the bytes that would follow an undefined opcode make it too long (#GP) before it is undefined (#UD).
            let prefixes = prefixes_of(case.bits, case.code()).len();
            return prefixes >= LONG_PREFIXES && vectors.iter().all(|vector| matches!(vector, 6 | 13));
        }
        let faulting = self.0.iter().filter(|one| one.ip() == a.rip || one.ip() == b.rip);
        faulting.into_iter().any(|one| masks::fault_class_open(case.bits, case.rflags, one, vectors, [a.cr2, b.cr2]))
    }

    /// REP MOVS between two views of the same memory: the host copies in larger pieces than the architecture says, since it
    /// looks for an overlap of linear addresses only.
    fn copies_through_alias(&self, case: &Case) -> bool {
        let repeats = |one: &Instruction| {
            let moves = matches!(one.mnemonic(), Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsd | Mnemonic::Movsq);
            moves && one.is_string_instruction() && (one.has_rep_prefix() || one.has_repne_prefix())
        };
        let (from, to) = (case.gpr[6], case.gpr[7]);
        self.0.iter().any(repeats) && from.abs_diff(to) > crate::layout::READABLE_BYTES as u64
    }

    /// POPA: registers that were loaded before the fault are open as the order of accesses is.
    fn pops_all(&self) -> bool {
        let all = |one: &Instruction| matches!(one.mnemonic(), Mnemonic::Popa | Mnemonic::Popad);
        self.0.iter().any(all)
    }

    fn uses_mmx(&self) -> bool {
        self.0.iter().any(|one| one.op0_register().is_mm() || one.op1_register().is_mm())
    }

    /// The flags that a fault in the middle of repetitions leaves open.
    fn repeated_flags(&self, rip: u64) -> u64 {
        let repeats = |one: &&Instruction| one.ip() == rip && (one.has_rep_prefix() || one.has_repne_prefix());
        let open = self.0.iter().filter(repeats).flat_map(masks::rows).any(|row| row.open == Open::RepeatedFlags);
        if open { masks::STATUS_FLAGS | RESUME_FLAG } else { 0 }
    }

    /// Whether an instruction leaves open in which order it makes its accesses.
    fn open_order(&self) -> bool {
        self.any(Open::AccessOrder)
    }

    fn any(&self, open: Open) -> bool {
        self.0.iter().flat_map(masks::rows).any(|row| row.open == open)
    }

    fn opens(&self, case: &Case, fault: bool, factory: &mut InstructionInfoFactory) -> Opens {
        let mut opens = Opens::default();
        for instruction in &self.0 {
            for row in masks::rows(instruction) {
                match row.open {
                    Open::Approximate(power) => opens.approximate = Some(power),
                    Open::WhichNan => {
                        opens.which_nan = Some(if instruction.mnemonic() == Mnemonic::Dpps { 4 } else { 8 });
                    }
                    Open::Transcendental => opens.transcendental = Some(*instruction),
                    Open::NoIteration if case.bits == 64 && (case.gpr[1] & 0xffff_ffff == 0 || fault) => {
                        opens.upper = 1 << 1 | 3 << 6
                    }
                    Open::X87Pointers => opens.pointers = true,
                    Open::Selector => opens.pushed = Some(instruction.stack_pointer_increment().unsigned_abs()),
                    Open::DoubleShift if masks::destination_open(case.gpr[1], instruction) => {
                        opens.any_memory = true;
                        for used in factory.info(instruction).used_registers() {
                            if let Some(index) = crate::generate::place::general(used.register()) {
                                opens.gpr |= 1 << index;
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        opens
    }
}

fn floating_point(case: &Case, opens: &Opens, expected: &Outcome, got: &Outcome) -> Option<Difference> {
    let (a, b) = (&expected.registers.fx, &got.registers.fx);
    let argument = case.fx.st(0);
    let ulps = |result| opens.transcendental.map(|one| masks::transcendental_ulps(&one, argument, result));
    if ulps(argument) == Some(None) {
        return None;
    }
    let rounding = if opens.transcendental.is_some() { ROUNDED_UP | UNDERFLOW } else { 0 };
    for (name, offset, mask) in [("fcw", 0, u16::MAX), ("fsw", 2, !rounding)] {
        if (a.u16(offset) ^ b.u16(offset)) & mask != 0 {
            return differ(name, a.u16(offset) & mask, b.u16(offset) & mask);
        }
    }
    if a.0[4] != b.0[4] {
        return differ("ftw (abridged)", a.0[4], b.0[4]);
    }
    for index in 0..8 {
        let (x, y) = (a.st(index), b.st(index));
        let near = |ulps: Option<u64>| ulps.is_none_or(|ulps| approx::extended_close(x, y, ulps));
        let close = ulps(x).is_some_and(near);
        if x != y && !close {
            return differ(format!("st{index} (significand, sign and exponent)"), x, y);
        }
    }
    if a.u32(24) != b.u32(24) {
        return differ("mxcsr", a.u32(24), b.u32(24));
    }
    for index in 0..16 {
        let (x, y) = (a.xmm(index), b.xmm(index));
        let close = opens.approximate.is_some_and(|power| approx::singles_close(x, y, power));
        if x != y && !close && !opens.which_nan.is_some_and(|bytes| approx::same_but_nans(x, y, bytes)) {
            return differ(format!("xmm{index}"), x, y);
        }
    }
    None
}

fn memory(case: &Case, opens: &Opens, expected: &Outcome, got: &Outcome) -> Option<Difference> {
    if expected.memory == got.memory || opens.any_memory {
        return None;
    }
    let mut ignored = if opens.pointers { pointer_bytes(case) } else { Vec::new() };
    if let (Some(size), Some(start)) = (opens.pushed, place::data_offset(expected.registers.gpr[4])) {
        ignored.push(start + 2..start + u64::from(size));
    }
    let mut words: Vec<u32> = expected.memory.iter().chain(&got.memory).map(|entry| entry.0).collect();
    words.sort_unstable();
    words.dedup();
    let base = crate::layout::base_image();
    for word in words {
        let of = |outcome: &Outcome| {
            let found = outcome.memory.binary_search_by_key(&word, |entry| entry.0);
            found.map_or_else(|_| original(&base, word), |index| outcome.memory[index].1)
        };
        let (x, y) = (of(expected), of(got));
        let mask = (0..8).fold(0u64, |mask, byte| {
            let open = ignored.iter().any(|range| range.contains(&(u64::from(word) * 8 + byte)));
            mask | if open { 0 } else { 0xff << (8 * byte) }
        });
        if (x ^ y) & mask != 0 {
            return differ(format!("memory at data+{:#x}", word * 8), x & mask, y & mask);
        }
    }
    None
}

/// A word that did not change: the base image, since outcomes list every word that differs from that.
fn original(base: &[u8], word: u32) -> u64 {
    let at = word as usize * 8;
    base[at..at + 8].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// Offsets in the data where the case's instruction stores x87 pointers.
fn pointer_bytes(case: &Case) -> Vec<std::ops::Range<u64>> {
    let instruction = decode(case.bits, case.code(), case.rip);
    let Some(start) = operand_offset(case, &instruction) else { return Vec::new() };
    let parts: &[std::ops::Range<u64>] = match instruction.mnemonic() {
        // FOP, FIP, FDP; then MXCSR and its mask, of which the mask is the model's.
        Mnemonic::Fxsave | Mnemonic::Fxsave64 => &[6..24, 28..32],
        // The environment behind the tag word; the upper halves of control, status and tag word are reserved.
        _ if instruction.op_code().operand_size() == 16 => std::slice::from_ref(&(6..14)),
        _ => std::slice::from_ref(&(12..28)),
    };
    parts.iter().map(|part| start + part.start..start + part.end).collect()
}

/// Where in the data the memory operand of the case's only instruction lies.
fn operand_offset(case: &Case, instruction: &Instruction) -> Option<u64> {
    place::data_offset(operand_address(case, instruction)?)
}

/// Linear address of an instruction's memory operand at the start of the case; bit tests' offsets included.
pub fn operand_address(case: &Case, instruction: &Instruction) -> Option<u64> {
    let operand = (0..instruction.op_count()).find(|&index| instruction.op_kind(index) == OpKind::Memory)?;
    let address = instruction.virtual_address(operand, 0, |register, _, _| {
        Some(match register {
            iced_x86::Register::FS if case.bits == 64 => crate::layout::FS_BASE,
            iced_x86::Register::GS if case.bits == 64 => crate::layout::GS_BASE,
            _ => match place::general(register) {
                Some(index) if register.size() == 8 => case.gpr[index],
                Some(index) if register.size() == 4 => case.gpr[index] & 0xffff_ffff,
                Some(index) => case.gpr[index] & 0xffff,
                None => 0,
            },
        })
    })?;
    let bit_test = matches!(instruction.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
    let offset = match place::general(instruction.op1_register()) {
        Some(index) if bit_test => {
            let bits = instruction.memory_size().size() as u32 * 8;
            let offset = (case.gpr[index] as i64) << (64 - bits) >> (64 - bits);
            (offset >> bits.trailing_zeros()) * i64::from(bits / 8)
        }
        _ => 0,
    };
    let mask = if case.bits == 64 { u64::MAX } else { 0xffff_ffff };
    Some(address.wrapping_add(offset as u64) & mask)
}
