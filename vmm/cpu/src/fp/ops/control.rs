// SPDX-License-Identifier: AGPL-3.0-or-later
//! MXCSR, EMMS and byte-masked stores.

use super::{enter_mmx, mm, xmm};
use crate::core_state::Core;
use crate::mmu::Kind;
use crate::op::{Op, Step, attr};

/// MXCSR bits that exist (also the MXCSR_MASK that FXSAVE stores): all of the low 16 but MM.
pub const MXCSR_MASK: u32 = 0xffff;

/// LDMXCSR: bits that do not exist raise #GP(0).
pub fn ldmxcsr(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = core.load::<u32>(op)?;
    if value & !MXCSR_MASK != 0 {
        return Err(core.gp0());
    }
    core.mxcsr = value;
    Ok(())
}

/// STMXCSR.
pub fn stmxcsr(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = core.mxcsr;
    core.store::<u32>(op, value)
}

/// EMMS: all registers become empty.
pub fn emms(core: &mut Core, _op: &Op) -> Step {
    core.check_mmx()?;
    enter_mmx(core);
    core.x87.tag = 0xffff;
    Ok(())
}

/// LFENCE, MFENCE, SFENCE: every access is ordered already.
pub fn fence(_core: &mut Core, _op: &Op) -> Step {
    Ok(())
}

/// MASKMOVDQU.
pub fn maskmovdqu(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let (value, mask) = (xmm(core, op.src).to_le_bytes(), xmm(core, op.third).to_le_bytes());
    store_masked(core, op, &value, &mask)
}

/// MASKMOVQ.
pub fn maskmovq(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    let (value, mask) = (mm(core, op.src).to_le_bytes(), mm(core, op.third).to_le_bytes());
    store_masked(core, op, &value, &mask)?;
    enter_mmx(core);
    Ok(())
}

/// Stores the bytes whose mask has its top bit set to the segment's rDI. All bytes are checked first, selected or not; only
/// the selected ones are accessed.
fn store_masked(core: &mut Core, op: &Op, value: &[u8], mask: &[u8]) -> Step {
    const RDI: u8 = 7;
    let at = Op { base: RDI, ..*op };
    let address = core.linear(&at, mask.len() as u64, true)?;
    // Processors check eight bytes at a time, the upper ones first.
    for half in (0..mask.len() as u64 / 8).rev() {
        for end in [8 * half, 8 * half + 7] {
            core.probe(address.wrapping_add(end), 1, Kind::Write, op.segment)?;
        }
    }
    for (i, (value, mask)) in value.iter().zip(mask).enumerate() {
        if mask & 0x80 != 0 {
            core.write::<u8>(address.wrapping_add(i as u64), op.segment, *value)?;
        }
    }
    Ok(())
}

/// Whether a 64-bit code segment decoded the operation: XMM8 to XMM15 exist there only.
pub fn xmm_registers(op: &Op) -> usize {
    if op.has(attr::LONG) { 16 } else { 8 }
}
