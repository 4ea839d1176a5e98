// SPDX-License-Identifier: AGPL-3.0-or-later
//! Which SSE instructions run as themselves on the host, and what of them needs care.
//!
//! Moves and integer instructions have one result on every processor. Arithmetic has one result and one set of MXCSR flags
//! while all exceptions are masked, which compiled code checks; the reference is tested against hosts for exactly this.
//! Approximations differ between vendors and stay with the reference, as does everything with MMX registers.

use super::kinds::Kind;
use iced_x86::{
    Code, CpuidFeature, MandatoryPrefix, Mnemonic, OpCodeInfo, OpCodeOperandKind as Operand, OpCodeTableKind,
};

/// What of a [`Kind::Vector`] needs care.
pub(super) mod care {
    /// A memory operand must be aligned to 16 bytes.
    pub const ALIGNED: u8 = 1;
    /// Rounds or raises flags in MXCSR.
    pub const ARITHMETIC: u8 = 2;
    /// Has an immediate byte.
    pub const IMMEDIATE: u8 = 4;
    /// Replaces the whole destination.
    pub const REPLACES: u8 = 8;
}

/// The kind of an SSE code, if the host can execute it as it is.
pub(super) fn vector(code: Code) -> Option<Kind> {
    let info = code.op_code();
    if !is_offered(code) || info.op_count() < 2 {
        return None;
    }
    let encoded = encoded(info)?;
    let bytes = info.memory_size().size() as u8;
    match (info.op_kind(0), info.op_kind(1)) {
        (Operand::xmm_reg, Operand::xmm_or_mem | Operand::xmm_rm | Operand::mem) => load(code, info, encoded, bytes),
        (Operand::xmm_or_mem | Operand::mem, Operand::xmm_reg) if info.op_count() == 2 => store(code, encoded, bytes),
        (Operand::xmm_rm, Operand::imm8) => Some(Kind::VectorShift { code: encoded, group: info.group_index() as u8 }),
        (Operand::xmm_reg, Operand::r32_or_mem) if info.op_count() == 2 => from_general(code, encoded, 4),
        (Operand::xmm_reg, Operand::r64_or_mem) if info.op_count() == 2 => from_general(code, encoded, 8),
        (Operand::r32_or_mem, Operand::xmm_reg) if info.op_count() == 2 => to_general(code, 4),
        (Operand::r64_or_mem, Operand::xmm_reg) if info.op_count() == 2 => to_general(code, 8),
        (Operand::r32_reg, Operand::xmm_or_mem) => to_integer(code, encoded, 4, bytes),
        (Operand::r64_reg, Operand::xmm_or_mem) => to_integer(code, encoded, 8, bytes),
        (Operand::r32_reg | Operand::r64_reg, Operand::xmm_rm) => match code.mnemonic() {
            Mnemonic::Movmskpd | Mnemonic::Movmskps | Mnemonic::Pmovmskb => Some(Kind::VectorMask { code: encoded }),
            _ => None,
        },
        _ => None,
    }
}

fn is_offered(code: Code) -> bool {
    code.cpuid_features().iter().all(|feature| match feature {
        CpuidFeature::SSE | CpuidFeature::SSE2 => true,
        CpuidFeature::SSE3 => is_x86_feature_detected!("sse3"),
        CpuidFeature::SSSE3 => is_x86_feature_detected!("ssse3"),
        CpuidFeature::SSE4_1 => is_x86_feature_detected!("sse4.1"),
        CpuidFeature::SSE4_2 => is_x86_feature_detected!("sse4.2"),
        _ => false,
    })
}

/// Mandatory prefix in the top byte, then the opcode with its escape bytes.
fn encoded(info: &OpCodeInfo) -> Option<u32> {
    let prefix = match info.mandatory_prefix() {
        MandatoryPrefix::None | MandatoryPrefix::PNP => 0,
        MandatoryPrefix::P66 => 0x66u32,
        MandatoryPrefix::PF3 => 0xf3,
        MandatoryPrefix::PF2 => 0xf2,
    };
    let escape = match info.table() {
        OpCodeTableKind::T0F => 0x0f00,
        OpCodeTableKind::T0F38 => 0x0f_3800,
        OpCodeTableKind::T0F3A => 0x0f_3a00,
        _ => return None,
    };
    (info.op_code_len() == 1).then_some(prefix << 24 | escape | info.op_code())
}

fn load(code: Code, info: &OpCodeInfo, encoded: u32, bytes: u8) -> Option<Kind> {
    use Mnemonic as M;
    let mnemonic = code.mnemonic();
    match mnemonic {
        M::Rcpps | M::Rcpss | M::Rsqrtps | M::Rsqrtss | M::Dpps | M::Dppd => return None,
        M::Ptest | M::Pcmpistri | M::Pcmpistrm | M::Pcmpestri | M::Pcmpestri64 => return None,
        M::Pcmpestrm | M::Pcmpestrm64 | M::Pblendvb | M::Blendvps | M::Blendvpd | M::Maskmovdqu => return None,
        M::Comiss | M::Comisd | M::Ucomiss | M::Ucomisd => return Some(Kind::VectorCompare { code: encoded, bytes }),
        _ => {}
    }
    let mut needs = 0;
    let unaligned = matches!(mnemonic, M::Movups | M::Movupd | M::Movdqu | M::Lddqu);
    if bytes == 16 && !unaligned {
        needs |= care::ALIGNED;
    }
    if is_arithmetic(mnemonic) {
        needs |= care::ARITHMETIC;
    }
    if info.op_count() == 3 {
        if info.op_kind(2) != Operand::imm8 {
            return None;
        }
        needs |= care::IMMEDIATE;
    }
    let moves = matches!(mnemonic, M::Movaps | M::Movapd | M::Movdqa | M::Movntdqa | M::Movq | M::Pshufd | M::Movddup);
    if unaligned || moves {
        needs |= care::REPLACES;
    }
    Some(Kind::Vector { code: encoded, bytes, care: needs })
}

/// Instructions whose result or flags depend on MXCSR.
fn is_arithmetic(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Addps
            | M::Addpd
            | M::Addss
            | M::Addsd
            | M::Subps
            | M::Subpd
            | M::Subss
            | M::Subsd
            | M::Mulps
            | M::Mulpd
            | M::Mulss
            | M::Mulsd
            | M::Divps
            | M::Divpd
            | M::Divss
            | M::Divsd
            | M::Minps
            | M::Minpd
            | M::Minss
            | M::Minsd
            | M::Maxps
            | M::Maxpd
            | M::Maxss
            | M::Maxsd
            | M::Sqrtps
            | M::Sqrtpd
            | M::Sqrtss
            | M::Sqrtsd
            | M::Haddps
            | M::Haddpd
            | M::Hsubps
            | M::Hsubpd
            | M::Addsubps
            | M::Addsubpd
            | M::Cmpps
            | M::Cmppd
            | M::Cmpss
            | M::Cmpsd
            | M::Roundps
            | M::Roundpd
            | M::Roundss
            | M::Roundsd
            | M::Cvtps2dq
            | M::Cvtpd2dq
            | M::Cvttps2dq
            | M::Cvttpd2dq
            | M::Cvtss2sd
            | M::Cvtsd2ss
            | M::Cvtps2pd
            | M::Cvtpd2ps
            | M::Cvtdq2ps
            | M::Cvtdq2pd
    )
}

fn store(code: Code, encoded: u32, bytes: u8) -> Option<Kind> {
    use Mnemonic as M;
    let (code_, aligned) = match code.mnemonic() {
        M::Movaps | M::Movapd | M::Movdqa => (encoded, true),
        // Stores around the caches are plain stores here.
        M::Movntps | M::Movntpd | M::Movntdq => (0x0f29, true),
        M::Movups | M::Movupd | M::Movdqu => (encoded, false),
        M::Movss | M::Movsd | M::Movq | M::Movlps | M::Movlpd | M::Movhps | M::Movhpd => (encoded, false),
        _ => return None,
    };
    Some(Kind::VectorStore { code: code_, bytes, aligned })
}

fn from_general(code: Code, encoded: u32, size: u8) -> Option<Kind> {
    match code.mnemonic() {
        Mnemonic::Movd | Mnemonic::Movq => Some(Kind::VectorFromGeneral { size }),
        Mnemonic::Cvtsi2ss | Mnemonic::Cvtsi2sd => Some(Kind::IntegerToFloat { code: encoded, size }),
        _ => None,
    }
}

fn to_general(code: Code, size: u8) -> Option<Kind> {
    matches!(code.mnemonic(), Mnemonic::Movd | Mnemonic::Movq).then_some(Kind::VectorToGeneral { size })
}

fn to_integer(code: Code, encoded: u32, size: u8, bytes: u8) -> Option<Kind> {
    match code.mnemonic() {
        Mnemonic::Cvtss2si | Mnemonic::Cvtsd2si | Mnemonic::Cvttss2si | Mnemonic::Cvttsd2si => {
            Some(Kind::FloatToInteger { code: encoded, size, bytes })
        }
        _ => None,
    }
}
