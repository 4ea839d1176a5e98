// SPDX-License-Identifier: AGPL-3.0-or-later
//! System instructions, one file a family.

mod events;

use crate::table::Entry;
use iced_x86::Code;

/// Claims the codes of the system families.
pub(crate) fn lookup(_code: Code) -> Option<Entry> {
    None
}
