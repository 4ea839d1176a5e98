// SPDX-License-Identifier: AGPL-3.0-or-later
//! The one table from an iced `Code` to what executes it.
//!
//! Every `Code` is either implemented, by exactly one instruction family, or raises #UD for a stated reason. Families look
//! up their own codes; what none of them claims belongs to an instruction set this CPU model does not offer.

use crate::op::Handler;
use iced_x86::{Code, CpuidFeature};
use std::sync::OnceLock;

/// What one family says about a code.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// Handlers for a register and for a memory operand; equal where an instruction has only one form.
    Handlers { family: &'static str, register: Handler, memory: Handler },
    /// Raises #UD.
    Ud(&'static str),
}

impl Entry {
    /// An instruction with one form.
    pub fn one(family: &'static str, handler: Handler) -> Option<Self> {
        Some(Self::Handlers { family, register: handler, memory: handler })
    }

    /// An instruction whose r/m operand is a register or memory.
    pub fn rm(family: &'static str, register: Handler, memory: Handler) -> Option<Self> {
        Some(Self::Handlers { family, register, memory })
    }
}

/// What the CPU does with a code, for documentation and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Executed by this family.
    Implemented(&'static str),
    /// #UD, because.
    Undefined(&'static str),
}

/// What the CPU does with a code.
pub fn status(code: Code) -> Status {
    match entry(code) {
        Entry::Handlers { family, .. } => Status::Implemented(family),
        Entry::Ud(reason) => Status::Undefined(reason),
    }
}

type Lookup = fn(Code) -> Option<Entry>;

/// The families, each claiming its codes.
pub(crate) const FAMILIES: &[Lookup] = &[crate::int::lookup, crate::sys::lookup, crate::fp::lookup];

/// The table's row for a code.
pub(crate) fn entry(code: Code) -> &'static Entry {
    static TABLE: OnceLock<Vec<Entry>> = OnceLock::new();
    let table = TABLE.get_or_init(|| Code::values().map(find).collect());
    &table[code as usize]
}

fn find(code: Code) -> Entry {
    FAMILIES.iter().find_map(|lookup| lookup(code)).unwrap_or_else(|| Entry::Ud(not_offered(code)))
}

/// Why a code that no family claims is undefined.
fn not_offered(code: Code) -> &'static str {
    let features = code.cpuid_features();
    match features.first() {
        None => "not an instruction",
        Some(
            CpuidFeature::INTEL8086
            | CpuidFeature::INTEL186
            | CpuidFeature::INTEL286
            | CpuidFeature::INTEL386
            | CpuidFeature::INTEL486,
        ) => "removed from the architecture, or not valid in long mode",
        Some(_) => "belongs to an extension that the CPU model does not offer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_is_claimed_twice() {
        for code in Code::values() {
            let claims = FAMILIES.iter().filter(|lookup| lookup(code).is_some()).count();
            assert!(claims <= 1, "{code:?} is claimed by {claims} families");
        }
    }

    /// What the model offers, as iced names it.
    const OFFERED: &[CpuidFeature] = &[
        CpuidFeature::INTEL8086,
        CpuidFeature::INTEL186,
        CpuidFeature::INTEL286,
        CpuidFeature::INTEL386,
        CpuidFeature::INTEL486,
        CpuidFeature::X64,
        CpuidFeature::CPUID,
        CpuidFeature::CMOV,
        CpuidFeature::CX8,
        CpuidFeature::CMPXCHG16B,
        CpuidFeature::CLFSH,
        CpuidFeature::FPU,
        CpuidFeature::FPU287,
        CpuidFeature::FPU387,
        CpuidFeature::FXSR,
        CpuidFeature::MMX,
        CpuidFeature::MSR,
        CpuidFeature::MULTIBYTENOP,
        CpuidFeature::PAUSE,
        CpuidFeature::POPCNT,
        CpuidFeature::SEP,
        CpuidFeature::SMAP,
        CpuidFeature::SSE,
        CpuidFeature::SSE2,
        CpuidFeature::SSE3,
        CpuidFeature::SSSE3,
        CpuidFeature::SSE4_1,
        CpuidFeature::SSE4_2,
        CpuidFeature::SYSCALL,
        CpuidFeature::TSC,
    ];

    #[test]
    fn everything_the_model_offers_is_implemented() {
        let excused = |code: Code| {
            use iced_x86::Mnemonic::{INVALID, Ud0, Ud1, Ud2, Zero_bytes};
            // FWAIT and the instruction after it are decoded one by one.
            code.op_code().fwait()
                || code.op_code().mnemonic() == INVALID
                || matches!(code.mnemonic(), Ud0 | Ud1 | Ud2 | Zero_bytes)
                || format!("{code:?}").starts_with("Declare")
                // Prefetches take memory.
                || format!("{code:?}").ends_with("_0F0D")
        };
        let missing: Vec<Code> = Code::values()
            .filter(|code| code.encoding() == iced_x86::EncodingKind::Legacy && !excused(*code))
            .filter(|code| code.cpuid_features().iter().all(|feature| OFFERED.contains(feature)))
            .filter(|code| matches!(status(*code), Status::Undefined(_)))
            .collect();
        assert_eq!(missing, []);
    }
}
