// SPDX-License-Identifier: AGPL-3.0-or-later
//! Segments: limit and type checks of compatibility mode, effective bases.

use crate::core_state::{Core, vector};
use crate::op::Trap;
use crate::state::{Segment, seg};

/// Attribute bits of a [`Segment`].
#[allow(missing_docs)]
pub(crate) mod desc {
    pub const TYPE: u16 = 0xf;
    pub const ACCESSED: u16 = 1 << 0;
    /// Data: writable. Code: readable.
    pub const WRITABLE: u16 = 1 << 1;
    /// Data: expands down. Code: conforming.
    pub const CONFORMING: u16 = 1 << 2;
    pub const CODE: u16 = 1 << 3;
    pub const NOT_SYSTEM: u16 = 1 << 4;
    pub const DPL_SHIFT: u32 = 5;
    pub const PRESENT: u16 = 1 << 7;
    pub const LONG: u16 = 1 << 9;
    pub const BIG: u16 = 1 << 10;
    pub const GRANULAR: u16 = 1 << 11;
}

impl Core {
    /// Recomputes the effective bases after a segment register or the code mode changed.
    pub fn update_segment_bases(&mut self) {
        let long = self.in_long_code();
        for index in 0..6 {
            let keeps_base = !long || index == seg::FS || index == seg::GS;
            self.segment_base[index] = if keeps_base { self.segments[index].base } else { 0 };
        }
    }

    /// Linear address in compatibility mode: checks presence, type and limit.
    #[cold]
    #[inline(never)]
    pub fn segmented(&mut self, segment: u8, offset: u64, bytes: u64, write: bool) -> Result<u64, Trap> {
        let index = usize::from(segment & 7);
        let Segment { base, limit, attributes, .. } = self.segments[index];
        let code = attributes & desc::CODE != 0;
        let permitted = attributes & desc::PRESENT != 0
            && match (code, write) {
                (true, true) => false,
                (true, false) => attributes & desc::WRITABLE != 0,
                (false, true) => attributes & desc::WRITABLE != 0,
                (false, false) => true,
            };
        let last = offset + (bytes - 1);
        let inside = if !code && attributes & desc::CONFORMING != 0 {
            let top = if attributes & desc::BIG != 0 { 0xffff_ffff } else { 0xffff };
            offset > u64::from(limit) && last <= top
        } else {
            last <= u64::from(limit)
        };
        if permitted && inside {
            return Ok(base.wrapping_add(offset) & 0xffff_ffff);
        }
        Err(self.fault_code(if index == seg::SS { vector::SS } else { vector::GP }, 0))
    }
}
