// SPDX-License-Identifier: AGPL-3.0-or-later
//! Random cases: one instruction or a short sequence, with registers and data that make it do something.

pub mod encode;
pub mod place;
mod special;

use crate::case::{CODE_MAX, Case, Fx};
use crate::layout::{CODE, CODE_BYTES, PAGE};
use crate::masks;
use crate::random::{Stream, below, one_in, pick};
use crate::values;
use encode::decode;
use iced_x86::{Code, Decoder, Instruction, InstructionInfoFactory, Mnemonic};
use place::{Fixed, Placed};
use rand_core::Rng;

/// A case for `code` alone, or `None` where no encoding was found.
pub fn single(rng: &mut Stream, factory: &mut InstructionInfoFactory, code: Code, bits: u32) -> Option<Case> {
    sequence(rng, factory, &[code], bits)
}

/// A case for `codes` one after another.
pub fn sequence(rng: &mut Stream, factory: &mut InstructionInfoFactory, codes: &[Code], bits: u32) -> Option<Case> {
    let mut case = Case::empty(bits);
    let mut bytes = Vec::new();
    let mut starts = Vec::new();
    for &code in codes {
        let encoded = encode::encode(rng, code, bits, CODE)?;
        if codes.len() > 1 && locks(&decode(bits, &encoded, CODE)) {
            continue;
        }
        if bytes.len() + encoded.len() > CODE_MAX {
            break;
        }
        let leaves_flags_open = masks::rows(&decode(bits, &encoded, CODE)).next().is_some();
        starts.push(bytes.len());
        bytes.extend(encoded);
        if leaves_flags_open && codes.len() > 1 {
            bytes.extend([0x39, 0xc0 | (rng.next_u32() as u8 & 0x3f)]);
        }
    }
    bytes.truncate(CODE_MAX);
    case.set_code(&bytes);
    case.rip = start_address(rng, bytes.len() as u64);
    registers(rng, &mut case);
    let mut fixed = Fixed::default();
    for &at in &starts {
        let instruction = decode(bits, &bytes[at..], case.rip + at as u64);
        place::place(rng, factory, &mut case, &Placed { instruction, at }, &mut fixed);
    }
    if bits == 32 {
        case.gpr.iter_mut().for_each(|register| *register &= 0xffff_ffff);
    }
    Some(case)
}

/// Whether an instruction locks memory; where that is in a sequence is not known beforehand (see `host::splits_lock`).
fn locks(instruction: &Instruction) -> bool {
    let exchanges = instruction.mnemonic() == Mnemonic::Xchg && instruction.memory_size().size() > 0;
    instruction.has_lock_prefix() || exchanges
}

/// A case of random bytes.
pub fn noise(rng: &mut Stream, bits: u32) -> Case {
    let mut case = Case::empty(bits);
    let mut bytes = [0u8; 20];
    rng.fill_bytes(&mut bytes);
    if one_in(rng, 2) {
        bytes[0] = 0x0f;
    }
    if one_in(rng, 4) {
        let prefixes = below(rng, 16) as usize;
        for byte in &mut bytes[..prefixes] {
            *byte = pick(rng, &[0x66, 0x67, 0xf2, 0xf3, 0x2e, 0x3e, 0x26, 0x64, 0x48, 0xf0]);
        }
    }
    case.set_code(&bytes);
    case.rip = start_address(rng, bytes.len() as u64);
    registers(rng, &mut case);
    case
}

/// A case of one random instruction, or of random bytes that are none, for which `runs` holds and which does not jump back
/// into itself.
pub fn safe_noise(rng: &mut Stream, bits: u32, runs: impl Fn(Code) -> bool) -> Option<Case> {
    let mut case = noise(rng, bits);
    let instruction = decode(bits, case.code(), case.rip);
    let inside = case.rip..case.rip + u64::from(case.code_len);
    if !instruction.is_invalid() {
        let alone = case.code[..instruction.len()].to_vec();
        case.set_code(&alone);
    }
    let host = Decoder::with_ip(bits, case.code(), case.rip, crate::host::decoder_options()).decode();
    let fits = host.code() == instruction.code() && (instruction.is_invalid() || runs(instruction.code()));
    (fits && !inside.contains(&instruction.near_branch_target())).then_some(case)
}

/// Where code of `len` bytes starts: mostly at the beginning, sometimes across the two pages or into the gap behind them.
fn start_address(rng: &mut Stream, len: u64) -> u64 {
    match below(rng, 16) {
        0 => CODE + PAGE - rng.next_u64() % (len + 1),
        1 => CODE + CODE_BYTES as u64 - len,
        _ => CODE + rng.next_u64() % 0x400,
    }
}

fn registers(rng: &mut Stream, case: &mut Case) {
    let mask = if case.bits == 64 { u64::MAX } else { 0xffff_ffff };
    for register in &mut case.gpr {
        *register = values::integer(rng) & mask;
    }
    if one_in(rng, 8) {
        case.gpr[1] = case.gpr[0];
    }
    case.rflags = values::rflags(rng);
    case.fx = fx(rng);
}

fn fx(rng: &mut Stream) -> Fx {
    let mut fx = Fx::initial();
    let control = values::control_word(rng);
    fx.set_u16(0, control);
    let mut status = rng.next_u32() as u16 & 0x7f00 & !0x8000;
    if one_in(rng, 3) {
        status |= rng.next_u32() as u16 & control & 0x3f;
    }
    if one_in(rng, 24) {
        status |= rng.next_u32() as u16 & 0x7f;
    }
    if status & !control & 0x3f != 0 {
        status |= 0x8080;
    }
    fx.set_u16(2, status);
    fx.0[4] = if one_in(rng, 3) { rng.next_u32() as u8 } else { 0xff };
    let same = values::extended(rng);
    for index in 0..8 {
        let (significand, sign_exponent) = if one_in(rng, 6) { same } else { values::extended(rng) };
        fx.set_st(index, significand, sign_exponent);
    }
    fx.set_u32(24, values::mxcsr(rng));
    let same = values::vector(rng);
    for index in 0..16 {
        fx.set_xmm(index, if one_in(rng, 6) { same } else { values::vector(rng) });
    }
    fx
}
