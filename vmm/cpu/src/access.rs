// SPDX-License-Identifier: AGPL-3.0-or-later
//! Loads and stores of the executing instruction.
//!
//! The fast path is a hit in the translation cache. The slow path walks, keeps the dirty set, notices stores to decoded
//! code and to page tables, splits accesses that cross a page (both pages are checked before anything is written), and
//! turns accesses outside RAM into exits. Alignment checks and data breakpoints put nothing into the translation cache
//! (see `Core::update_privilege`), so the fast path needs no test for them.
//!
//! An access outside RAM leaves the instruction unfinished. It is executed again when the run goes on, against a log of
//! the accesses that were already answered: reads return what was answered, writes already made are skipped.

use crate::core_state::{Core, cr, vector};
use crate::exit::Exit;
use crate::memory::{OFFSET_MASK, PAGE_BYTES, PageIndex, page_flag};
use crate::mmu::{Kind, Target};
use crate::op::{Op, Step, Trap, attr};
use crate::state::seg;
use crate::tlb::Privilege;
use crate::width::Mem;

/// Accesses outside RAM that the executing instruction has made: their values in order.
#[derive(Debug, Default)]
pub(crate) struct AccessLog {
    answered: Vec<u64>,
    next: usize,
    /// An exit was returned and its answer is due.
    waiting: bool,
    /// The answer was a refusal.
    refused: bool,
}

impl AccessLog {
    /// Begins (again) at the first access.
    pub fn rewind(&mut self) {
        self.next = 0;
    }

    /// The instruction retired or faulted.
    pub fn clear(&mut self) {
        self.answered.clear();
        self.next = 0;
        self.waiting = false;
        self.refused = false;
    }

    pub fn is_empty(&self) -> bool {
        self.answered.is_empty() && !self.waiting && !self.refused
    }

    /// Records the answer to the exit that was returned.
    pub fn answer(&mut self, value: u64) {
        if self.waiting {
            self.answered.push(value);
            self.waiting = false;
        }
    }

    /// Refuses the access instead (MSRs).
    pub fn refuse(&mut self) {
        self.refused |= std::mem::take(&mut self.waiting);
    }

    /// Called when the run goes on: a write is done now, and a read nobody answered gives zero.
    pub fn settle(&mut self) {
        self.answer(0);
    }

    fn take(&mut self) -> Option<u64> {
        let value = self.answered.get(self.next).copied()?;
        self.next += 1;
        Some(value)
    }
}

/// Where a read-modify-write operand is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub address: u64,
    pub segment: u8,
}

fn size_mask(size: u64) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (size * 8)) - 1 }
}

impl Core {
    /// Linear address of the memory operand, for an access of `bytes`; checks the segment in compatibility mode.
    #[inline(always)]
    pub fn linear(&mut self, op: &Op, bytes: u64, write: bool) -> Result<u64, Trap> {
        if op.attributes & (attr::SEGMENTED | attr::ADDRESS_32 | attr::ADDRESS_16) != 0 {
            return self.linear_slow(op, bytes, write);
        }
        Ok(self.sum(op).wrapping_add(self.segment_base[usize::from(op.segment & 7)]))
    }

    #[cold]
    #[inline(never)]
    fn linear_slow(&mut self, op: &Op, bytes: u64, write: bool) -> Result<u64, Trap> {
        let offset = self.effective(op);
        if op.has(attr::SEGMENTED) {
            return self.segmented(op.segment, offset, bytes, write);
        }
        Ok(offset.wrapping_add(self.segment_base[usize::from(op.segment & 7)]))
    }

    /// Linear address of a memory operand that no segment limit or address size concerns.
    #[inline(always)]
    fn plain_address(&self, op: &Op) -> Option<u64> {
        let plain = op.attributes & (attr::SEGMENTED | attr::ADDRESS_32 | attr::ADDRESS_16) == 0;
        plain.then(|| self.sum(op).wrapping_add(self.segment_base[usize::from(op.segment & 7)]))
    }

    /// Loads the memory operand and goes on with `then`, which cannot fail. Everything slow is in a copy of the handler that is
    /// jumped to, so that the handler itself saves no registers.
    #[inline(always)]
    pub fn load_then<T: Mem>(&mut self, op: &Op, then: impl FnOnce(&mut Core, &Op, T)) -> Step {
        if let Some(address) = self.plain_address(op)
            && let Some(value) = self.read_cached(address)
        {
            then(self, op, value);
            return Ok(());
        }
        self.load_slow_then(op, then)
    }

    #[cold]
    #[inline(never)]
    fn load_slow_then<T: Mem>(&mut self, op: &Op, then: impl FnOnce(&mut Core, &Op, T)) -> Step {
        let value = self.load(op)?;
        then(self, op, value);
        Ok(())
    }

    /// Loads the memory operand.
    #[inline(always)]
    pub fn load<T: Mem>(&mut self, op: &Op) -> Result<T, Trap> {
        let address = self.linear(op, T::BYTES, false)?;
        self.read(address, op.segment)
    }

    /// Stores to the memory operand.
    #[inline(always)]
    pub fn store<T: Mem>(&mut self, op: &Op, value: T) -> Step {
        if let Some(address) = self.plain_address(op)
            && self.write_cached(address, value)
        {
            return Ok(());
        }
        self.store_slow(op, value)
    }

    #[cold]
    #[inline(never)]
    fn store_slow<T: Mem>(&mut self, op: &Op, value: T) -> Step {
        let address = self.linear(op, T::BYTES, true)?;
        self.write(address, op.segment, value)
    }

    /// Loads a 16-byte operand that must be aligned (#GP(0) otherwise).
    #[inline(always)]
    pub fn load_aligned(&mut self, op: &Op) -> Result<u128, Trap> {
        let address = self.linear(op, 16, false)?;
        if address & 15 != 0 {
            return Err(self.misaligned(address, op.segment));
        }
        self.read(address, op.segment)
    }

    /// Stores a 16-byte operand that must be aligned (#GP(0) otherwise).
    #[inline(always)]
    pub fn store_aligned(&mut self, op: &Op, value: u128) -> Step {
        let address = self.linear(op, 16, true)?;
        if address & 15 != 0 {
            return Err(self.misaligned(address, op.segment));
        }
        self.write(address, op.segment, value)
    }

    /// A non-canonical address comes before the alignment fault.
    #[cold]
    pub fn misaligned(&mut self, address: u64, segment: u8) -> Trap {
        match self.check_canonical(address, segment) {
            Ok(()) => self.gp0(),
            Err(trap) => trap,
        }
    }

    /// Reads `T` at a linear address; `segment` decides between #GP and #SS for a non-canonical address.
    #[inline(always)]
    pub fn read<T: Mem>(&mut self, address: u64, segment: u8) -> Result<T, Trap> {
        match self.read_cached(address) {
            Some(value) => Ok(value),
            None => self.read_slow(address, segment),
        }
    }

    /// Reads `T` if the translation cache says where it is.
    #[inline(always)]
    pub fn read_cached<T: Mem>(&self, address: u64) -> Option<T> {
        let entry = self.tlb.entry(address);
        if entry.read != self.tlb.tag_of(address.wrapping_add(T::BYTES - 1)) {
            return None;
        }
        let host = address.wrapping_add(entry.addend) as *const T;
        // SAFETY: a matching tag means that the first and last byte lie in the linear page that the addend maps to RAM.
        Some(unsafe { host.read_unaligned() })
    }

    /// Writes `T` if the translation cache lets it pass, and says whether it did.
    #[inline(always)]
    pub fn write_cached<T: Mem>(&mut self, address: u64, value: T) -> bool {
        let entry = self.tlb.entry(address);
        let hit = entry.write == self.tlb.tag_of(address.wrapping_add(T::BYTES - 1));
        if hit {
            let host = address.wrapping_add(entry.addend) as *mut T;
            // SAFETY: as in `read_cached`; the write tag also says that nothing derived from this page needs to be told.
            unsafe { host.write_unaligned(value) };
        }
        hit
    }

    /// Writes `T` at a linear address.
    #[inline(always)]
    pub fn write<T: Mem>(&mut self, address: u64, segment: u8, value: T) -> Step {
        if self.write_cached(address, value) { Ok(()) } else { self.write_slow(address, segment, value) }
    }

    /// Reads the memory operand, lets `change` compute the new value (and set flags), and writes it back. All checks are
    /// those of a write and come before `change`.
    #[inline(always)]
    pub fn modify<T: Mem>(&mut self, op: &Op, change: impl FnOnce(&mut Core, T) -> T) -> Step {
        let address = self.linear(op, T::BYTES, true)?;
        self.modify_at(Place { address, segment: op.segment }, change)
    }

    /// [`Core::modify`] at a given place.
    #[inline(always)]
    pub fn modify_at<T: Mem>(&mut self, place: Place, change: impl FnOnce(&mut Core, T) -> T) -> Step {
        let Place { address, segment } = place;
        let entry = self.tlb.entry(address);
        if entry.write == self.tlb.tag_of(address.wrapping_add(T::BYTES - 1)) {
            let host = address.wrapping_add(entry.addend) as *mut T;
            // SAFETY: as in `write`; `change` only touches registers, so the page stays mapped.
            unsafe { host.write_unaligned(change(self, host.read_unaligned())) };
            return Ok(());
        }
        let old = self.read_for_write(address, segment)?;
        let flags = self.flags;
        let new = change(self, old);
        let stored = self.write_slow(address, segment, new);
        if stored.is_err() {
            self.flags = flags;
        }
        stored
    }

    /// Reads with the checks of a write.
    #[cold]
    #[inline(never)]
    pub fn read_for_write<T: Mem>(&mut self, address: u64, segment: u8) -> Result<T, Trap> {
        self.probe(address, T::BYTES, Kind::Write, segment)?;
        self.read_slow(address, segment)
    }

    #[cold]
    #[inline(never)]
    fn read_slow<T: Mem>(&mut self, address: u64, segment: u8) -> Result<T, Trap> {
        let mut bytes = [0u8; 16];
        let size = T::BYTES as usize;
        self.check_access(address, T::BYTES, false, segment)?;
        self.transfer(address, Transfer::Read(&mut bytes[..size]))?;
        Ok(T::from_bits(u128::from_le_bytes(bytes)))
    }

    #[cold]
    #[inline(never)]
    fn write_slow<T: Mem>(&mut self, address: u64, segment: u8, value: T) -> Step {
        let bytes = value.to_bits().to_le_bytes();
        self.check_access(address, T::BYTES, true, segment)?;
        self.transfer(address, Transfer::Write(&bytes[..T::BYTES as usize]))
    }

    /// Translates every page of `[address, address + bytes)` for an access and raises what it would raise. At most a page long.
    pub fn probe(&mut self, address: u64, bytes: u64, kind: Kind, segment: u8) -> Step {
        self.check_access(address, bytes, kind == Kind::Write, segment)?;
        self.translate(address, kind)?;
        let last = address.wrapping_add(bytes - 1);
        if (address ^ last) & !OFFSET_MASK != 0 {
            self.translate(last & !OFFSET_MASK, kind)?;
        }
        Ok(())
    }

    fn check_canonical(&mut self, address: u64, segment: u8) -> Step {
        if (address as i64) << 16 >> 16 == address as i64 {
            return Ok(());
        }
        let vector = if usize::from(segment) == seg::SS { vector::SS } else { vector::GP };
        Err(self.fault_code(vector, 0))
    }

    /// Canonical form of the first and last byte, then alignment (#AC at CPL 3 with CR0.AM and EFLAGS.AC), then data breakpoints.
    fn check_access(&mut self, address: u64, bytes: u64, write: bool, segment: u8) -> Step {
        self.check_canonical(address, segment)?;
        self.check_canonical(address.wrapping_add(bytes - 1), segment)?;
        if self.alignment_checked() && bytes <= 8 && address & (bytes - 1) != 0 {
            return Err(self.fault_code(vector::AC, 0));
        }
        self.note_data_breakpoint(address, bytes, write);
        Ok(())
    }

    /// Alignment checking is on: for accesses of ring 3 itself, not for those of the CPU on its behalf.
    pub fn alignment_checked(&self) -> bool {
        let user = self.privilege == Privilege::User;
        user && self.cr0 & cr::CR0_AM != 0 && self.system_flags & crate::flags::bit::AC != 0
    }

    fn transfer(&mut self, address: u64, transfer: Transfer<'_>) -> Step {
        let (kind, bytes) = match &transfer {
            Transfer::Read(buffer) => (Kind::Read, buffer.len()),
            Transfer::Write(buffer) => (Kind::Write, buffer.len()),
        };
        let first = bytes.min((PAGE_BYTES - (address & OFFSET_MASK)) as usize);
        let near = self.translate(address, kind)?;
        let far = match bytes - first {
            0 => None,
            _ => Some(self.translate(address.wrapping_add(first as u64), kind)?),
        };
        match transfer {
            Transfer::Read(buffer) => {
                let (low, high) = buffer.split_at_mut(first);
                self.read_target(near, low)?;
                far.map_or(Ok(()), |far| self.read_target(far, high))
            }
            Transfer::Write(buffer) => {
                let (low, high) = buffer.split_at(first);
                self.write_target(near, low)?;
                far.map_or(Ok(()), |far| self.write_target(far, high))
            }
        }
    }

    fn read_target(&mut self, target: Target, buffer: &mut [u8]) -> Step {
        match target {
            Target::Ram { host, .. } => {
                // SAFETY: `host` points into a RAM page and the caller split the buffer at the page's end.
                unsafe { std::ptr::copy_nonoverlapping(host, buffer.as_mut_ptr(), buffer.len()) };
                Ok(())
            }
            Target::Outside { physical } => {
                let mut done = 0;
                while done < buffer.len() {
                    let at = physical + done as u64;
                    let size = (8 - (at & 7)).min((buffer.len() - done) as u64);
                    let value = self.outside(Exit::MmioRead { address: at, size: size as u8 })?;
                    buffer[done..done + size as usize].copy_from_slice(&value.to_le_bytes()[..size as usize]);
                    done += size as usize;
                }
                Ok(())
            }
        }
    }

    fn write_target(&mut self, target: Target, buffer: &[u8]) -> Step {
        match target {
            Target::Ram { host, page, physical } => {
                self.write_ram(page, host, physical, buffer);
                Ok(())
            }
            Target::Outside { physical } => {
                let mut done = 0;
                while done < buffer.len() {
                    let at = physical + done as u64;
                    let size = (8 - (at & 7)).min((buffer.len() - done) as u64) as usize;
                    let mut value = [0u8; 8];
                    value[..size].copy_from_slice(&buffer[done..done + size]);
                    self.outside(Exit::MmioWrite { address: at, size: size as u8, value: u64::from_le_bytes(value) })?;
                    done += size;
                }
                Ok(())
            }
        }
    }

    /// Writes inside one RAM page and tells whatever was derived from it.
    pub fn write_ram(&mut self, page: PageIndex, host: *mut u8, physical: u64, buffer: &[u8]) {
        let flags = self.ram.flags(page);
        if flags & page_flag::WALKED != 0 {
            self.before_table_write(host, physical, buffer);
        }
        // SAFETY: `host` points into a RAM page and the caller split the buffer at the page's end.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), host, buffer.len()) };
        self.ram.set_flags(page, page_flag::DIRTY);
        if flags & page_flag::CODE != 0 {
            self.after_code_write(page, physical, buffer.len() as u64);
        }
    }

    pub fn after_code_write(&mut self, page: PageIndex, physical: u64, bytes: u64) {
        let first = (physical & OFFSET_MASK) >> 6;
        let last = ((physical & OFFSET_MASK) + bytes - 1) >> 6;
        let touched = (u64::MAX << first) & (u64::MAX >> (63 - last));
        if self.ram.code_chunks(page) & touched != 0 {
            self.code_writes.push(physical & !OFFSET_MASK);
            self.attention = true;
            self.block_end = 0;
        }
    }

    /// An access that the machine answers: the logged answer, or an exit.
    pub fn outside(&mut self, exit: Exit) -> Result<u64, Trap> {
        if let Some(value) = self.log.take() {
            return Ok(match exit {
                Exit::MmioRead { size, .. } | Exit::PortRead { size, .. } => value & size_mask(u64::from(size)),
                _ => value,
            });
        }
        if self.log.refused {
            return Err(self.gp0());
        }
        self.log.waiting = true;
        self.pending_exit = exit;
        Err(Trap::Exit)
    }
}

enum Transfer<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}
