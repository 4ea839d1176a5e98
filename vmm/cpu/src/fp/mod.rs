// SPDX-License-Identifier: AGPL-3.0-or-later
//! x87, MMX and SSE.

use crate::table::Entry;
use iced_x86::Code;

/// Claims the codes of the x87, MMX and SSE families.
pub(crate) fn lookup(_code: Code) -> Option<Entry> {
    None
}
