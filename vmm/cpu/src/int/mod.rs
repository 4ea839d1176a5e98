// SPDX-License-Identifier: AGPL-3.0-or-later
//! The general-purpose (integer) instructions, one file a family.

pub(crate) mod alu;
mod bcd;
mod bits;
pub(crate) mod branch;
pub(crate) mod cond;
mod flagops;
pub(crate) mod fused;
mod mov;
mod muldiv;
mod shift;
pub(crate) mod stack;
mod string;

use crate::table::Entry;
use iced_x86::Code;

/// Claims the codes of the integer families.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    // VEX and EVEX forms share mnemonics with the legacy instructions and are not offered.
    if code.encoding() != iced_x86::EncodingKind::Legacy {
        return None;
    }
    alu::lookup(code)
        .or_else(|| shift::lookup(code))
        .or_else(|| muldiv::lookup(code))
        .or_else(|| bits::lookup(code))
        .or_else(|| mov::lookup(code))
        .or_else(|| stack::lookup(code))
        .or_else(|| branch::lookup(code))
        .or_else(|| string::lookup(code))
        .or_else(|| flagops::lookup(code))
        .or_else(|| bcd::lookup(code))
}
