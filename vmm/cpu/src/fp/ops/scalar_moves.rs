// SPDX-License-Identifier: AGPL-3.0-or-later
//! Moves of scalars and lanes: MOVSS, MOVSD, MOVD, MOVQ with general registers, insertions, extractions and masks.

use super::{enter_mmx, mm, set_mm, xmm, xmm_mut};
use crate::core_state::Core;
use crate::op::{Op, Step, Trap, attr};
use crate::width::{Mem, Width};

/// The bits of a `T`.
fn mask<T: Mem>() -> u128 {
    u128::MAX >> (128 - 8 * T::BYTES)
}

/// MOVSS, MOVSD xmm, xmm/m: a load clears the rest, a register move keeps it.
pub fn scalar_load<T: Mem>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    if op.has(attr::MEMORY) {
        *xmm_mut(core, op.dst) = core.load::<T>(op)?.to_bits();
        return Ok(());
    }
    merge::<T>(core, op);
    Ok(())
}

/// MOVSS, MOVSD xmm/m, xmm.
pub fn scalar_store<T: Mem>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    if op.has(attr::MEMORY) {
        let value = T::from_bits(xmm(core, op.src) & mask::<T>());
        return core.store::<T>(op, value);
    }
    merge::<T>(core, op);
    Ok(())
}

fn merge<T: Mem>(core: &mut Core, op: &Op) {
    let value = xmm(core, op.src) & mask::<T>();
    let register = xmm_mut(core, op.dst);
    *register = (*register & !mask::<T>()) | value;
}

/// Operand 1: a general register or memory.
#[inline(always)]
pub fn source_rm<T: Width>(core: &mut Core, op: &Op) -> Result<T, Trap> {
    if op.has(attr::MEMORY) { core.load::<T>(op) } else { Ok(core.reg::<T>(op.src)) }
}

/// MOVD, MOVQ xmm, r/m.
pub fn xmm_from_rm<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = source_rm::<T>(core, op)?;
    *xmm_mut(core, op.dst) = u128::from(value.zx());
    Ok(())
}

/// MOVD, MOVQ r/m, xmm.
pub fn rm_from_xmm<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = T::cut(xmm(core, op.src) as u64);
    store_rm(core, op, value)
}

fn store_rm<T: Width>(core: &mut Core, op: &Op, value: T) -> Step {
    if op.has(attr::MEMORY) {
        return core.store::<T>(op, value);
    }
    core.set_reg::<T>(op.dst, value);
    Ok(())
}

/// MOVD, MOVQ mm, r/m.
pub fn mm_from_rm<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    let value = source_rm::<T>(core, op)?;
    enter_mmx(core);
    set_mm(core, op.dst, value.zx());
    Ok(())
}

/// MOVD, MOVQ r/m, mm.
pub fn rm_from_mm<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    let value = T::cut(mm(core, op.src));
    // Processors clear TOP before a store that may fault.
    core.x87.set_top(0);
    store_rm(core, op, value)?;
    enter_mmx(core);
    Ok(())
}

/// MOVNTI.
pub fn movnti<T: Width>(core: &mut Core, op: &Op) -> Step {
    let value = core.reg::<T>(op.src);
    core.store::<T>(op, value)
}

/// PINSRB, PINSRW, PINSRD, PINSRQ: lane `imm` of an XMM register; `R` is the register operand's width.
pub fn insert_lane<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = lane_source::<T>(core, op)?;
    let bits = 8 * T::BYTES as u32;
    let shift = (op.imm as u32 & (128 / bits - 1)) * bits;
    let register = xmm_mut(core, op.dst);
    *register = (*register & !(mask::<T>() << shift)) | (u128::from(value) << shift);
    Ok(())
}

/// A register source gives its low bits; byte lanes come from the low byte also of SPL to DIL.
fn lane_source<T: Width>(core: &mut Core, op: &Op) -> Result<u64, Trap> {
    if op.has(attr::MEMORY) {
        return Ok(core.load::<T>(op)?.zx());
    }
    Ok(T::cut(core.reg::<u64>(op.src)).zx())
}

/// PINSRW mm.
pub fn mmx_insert_word(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    let value = lane_source::<u16>(core, op)?;
    enter_mmx(core);
    let shift = (op.imm as u32 & 3) * 16;
    let result = (mm(core, op.dst) & !(0xffff << shift)) | value << shift;
    set_mm(core, op.dst, result);
    Ok(())
}

/// PEXTRB, PEXTRW, PEXTRD, PEXTRQ, EXTRACTPS: a register destination is cleared above the lane.
pub fn extract_lane<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let bits = 8 * T::BYTES as u32;
    let shift = (op.imm as u32 & (128 / bits - 1)) * bits;
    let value = T::cut((xmm(core, op.src) >> shift) as u64);
    if op.has(attr::MEMORY) {
        return core.store::<T>(op, value);
    }
    core.set_reg::<u64>(op.dst, value.zx());
    Ok(())
}

/// PEXTRW r, mm.
pub fn mmx_extract_word(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    enter_mmx(core);
    let value = mm(core, op.src) >> ((op.imm as u32 & 3) * 16) & 0xffff;
    core.set_reg::<u64>(op.dst, value);
    Ok(())
}

/// The top bits of lanes of `bits` bits, gathered.
fn gather_signs(value: u128, bits: u32) -> u64 {
    (0..128 / bits).map(|i| ((value >> (i * bits + bits - 1)) as u64 & 1) << i).sum()
}

/// MOVMSKPS, MOVMSKPD, PMOVMSKB r, xmm with lanes of `BITS` bits.
pub fn mask_of_signs<const BITS: u32>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = gather_signs(xmm(core, op.src), BITS);
    core.set_reg::<u64>(op.dst, value);
    Ok(())
}

/// PMOVMSKB r, mm.
pub fn mmx_mask_of_signs(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    enter_mmx(core);
    let value = gather_signs(u128::from(mm(core, op.src)), 8);
    core.set_reg::<u64>(op.dst, value);
    Ok(())
}
