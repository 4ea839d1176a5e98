// SPDX-License-Identifier: AGPL-3.0-or-later
//! Four-level paging (AMD64 APM vol. 2, 5.3; Intel SDM vol. 3A, 4.5); the paging of 32-bit modes is in `mmu_legacy.rs`.
//!
//! A walk sets the accessed bit of each table entry it passes and, if the access is allowed, the accessed and dirty bits of
//! the last one. Every page a walk reads is marked; a store that changes a present entry in a marked page flushes all
//! translations, which is how no stale translation can exist. Table entries outside RAM read as zero: not present.

use crate::changes::{Change, Changes};
use crate::core_state::{Core, Fault, cr, vector};
use crate::memory::{OFFSET_MASK, PAGE_MASK, PHYSICAL_BITS, PageIndex, page_flag};
use crate::op::Trap;
use crate::tlb::{NO_TAG, Privilege, TlbEntry};

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Execute,
}

/// Where a linear address leads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Ram {
        /// Host address of the byte.
        host: *mut u8,
        page: PageIndex,
        physical: u64,
    },
    Outside {
        physical: u64,
    },
}

pub(crate) const PRESENT: u64 = 1 << 0;
pub(crate) const WRITABLE: u64 = 1 << 1;
pub(crate) const USER: u64 = 1 << 2;
pub(crate) const ACCESSED: u64 = 1 << 5;
pub(crate) const DIRTY: u64 = 1 << 6;
pub(crate) const LARGE: u64 = 1 << 7;
pub(crate) const NO_EXECUTE: u64 = 1 << 63;
pub(crate) const ADDRESS: u64 = ((1 << PHYSICAL_BITS) - 1) & PAGE_MASK;
pub(crate) const RESERVED: u64 = ((1 << 52) - 1) & !((1 << PHYSICAL_BITS) - 1);

/// Page-fault error code bits.
pub(crate) const ERROR_PRESENT: u32 = 1;
const ERROR_WRITE: u32 = 2;
const ERROR_USER: u32 = 4;
pub(crate) const ERROR_RESERVED: u32 = 8;
const ERROR_FETCH: u32 = 16;

/// A finished walk.
pub(crate) struct Walk {
    pub physical: u64,
    pub writable: bool,
    pub dirty: bool,
}

impl Core {
    /// Translates for an access by the current privilege and caches the translation.
    pub fn translate(&mut self, address: u64, kind: Kind) -> Result<Target, Trap> {
        self.translate_as(address, kind, self.privilege)
    }

    /// Translates for an access by `privilege`.
    pub fn translate_as(&mut self, address: u64, kind: Kind, privilege: Privilege) -> Result<Target, Trap> {
        let walk = self.walk(address, kind, privilege)?;
        let Some((page, base)) = self.ram.page(walk.physical) else {
            return Ok(Target::Outside { physical: walk.physical });
        };
        if kind == Kind::Write {
            self.ram.set_flags(page, page_flag::DIRTY);
        }
        if kind != Kind::Execute && privilege == self.privilege {
            let watched = page_flag::DIRTY | page_flag::CODE | page_flag::WALKED;
            let plain = self.ram.flags(page) & watched == page_flag::DIRTY && walk.writable && walk.dirty;
            if plain {
                self.ram.set_flags(page, page_flag::WRITE_CACHED);
            }
            let tag = self.tlb.tag_of(address);
            let entry = TlbEntry {
                read: tag,
                write: if plain { tag } else { NO_TAG },
                addend: (base as u64).wrapping_sub(address & PAGE_MASK),
                physical: walk.physical & PAGE_MASK,
            };
            self.tlb.insert(address, entry);
        }
        // SAFETY: `base` is the first byte of a RAM page and the offset is below the page size.
        let host = unsafe { base.add((walk.physical & OFFSET_MASK) as usize) };
        Ok(Target::Ram { host, page, physical: walk.physical })
    }

    fn walk(&mut self, address: u64, kind: Kind, privilege: Privilege) -> Result<Walk, Trap> {
        if !self.in_long_mode() {
            return self.walk_legacy(address, kind, privilege);
        }
        let mut table = self.cr3 & ADDRESS;
        let mut rights = WRITABLE | USER;
        let mut executable = true;
        let mut level = 4u32;
        loop {
            let shift = 12 + 9 * (level - 1);
            let location = table + ((address >> shift) & 511) * 8;
            let entry = self.table_entry(location);
            if entry & PRESENT == 0 {
                return Err(self.page_fault(address, kind, privilege, 0));
            }
            let last = level == 1 || (level <= 3 && entry & LARGE != 0);
            if entry & self.reserved_bits(level, last, shift) != 0 {
                return Err(self.page_fault(address, kind, privilege, ERROR_PRESENT | ERROR_RESERVED));
            }
            rights &= entry;
            executable &= entry & NO_EXECUTE == 0;
            if !last {
                self.set_table_bits(location, entry, ACCESSED);
                table = entry & ADDRESS;
                level -= 1;
                continue;
            }
            if !self.allowed(kind, privilege, rights, executable) {
                return Err(self.page_fault(address, kind, privilege, ERROR_PRESENT));
            }
            let bits = if kind == Kind::Write { ACCESSED | DIRTY } else { ACCESSED };
            self.set_table_bits(location, entry, bits);
            let inside = (1u64 << shift) - 1;
            return Ok(Walk {
                physical: (entry & ADDRESS & !inside) | (address & inside),
                writable: self.allowed(Kind::Write, privilege, rights, executable),
                dirty: (entry | bits) & DIRTY != 0,
            });
        }
    }

    pub fn reserved_bits(&self, level: u32, last: bool, shift: u32) -> u64 {
        let mut reserved = RESERVED;
        if self.msrs.efer & cr::EFER_NXE == 0 {
            reserved |= NO_EXECUTE;
        }
        if level == 4 {
            reserved |= LARGE;
        }
        if last && level > 1 {
            // Bit 12 is PAT in a large page's entry.
            reserved |= ((1 << shift) - 1) & !0x1fff;
        }
        reserved
    }

    pub fn allowed(&self, kind: Kind, privilege: Privilege, rights: u64, executable: bool) -> bool {
        let user_page = rights & USER != 0;
        let writable = rights & WRITABLE != 0;
        if privilege == Privilege::User {
            return user_page
                && match kind {
                    Kind::Read => true,
                    Kind::Write => writable,
                    Kind::Execute => executable,
                };
        }
        match kind {
            Kind::Execute => executable && !(user_page && self.cr4 & cr::CR4_SMEP != 0),
            _ if user_page && self.cr4 & cr::CR4_SMAP != 0 && privilege == Privilege::Supervisor => false,
            Kind::Read => true,
            Kind::Write => writable || self.cr0 & cr::CR0_WP == 0,
        }
    }

    #[cold]
    pub fn page_fault(&mut self, address: u64, kind: Kind, privilege: Privilege, mut error: u32) -> Trap {
        if kind == Kind::Write {
            error |= ERROR_WRITE;
        }
        if privilege == Privilege::User {
            error |= ERROR_USER;
        }
        if kind == Kind::Execute && (self.no_execute_enabled() || self.cr4 & cr::CR4_SMEP != 0) {
            error |= ERROR_FETCH;
        }
        self.pending_fault = Fault { vector: vector::PF, error: Some(error), address, software: false };
        Trap::Fault
    }

    /// Table entries have a no-execute bit, and it counts.
    fn no_execute_enabled(&self) -> bool {
        self.msrs.efer & cr::EFER_NXE != 0 && self.cr4 & cr::CR4_PAE != 0
    }

    /// Reads a table entry and marks its page.
    pub fn table_entry(&mut self, location: u64) -> u64 {
        let Some((page, base)) = self.ram.page(location) else { return 0 };
        if self.ram.flags(page) & page_flag::WALKED == 0 {
            self.watch_page(page, location, page_flag::WALKED);
            self.ram.note_walk(page);
        }
        // SAFETY: `location` is 8-byte aligned, so the entry lies inside the RAM page at `base`.
        unsafe { base.add((location & OFFSET_MASK) as usize).cast::<u64>().read() }
    }

    /// Marks a page so that stores to it are noticed from now on.
    pub fn watch_page(&mut self, page: PageIndex, physical: u64, flag: u8) {
        self.ram.set_flags(page, flag);
        if self.ram.flags(page) & page_flag::WRITE_CACHED != 0 {
            self.ram.clear_flags(page, page_flag::WRITE_CACHED);
            self.tlb.forbid_writes(physical & PAGE_MASK);
            self.tell(Change::Writes(physical & PAGE_MASK));
        }
    }

    /// Sets accessed and dirty bits. They take nothing away, so no translation becomes stale.
    pub fn set_table_bits(&mut self, location: u64, entry: u64, bits: u64) {
        if entry & bits == bits {
            return;
        }
        if let Some((page, base)) = self.ram.page(location) {
            // SAFETY: as in `table_entry`.
            unsafe { base.add((location & OFFSET_MASK) as usize).cast::<u64>().write(entry | bits) };
            self.ram.set_flags(page, page_flag::DIRTY);
            if self.ram.flags(page) & page_flag::CODE != 0 {
                self.after_code_write(page, location, 8);
            }
        }
    }

    /// Called before bytes of a marked page change: forgets all translations if a present entry is among them.
    pub fn before_table_write(&mut self, host: *mut u8, physical: u64, buffer: &[u8]) {
        let offset = (physical & OFFSET_MASK) as usize;
        // SAFETY: `host` is the byte at `physical`, so its page begins `offset` bytes before it.
        let base = unsafe { host.sub(offset) };
        for slot in offset / 8..=(offset + buffer.len() - 1) / 8 {
            // SAFETY: `slot` is at most 511, inside the page at `base`.
            let old = unsafe { base.add(slot * 8).cast::<u64>().read() };
            let mut new = old.to_le_bytes();
            for (index, byte) in new.iter_mut().enumerate() {
                if let Some(&value) = (slot * 8 + index).checked_sub(offset).and_then(|at| buffer.get(at)) {
                    *byte = value;
                }
            }
            // Tables of two levels have entries of four bytes.
            let present = PRESENT | if self.has_short_entries() { PRESENT << 32 } else { 0 };
            if old & present != 0 && old != u64::from_le_bytes(new) {
                self.flush_translations();
                return;
            }
        }
    }

    /// Forgets every translation of every address space, with the marks on the pages they came from, and leaves the current
    /// block after this instruction.
    pub fn flush_translations(&mut self) {
        let wrapped = self.tlb.flush(self.cr3);
        self.short_entries = false;
        self.ram.forget_walks();
        self.leave_block(wrapped);
    }

    /// Forgets every translation of this CPU, because another one has changed what they came from.
    fn flush_own_translations(&mut self) {
        let wrapped = self.tlb.flush(self.cr3);
        self.leave_block(wrapped);
    }

    /// Some walk has read tables of two-level paging.
    fn has_short_entries(&self) -> bool {
        self.short_entries || self.ram.changes.as_ref().is_some_and(Changes::short_entries)
    }

    /// Makes another address space current. CR3 holds its new value.
    pub fn switch_space(&mut self) {
        let wrapped = self.tlb.switch_space(self.cr3);
        self.leave_block(wrapped);
    }

    /// Tells other CPUs of the machine, if there are any.
    pub fn tell(&mut self, change: Change) {
        if let Some(changes) = &mut self.ram.changes {
            changes.push(change);
        }
    }

    /// Does what another CPU's change asks of this one, but for its blocks.
    pub fn follow(&mut self, change: Change) {
        match change {
            Change::Translations => self.flush_own_translations(),
            Change::Writes(physical) => self.tlb.forbid_writes(physical),
            Change::AllWrites => self.tlb.forbid_all_writes(),
            Change::Code(_) => {}
        }
    }

    fn leave_block(&mut self, tags_wrapped: bool) {
        self.block_end = 0;
        if tags_wrapped {
            self.forget_code = true;
            self.attention = true;
        }
    }
}
