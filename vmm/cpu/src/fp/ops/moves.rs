// SPDX-License-Identifier: AGPL-3.0-or-later
//! Moves of 64 and 128 bits between XMM registers, MMX registers and memory.

use super::{enter_mmx, mm, set_mm, source_mmx, source128, xmm, xmm_mut};
use crate::core_state::Core;
use crate::fp::simd::Lane;
use crate::op::{Op, Step, attr};

/// The low 64 bits.
const LOW: u128 = u64::MAX as u128;

/// MOVAPS, MOVAPD, MOVDQA, MOVNTDQA xmm, xmm/m128.
pub fn load_aligned(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    *xmm_mut(core, op.dst) = source128(core, op)?;
    Ok(())
}

/// MOVUPS, MOVUPD, MOVDQU, LDDQU xmm, xmm/m128.
pub fn load_unaligned(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = if op.has(attr::MEMORY) { core.load::<u128>(op)? } else { xmm(core, op.src) };
    *xmm_mut(core, op.dst) = value;
    Ok(())
}

/// MOVAPS, MOVAPD, MOVDQA, MOVNTPS, MOVNTPD, MOVNTDQ xmm/m128, xmm.
pub fn store_aligned(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = xmm(core, op.src);
    if op.has(attr::MEMORY) {
        return core.store_aligned(op, value);
    }
    *xmm_mut(core, op.dst) = value;
    Ok(())
}

/// MOVUPS, MOVUPD, MOVDQU xmm/m128, xmm.
pub fn store_unaligned(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = xmm(core, op.src);
    if op.has(attr::MEMORY) {
        return core.store::<u128>(op, value);
    }
    *xmm_mut(core, op.dst) = value;
    Ok(())
}

/// MOVQ xmm, xmm/m64: the upper half is cleared.
pub fn movq_load(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = if op.has(attr::MEMORY) { core.load::<u64>(op)? } else { xmm(core, op.src) as u64 };
    *xmm_mut(core, op.dst) = u128::from(value);
    Ok(())
}

/// MOVQ xmm/m64, xmm: a register destination's upper half is cleared.
pub fn movq_store(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = xmm(core, op.src) as u64;
    if op.has(attr::MEMORY) {
        return core.store::<u64>(op, value);
    }
    *xmm_mut(core, op.dst) = u128::from(value);
    Ok(())
}

/// MOVLPS, MOVLPD xmm, m64.
pub fn load_low(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = core.load::<u64>(op)?;
    let register = xmm_mut(core, op.dst);
    *register = (*register & !LOW) | u128::from(value);
    Ok(())
}

/// MOVHPS, MOVHPD xmm, m64.
pub fn load_high(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = core.load::<u64>(op)?;
    let register = xmm_mut(core, op.dst);
    *register = (*register & LOW) | u128::from(value) << 64;
    Ok(())
}

/// MOVLPS, MOVLPD m64, xmm.
pub fn store_low(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = xmm(core, op.src) as u64;
    core.store::<u64>(op, value)
}

/// MOVHPS, MOVHPD m64, xmm.
pub fn store_high(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = (xmm(core, op.src) >> 64) as u64;
    core.store::<u64>(op, value)
}

/// MOVHLPS.
pub fn high_to_low(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = xmm(core, op.src) >> 64;
    let register = xmm_mut(core, op.dst);
    *register = (*register & !LOW) | value;
    Ok(())
}

/// MOVLHPS.
pub fn low_to_high(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = xmm(core, op.src) << 64;
    let register = xmm_mut(core, op.dst);
    *register = (*register & LOW) | value;
    Ok(())
}

/// MOVDDUP.
pub fn movddup(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let value = if op.has(attr::MEMORY) { core.load::<u64>(op)? } else { xmm(core, op.src) as u64 };
    *xmm_mut(core, op.dst) = u128::from(value) | u128::from(value) << 64;
    Ok(())
}

/// MOVSLDUP (`ODD` false) and MOVSHDUP (`ODD` true): one of each pair of 32-bit lanes, twice.
pub fn duplicate_lanes<const ODD: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let source = source128(core, op)?.to_le_bytes();
    let mut out = [0; 16];
    for i in 0..4 {
        u32::get(&source, (i & !1) + usize::from(ODD)).set(&mut out, i);
    }
    *xmm_mut(core, op.dst) = u128::from_le_bytes(out);
    Ok(())
}

/// MOVQ mm, mm/m64.
pub fn mmx_load(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    let value = source_mmx(core, op)?;
    enter_mmx(core);
    set_mm(core, op.dst, value);
    Ok(())
}

/// MOVQ mm/m64, mm and MOVNTQ.
pub fn mmx_store(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    let value = mm(core, op.src);
    // Processors clear TOP before a store that may fault.
    core.x87.set_top(0);
    if op.has(attr::MEMORY) {
        core.store::<u64>(op, value)?;
    } else {
        set_mm(core, op.dst, value);
    }
    enter_mmx(core);
    Ok(())
}

/// MOVQ2DQ.
pub fn movq2dq(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    core.check_x87_pending()?;
    enter_mmx(core);
    *xmm_mut(core, op.dst) = u128::from(mm(core, op.src));
    Ok(())
}

/// MOVDQ2Q.
pub fn movdq2q(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    core.check_x87_pending()?;
    enter_mmx(core);
    let value = xmm(core, op.src) as u64;
    set_mm(core, op.dst, value);
    Ok(())
}
