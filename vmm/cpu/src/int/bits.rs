// SPDX-License-Identifier: AGPL-3.0-or-later
//! BT, BTS, BTR, BTC, BSF, BSR, POPCNT, CRC32, BSWAP, SETcc.
//!
//! Undefined behaviour chosen: BT and its kind change CF only. BSF and BSR of zero leave the destination as it was and set
//! ZF; otherwise they set SF and PF from the source and clear CF, OF and AF. BSWAP of a 16-bit register clears it.

use crate::access::Place;
use crate::core_state::Core;
use crate::flags::LazyFlags;
use crate::forms::{Operand, bits, handler_by_width, operand};
use crate::int::cond::{condition_of, with_condition};
use crate::op::{Handler, Op, Step};
use crate::table::Entry;
use crate::width::Width;
use iced_x86::{Code, Mnemonic};

const FAMILY: &str = "bits";

/// What happens to a bit after it was copied to CF.
trait BitChange {
    const WRITES: bool;
    fn change(value: u64, mask: u64) -> u64;
}

macro_rules! bit_change {
    ($($name:ident $writes:literal |$value:ident, $mask:ident| $body:expr;)*) => { $(
        struct $name;
        impl BitChange for $name {
            const WRITES: bool = $writes;
            #[inline(always)]
            fn change($value: u64, $mask: u64) -> u64 { $body }
        }
    )* };
}
bit_change! {
    Keep false |value, _mask| value;
    Set true |value, mask| value | mask;
    Reset true |value, mask| value & !mask;
    Complement true |value, mask| value ^ mask;
}

impl Core {
    /// Sets CF and keeps the other flags.
    #[inline(always)]
    pub fn set_carry(&mut self, carry: bool) {
        let overflow = self.flags.of();
        self.set_carry_overflow(carry, overflow);
    }
}

#[inline(always)]
fn bit_reg<O: BitChange, T: Width>(core: &mut Core, op: &Op, index: u64) -> Step {
    let mask = 1u64 << (index & u64::from(T::BITS - 1));
    let value = core.reg::<T>(op.dst).zx();
    core.set_carry(value & mask != 0);
    if O::WRITES {
        core.set_reg(op.dst, T::cut(O::change(value, mask)));
    }
    Ok(())
}

#[inline(always)]
fn bit_at<O: BitChange, T: Width>(core: &mut Core, place: Place, mask: u64) -> Step {
    if O::WRITES {
        core.modify_at::<T>(place, |core, old| {
            core.set_carry(old.zx() & mask != 0);
            T::cut(O::change(old.zx(), mask))
        })
    } else {
        let value = core.read::<T>(place.address, place.segment)?;
        core.set_carry(value.zx() & mask != 0);
        Ok(())
    }
}

fn reg_imm<O: BitChange, T: Width>(core: &mut Core, op: &Op) -> Step {
    bit_reg::<O, T>(core, op, op.imm)
}

fn reg_reg<O: BitChange, T: Width>(core: &mut Core, op: &Op) -> Step {
    bit_reg::<O, T>(core, op, core.reg::<T>(op.src).zx())
}

fn mem_imm<O: BitChange, T: Width>(core: &mut Core, op: &Op) -> Step {
    let address = core.linear(op, T::BYTES, O::WRITES)?;
    bit_at::<O, T>(core, Place { address, segment: op.segment }, 1 << (op.imm & u64::from(T::BITS - 1)))
}

/// A register index reaches beyond the operand: it is signed, in bits.
fn mem_reg<O: BitChange, T: Width>(core: &mut Core, op: &Op) -> Step {
    let index = core.reg::<T>(op.src).sx() as i64;
    let bytes = (index >> T::BITS.trailing_zeros()).wrapping_mul(T::BYTES as i64);
    let mut moved = *op;
    moved.displacement = op.displacement.wrapping_add(bytes as u64);
    let address = core.linear(&moved, T::BYTES, O::WRITES)?;
    bit_at::<O, T>(core, Place { address, segment: op.segment }, 1 << (index & i64::from(T::BITS - 1)))
}

fn bit_entry<O: BitChange>(code: Code) -> Option<Entry> {
    let width = bits(code, 0);
    if operand(code, 1) == Operand::Immediate {
        Entry::rm(FAMILY, handler_by_width!(width, reg_imm, O), handler_by_width!(width, mem_imm, O))
    } else {
        Entry::rm(FAMILY, handler_by_width!(width, reg_reg, O), handler_by_width!(width, mem_reg, O))
    }
}

/// An operation from a source to a destination register.
trait Scan {
    fn apply<T: Width>(core: &mut Core, op: &Op, source: T);
}

struct Bsf;
impl Scan for Bsf {
    #[inline(always)]
    fn apply<T: Width>(core: &mut Core, op: &Op, source: T) {
        core.flags_logic(source);
        if source.zx() != 0 {
            core.set_reg(op.dst, T::cut(u64::from(source.zx().trailing_zeros())));
        }
    }
}

struct Bsr;
impl Scan for Bsr {
    #[inline(always)]
    fn apply<T: Width>(core: &mut Core, op: &Op, source: T) {
        core.flags_logic(source);
        if source.zx() != 0 {
            core.set_reg(op.dst, T::cut(u64::from(63 - source.zx().leading_zeros())));
        }
    }
}

struct Popcnt;
impl Scan for Popcnt {
    #[inline(always)]
    fn apply<T: Width>(core: &mut Core, op: &Op, source: T) {
        core.set_reg(op.dst, T::cut(u64::from(source.zx().count_ones())));
        // Only ZF can be set: a result of one has its sign clear, and the extra bit makes its parity odd.
        let zero = source.zx() == 0;
        core.flags = LazyFlags { result: u64::from(!zero), carries: 0, misc: if zero { 1 << 8 } else { 0 } };
    }
}

fn scan_reg<O: Scan, T: Width>(core: &mut Core, op: &Op) -> Step {
    O::apply(core, op, core.reg::<T>(op.src));
    Ok(())
}

fn scan_mem<O: Scan, T: Width>(core: &mut Core, op: &Op) -> Step {
    let source = core.load::<T>(op)?;
    O::apply(core, op, source);
    Ok(())
}

fn scan_entry<O: Scan>(code: Code) -> Option<Entry> {
    let width = bits(code, 0);
    Entry::rm(FAMILY, handler_by_width!(width, scan_reg, O), handler_by_width!(width, scan_mem, O))
}

/// CRC-32C, reflected polynomial 0x82F63B78 (Intel SDM vol. 2A, CRC32).
fn crc<T: Width>(core: &mut Core, op: &Op, source: T) {
    let mut value = core.reg::<u32>(op.dst) ^ source.zx() as u32;
    let mut high = source.zx() >> 32;
    for index in 0..T::BITS {
        if index == 32 {
            value ^= std::mem::take(&mut high) as u32;
        }
        value = value >> 1 ^ if value & 1 != 0 { 0x82f6_3b78 } else { 0 };
    }
    core.gpr[usize::from(op.dst & 15)] = u64::from(value);
}

fn crc_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    crc(core, op, core.reg::<T>(op.src));
    Ok(())
}

fn crc_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let source = core.load::<T>(op)?;
    crc(core, op, source);
    Ok(())
}

fn bswap<T: Width>(core: &mut Core, op: &Op) -> Step {
    let value = core.reg::<T>(op.dst).zx();
    let swapped = if T::BITS == 16 { 0 } else { value.swap_bytes() >> (64 - T::BITS) };
    core.set_reg(op.dst, T::cut(swapped));
    Ok(())
}

fn set_reg<const CC: u8>(core: &mut Core, op: &Op) -> Step {
    core.set_reg(op.dst, u8::from(core.condition::<CC>()));
    Ok(())
}

fn set_mem<const CC: u8>(core: &mut Core, op: &Op) -> Step {
    core.store(op, u8::from(core.condition::<CC>()))
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    match code.mnemonic() {
        Mnemonic::Bt => bit_entry::<Keep>(code),
        Mnemonic::Bts => bit_entry::<Set>(code),
        Mnemonic::Btr => bit_entry::<Reset>(code),
        Mnemonic::Btc => bit_entry::<Complement>(code),
        Mnemonic::Bsf => scan_entry::<Bsf>(code),
        Mnemonic::Bsr => scan_entry::<Bsr>(code),
        Mnemonic::Popcnt => scan_entry::<Popcnt>(code),
        Mnemonic::Crc32 => {
            let width = bits(code, 1);
            Entry::rm(FAMILY, handler_by_width!(width, crc_reg), handler_by_width!(width, crc_mem))
        }
        Mnemonic::Bswap => Entry::one(FAMILY, handler_by_width!(bits(code, 0), bswap)),
        _ if matches!(code.op_code().op_code(), 0x90..=0x9f)
            && bits(code, 0) == 8
            && code.op_code().op_count() == 1 =>
        {
            let condition = condition_of(code)?;
            let register: Handler = with_condition!(condition, set_reg);
            let memory: Handler = with_condition!(condition, set_mem);
            Entry::rm(FAMILY, register, memory)
        }
        _ => None,
    }
}
