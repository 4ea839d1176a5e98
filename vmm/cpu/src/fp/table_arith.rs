// SPDX-License-Identifier: AGPL-3.0-or-later
//! Codes of SSE arithmetic, comparisons and conversions.

use super::ops::arith::{
    Add, Div, Max, Min, Mul, Sqrt, Sub, addsub, approximate_packed, approximate_scalar, cmpsd, cmpss, compare_packed,
    dot_product, horizontal, packed, round_packed, roundsd, roundss, scalar32, scalar64,
};
use super::ops::compare::{comisd, comiss, pcmpestri, pcmpestrm, pcmpistri, pcmpistrm, ptest};
use super::ops::convert::{
    cvtdq2pd, cvtdq2ps, cvtpd2dq, cvtpd2pi, cvtpd2ps, cvtpi2pd, cvtpi2ps, cvtps2dq, cvtps2pd, cvtps2pi, cvtsd2si,
    cvtsd2ss, cvtss2sd, cvtss2si, scalar_from_integer,
};
use super::soft::sse::{F32, F64};
use crate::op::Handler;
use iced_x86::Code;

/// The handler of a code of this family.
pub fn lookup(code: Code) -> Option<Handler> {
    arithmetic(code).or_else(|| comparisons(code)).or_else(|| conversions(code))
}

/// Arithmetic on lanes.
fn arithmetic(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Addps_xmm_xmmm128 => packed::<Add, F32>,
        Code::Addpd_xmm_xmmm128 => packed::<Add, F64>,
        Code::Addss_xmm_xmmm32 => scalar32::<Add>,
        Code::Addsd_xmm_xmmm64 => scalar64::<Add>,
        Code::Subps_xmm_xmmm128 => packed::<Sub, F32>,
        Code::Subpd_xmm_xmmm128 => packed::<Sub, F64>,
        Code::Subss_xmm_xmmm32 => scalar32::<Sub>,
        Code::Subsd_xmm_xmmm64 => scalar64::<Sub>,
        Code::Mulps_xmm_xmmm128 => packed::<Mul, F32>,
        Code::Mulpd_xmm_xmmm128 => packed::<Mul, F64>,
        Code::Mulss_xmm_xmmm32 => scalar32::<Mul>,
        Code::Mulsd_xmm_xmmm64 => scalar64::<Mul>,
        Code::Divps_xmm_xmmm128 => packed::<Div, F32>,
        Code::Divpd_xmm_xmmm128 => packed::<Div, F64>,
        Code::Divss_xmm_xmmm32 => scalar32::<Div>,
        Code::Divsd_xmm_xmmm64 => scalar64::<Div>,
        Code::Minps_xmm_xmmm128 => packed::<Min, F32>,
        Code::Minpd_xmm_xmmm128 => packed::<Min, F64>,
        Code::Minss_xmm_xmmm32 => scalar32::<Min>,
        Code::Minsd_xmm_xmmm64 => scalar64::<Min>,
        Code::Maxps_xmm_xmmm128 => packed::<Max, F32>,
        Code::Maxpd_xmm_xmmm128 => packed::<Max, F64>,
        Code::Maxss_xmm_xmmm32 => scalar32::<Max>,
        Code::Maxsd_xmm_xmmm64 => scalar64::<Max>,
        Code::Sqrtps_xmm_xmmm128 => packed::<Sqrt, F32>,
        Code::Sqrtpd_xmm_xmmm128 => packed::<Sqrt, F64>,
        Code::Sqrtss_xmm_xmmm32 => scalar32::<Sqrt>,
        Code::Sqrtsd_xmm_xmmm64 => scalar64::<Sqrt>,
        Code::Haddps_xmm_xmmm128 => horizontal::<Add, F32>,
        Code::Haddpd_xmm_xmmm128 => horizontal::<Add, F64>,
        Code::Hsubps_xmm_xmmm128 => horizontal::<Sub, F32>,
        Code::Hsubpd_xmm_xmmm128 => horizontal::<Sub, F64>,
        Code::Addsubps_xmm_xmmm128 => addsub::<F32>,
        Code::Addsubpd_xmm_xmmm128 => addsub::<F64>,
        Code::Cmpps_xmm_xmmm128_imm8 => compare_packed::<F32>,
        Code::Cmppd_xmm_xmmm128_imm8 => compare_packed::<F64>,
        Code::Cmpss_xmm_xmmm32_imm8 => cmpss,
        Code::Cmpsd_xmm_xmmm64_imm8 => cmpsd,
        Code::Roundps_xmm_xmmm128_imm8 => round_packed::<F32>,
        Code::Roundpd_xmm_xmmm128_imm8 => round_packed::<F64>,
        Code::Roundss_xmm_xmmm32_imm8 => roundss,
        Code::Roundsd_xmm_xmmm64_imm8 => roundsd,
        Code::Dpps_xmm_xmmm128_imm8 => dot_product::<F32>,
        Code::Dppd_xmm_xmmm128_imm8 => dot_product::<F64>,
        Code::Rcpps_xmm_xmmm128 => approximate_packed::<false>,
        Code::Rcpss_xmm_xmmm32 => approximate_scalar::<false>,
        Code::Rsqrtps_xmm_xmmm128 => approximate_packed::<true>,
        Code::Rsqrtss_xmm_xmmm32 => approximate_scalar::<true>,
        _ => return None,
    })
}

/// Comparisons into RFLAGS.
fn comparisons(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Comiss_xmm_xmmm32 => comiss::<true>,
        Code::Ucomiss_xmm_xmmm32 => comiss::<false>,
        Code::Comisd_xmm_xmmm64 => comisd::<true>,
        Code::Ucomisd_xmm_xmmm64 => comisd::<false>,
        Code::Ptest_xmm_xmmm128 => ptest,
        Code::Pcmpistri_xmm_xmmm128_imm8 => pcmpistri,
        Code::Pcmpistrm_xmm_xmmm128_imm8 => pcmpistrm,
        Code::Pcmpestri_xmm_xmmm128_imm8 => pcmpestri::<false>,
        Code::Pcmpestri64_xmm_xmmm128_imm8 => pcmpestri::<true>,
        Code::Pcmpestrm_xmm_xmmm128_imm8 => pcmpestrm::<false>,
        Code::Pcmpestrm64_xmm_xmmm128_imm8 => pcmpestrm::<true>,
        _ => return None,
    })
}

/// Conversions.
fn conversions(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Cvtsi2ss_xmm_rm32 => scalar_from_integer::<F32, u32>,
        Code::Cvtsi2ss_xmm_rm64 => scalar_from_integer::<F32, u64>,
        Code::Cvtsi2sd_xmm_rm32 => scalar_from_integer::<F64, u32>,
        Code::Cvtsi2sd_xmm_rm64 => scalar_from_integer::<F64, u64>,
        Code::Cvtss2si_r32_xmmm32 => cvtss2si::<false, u32>,
        Code::Cvtsd2si_r32_xmmm64 => cvtsd2si::<false, u32>,
        Code::Cvtss2si_r64_xmmm32 => cvtss2si::<false, u64>,
        Code::Cvtsd2si_r64_xmmm64 => cvtsd2si::<false, u64>,
        Code::Cvtps2dq_xmm_xmmm128 => cvtps2dq::<false>,
        Code::Cvtpd2dq_xmm_xmmm128 => cvtpd2dq::<false>,
        Code::Cvtps2pi_mm_xmmm64 => cvtps2pi::<false>,
        Code::Cvtpd2pi_mm_xmmm128 => cvtpd2pi::<false>,
        Code::Cvttss2si_r32_xmmm32 => cvtss2si::<true, u32>,
        Code::Cvttsd2si_r32_xmmm64 => cvtsd2si::<true, u32>,
        Code::Cvttss2si_r64_xmmm32 => cvtss2si::<true, u64>,
        Code::Cvttsd2si_r64_xmmm64 => cvtsd2si::<true, u64>,
        Code::Cvttps2dq_xmm_xmmm128 => cvtps2dq::<true>,
        Code::Cvttpd2dq_xmm_xmmm128 => cvtpd2dq::<true>,
        Code::Cvttps2pi_mm_xmmm64 => cvtps2pi::<true>,
        Code::Cvttpd2pi_mm_xmmm128 => cvtpd2pi::<true>,
        Code::Cvtss2sd_xmm_xmmm32 => cvtss2sd,
        Code::Cvtsd2ss_xmm_xmmm64 => cvtsd2ss,
        Code::Cvtps2pd_xmm_xmmm64 => cvtps2pd,
        Code::Cvtpd2ps_xmm_xmmm128 => cvtpd2ps,
        Code::Cvtdq2ps_xmm_xmmm128 => cvtdq2ps,
        Code::Cvtdq2pd_xmm_xmmm64 => cvtdq2pd,
        Code::Cvtpi2ps_xmm_mmm64 => cvtpi2ps,
        Code::Cvtpi2pd_xmm_mmm64 => cvtpi2pd,
        _ => return None,
    })
}
