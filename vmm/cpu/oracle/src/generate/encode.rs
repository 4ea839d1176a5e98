// SPDX-License-Identifier: AGPL-3.0-or-later
//! Machine code for a given iced `Code`: its fixed bytes from the opcode table, everything else at random, checked by
//! decoding.

use crate::case::Case;
use crate::random::{Stream, below, one_in, pick};
use iced_x86::{Code, Decoder, DecoderOptions, EncodingKind, Instruction, MandatoryPrefix, OpCodeTableKind};
use rand_core::Rng;

/// How often a random encoding is tried before giving up on a code.
const ATTEMPTS: usize = 400;
/// Longest instruction (AMD64 APM vol. 3, 1.1).
pub const INSTRUCTION_MAX: usize = 15;

/// Decodes one instruction as our CPU model does.
pub fn decode(bits: u32, bytes: &[u8], ip: u64) -> Instruction {
    Decoder::with_ip(bits, bytes, ip, DecoderOptions::AMD).decode()
}

/// The instructions of a case in a straight line, each with where its bytes start; what is none ends the list.
pub fn straight(case: &Case) -> Vec<(usize, Instruction)> {
    let mut list = Vec::new();
    let mut at = 0;
    while at < case.code_len as usize {
        let instruction = decode(case.bits, &case.code[at..], case.rip + at as u64);
        list.push((at, instruction));
        if instruction.is_invalid() {
            break;
        }
        at += instruction.len();
    }
    list
}

/// The prefixes that `bytes` begin with, REX among them.
pub fn prefixes_of(bits: u32, bytes: &[u8]) -> &[u8] {
    let prefix = |byte: &u8| {
        matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
            || bits == 64 && byte & 0xf0 == 0x40
    };
    &bytes[..bytes.iter().take_while(|byte| prefix(byte)).count()]
}

/// Random bytes that decode to `code` in a `bits` code segment, or `None` where none were found.
pub fn encode(rng: &mut Stream, code: Code, bits: u32, ip: u64) -> Option<Vec<u8>> {
    let info = code.op_code();
    if info.encoding() != EncodingKind::Legacy || !info.is_instruction() || info.fwait() {
        return None;
    }
    for _ in 0..ATTEMPTS {
        let mut bytes = prefixes(rng, code, bits);
        opcode(rng, code, &mut bytes);
        let fixed = bytes.len();
        bytes.extend((0..12).map(|_| 0));
        rng.fill_bytes(&mut bytes[fixed..]);
        shape_modrm(rng, code, &mut bytes[fixed..]);
        let instruction = decode(bits, &bytes, ip);
        let host = Decoder::with_ip(bits, &bytes, ip, crate::host::decoder_options()).decode();
        if instruction.code() == code && host.code() == code && instruction.len() <= INSTRUCTION_MAX {
            bytes.truncate(instruction.len());
            return Some(bytes);
        }
    }
    None
}

fn prefixes(rng: &mut Stream, code: Code, bits: u32) -> Vec<u8> {
    let info = code.op_code();
    let mut bytes = Vec::new();
    let mandatory = match info.mandatory_prefix() {
        MandatoryPrefix::P66 => Some(0x66),
        MandatoryPrefix::PF3 => Some(0xf3),
        MandatoryPrefix::PF2 => Some(0xf2),
        MandatoryPrefix::None | MandatoryPrefix::PNP => None,
    };
    bytes.extend(mandatory);
    let fixed_prefix = info.mandatory_prefix() != MandatoryPrefix::None;
    if info.operand_size() == 16 || !fixed_prefix && one_in(rng, 24) {
        bytes.push(0x66);
    }
    if one_in(rng, if info.can_use_rep_prefix() || info.can_use_repne_prefix() { 2 } else { 24 }) && !fixed_prefix {
        bytes.push(pick(rng, &[0xf2, 0xf3]));
    }
    let address = info.address_size();
    if address != 0 && address != bits || address == 0 && one_in(rng, 8) {
        bytes.push(0x67);
    }
    if one_in(rng, 8) {
        bytes.push(pick(rng, &[0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65]));
    }
    if info.can_use_lock_prefix() && one_in(rng, 4) {
        bytes.push(0xf0);
    }
    shuffle(rng, &mut bytes);
    if bits == 64 {
        let wide = info.operand_size() == 64 || info.w() == 1;
        if wide || one_in(rng, 2) {
            bytes.push(0x40 | rng.next_u32() as u8 & 0x0f | if wide { 8 } else { 0 });
        }
    }
    bytes
}

fn shuffle(rng: &mut Stream, bytes: &mut [u8]) {
    for last in (1..bytes.len()).rev() {
        bytes.swap(last, below(rng, last as u32 + 1) as usize);
    }
}

fn opcode(rng: &mut Stream, code: Code, bytes: &mut Vec<u8>) {
    let info = code.op_code();
    match info.table() {
        OpCodeTableKind::T0F => bytes.push(0x0f),
        OpCodeTableKind::T0F38 => bytes.extend([0x0f, 0x38]),
        OpCodeTableKind::T0F3A => bytes.extend([0x0f, 0x3a]),
        _ => {}
    }
    let value = info.op_code();
    if info.op_code_len() == 2 {
        bytes.push((value >> 8) as u8);
    }
    // Codes whose last bits are a register accept all eight; the decoder rejects the rest.
    let register = if one_in(rng, 2) && value & 7 == 0 { below(rng, 8) as u8 } else { 0 };
    bytes.push(value as u8 | register);
}

/// Makes the byte after the opcode a plausible ModRM byte where one is expected; elsewhere it is just a random byte.
fn shape_modrm(rng: &mut Stream, code: Code, tail: &mut [u8]) {
    let info = code.op_code();
    if info.is_group() {
        tail[0] = tail[0] & 0xc7 | (info.group_index() as u8) << 3;
    }
    if info.is_rm_group() {
        tail[0] = tail[0] & 0xf8 | info.rm_group_index() as u8;
    }
    // Half register forms, half memory forms with every addressing mode.
    if one_in(rng, 3) {
        tail[0] |= 0xc0;
    }
}
