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
}
