// SPDX-License-Identifier: AGPL-3.0-or-later
//! System instructions, one file a family, and the delivery of events.

mod cache;
mod control;
mod events;
mod far;
mod io;
mod legacy;
mod msr;
mod syscall;
mod tables;

use crate::table::Entry;
use iced_x86::{Code, Mnemonic};

/// Claims the codes of the system families.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    match code.mnemonic() {
        Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 => return Some(Entry::Ud("defined to raise #UD")),
        Mnemonic::Rsm => return Some(Entry::Ud("there is no system management mode")),
        _ => {}
    }
    cache::lookup(code)
        .or_else(|| control::lookup(code))
        .or_else(|| far::lookup(code))
        .or_else(|| io::lookup(code))
        .or_else(|| msr::lookup(code))
        .or_else(|| syscall::lookup(code))
        .or_else(|| tables::lookup(code))
}
