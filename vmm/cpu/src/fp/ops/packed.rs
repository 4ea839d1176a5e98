// SPDX-License-Identifier: AGPL-3.0-or-later
//! Packed integer instructions: one generic handler a shape of operands.

use super::{enter_mmx, mm, set_mm, source_low, source_mmx, source128, xmm, xmm_mut};
use crate::core_state::Core;
use crate::fp::simd::{Lane, Packed, PackedImm, horizontal, pack, shift::PackedShift, shuffle};
use crate::op::{Op, Step, attr};

/// xmm, xmm/m128
pub fn sse<P: Packed>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?;
    let register = xmm_mut(core, op.dst);
    *register = u128::from_le_bytes(P::apply(register.to_le_bytes(), b.to_le_bytes()));
    Ok(())
}

/// mm, mm/m64
pub fn mmx<P: Packed>(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    let b = source_mmx(core, op)?;
    enter_mmx(core);
    let result = P::apply(mm(core, op.dst).to_le_bytes(), b.to_le_bytes());
    set_mm(core, op.dst, u64::from_le_bytes(result));
    Ok(())
}

/// mm, mm/m32: the low half is all that is read from memory.
pub fn mmx_low<P: Packed>(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    let b = if op.has(attr::MEMORY) { u64::from(core.load::<u32>(op)?) } else { mm(core, op.src) };
    enter_mmx(core);
    let result = P::apply(mm(core, op.dst).to_le_bytes(), b.to_le_bytes());
    set_mm(core, op.dst, u64::from_le_bytes(result));
    Ok(())
}

/// xmm, xmm/m128, imm8
pub fn sse_imm<P: PackedImm>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?;
    let register = xmm_mut(core, op.dst);
    *register = u128::from_le_bytes(P::apply(register.to_le_bytes(), b.to_le_bytes(), op.imm as u8));
    Ok(())
}

/// mm, mm/m64, imm8
pub fn mmx_imm<P: PackedImm>(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    let b = source_mmx(core, op)?;
    enter_mmx(core);
    let result = P::apply(mm(core, op.dst).to_le_bytes(), b.to_le_bytes(), op.imm as u8);
    set_mm(core, op.dst, u64::from_le_bytes(result));
    Ok(())
}

/// xmm, xmm/m128: shift by the low 64 bits of the source.
pub fn sse_shift<P: PackedShift>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let count = source128(core, op)? as u64;
    let register = xmm_mut(core, op.dst);
    *register = u128::from_le_bytes(P::apply(register.to_le_bytes(), count));
    Ok(())
}

/// xmm, imm8
pub fn sse_shift_imm<P: PackedShift>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let register = xmm_mut(core, op.dst);
    *register = u128::from_le_bytes(P::apply(register.to_le_bytes(), op.imm & 0xff));
    Ok(())
}

/// mm, mm/m64
pub fn mmx_shift<P: PackedShift>(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    let count = source_mmx(core, op)?;
    enter_mmx(core);
    let result = P::apply(mm(core, op.dst).to_le_bytes(), count);
    set_mm(core, op.dst, u64::from_le_bytes(result));
    Ok(())
}

/// mm, imm8
pub fn mmx_shift_imm<P: PackedShift>(core: &mut Core, op: &Op) -> Step {
    core.check_mmx()?;
    enter_mmx(core);
    let result = P::apply(mm(core, op.dst).to_le_bytes(), op.imm & 0xff);
    set_mm(core, op.dst, u64::from_le_bytes(result));
    Ok(())
}

/// xmm, xmm/m128, mask in XMM0
pub fn blend_by_xmm0<T: Lane>(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?;
    let mask = xmm(core, 0).to_le_bytes();
    let a = xmm(core, op.dst).to_le_bytes();
    *xmm_mut(core, op.dst) = u128::from_le_bytes(shuffle::blend_by_mask::<T>(a, b.to_le_bytes(), mask));
    Ok(())
}

/// MPSADBW.
pub fn mpsadbw(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?.to_le_bytes();
    let register = xmm_mut(core, op.dst);
    *register = u128::from_le_bytes(horizontal::mpsadbw(register.to_le_bytes(), b, op.imm as u8));
    Ok(())
}

/// PHMINPOSUW.
pub fn phminposuw(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let b = source128(core, op)?.to_le_bytes();
    *xmm_mut(core, op.dst) = u128::from_le_bytes(horizontal::phminposuw(b));
    Ok(())
}

/// INSERTPS: the register form picks a lane of the source, the memory form has only one.
pub fn insertps(core: &mut Core, op: &Op) -> Step {
    core.check_sse()?;
    let imm = op.imm as u8;
    let source = match op.has(attr::MEMORY) {
        true => core.load::<u32>(op)?,
        false => (xmm(core, op.src) >> (32 * u32::from(imm >> 6))) as u32,
    };
    let register = xmm_mut(core, op.dst);
    *register = u128::from_le_bytes(shuffle::insertps(register.to_le_bytes(), source, imm));
    Ok(())
}

macro_rules! widening {
    ($($name:ident: $mem:ty, $from:ty => $to:ty;)*) => {$(
        #[doc = concat!(stringify!($name), ": lanes of ", stringify!($from), " become ", stringify!($to), ".")]
        pub fn $name(core: &mut Core, op: &Op) -> Step {
            core.check_sse()?;
            let source = source_low::<$mem>(core, op)?.to_le_bytes();
            *xmm_mut(core, op.dst) = u128::from_le_bytes(pack::widen(source, |x: $from| <$to>::from(x)));
            Ok(())
        }
    )*};
}

widening! {
    pmovsxbw: u64, i8 => i16;
    pmovsxbd: u32, i8 => i32;
    pmovsxbq: u16, i8 => i64;
    pmovsxwd: u64, i16 => i32;
    pmovsxwq: u32, i16 => i64;
    pmovsxdq: u64, i32 => i64;
    pmovzxbw: u64, u8 => u16;
    pmovzxbd: u32, u8 => u32;
    pmovzxbq: u16, u8 => u64;
    pmovzxwd: u64, u16 => u32;
    pmovzxwq: u32, u16 => u64;
    pmovzxdq: u64, u32 => u64;
}
