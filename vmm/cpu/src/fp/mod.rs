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
    None
}
