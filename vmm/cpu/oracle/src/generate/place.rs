// SPDX-License-Identifier: AGPL-3.0-or-later
//! Gives an instruction's operands values: memory operands hit chosen addresses, the rest is random but interesting.

use super::special;
use crate::case::Case;
use crate::layout::{CODE, CODE_BYTES, DATA, DATA_BYTES, FS_BASE, GS_BASE, HIGH, PAGE, READABLE_BYTES};
use crate::random::{Stream, below, one_in, pick};
use crate::values;
use iced_x86::{
    CodeSize, ConstantOffsets, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, MemorySize, Mnemonic,
    Register, UsedMemory,
};
use rand_core::Rng;

/// Registers that already have a reason for their value, by encoding number.
#[derive(Default)]
pub struct Fixed(u16);

impl Fixed {
    /// Sets `register` unless it has a reason for its value already; says whether it did.
    pub fn set(&mut self, case: &mut Case, register: usize, value: u64) -> bool {
        if self.0 & 1 << register != 0 {
            return false;
        }
        self.0 |= 1 << register;
        case.gpr[register] = value;
        true
    }
}

/// An instruction inside a case's code.
pub struct Placed {
    /// Decoded.
    pub instruction: Instruction,
    /// Where its bytes start in the case's code.
    pub at: usize,
}

/// Patches immediates and displacements of the instruction and sets registers and data so that it does something.
pub fn place(
    rng: &mut Stream,
    factory: &mut InstructionInfoFactory,
    case: &mut Case,
    placed: &Placed,
    fixed: &mut Fixed,
) {
    let bits = case.bits;
    let ip = case.rip + placed.at as u64;
    let mut decoder = Decoder::with_ip(bits, &case.code[placed.at..], ip, DecoderOptions::AMD);
    let instruction = decoder.decode();
    let offsets = decoder.get_constant_offsets(&instruction);
    immediates(rng, case, placed.at, &instruction, &offsets);
    special::before_memory(rng, case, &instruction, fixed);
    let memory: Vec<UsedMemory> = factory.info(&instruction).used_memory().to_vec();
    for used in &memory {
        let size = used.memory_size().size().max(1) as u64;
        let Some(address) = place_memory(rng, case, placed.at, &instruction, &offsets, used, size, fixed) else {
            continue;
        };
        if one_in(rng, 2) || special::always_patches(instruction.code()) {
            patch_operand(rng, case, &instruction, address, used.memory_size());
        }
    }
    special::after_memory(rng, case, &instruction, fixed);
}

fn immediates(rng: &mut Stream, case: &mut Case, at: usize, instruction: &Instruction, offsets: &ConstantOffsets) {
    let put = |case: &mut Case, offset: usize, size: usize, value: u64| {
        let start = at + offset;
        if size > 0 && start + size <= case.code.len() {
            case.code[start..start + size].copy_from_slice(&value.to_le_bytes()[..size]);
        }
    };
    if !offsets.has_immediate() {
        return;
    }
    let (offset, size) = (offsets.immediate_offset(), offsets.immediate_size());
    if instruction.is_jcc_short_or_near()
        || instruction.is_jmp_short_or_near()
        || instruction.is_call_near()
        || instruction.is_jcx_short()
        || instruction.is_loop()
        || instruction.is_loopcc()
    {
        // Mostly into the filler behind the code, where the next INT3 shows the place.
        let end = case.code_len as usize - at;
        let distance = if size == 1 { i64::from(below(rng, 100)) } else { i64::from(below(rng, 0x900)) };
        let forward = distance + end as i64 - instruction.len() as i64;
        let anywhere = rng.next_u64() as i64;
        let cut = anywhere << (64 - 8 * size) >> (64 - 8 * size);
        // Never back into the case: that could run for ever.
        let value = if one_in(rng, 12) && !(-100..100).contains(&cut) { anywhere } else { forward };
        put(case, offset, size, value as u64);
    } else {
        put(case, offset, size, values::integer(rng));
    }
    if offsets.has_immediate2() {
        put(case, offsets.immediate_offset2(), offsets.immediate_size2(), values::integer(rng));
    }
}

/// An address for an access of `size` bytes.
pub fn target(rng: &mut Stream, size: u64, low_only: bool) -> u64 {
    let data = if low_only || one_in(rng, 2) { DATA } else { HIGH };
    let high = if low_only { DATA } else { HIGH };
    let room = DATA_BYTES as u64 - size.min(1024);
    match below(rng, 64) {
        0..=35 => data + ((rng.next_u64() % room) & !15),
        36..=50 => data + rng.next_u64() % room,
        51..=53 => data + PAGE - rng.next_u64() % (size + 1),
        54..=55 => high + DATA_BYTES as u64 - rng.next_u64() % (size + 1),
        56..=57 => DATA + DATA_BYTES as u64 - rng.next_u64() % (size + 1),
        58 => DATA + DATA_BYTES as u64 + ((rng.next_u64() % (PAGE - size.min(1024))) & !15),
        59 => DATA - rng.next_u64() % (size + 1),
        60 => DATA + READABLE_BYTES as u64 - rng.next_u64() % (size + 1),
        61 => CODE + rng.next_u64() % CODE_BYTES as u64,
        62 => pick(rng, &[0x0000_8000_0000_0000u64, 0xffff_7fff_ffff_fff0, 0x7fff_ffff_f000])
            .wrapping_sub(u64::from(below(rng, 32))),
        _ => values::integer(rng),
    }
}

fn segment_base(case: &Case, segment: Register) -> u64 {
    match (case.bits, segment) {
        (64, Register::FS) => FS_BASE,
        (64, Register::GS) => GS_BASE,
        _ => 0,
    }
}

/// Makes a memory operand hit a chosen address and returns it, or `None` where that was not possible.
#[expect(clippy::too_many_arguments, reason = "all of them describe one operand")]
fn place_memory(
    rng: &mut Stream,
    case: &mut Case,
    at: usize,
    instruction: &Instruction,
    offsets: &ConstantOffsets,
    used: &UsedMemory,
    size: u64,
    fixed: &mut Fixed,
) -> Option<u64> {
    let address_bits = match used.address_size() {
        CodeSize::Code16 => 16,
        CodeSize::Code32 => 32,
        _ => 64,
    };
    let mask = if address_bits == 64 { u64::MAX } else { (1 << address_bits) - 1 };
    let mut wanted = target(rng, size, address_bits < 64 || case.bits == 32);
    if (instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg) && size.is_power_of_two() {
        wanted &= !(size - 1);
    }
    let offset = wanted.wrapping_sub(segment_base(case, used.segment()));
    let index = general(used.index());
    let base = general(used.base());
    let displacement = used.displacement();
    if base.is_none() && index.is_none() {
        return absolute(case, at, instruction, offsets, offset).then_some(wanted);
    }
    let mut rest = offset.wrapping_sub(displacement);
    if let (Some(index), Some(base)) = (index, base)
        && index != base
    {
        let value = if one_in(rng, 8) { values::integer(rng) } else { u64::from(below(rng, 64)).wrapping_sub(16) };
        fixed.set(case, index, value & register_mask(case.bits));
        rest = rest.wrapping_sub(case.gpr[index].wrapping_mul(u64::from(used.scale())));
    }
    let register = base.or(index)?;
    if base.is_none() {
        rest /= u64::from(used.scale().max(1));
    } else if base == index {
        rest /= 1 + u64::from(used.scale());
    }
    let garbage = if case.bits == 64 && address_bits < 64 && one_in(rng, 4) { rng.next_u64() & !mask } else { 0 };
    fixed.set(case, register, (rest & mask | garbage) & register_mask(case.bits)).then_some(wanted)
}

fn register_mask(bits: u32) -> u64 {
    if bits == 64 { u64::MAX } else { 0xffff_ffff }
}

/// The encoding number of a general register of any width.
pub fn general(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register() as usize - Register::RAX as usize)
}

/// Writes the displacement of an operand without base and index, RIP-relative ones included.
fn absolute(case: &mut Case, at: usize, instruction: &Instruction, offsets: &ConstantOffsets, offset: u64) -> bool {
    if !offsets.has_displacement() {
        return false;
    }
    let value =
        if instruction.is_ip_rel_memory_operand() { offset.wrapping_sub(instruction.next_ip()) } else { offset };
    let (start, size) = (at + offsets.displacement_offset(), offsets.displacement_size());
    case.code[start..start + size].copy_from_slice(&value.to_le_bytes()[..size]);
    let reach = if size >= 8 { value } else { value as i32 as i64 as u64 };
    size >= 4 && reach == value
}

/// Puts a value of the operand's type where the operand is.
fn patch_operand(rng: &mut Stream, case: &mut Case, instruction: &Instruction, address: u64, size: MemorySize) {
    let Some(offset) = data_offset(address) else { return };
    if let Some(bytes) = special::operand_bytes(rng, case, instruction) {
        for (index, part) in bytes.chunks(16).enumerate() {
            case.patch(offset + 16 * index as u64, part);
        }
        return;
    }
    match size {
        MemorySize::Float32 => case.patch(offset, &values::single(rng).to_le_bytes()),
        MemorySize::Float64 => case.patch(offset, &values::double(rng).to_le_bytes()),
        MemorySize::Float80 => {
            let (significand, sign_exponent) = values::extended(rng);
            let mut bytes = [0; 10];
            bytes[..8].copy_from_slice(&significand.to_le_bytes());
            bytes[8..].copy_from_slice(&sign_exponent.to_le_bytes());
            case.patch(offset, &bytes);
        }
        MemorySize::Bcd => {
            let mut bytes: [u8; 10] = std::array::from_fn(|_| (below(rng, 10) << 4 | below(rng, 10)) as u8);
            bytes[9] = pick(rng, &[0, 0x80]);
            case.patch(offset, &bytes);
        }
        _ if size.size() <= 8 => case.patch(offset, &values::integer(rng).to_le_bytes()[..size.size()]),
        _ if size.size() == 16 => case.patch(offset, &values::vector(rng).to_le_bytes()),
        _ => {}
    }
}

/// Offset in the data of an address in either of its views.
pub fn data_offset(address: u64) -> Option<u64> {
    let low = address.wrapping_sub(DATA);
    let high = address.wrapping_sub(HIGH);
    [low, high].into_iter().find(|&offset| offset < DATA_BYTES as u64)
}
