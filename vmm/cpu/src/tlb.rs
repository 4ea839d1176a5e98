// SPDX-License-Identifier: AGPL-3.0-or-later
//! The translation cache: linear page to host page, with separate tags for reading and writing.
//!
//! A tag is the linear page address with the cache's generation and the privilege mode in its low twelve bits (9 and 3), so a mode
//! change costs nothing and a flush is a new generation. An entry exists only while a walk done now would give the same
//! answer and would change nothing: the accessed bit is set, and for a write tag also the dirty bit, the page is already
//! in the dirty set, and nothing was derived from it (no decoded code, no walk).

use crate::memory::PAGE_MASK;

/// Who accesses memory: decides the user/supervisor, SMAP and write-protection checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Privilege {
    /// CPL 3.
    User = 0,
    /// CPL 0 to 2 with SMAP holding (AC clear), and all implicit accesses to descriptor tables and stacks.
    Supervisor = 1,
    /// CPL 0 to 2 with AC set.
    SupervisorOverride = 2,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct TlbEntry {
    pub read: u64,
    pub write: u64,
    /// Host address = linear address + this, wrapping.
    pub addend: u64,
    /// Physical address of the page.
    pub physical: u64,
}

/// Address spaces whose translations are kept while another is current.
const SPACES: usize = 8;

/// Never equal to a tag: the mode bits are 7.
pub(crate) const NO_TAG: u64 = 7;
/// Mode bits that are never inserted: every access takes the slow path.
const UNCACHED: u64 = 4;
const EMPTY: TlbEntry = TlbEntry { read: NO_TAG, write: NO_TAG, addend: 0, physical: 0 };
const GENERATIONS: u64 = 1 << 9;

/// In the mode of a code tag: fetched by ring 3, and decoded as 64-bit or 16-bit code.
pub(crate) const CODE_USER: u64 = 1;
pub(crate) const CODE_LONG: u64 = 2;
pub(crate) const CODE_SHORT: u64 = 4;

/// Whether bytes fetched under one code tag decode to the same operations under another.
pub(crate) fn same_decoding(tag: u64, other: u64) -> bool {
    (tag ^ other) & (CODE_LONG | CODE_SHORT) == 0
}

#[derive(Debug)]
pub(crate) struct Tlb {
    entries: Box<[TlbEntry]>,
    /// 32 less the logarithm of the number of entries.
    shift: u32,
    /// Generation of the current address space.
    generation: u64,
    /// The last generation that was given out.
    newest: u64,
    /// CR3 values with their generations, the latest first.
    spaces: Vec<(u64, u64)>,
    /// Generation and mode, as they stand in a tag.
    tag: u64,
    /// Generation and code mode.
    code_tag: u64,
}

impl Tlb {
    /// An odd multiplier: 2^32 over the golden ratio.
    pub const HASH: u32 = 0x9e37_79b9;
    /// Where the tag and the code tag are, for compiled code.
    pub const TAG_OFFSET: usize = std::mem::offset_of!(Tlb, tag);
    pub const CODE_TAG_OFFSET: usize = std::mem::offset_of!(Tlb, code_tag);

    pub fn new(entries: usize) -> Self {
        let entries = entries.clamp(16, 1 << 16).next_power_of_two();
        Self {
            entries: vec![EMPTY; entries].into_boxed_slice(),
            shift: 32 - entries.trailing_zeros(),
            generation: 0,
            newest: 0,
            spaces: Vec::with_capacity(SPACES + 1),
            tag: 0,
            code_tag: 0,
        }
    }

    /// The entries and the logarithm of their number, for compiled code. They never move.
    pub fn table(&self) -> (*const TlbEntry, u32) {
        (self.entries.as_ptr(), 32 - self.shift)
    }

    /// Switches to another privilege mode; without `cached`, every access misses.
    #[inline]
    pub fn set_privilege(&mut self, privilege: Privilege, cached: bool) {
        self.tag = self.generation << 3 | if cached { privilege as u64 } else { UNCACHED };
    }

    /// Switches to another privilege mode for a moment; a mode without cache stays without.
    pub fn borrow_privilege(&mut self, privilege: Privilege) {
        if self.tag & 7 != UNCACHED {
            self.tag = self.generation << 3 | privilege as u64;
        }
    }

    /// Sets what decides how code is fetched and decoded: three bits.
    pub fn set_code_mode(&mut self, mode: u64) {
        self.code_tag = self.generation << 3 | (mode & 7);
    }

    /// Generation and code mode: decoded blocks found under an equal value are still the right ones.
    #[inline(always)]
    pub fn code_tag(&self) -> u64 {
        self.code_tag
    }

    /// The tag of a linear address.
    #[inline(always)]
    pub fn tag_of(&self, address: u64) -> u64 {
        (address & PAGE_MASK) | self.tag
    }

    /// The top bits of a product. Neighbouring pages never share a slot (with 16 slots their hashes differ by 9 or 10, with
    /// more by more), so that an entry found for the first byte of an access and compared with the tag of its last byte
    /// matches only if both lie in its page.
    #[inline(always)]
    fn slot(&self, address: u64) -> usize {
        let page = ((address >> 12) as u32).wrapping_add(self.tag as u32);
        (page.wrapping_mul(Self::HASH) >> self.shift) as usize
    }

    /// The entry where a linear address would be.
    #[inline(always)]
    pub fn entry(&self, address: u64) -> &TlbEntry {
        let slot = self.slot(address);
        // SAFETY: `slot` has as many bits as the length, which is a power of two.
        unsafe { self.entries.get_unchecked(slot) }
    }

    pub fn insert(&mut self, address: u64, entry: TlbEntry) {
        if self.tag & 7 == UNCACHED {
            return;
        }
        let slot = self.slot(address);
        self.entries[slot] = entry;
    }

    /// Forgets everything. Returns true when generations wrapped, so that whoever stores tags must forget too.
    pub fn flush(&mut self, cr3: u64) -> bool {
        self.spaces.clear();
        self.new_space(cr3)
    }

    /// Switches to another address space. What was cached for it is still true: everything that could make a translation
    /// stale flushes all spaces. The result is that of [`Tlb::flush`].
    pub fn switch_space(&mut self, cr3: u64) -> bool {
        match self.spaces.iter().position(|(space, _)| *space == cr3) {
            Some(at) => {
                self.spaces[..=at].rotate_right(1);
                self.set_generation(self.spaces[0].1);
                false
            }
            None => self.new_space(cr3),
        }
    }

    fn new_space(&mut self, cr3: u64) -> bool {
        self.newest += 1;
        let wrapped = self.newest == GENERATIONS;
        if wrapped {
            self.newest = 0;
            self.spaces.clear();
            self.entries.fill(EMPTY);
        }
        self.spaces.insert(0, (cr3, self.newest));
        self.spaces.truncate(SPACES);
        self.set_generation(self.newest);
        wrapped
    }

    fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
        self.tag = generation << 3 | (self.tag & 7);
        self.code_tag = generation << 3 | (self.code_tag & 7);
    }

    /// What can be hit, under any generation: the linear page, whether for writing, and the entry.
    pub fn hits(&self) -> impl Iterator<Item = (u64, bool, &TlbEntry)> {
        let ways = self.entries.iter().flat_map(|entry| [(entry.read, false, entry), (entry.write, true, entry)]);
        ways.filter(|(tag, ..)| tag & 7 < UNCACHED).map(|(tag, write, entry)| (tag & PAGE_MASK, write, entry))
    }

    /// Removes write permission for one physical page.
    pub fn forbid_writes(&mut self, physical: u64) {
        for entry in self.entries.iter_mut().filter(|entry| entry.physical == physical) {
            entry.write = NO_TAG;
        }
    }

    /// Removes write permission everywhere.
    pub fn forbid_all_writes(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.write = NO_TAG);
    }
}
