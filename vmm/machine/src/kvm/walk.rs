// SPDX-License-Identifier: AGPL-3.0-or-later
//! A page walk that changes nothing and answers only where an access is plainly allowed.
//!
//! Single-stepping leaves an instruction to KVM only when its accesses can neither fault nor set an accessed or dirty bit; for
//! anything else this walk says none, and the software CPU executes the instruction.

use chaoscontrol_cpu::CpuState;

use crate::memory::GuestMemory;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;

/// What is to be done at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Load.
    Read,
    /// Store.
    Write,
    /// Fetch.
    Execute,
}

/// The address space of a CPU in 64-bit code.
pub(super) struct Walk<'a> {
    memory: &'a GuestMemory,
    cr3: u64,
    user: bool,
    /// Supervisor fetches from (SMEP), accesses to (SMAP) user pages are not plain.
    guarded: (bool, bool),
}

impl<'a> Walk<'a> {
    /// The address space that `state` is in; `user` at CPL 3.
    pub fn new(memory: &'a GuestMemory, state: &CpuState, user: bool) -> Self {
        let guarded = (state.cr4 & CR4_SMEP != 0, state.cr4 & CR4_SMAP != 0);
        Self { memory, cr3: state.cr3, user, guarded }
    }

    /// The RAM address of `bytes` bytes (1 to 4,096) from a linear address, if they lie in one page and are plainly accessible.
    pub fn plain(&self, linear: u64, bytes: u64, access: Access) -> Option<u64> {
        let canonical = (linear << 16).cast_signed() >> 16 == linear.cast_signed();
        if !canonical || (linear & 0xfff) + bytes > 4096 {
            return None;
        }
        let mut table = self.cr3 & ADDRESS;
        for level in [39u32, 30, 21, 12] {
            let mut entry = [0; 8];
            self.memory.read(table + (linear >> level & 511) * 8, &mut entry).ok()?;
            let entry = u64::from_le_bytes(entry);
            let leaf = level == 12 || entry & LARGE != 0;
            if !self.allows(entry, access, leaf) || (level == 39 && leaf) {
                return None;
            }
            if leaf {
                let inside = (1u64 << level) - 1;
                let physical = entry & ADDRESS & !inside | linear & inside;
                return self.memory.contains(physical, bytes).then_some(physical);
            }
            table = entry & ADDRESS;
        }
        None
    }

    fn allows(&self, entry: u64, access: Access, leaf: bool) -> bool {
        let user_page = entry & USER != 0;
        let mut needed = PRESENT | ACCESSED;
        if access == Access::Write {
            needed |= WRITABLE | if leaf { DIRTY } else { 0 };
        }
        let refused = match access {
            Access::Execute => entry & NO_EXECUTE != 0 || (self.guarded.0 && !self.user && user_page),
            // A table entry with the bit does not make a user page: the walk may answer none too often, never too rarely.
            Access::Read | Access::Write => self.guarded.1 && !self.user && user_page,
        };
        entry & needed == needed && !refused && (user_page || !self.user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MEMORY_BYTES_MIN;

    const TABLES: u64 = 0x1000;
    const ALL: u64 = PRESENT | WRITABLE | USER | ACCESSED | DIRTY;

    /// One page at `0x5000` mapped at linear `0x40_0000_3000`, its last entry being `entry`.
    fn walked(entry: u64, user: bool, cr4: u64, access: Access) -> Option<u64> {
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).unwrap();
        let put = |address: u64, value: u64| memory.write(address, &value.to_le_bytes()).unwrap();
        put(TABLES, 0x2000 | ALL & !DIRTY);
        put(0x2000 + 256 * 8, 0x3000 | ALL & !DIRTY);
        put(0x3000, 0x4000 | ALL & !DIRTY);
        put(0x4000 + 3 * 8, 0x5000 | entry);
        let state = CpuState { cr3: TABLES, cr4, ..CpuState::default() };
        Walk::new(&memory, &state, user).plain(0x40_0000_3008, 8, access)
    }

    #[test]
    fn a_page_that_allows_everything_is_plain() {
        for access in [Access::Read, Access::Write, Access::Execute] {
            assert_eq!(walked(ALL, true, 0, access), Some(0x5008));
            assert_eq!(walked(ALL, false, 0, access), Some(0x5008));
        }
    }

    #[test]
    fn what_would_fault_or_set_a_bit_is_not() {
        use Access::{Execute, Read, Write};
        let cases = [
            (ALL & !PRESENT, false, 0, Read),
            (ALL & !ACCESSED, false, 0, Read),
            (ALL & !DIRTY, false, 0, Write),
            (ALL & !WRITABLE, false, 0, Write),
            (ALL & !USER, true, 0, Read),
            (ALL | NO_EXECUTE, true, 0, Execute),
            (ALL, false, CR4_SMEP, Execute),
            (ALL, false, CR4_SMAP, Read),
            (ALL, false, CR4_SMAP, Write),
        ];
        for (entry, user, cr4, access) in cases {
            assert_eq!(walked(entry, user, cr4, access), None, "{entry:#x} {user} {cr4:#x} {access:?}");
        }
        assert_eq!(walked(ALL & !DIRTY, false, 0, Read), Some(0x5008));
    }

    #[test]
    fn ranges_across_pages_and_addresses_that_do_not_exist_are_not() {
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).unwrap();
        let state = CpuState { cr3: u64::MAX, ..CpuState::default() };
        let walk = Walk::new(&memory, &state, false);
        assert_eq!(walk.plain(0xffc, 8, Access::Read), None);
        assert_eq!(walk.plain(1 << 47, 8, Access::Read), None);
        assert_eq!(walk.plain(0, 8, Access::Read), None, "the tables lie outside of RAM");
    }
}
