// SPDX-License-Identifier: AGPL-3.0-or-later
//! The general-purpose (integer) instructions, one file a family.

use crate::table::Entry;
use iced_x86::Code;

/// Claims the codes of the integer families.
pub(crate) fn lookup(_code: Code) -> Option<Entry> {
    None
}
