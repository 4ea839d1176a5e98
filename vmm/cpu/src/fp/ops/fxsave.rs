// SPDX-License-Identifier: AGPL-3.0-or-later
//! FXSAVE and FXRSTOR (AMD64 APM vol. 2, 11.4.4): 512 bytes, aligned to 16.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | control word |
//! | 2..4 | status word |
//! | 4 | tag, one bit a physical register, set when not empty |
//! | 6..8 | opcode of the last x87 instruction |
//! | 8..16 | its instruction pointer: 64 bits with REX.W, else 32 bits and a zero selector |
//! | 16..24 | its data pointer, likewise |
//! | 24..28 | MXCSR |
//! | 28..32 | MXCSR mask |
//! | 32..160 | ST(0)..ST(7), 16 bytes each, 10 of them used |
//! | 160..416 | XMM0..XMM15 (XMM0..XMM7 outside 64-bit mode) |
//!
//! Bytes past 416 are neither written nor read. The pointers are always saved and restored, selectors are
//! zero. While CR4.OSFXSR is clear, MXCSR and the XMM registers are left alone.

use super::control::{MXCSR_MASK, xmm_registers};
use crate::core_state::{Core, cr};
use crate::mmu::Kind;
use crate::op::{Op, Step, Trap};

const BYTES: u64 = 512;
const XMM_OFFSET: usize = 160;

/// The area's linear address, checked for alignment.
fn area(core: &mut Core, op: &Op, write: bool) -> Result<u64, Trap> {
    core.check_x87_available()?;
    let address = core.linear(op, BYTES, write)?;
    if address & 15 != 0 {
        return Err(core.misaligned(address, op.segment));
    }
    Ok(address)
}

/// Reserved MXCSR bits raise #GP(0) before a page fault elsewhere in the area does.
fn reject_reserved(core: &mut Core, op: &Op, address: u64) -> Step {
    let at = address.wrapping_add(24);
    if core.cr4 & cr::CR4_OSFXSR == 0 || core.probe(at, 4, Kind::Read, op.segment).is_err() {
        return Ok(());
    }
    if core.read::<u32>(at, op.segment)? & !MXCSR_MASK != 0 { Err(core.gp0()) } else { Ok(()) }
}

/// The last used byte offset: depends on what is saved.
fn used(core: &Core, op: &Op) -> usize {
    if core.cr4 & cr::CR4_OSFXSR != 0 { XMM_OFFSET + 16 * xmm_registers(op) } else { XMM_OFFSET }
}

/// FXSAVE; `WIDE` is the REX.W form.
pub fn fxsave<const WIDE: bool>(core: &mut Core, op: &Op) -> Step {
    let address = area(core, op, true)?;
    // Processors look at the end first.
    core.probe(address.wrapping_add(BYTES - 1), 1, Kind::Write, op.segment)?;
    core.probe(address, BYTES, Kind::Write, op.segment)?;
    let image = image::<WIDE>(core);
    let with_sse = core.cr4 & cr::CR4_OSFXSR != 0;
    for offset in (0..used(core, op)).step_by(8) {
        // MXCSR and its mask share eight bytes that are left alone without OSFXSR.
        if offset == 24 && !with_sse {
            continue;
        }
        let mut chunk = [0; 8];
        chunk.copy_from_slice(&image[offset..offset + 8]);
        core.write::<u64>(address.wrapping_add(offset as u64), op.segment, u64::from_le_bytes(chunk))?;
    }
    Ok(())
}

/// The whole area as FXSAVE would write it.
fn image<const WIDE: bool>(core: &Core) -> [u8; 416] {
    let mut out = [0; 416];
    let x87 = &core.x87;
    out[0..2].copy_from_slice(&x87.control.to_le_bytes());
    out[2..4].copy_from_slice(&x87.status.to_le_bytes());
    out[4] = (0..8).map(|i| u8::from(x87.tag >> (2 * i) & 3 != 3) << i).sum();
    out[6..8].copy_from_slice(&x87.opcode.to_le_bytes());
    let pointer = |value: u64| if WIDE { value } else { value & 0xffff_ffff };
    out[8..16].copy_from_slice(&pointer(x87.instruction_pointer).to_le_bytes());
    out[16..24].copy_from_slice(&pointer(x87.data_pointer).to_le_bytes());
    out[24..28].copy_from_slice(&core.mxcsr.to_le_bytes());
    out[28..32].copy_from_slice(&MXCSR_MASK.to_le_bytes());
    let top = usize::from(x87.status >> 11 & 7);
    for i in 0..8 {
        let register = (top + i) & 7;
        let slot = &mut out[32 + 16 * i..][..16];
        slot[..8].copy_from_slice(&x87.significand[register].to_le_bytes());
        slot[8..10].copy_from_slice(&x87.sign_exponent[register].to_le_bytes());
    }
    for (i, value) in core.xmm.iter().enumerate() {
        out[XMM_OFFSET + 16 * i..][..16].copy_from_slice(&value.to_le_bytes());
    }
    out
}

/// FXRSTOR; MXCSR bits that do not exist raise #GP(0) before anything changes.
pub fn fxrstor<const WIDE: bool>(core: &mut Core, op: &Op) -> Step {
    let address = area(core, op, false)?;
    reject_reserved(core, op, address)?;
    let last = address.wrapping_add(BYTES - 1);
    core.probe(last, 1, Kind::Read, op.segment)?;
    core.probe(address, BYTES, Kind::Read, op.segment)?;
    let mut image = [0; 416];
    let used = used(core, op);
    for offset in (0..used).step_by(8) {
        let chunk = core.read::<u64>(address.wrapping_add(offset as u64), op.segment)?;
        image[offset..offset + 8].copy_from_slice(&chunk.to_le_bytes());
    }
    let u16_at = |offset: usize| u16::from_le_bytes([image[offset], image[offset + 1]]);
    let u32_at = |offset: usize| u32::from(u16_at(offset)) | u32::from(u16_at(offset + 2)) << 16;
    let u64_at = |offset: usize| u64::from(u32_at(offset)) | u64::from(u32_at(offset + 4)) << 32;
    if core.cr4 & cr::CR4_OSFXSR != 0 {
        core.mxcsr = u32_at(24);
        for i in 0..xmm_registers(op) {
            let low = XMM_OFFSET + 16 * i;
            core.xmm[i] = u128::from(u64_at(low)) | u128::from(u64_at(low + 8)) << 64;
        }
    }
    let pointer = |offset: usize| if WIDE { u64_at(offset) } else { u64::from(u32_at(offset)) };
    let x87 = &mut core.x87;
    x87.set_control(u16_at(0));
    x87.load_status(u16_at(2));
    x87.tag = (0..8).map(|i| if image[4] >> i & 1 != 0 { 0 } else { 3 << (2 * i) }).sum();
    x87.opcode = u16_at(6) & 0x7ff;
    x87.instruction_pointer = pointer(8);
    x87.data_pointer = pointer(16);
    let top = usize::from(x87.status >> 11 & 7);
    for i in 0..8 {
        let register = (top + i) & 7;
        x87.significand[register] = u64_at(32 + 16 * i);
        x87.sign_exponent[register] = u16_at(40 + 16 * i);
    }
    Ok(())
}
