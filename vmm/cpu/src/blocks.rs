// SPDX-License-Identifier: AGPL-3.0-or-later
//! Decoded blocks: found by address, forgotten when their bytes change.

use crate::changes::{Change, News};
use crate::core_state::{Core, vector};
use crate::decode::{Decoded, INSTRUCTION_BYTES_MAX, decode};
use crate::int::branch::is_canonical;
use crate::int::fused::fuse;
use crate::memory::{OFFSET_MASK, PAGE_BYTES, PAGE_MASK, page_flag};
use crate::mmu::{Kind, Target};
use crate::op::{CodeMode, Op, Trap, attr};
use crate::state::seg;
use crate::tlb::same_decoding;
use std::collections::BTreeMap;

/// An address no block has: it is not canonical.
const DEAD: u64 = 1 << 63;
/// Sets of two jumps each, and chains of blocks: at first, and at most. Their number follows that of the blocks.
const JUMP_SETS_MIN: usize = 1 << 9;
const JUMP_SETS_MAX: usize = 1 << 15;
const NO_BLOCK: u32 = u32::MAX;

/// The operations of a block: what executing it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Where it goes on when the last operation does not say.
    pub end_ip: u64,
    /// Index of the first operation: no two blocks of one epoch have the same.
    pub first: u32,
    /// Instructions.
    pub count: u16,
    /// Operations that do their work: one less if the last two are fused. The fused operation stands before the two.
    pub dispatched: u16,
}

impl Jump {
    #[inline(always)]
    fn run(&self) -> Run {
        let end_ip = self.ip.wrapping_add(u64::from(self.bytes));
        Run { end_ip, first: self.first, count: self.count, dispatched: self.dispatched }
    }
}

impl Run {
    fn fused(&self) -> bool {
        self.count != self.dispatched
    }
}

/// A run of operations without a control transfer except at its end.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Instruction pointer of the first operation, or [`DEAD`].
    ip: u64,
    run: Run,
    physical: u64,
    /// Physical page of the second half, where the only instruction crosses a page.
    second_page: Option<u64>,
    mode: CodeMode,
    next_in_bucket: u32,
}

/// A block that was found at an address.
#[derive(Clone, Copy)]
struct Jump {
    ip: u64,
    /// The code tag it was last found under. Under another one it is still the right block if decoding is the same and the
    /// address leads to the same physical page.
    tag: u64,
    /// Number of that page, or [`NO_PAGE`] if the block depends on more than it.
    page: u32,
    bytes: u32,
    first: u32,
    count: u16,
    dispatched: u16,
}

/// Physical page numbers are shorter.
const NO_PAGE: u32 = u32::MAX;
const _: () = assert!(crate::memory::PHYSICAL_BITS - 12 < u32::BITS);

/// The two latest jumps that fall together, the later one first. One cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct JumpSet([Jump; 2]);

const NO_JUMP: Jump = Jump { ip: DEAD, tag: u64::MAX, page: NO_PAGE, bytes: 0, first: 0, count: 0, dispatched: 0 };
const NO_JUMPS: JumpSet = JumpSet([NO_JUMP; 2]);
const _: () = assert!(size_of::<JumpSet>() == 64);

/// A page that code is fetched from.
#[derive(Clone, Copy)]
struct CodePage {
    /// Linear page with the code tag in its low bits.
    tag: u64,
    host: *const u8,
    physical: u64,
}

// SAFETY: the pointer leads to RAM of `GuestRam`, which may move between threads together with the CPU that holds both.
unsafe impl Send for CodePage {}

const CODE_PAGES: usize = 256;
/// No page has this tag: the mode bits are never all set.
const NO_CODE_PAGE: CodePage = CodePage { tag: u64::MAX, host: std::ptr::null(), physical: 0 };

/// Where the next instruction is.
struct Fetch {
    host: *const u8,
    physical: u64,
    linear: u64,
    /// Bytes that may be fetched: to the end of the page, or of the code segment.
    bytes: usize,
}

/// All decoded blocks of one CPU.
pub(crate) struct Blocks {
    ops: Vec<Op>,
    blocks: Vec<Block>,
    jumps: Vec<JumpSet>,
    /// Translations for fetching, direct-mapped.
    code_pages: Box<[CodePage; CODE_PAGES]>,
    buckets: Vec<u32>,
    by_page: BTreeMap<u64, Vec<u32>>,
    ops_max: usize,
    block_ops_max: usize,
    /// First operations of blocks that were forgotten, for the compiled tier, which empties it.
    pub forgotten: Vec<u32>,
    /// Counts how often everything was forgotten.
    pub epoch: u64,
    /// Counts how often it was forgotten where blocks are.
    pub jumps_epoch: u64,
}

impl Blocks {
    pub fn new(ops_max: usize, block_ops_max: usize) -> Self {
        Self {
            ops: Vec::new(),
            blocks: Vec::new(),
            jumps: vec![NO_JUMPS; JUMP_SETS_MIN],
            code_pages: Box::new([NO_CODE_PAGE; CODE_PAGES]),
            buckets: vec![NO_BLOCK; JUMP_SETS_MIN],
            by_page: BTreeMap::new(),
            ops_max: ops_max.clamp(64, 1 << 24),
            block_ops_max: block_ops_max.clamp(1, 64),
            forgotten: Vec::new(),
            epoch: 0,
            jumps_epoch: 0,
        }
    }

    /// Below the number of sets, which is a power of two. Blocks of a code page share few pages of the table.
    #[inline(always)]
    fn jump_slot(&self, ip: u64) -> usize {
        ((ip >> 3) ^ (ip >> 16)) as usize & (self.jumps.len() - 1)
    }

    fn bucket(&self, physical: u64, ip: u64) -> usize {
        let hash = (physical ^ ip.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 40) as usize & (self.buckets.len() - 1)
    }

    /// The block at `core.rip`, if it was found there lately.
    #[inline(always)]
    pub fn cached(&self, core: &Core) -> Option<Run> {
        let tag = core.tlb.code_tag();
        let slot = self.jump_slot(core.rip);
        // SAFETY: `jump_slot` is below the number of sets.
        let JumpSet([jump, _]) = unsafe { self.jumps.get_unchecked(slot) };
        (jump.ip == core.rip && jump.tag == tag).then(|| jump.run())
    }

    /// A block that was found at `core.rip` once and is still the right one.
    fn found_before(&mut self, core: &mut Core) -> Option<Run> {
        let (ip, tag) = (core.rip, core.tlb.code_tag());
        let slot = self.jump_slot(ip);
        let JumpSet(set) = self.jumps[slot];
        for (way, jump) in set.iter().enumerate().filter(|(_, jump)| jump.ip == ip) {
            if jump.tag == tag || (same_decoding(jump.tag, tag) && self.leads_to(core, jump)) {
                // A walk for the page may have flushed: the tag is that of now.
                let jump = Jump { tag: core.tlb.code_tag(), ..*jump };
                self.jumps[slot] = JumpSet([jump, set[1 - way]]);
                return Some(jump.run());
            }
        }
        None
    }

    /// Whether the address of a jump leads to its physical page now. A fault is left to whoever fetches next.
    fn leads_to(&mut self, core: &mut Core, jump: &Jump) -> bool {
        jump.page != NO_PAGE
            && self.code_page(core, jump.ip).is_ok_and(|page| page.physical >> 12 == u64::from(jump.page))
    }

    /// Makes a block the first of its set; the one that was first becomes the second.
    fn remember(&mut self, tag: u64, block: &Block) {
        let Block { ip, run, physical, second_page, mode, .. } = *block;
        let alone = mode.is_long() && second_page.is_none();
        let jump = Jump {
            ip,
            tag,
            page: if alone { (physical >> 12) as u32 } else { NO_PAGE },
            bytes: run.end_ip.wrapping_sub(ip) as u32,
            first: run.first,
            count: run.count,
            dispatched: run.dispatched,
        };
        let slot = self.jump_slot(ip);
        let JumpSet(set) = &mut self.jumps[slot];
        *set = [jump, set[0]];
    }

    /// The operations that the whole block dispatches.
    #[inline(always)]
    pub fn dispatched(&self, run: &Run) -> &[Op] {
        let first = run.first as usize;
        // SAFETY: a run names operations that were pushed before it was made, and `clear` forgets all runs with them.
        unsafe { self.ops.get_unchecked(first..first + usize::from(run.dispatched)) }
    }

    /// The operation of one instruction of a block, by its position.
    pub fn op(&self, run: &Run, position: usize) -> &Op {
        let after_fused = run.fused() && position + 2 >= usize::from(run.count);
        &self.ops[run.first as usize + position + usize::from(after_fused)]
    }

    /// The instructions of a block that was decoded from the page at `core.rip` alone, by its instruction pointer.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub fn neighbour(&self, core: &Core, ip: u64) -> Option<Vec<Op>> {
        if (ip ^ core.rip) & PAGE_MASK != 0 {
            return None;
        }
        let tag = (ip & PAGE_MASK) | core.tlb.code_tag();
        let page = self.code_pages.get((ip >> 12) as usize % CODE_PAGES).filter(|page| page.tag == tag)?;
        let id = self.lookup(ip, page.physical + (ip & OFFSET_MASK), core.code_mode())?;
        let Block { run, second_page: None, .. } = self.blocks[id as usize] else { return None };
        Some((0..usize::from(run.count)).map(|position| *self.op(&run, position)).collect())
    }

    /// The block at `core.rip`, decoded if need be. `Err` means the fetch faults (or the code is outside RAM).
    pub fn find(&mut self, core: &mut Core) -> Result<Run, Trap> {
        match self.cached(core) {
            Some(run) => Ok(run),
            None => self.find_slow(core),
        }
    }

    #[cold]
    #[inline(never)]
    pub fn find_slow(&mut self, core: &mut Core) -> Result<Run, Trap> {
        if let Some(run) = self.found_before(core) {
            return Ok(run);
        }
        let fetch = self.fetch(core)?;
        let mode = core.code_mode();
        let id = match self.lookup(core.rip, fetch.physical, mode) {
            Some(id) if self.fits(core, id, &fetch)? => id,
            _ => self.decode(core, &fetch, mode)?,
        };
        let block = self.blocks[id as usize];
        self.remember(core.tlb.code_tag(), &block);
        Ok(block.run)
    }

    /// The block ends inside the code segment, and its second page, if it has one, is still the one it was decoded from.
    fn fits(&self, core: &mut Core, id: u32, fetch: &Fetch) -> Result<bool, Trap> {
        let block = &self.blocks[id as usize];
        let Some(second) = block.second_page else {
            return Ok(block.run.end_ip.wrapping_sub(block.ip) <= fetch.bytes as u64);
        };
        match second_page(core, fetch, block.mode)? {
            Target::Ram { physical, .. } => Ok(physical == second),
            Target::Outside { .. } => Ok(false),
        }
    }

    fn lookup(&self, ip: u64, physical: u64, mode: CodeMode) -> Option<u32> {
        let mut id = self.buckets[self.bucket(physical, ip)];
        while id != NO_BLOCK {
            let block = &self.blocks[id as usize];
            if block.ip == ip && block.physical == physical && block.mode == mode {
                return Some(id);
            }
            id = block.next_in_bucket;
        }
        None
    }

    fn decode(&mut self, core: &mut Core, fetch: &Fetch, mode: CodeMode) -> Result<u32, Trap> {
        if self.ops.len() + self.block_ops_max + 1 > self.ops_max {
            self.clear(core);
        }
        let first = self.ops.len();
        let mut offset = 0;
        let mut second_page = None;
        while self.ops.len() - first < self.block_ops_max {
            let ip = core.rip.wrapping_add(offset as u64);
            // SAFETY: `fetch.bytes` ends with the RAM page that `fetch.host` points into, and nothing writes to it here.
            let bytes = unsafe { std::slice::from_raw_parts(fetch.host.add(offset), fetch.bytes - offset) };
            let op = match decode(bytes, ip, mode, (self.ops.len() - first) as u8) {
                Decoded::Op(op) => op,
                Decoded::NeedsMore if offset > 0 => break,
                Decoded::NeedsMore => {
                    let (op, page) = decode_across(core, fetch, mode)?;
                    second_page = page;
                    op
                }
            };
            self.ops.push(op);
            offset += usize::from(op.len);
            if op.attributes & (attr::SETS_RIP | attr::ENDS_BLOCK) != 0 || offset >= fetch.bytes {
                break;
            }
        }
        let count = (self.ops.len() - first) as u16;
        let run = Run {
            end_ip: core.rip.wrapping_add(offset as u64),
            first: first as u32,
            count,
            dispatched: count - u16::from(self.fuse_last_two(first)),
        };
        let block = Block { ip: core.rip, run, physical: fetch.physical, second_page, mode, next_in_bucket: NO_BLOCK };
        let in_page = (PAGE_BYTES - (fetch.physical & OFFSET_MASK)).min(offset as u64);
        self.mark(core, fetch.physical, in_page);
        if let Some(page) = second_page {
            self.mark(core, page, (offset as u64).saturating_sub(in_page).max(1));
        }
        Ok(self.publish(block))
    }

    /// Puts a fused operation before the last two, if they are a pair that fuses.
    fn fuse_last_two(&mut self, first: usize) -> bool {
        let [.., a, b] = &self.ops[first..] else { return false };
        let Some(fused) = fuse(a, b) else { return false };
        self.ops.insert(self.ops.len() - 2, fused);
        true
    }

    fn publish(&mut self, mut block: Block) -> u32 {
        if self.blocks.len() * 2 > self.jumps.len() && self.jumps.len() < JUMP_SETS_MAX {
            self.grow_tables();
        }
        let id = self.blocks.len() as u32;
        let bucket = self.bucket(block.physical, block.ip);
        block.next_in_bucket = self.buckets[bucket];
        self.buckets[bucket] = id;
        self.by_page.entry(block.physical & PAGE_MASK).or_default().push(id);
        if let Some(page) = block.second_page {
            self.by_page.entry(page).or_default().push(id);
        }
        self.blocks.push(block);
        id
    }

    /// Twice as many sets of jumps, which are found again one by one, and chains.
    #[cold]
    fn grow_tables(&mut self) {
        let entries = self.jumps.len() * 2;
        self.jumps = vec![NO_JUMPS; entries];
        self.buckets = vec![NO_BLOCK; entries];
        for id in 0..self.blocks.len() {
            let Block { ip, physical, .. } = self.blocks[id];
            if ip != DEAD {
                let bucket = self.bucket(physical, ip);
                self.blocks[id].next_in_bucket = self.buckets[bucket];
                self.buckets[bucket] = id as u32;
            }
        }
    }

    /// Notes that code was decoded from these bytes of one page.
    fn mark(&mut self, core: &mut Core, physical: u64, bytes: u64) {
        let Some((page, _)) = core.ram.page(physical) else { return };
        let first = (physical & OFFSET_MASK) >> 6;
        let last = ((physical & OFFSET_MASK) + bytes - 1) >> 6;
        core.ram.add_code_chunks(page, (u64::MAX << first) & (u64::MAX >> (63 - last)));
        if core.ram.flags(page) & page_flag::CODE == 0 {
            core.watch_page(page, physical, page_flag::CODE);
        }
    }

    /// Forgets the blocks of one physical page, here and on other CPUs.
    pub fn forget_page(&mut self, core: &mut Core, physical: u64) {
        self.forget_own_page(physical);
        if let Some((page, _)) = core.ram.page(physical) {
            core.ram.clear_code(page);
        }
        core.tell(Change::Code(physical & PAGE_MASK));
    }

    /// Forgets the blocks of one physical page.
    fn forget_own_page(&mut self, physical: u64) {
        for id in self.by_page.remove(&(physical & PAGE_MASK)).unwrap_or_default() {
            let dead = std::mem::replace(&mut self.blocks[id as usize].ip, DEAD);
            // A block on two pages may have been forgotten through the other one.
            if dead != DEAD {
                let slot = self.jump_slot(dead);
                let JumpSet(set) = &mut self.jumps[slot];
                set.iter_mut().filter(|jump| jump.ip == dead).for_each(|jump| *jump = NO_JUMP);
                let first = self.blocks[id as usize].run.first;
                self.forgotten.push(first);
                self.unlink(id, dead);
            }
        }
    }

    /// Does what other CPUs have listed since this one last looked.
    #[cold]
    #[inline(never)]
    pub fn catch_up(&mut self, core: &mut Core) {
        let Some(changes) = &mut core.ram.changes else { return };
        match changes.catch_up() {
            News::Changes(changes) => {
                for change in changes {
                    if let Change::Code(physical) = change {
                        self.forget_own_page(physical);
                    }
                    core.follow(change);
                }
            }
            News::Everything => {
                self.clear(core);
                core.follow(Change::Translations);
            }
        }
        core.attention = true;
    }

    /// Takes a block out of its bucket, so that chains stay short however often code changes.
    fn unlink(&mut self, id: u32, ip: u64) {
        let Block { physical, next_in_bucket: next, .. } = self.blocks[id as usize];
        let bucket = self.bucket(physical, ip);
        if self.buckets[bucket] == id {
            self.buckets[bucket] = next;
            return;
        }
        let mut at = self.buckets[bucket];
        while at != NO_BLOCK {
            let block = &mut self.blocks[at as usize];
            if block.next_in_bucket == id {
                block.next_in_bucket = next;
                return;
            }
            at = block.next_in_bucket;
        }
    }

    /// Forgets where blocks were found, because translation tags repeat.
    pub fn forget_jumps(&mut self) {
        self.jumps_epoch += 1;
        self.jumps.fill(NO_JUMPS);
        self.code_pages.fill(NO_CODE_PAGE);
    }

    /// Translates `rip` for fetching.
    fn fetch(&mut self, core: &mut Core) -> Result<Fetch, Trap> {
        let cs = core.segments[seg::CS];
        let (linear, room) = if core.in_long_code() {
            if !is_canonical(core.rip) {
                return Err(core.fault_code(vector::GP, 0));
            }
            (core.rip, PAGE_BYTES)
        } else {
            if core.rip > u64::from(cs.limit) {
                return Err(core.fault_code(vector::GP, 0));
            }
            (core.rip.wrapping_add(cs.base) & 0xffff_ffff, u64::from(cs.limit) - core.rip + 1)
        };
        let offset = linear & OFFSET_MASK;
        let page = self.code_page(core, linear)?;
        // SAFETY: `page.host` is the first byte of a RAM page and the offset is below the page size.
        let host = unsafe { page.host.add(offset as usize) };
        let bytes = (PAGE_BYTES - offset).min(room) as usize;
        Ok(Fetch { host, physical: page.physical + offset, linear, bytes })
    }

    fn code_page(&mut self, core: &mut Core, linear: u64) -> Result<CodePage, Trap> {
        let tag = (linear & PAGE_MASK) | core.tlb.code_tag();
        let slot = (linear >> 12) as usize % CODE_PAGES;
        let page = self.code_pages[slot];
        if page.tag == tag {
            return Ok(page);
        }
        match core.translate(linear & PAGE_MASK, Kind::Execute) {
            Ok(Target::Ram { host, physical, .. }) => {
                // The walk may have changed the tag only by a flush, after which this entry must not match.
                let page = CodePage { tag, host, physical };
                self.code_pages[slot] = page;
                Ok(page)
            }
            Ok(Target::Outside { .. }) => Err(core.fetch_outside_ram()),
            Err(trap) => {
                core.pending_fault.address |= linear & OFFSET_MASK;
                Err(trap)
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self, core: &mut Core) {
        self.epoch += 1;
        self.forgotten.clear();
        self.ops.clear();
        self.blocks.clear();
        self.jumps.fill(NO_JUMPS);
        self.buckets.fill(NO_BLOCK);
        for physical in std::mem::take(&mut self.by_page).into_keys() {
            // Other CPUs may have blocks of the same pages.
            if let Some((page, _)) = core.ram.page(physical).filter(|_| !core.ram.is_shared()) {
                core.ram.clear_code(page);
            }
        }
    }
}

/// Translates the page after the one that fetching began in.
fn second_page(core: &mut Core, fetch: &Fetch, mode: CodeMode) -> Result<Target, Trap> {
    let next = (fetch.linear & PAGE_MASK).wrapping_add(PAGE_BYTES);
    let to_page_end = (PAGE_BYTES - (fetch.physical & OFFSET_MASK)) as usize;
    let long = mode.is_long();
    let past_canonical = long && !is_canonical(next);
    if fetch.bytes < to_page_end || past_canonical {
        // The code segment (or the canonical half) ends inside the instruction.
        return Err(core.fault_code(vector::GP, 0));
    }
    core.translate(if long { next } else { next & 0xffff_ffff }, Kind::Execute)
}

/// Decodes an instruction whose bytes do not end in its first page, and says which the second physical page is.
fn decode_across(core: &mut Core, fetch: &Fetch, mode: CodeMode) -> Result<(Op, Option<u64>), Trap> {
    let Target::Ram { host, physical, .. } = second_page(core, fetch, mode)? else {
        return Err(core.fetch_outside_ram());
    };
    let mut bytes = [0u8; INSTRUCTION_BYTES_MAX];
    let near = fetch.bytes.min(INSTRUCTION_BYTES_MAX);
    let far = INSTRUCTION_BYTES_MAX - near;
    // SAFETY: `near` bytes lie before the end of the first RAM page, and 15 bytes at the start of the second.
    unsafe {
        std::ptr::copy_nonoverlapping(fetch.host, bytes.as_mut_ptr(), near);
        std::ptr::copy_nonoverlapping(host, bytes.as_mut_ptr().add(near), far);
    }
    match decode(&bytes, core.rip, mode, 0) {
        Decoded::Op(op) => Ok((op, Some(physical))),
        Decoded::NeedsMore => Err(core.fault_code(vector::GP, 0)),
    }
}
