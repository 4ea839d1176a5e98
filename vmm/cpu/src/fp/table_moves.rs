// SPDX-License-Identifier: AGPL-3.0-or-later
//! Codes of the moves, of MXCSR, and of what saves and restores the state.

use super::ops::moves::{
    duplicate_lanes, high_to_low, load_aligned, load_high, load_low, load_unaligned, low_to_high, mmx_load, mmx_store,
    movddup, movdq2q, movq_load, movq_store, movq2dq, store_aligned, store_high, store_low, store_unaligned,
};
use super::ops::scalar_moves::{
    extract_lane, insert_lane, mask_of_signs, mm_from_rm, mmx_extract_word, mmx_insert_word, mmx_mask_of_signs, movnti,
    rm_from_mm, rm_from_xmm, scalar_load, scalar_store, xmm_from_rm,
};
use super::ops::{control, fxsave};
use crate::op::Handler;
use iced_x86::Code;

/// The handler of a code of this family.
pub fn lookup(code: Code) -> Option<Handler> {
    vectors(code).or_else(|| scalars(code)).or_else(|| state(code)).or_else(|| fence_alias(code))
}

/// The fences' other encodings, with a register number that means nothing.
fn fence_alias(code: Code) -> Option<Handler> {
    use iced_x86::Mnemonic::{Lfence, Mfence, Sfence};
    let alias = !matches!(code, Code::Lfence | Code::Mfence | Code::Sfence);
    (alias && matches!(code.mnemonic(), Lfence | Mfence | Sfence)).then_some(control::fence)
}

/// Whole registers and halves.
fn vectors(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Movaps_xmm_xmmm128 => load_aligned,
        Code::Movaps_xmmm128_xmm => store_aligned,
        Code::Movapd_xmm_xmmm128 => load_aligned,
        Code::Movapd_xmmm128_xmm => store_aligned,
        Code::Movdqa_xmm_xmmm128 => load_aligned,
        Code::Movdqa_xmmm128_xmm => store_aligned,
        Code::Movntdqa_xmm_m128 => load_aligned,
        Code::Movups_xmm_xmmm128 => load_unaligned,
        Code::Movups_xmmm128_xmm => store_unaligned,
        Code::Movupd_xmm_xmmm128 => load_unaligned,
        Code::Movupd_xmmm128_xmm => store_unaligned,
        Code::Movdqu_xmm_xmmm128 => load_unaligned,
        Code::Movdqu_xmmm128_xmm => store_unaligned,
        Code::Lddqu_xmm_m128 => load_unaligned,
        Code::Movntps_m128_xmm => store_aligned,
        Code::Movntpd_m128_xmm => store_aligned,
        Code::Movntdq_m128_xmm => store_aligned,
        Code::Movq_xmm_xmmm64 => movq_load,
        Code::Movq_xmmm64_xmm => movq_store,
        Code::Movlps_xmm_m64 => load_low,
        Code::Movlps_m64_xmm => store_low,
        Code::Movhps_xmm_m64 => load_high,
        Code::Movhps_m64_xmm => store_high,
        Code::Movlpd_xmm_m64 => load_low,
        Code::Movlpd_m64_xmm => store_low,
        Code::Movhpd_xmm_m64 => load_high,
        Code::Movhpd_m64_xmm => store_high,
        Code::Movhlps_xmm_xmm => high_to_low,
        Code::Movlhps_xmm_xmm => low_to_high,
        Code::Movddup_xmm_xmmm64 => movddup,
        Code::Movsldup_xmm_xmmm128 => duplicate_lanes::<false>,
        Code::Movshdup_xmm_xmmm128 => duplicate_lanes::<true>,
        Code::Movq_mm_mmm64 => mmx_load,
        Code::Movq_mmm64_mm => mmx_store,
        Code::Movntq_m64_mm => mmx_store,
        Code::Movq2dq_xmm_mm => movq2dq,
        Code::Movdq2q_mm_xmm => movdq2q,
        _ => return None,
    })
}

/// Scalars, lanes and masks.
fn scalars(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Movss_xmm_xmmm32 => scalar_load::<u32>,
        Code::Movsd_xmm_xmmm64 => scalar_load::<u64>,
        Code::Movss_xmmm32_xmm => scalar_store::<u32>,
        Code::Movsd_xmmm64_xmm => scalar_store::<u64>,
        Code::Movd_xmm_rm32 => xmm_from_rm::<u32>,
        Code::Movq_xmm_rm64 => xmm_from_rm::<u64>,
        Code::Movd_rm32_xmm => rm_from_xmm::<u32>,
        Code::Movq_rm64_xmm => rm_from_xmm::<u64>,
        Code::Movd_mm_rm32 => mm_from_rm::<u32>,
        Code::Movq_mm_rm64 => mm_from_rm::<u64>,
        Code::Movd_rm32_mm => rm_from_mm::<u32>,
        Code::Movq_rm64_mm => rm_from_mm::<u64>,
        Code::Movnti_m32_r32 => movnti::<u32>,
        Code::Movnti_m64_r64 => movnti::<u64>,
        Code::Pinsrw_mm_r32m16_imm8 => mmx_insert_word,
        Code::Pinsrw_mm_r64m16_imm8 => mmx_insert_word,
        Code::Pinsrw_xmm_r32m16_imm8 => insert_lane::<u16>,
        Code::Pinsrw_xmm_r64m16_imm8 => insert_lane::<u16>,
        Code::Pinsrb_xmm_r32m8_imm8 => insert_lane::<u8>,
        Code::Pinsrb_xmm_r64m8_imm8 => insert_lane::<u8>,
        Code::Pinsrd_xmm_rm32_imm8 => insert_lane::<u32>,
        Code::Pinsrq_xmm_rm64_imm8 => insert_lane::<u64>,
        Code::Pextrw_r32_mm_imm8 => mmx_extract_word,
        Code::Pextrw_r64_mm_imm8 => mmx_extract_word,
        Code::Pextrw_r32_xmm_imm8 => extract_lane::<u16>,
        Code::Pextrw_r64_xmm_imm8 => extract_lane::<u16>,
        Code::Pextrw_r32m16_xmm_imm8 => extract_lane::<u16>,
        Code::Pextrw_r64m16_xmm_imm8 => extract_lane::<u16>,
        Code::Pextrb_r32m8_xmm_imm8 => extract_lane::<u8>,
        Code::Pextrb_r64m8_xmm_imm8 => extract_lane::<u8>,
        Code::Pextrd_rm32_xmm_imm8 => extract_lane::<u32>,
        Code::Extractps_rm32_xmm_imm8 => extract_lane::<u32>,
        Code::Extractps_r64m32_xmm_imm8 => extract_lane::<u32>,
        Code::Pextrq_rm64_xmm_imm8 => extract_lane::<u64>,
        Code::Movmskps_r32_xmm => mask_of_signs::<32>,
        Code::Movmskpd_r32_xmm => mask_of_signs::<64>,
        Code::Pmovmskb_r32_xmm => mask_of_signs::<8>,
        Code::Pmovmskb_r32_mm => mmx_mask_of_signs,
        Code::Movmskps_r64_xmm => mask_of_signs::<32>,
        Code::Movmskpd_r64_xmm => mask_of_signs::<64>,
        Code::Pmovmskb_r64_xmm => mask_of_signs::<8>,
        Code::Pmovmskb_r64_mm => mmx_mask_of_signs,
        _ => return None,
    })
}

/// MXCSR, EMMS, masked stores, FXSAVE.
fn state(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Ldmxcsr_m32 => control::ldmxcsr,
        Code::Stmxcsr_m32 => control::stmxcsr,
        Code::Emms => control::emms,
        Code::Maskmovdqu_rDI_xmm_xmm => control::maskmovdqu,
        Code::Maskmovq_rDI_mm_mm => control::maskmovq,
        Code::Fxsave_m512byte => fxsave::fxsave::<false>,
        Code::Fxsave64_m512byte => fxsave::fxsave::<true>,
        Code::Fxrstor_m512byte => fxsave::fxrstor::<false>,
        Code::Fxrstor64_m512byte => fxsave::fxrstor::<true>,
        _ => return None,
    })
}
