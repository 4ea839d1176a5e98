// SPDX-License-Identifier: AGPL-3.0-or-later
//! x87, MMX and SSE to SSE4.2.
//!
//! `simd` and `soft` are pure functions of bit patterns, `x87` works on the x87 state alone, `ops` holds the handlers that
//! fetch operands and put results back, and the `table_*` files say which handler executes which code.

mod ops;
mod simd;
mod soft;
mod table_arith;
mod table_moves;
mod table_packed;
mod table_x87;
mod x87;

use crate::table::Entry;
use iced_x86::Code;

/// Claims the codes of the x87, MMX and SSE families.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    if let Some(handler) = table_packed::lookup(code) {
        return Entry::one("packed integer", handler);
    }
    if let Some(handler) = table_moves::lookup(code) {
        return Entry::one("vector moves and state", handler);
    }
    if let Some(handler) = table_arith::lookup(code) {
        return Entry::one("sse arithmetic", handler);
    }
    if let Some(handler) = table_x87::lookup(code) {
        return Entry::one("x87", handler);
    }
    undefined(code).map(Entry::Ud)
}

/// Codes near these families that never execute here.
fn undefined(code: Code) -> Option<&'static str> {
    match code {
        Code::Fstenv_m14byte
        | Code::Fstenv_m28byte
        | Code::Fstcw_m2byte
        | Code::Feni
        | Code::Fdisi
        | Code::Fclex
        | Code::Finit
        | Code::Fsetpm
        | Code::Fsave_m94byte
        | Code::Fsave_m108byte
        | Code::Fstsw_m2byte
        | Code::Fstsw_AX
        | Code::Fstdw_AX
        | Code::Fstsg_AX => Some("an assembler's name for WAIT and the form without it; bytes decode to these two"),
        Code::Frstpm | Code::Fnstdw_AX | Code::Fnstsg_AX => Some("exists on the 80287 or 80387SL only"),
        _ => None,
    }
}

/// The 11-bit opcode that the x87 unit remembers of an instruction: the low bits of its first byte and its ModRM byte. `None` if it
/// is no x87 instruction.
pub(crate) fn x87_opcode(bytes: &[u8], long: bool) -> Option<u16> {
    let prefix = |byte: u8| match byte {
        0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 => true,
        0x40..=0x4f => long,
        _ => false,
    };
    let rest = &bytes[bytes.iter().take_while(|byte| prefix(**byte)).count()..];
    match rest {
        [first @ 0xd8..=0xdf, modrm, ..] => Some(u16::from(first & 7) << 8 | u16::from(*modrm)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_found_behind_prefixes() {
        assert_eq!(x87_opcode(&[0xd8, 0xc1], true), Some(0x0c1));
        assert_eq!(x87_opcode(&[0x64, 0x41, 0xdf, 0x39], true), Some(0x739));
        assert_eq!(x87_opcode(&[0x41, 0xdf, 0x39], false), None);
        assert_eq!(x87_opcode(&[0x9b], true), None);
        assert_eq!(x87_opcode(&[0x0f, 0xd8, 0xc1], true), None);
    }
}
