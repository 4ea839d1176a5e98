// SPDX-License-Identifier: AGPL-3.0-or-later
//! Paging outside long mode: none, two levels of four-byte entries (with 4 MiB pages where CR4.PSE is set), and PAE's three
//! levels (AMD64 APM vol. 2, 5.2).
//!
//! The four entries of PAE's first level are read by each walk like all others: MOV CR3 loads and checks nothing.

use crate::core_state::{Core, cr};
use crate::memory::OFFSET_MASK;
use crate::mmu::{
    ACCESSED, ADDRESS, DIRTY, ERROR_PRESENT, ERROR_RESERVED, Kind, LARGE, NO_EXECUTE, PRESENT, RESERVED, USER,
    WRITABLE, Walk,
};
use crate::op::Trap;
use crate::tlb::Privilege;

const LINEAR: u64 = 0xffff_ffff;
/// Bits 8..5 and 2..1 of a first-level entry of PAE must be zero, and it has no no-execute bit.
const POINTER_RESERVED: u64 = RESERVED | NO_EXECUTE | 0x1e6;
/// A 4 MiB page's entry: bits 20..13 are address bits 39..32, bit 21 must be zero.
const LARGE_HIGH: u64 = 0x1f_e000;
const LARGE_RESERVED: u64 = 1 << 21;

impl Core {
    /// A walk outside long mode.
    #[cold]
    pub fn walk_legacy(&mut self, address: u64, kind: Kind, privilege: Privilege) -> Result<Walk, Trap> {
        let address = address & LINEAR;
        if self.cr0 & cr::CR0_PG == 0 {
            return Ok(Walk { physical: address, writable: true, dirty: true });
        }
        if self.cr4 & cr::CR4_PAE != 0 {
            self.walk_pae(address, kind, privilege)
        } else {
            self.walk_two_levels(address, kind, privilege)
        }
    }

    fn walk_pae(&mut self, address: u64, kind: Kind, privilege: Privilege) -> Result<Walk, Trap> {
        let pointer = self.table_entry((self.cr3 & LINEAR & !0x1f) + (address >> 30) * 8);
        if pointer & PRESENT == 0 {
            return Err(self.page_fault(address, kind, privilege, 0));
        }
        if pointer & POINTER_RESERVED != 0 {
            return Err(self.page_fault(address, kind, privilege, ERROR_PRESENT | ERROR_RESERVED));
        }
        let mut table = pointer & ADDRESS;
        let mut rights = WRITABLE | USER;
        let mut executable = true;
        for (level, shift) in [(2, 21), (1, 12)] {
            let location = table + (address >> shift & 511) * 8;
            let entry = self.table_entry(location);
            if entry & PRESENT == 0 {
                return Err(self.page_fault(address, kind, privilege, 0));
            }
            let last = level == 1 || entry & LARGE != 0;
            if entry & self.reserved_bits(level, last, shift) != 0 {
                return Err(self.page_fault(address, kind, privilege, ERROR_PRESENT | ERROR_RESERVED));
            }
            rights &= entry;
            executable &= entry & NO_EXECUTE == 0;
            if !last {
                self.set_table_bits(location, entry, ACCESSED);
                table = entry & ADDRESS;
                continue;
            }
            let bits = self.accessed_bits(address, kind, privilege, rights, executable)?;
            self.set_table_bits(location, entry, bits);
            let inside = (1u64 << shift) - 1;
            return Ok(Walk {
                physical: (entry & ADDRESS & !inside) | (address & inside),
                writable: self.allowed(Kind::Write, privilege, rights, executable),
                dirty: (entry | bits) & DIRTY != 0,
            });
        }
        unreachable!("the second of two levels is the last")
    }

    fn walk_two_levels(&mut self, address: u64, kind: Kind, privilege: Privilege) -> Result<Walk, Trap> {
        self.short_entries = true;
        if let Some(changes) = &mut self.ram.changes {
            changes.note_short_entries();
        }
        let mut location = (self.cr3 & LINEAR & !OFFSET_MASK) + (address >> 22) * 4;
        let directory = self.short_entry(location);
        let large = directory & LARGE != 0 && self.cr4 & cr::CR4_PSE != 0;
        let mut entry = directory;
        let mut rights = directory;
        if directory & PRESENT != 0 && !large {
            self.set_short_bits(location, directory, ACCESSED);
            location = (directory & !OFFSET_MASK) + (address >> 12 & 1023) * 4;
            entry = self.short_entry(location);
            rights &= entry;
        }
        if entry & PRESENT == 0 {
            return Err(self.page_fault(address, kind, privilege, 0));
        }
        if large && entry & LARGE_RESERVED != 0 {
            return Err(self.page_fault(address, kind, privilege, ERROR_PRESENT | ERROR_RESERVED));
        }
        let bits = self.accessed_bits(address, kind, privilege, rights, true)?;
        self.set_short_bits(location, entry, bits);
        let physical = if large {
            (entry & !0x3f_ffff) | (entry & LARGE_HIGH) << (32 - 13) | (address & 0x3f_ffff)
        } else {
            (entry & !OFFSET_MASK) | (address & OFFSET_MASK)
        };
        Ok(Walk {
            physical,
            writable: self.allowed(Kind::Write, privilege, rights, true),
            dirty: (entry | bits) & DIRTY != 0,
        })
    }

    /// The bits that an allowed access sets in the last entry.
    fn accessed_bits(
        &mut self,
        address: u64,
        kind: Kind,
        privilege: Privilege,
        rights: u64,
        executable: bool,
    ) -> Result<u64, Trap> {
        if !self.allowed(kind, privilege, rights, executable) {
            return Err(self.page_fault(address, kind, privilege, ERROR_PRESENT));
        }
        Ok(if kind == Kind::Write { ACCESSED | DIRTY } else { ACCESSED })
    }

    /// Reads the eight bytes around a four-byte entry, so that its page is marked as every walked page is.
    fn short_entry(&mut self, location: u64) -> u64 {
        self.table_entry(location & !7) >> ((location & 4) * 8) & 0xffff_ffff
    }

    fn set_short_bits(&mut self, location: u64, entry: u64, bits: u64) {
        if entry & bits != bits {
            let shift = (location & 4) * 8;
            let pair = self.table_entry(location & !7);
            self.set_table_bits(location & !7, pair, bits << shift);
        }
    }
}
