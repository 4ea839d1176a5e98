// SPDX-License-Identifier: AGPL-3.0-or-later
//! String instructions with their repeat prefixes.
//!
//! Every iteration counts 1 and is a boundary; a repeated instruction whose count is zero counts 1 as a whole. Long runs of
//! MOVS and STOS inside a page take a bulk path whose result and count are those of the iterations.

use crate::core_state::Core;
use crate::exit::Exit;
use crate::flags::bit;
use crate::memory::{OFFSET_MASK, PAGE_BYTES};
use crate::mmu::Kind;
use crate::op::{Handler, Op, Step, Trap, attr};
use crate::state::seg;
use crate::table::Entry;
use crate::width::Width;
use iced_x86::Code;

const FAMILY: &str = "string";
const RAX: u8 = 0;
const RCX: usize = 1;
const RDX: u8 = 2;
const RSI: usize = 6;
const RDI: usize = 7;

fn address_mask(op: &Op) -> u64 {
    if op.has(attr::ADDRESS_32) {
        0xffff_ffff
    } else if op.has(attr::ADDRESS_16) {
        0xffff
    } else {
        u64::MAX
    }
}

impl Core {
    /// Writes an index or count register at the address size.
    fn set_index(&mut self, op: &Op, register: usize, value: u64) {
        let mask = address_mask(op);
        let keep = if mask == 0xffff { self.gpr[register] & !0xffff } else { 0 };
        self.gpr[register] = (value & mask) | keep;
    }

    fn string_address(&mut self, op: &Op, register: usize, bytes: u64, write: bool) -> Result<u64, Trap> {
        let offset = self.gpr[register] & address_mask(op);
        let segment = if register == RDI { seg::ES as u8 } else { op.segment };
        if op.has(attr::SEGMENTED_CODE) {
            return self.segmented(segment, offset, bytes, write);
        }
        Ok(offset.wrapping_add(self.segment_base[usize::from(segment & 7)]))
    }

    fn advance(&mut self, op: &Op, register: usize, bytes: u64) {
        let change = if self.system_flags & bit::DF != 0 { bytes.wrapping_neg() } else { bytes };
        self.set_index(op, register, self.gpr[register].wrapping_add(change));
    }
}

/// One string operation.
trait StringOp {
    /// One iteration, index registers included.
    fn iterate<T: Width>(core: &mut Core, op: &Op) -> Step;
    /// Whether the instruction may run at all, whatever its count.
    #[inline(always)]
    fn permitted<T: Width>(_core: &mut Core) -> Step {
        Ok(())
    }
    /// The repeat prefix also looks at ZF.
    const COMPARES: bool;
    /// Does up to `iterations` at once if nothing can be told apart from single iterations, and says how many.
    fn bulk<T: Width>(_core: &mut Core, _op: &Op, _iterations: u64) -> u64 {
        0
    }
}

struct Movs;
impl StringOp for Movs {
    const COMPARES: bool = false;

    #[inline(always)]
    fn iterate<T: Width>(core: &mut Core, op: &Op) -> Step {
        let from = core.string_address(op, RSI, T::BYTES, false)?;
        let value = core.read::<T>(from, op.segment)?;
        let to = core.string_address(op, RDI, T::BYTES, true)?;
        core.write(to, seg::ES as u8, value)?;
        core.advance(op, RSI, T::BYTES);
        core.advance(op, RDI, T::BYTES);
        Ok(())
    }

    fn bulk<T: Width>(core: &mut Core, op: &Op, iterations: u64) -> u64 {
        let (from, to) = (core.flat_address(op, RSI), core.flat_address(op, RDI));
        let count = elements_in_page::<T>(from).min(elements_in_page::<T>(to)).min(iterations);
        let bytes = count * T::BYTES;
        // A destination just ahead of the source repeats what was copied before it.
        if count < 2 || to.wrapping_sub(from) < bytes {
            return 0;
        }
        let (Some(source), Some(target)) = (core.host_for_read(from), core.host_for_write(to)) else { return 0 };
        // SAFETY: both ranges end inside the pages that the translation cache maps; `copy` allows them to overlap, and
        // then the source lies ahead, where front to back equals all at once unless host pages alias (checked next).
        unsafe {
            let ahead = (target as usize).wrapping_sub(source as usize) as u64;
            if ahead < bytes {
                return 0;
            }
            std::ptr::copy(source, target, bytes as usize);
        }
        core.set_index(op, RSI, core.gpr[RSI].wrapping_add(bytes));
        core.set_index(op, RDI, core.gpr[RDI].wrapping_add(bytes));
        count
    }
}

struct Stos;
impl StringOp for Stos {
    const COMPARES: bool = false;

    #[inline(always)]
    fn iterate<T: Width>(core: &mut Core, op: &Op) -> Step {
        let to = core.string_address(op, RDI, T::BYTES, true)?;
        core.write(to, seg::ES as u8, core.reg::<T>(RAX))?;
        core.advance(op, RDI, T::BYTES);
        Ok(())
    }

    fn bulk<T: Width>(core: &mut Core, op: &Op, iterations: u64) -> u64 {
        let to = core.flat_address(op, RDI);
        let count = elements_in_page::<T>(to).min(iterations);
        let value = core.reg::<T>(RAX);
        let Some(target) = core.host_for_write(to) else { return 0 };
        for index in 0..count as usize {
            // SAFETY: `count` elements end inside the page that the translation cache maps for writing.
            unsafe { target.cast::<T>().add(index).write_unaligned(value) };
        }
        core.set_index(op, RDI, core.gpr[RDI].wrapping_add(count * T::BYTES));
        count
    }
}

struct Lods;
impl StringOp for Lods {
    const COMPARES: bool = false;

    #[inline(always)]
    fn iterate<T: Width>(core: &mut Core, op: &Op) -> Step {
        let from = core.string_address(op, RSI, T::BYTES, false)?;
        let value = core.read::<T>(from, op.segment)?;
        core.set_reg(RAX, value);
        core.advance(op, RSI, T::BYTES);
        Ok(())
    }
}

struct Scas;
impl StringOp for Scas {
    const COMPARES: bool = true;

    #[inline(always)]
    fn iterate<T: Width>(core: &mut Core, op: &Op) -> Step {
        let from = core.string_address(op, RDI, T::BYTES, false)?;
        let value = core.read::<T>(from, seg::ES as u8)?;
        core.flags_sub(core.reg::<T>(RAX), value, false);
        core.advance(op, RDI, T::BYTES);
        Ok(())
    }
}

struct Cmps;
impl StringOp for Cmps {
    const COMPARES: bool = true;

    #[inline(always)]
    fn iterate<T: Width>(core: &mut Core, op: &Op) -> Step {
        let first = core.string_address(op, RSI, T::BYTES, false)?;
        let first = core.read::<T>(first, op.segment)?;
        let second = core.string_address(op, RDI, T::BYTES, false)?;
        let second = core.read::<T>(second, seg::ES as u8)?;
        core.flags_sub(first, second, false);
        core.advance(op, RSI, T::BYTES);
        core.advance(op, RDI, T::BYTES);
        Ok(())
    }
}

struct Ins;
impl StringOp for Ins {
    const COMPARES: bool = false;

    fn permitted<T: Width>(core: &mut Core) -> Step {
        core.check_port(core.reg::<u16>(RDX), T::BYTES)
    }

    fn iterate<T: Width>(core: &mut Core, op: &Op) -> Step {
        let port = core.reg::<u16>(RDX);
        let to = core.string_address(op, RDI, T::BYTES, true)?;
        core.probe(to, T::BYTES, Kind::Write, seg::ES as u8)?;
        let value = core.outside(Exit::PortRead { port, size: T::BYTES as u8 })?;
        core.write(to, seg::ES as u8, T::cut(value))?;
        core.advance(op, RDI, T::BYTES);
        Ok(())
    }
}

struct Outs;
impl StringOp for Outs {
    const COMPARES: bool = false;

    fn permitted<T: Width>(core: &mut Core) -> Step {
        core.check_port(core.reg::<u16>(RDX), T::BYTES)
    }

    fn iterate<T: Width>(core: &mut Core, op: &Op) -> Step {
        let port = core.reg::<u16>(RDX);
        let from = core.string_address(op, RSI, T::BYTES, false)?;
        let value = core.read::<T>(from, op.segment)?;
        core.outside(Exit::PortWrite { port, size: T::BYTES as u8, value: value.zx() as u32 })?;
        core.advance(op, RSI, T::BYTES);
        Ok(())
    }
}

impl Core {
    /// Linear address of a string operand where segments do not matter.
    fn flat_address(&self, op: &Op, register: usize) -> u64 {
        let segment = if register == RDI { seg::ES as u8 } else { op.segment };
        self.gpr[register].wrapping_add(self.segment_base[usize::from(segment & 7)])
    }

    /// Host address of a byte that the translation cache lets read.
    pub fn host_for_read(&self, address: u64) -> Option<*const u8> {
        let entry = self.tlb.entry(address);
        (entry.read == self.tlb.tag_of(address)).then(|| address.wrapping_add(entry.addend) as *const u8)
    }

    /// Host address of a byte that the translation cache lets write.
    pub fn host_for_write(&self, address: u64) -> Option<*mut u8> {
        let entry = self.tlb.entry(address);
        (entry.write == self.tlb.tag_of(address)).then(|| address.wrapping_add(entry.addend) as *mut u8)
    }
}

/// Whole elements from an address to the end of its page.
fn elements_in_page<T: Width>(address: u64) -> u64 {
    (PAGE_BYTES - (address & OFFSET_MASK)) / T::BYTES
}

fn string<O: StringOp, T: Width>(core: &mut Core, op: &Op) -> Step {
    O::permitted::<T>(core)?;
    if op.attributes & (attr::REP | attr::REPNE) == 0 { O::iterate::<T>(core, op) } else { repeat::<O, T>(core, op) }
}

/// Iterates until the count, the comparison, the limit of this run or a store to code ends it.
fn repeat<O: StringOp, T: Width>(core: &mut Core, op: &Op) -> Step {
    let room = core.limit.wrapping_sub(core.count_at(op));
    let bulk = op.attributes & (attr::ADDRESS_16 | attr::ADDRESS_32 | attr::SEGMENTED_CODE) == 0
        && core.system_flags & bit::DF == 0
        && core.log.is_empty();
    let mut left = core.gpr[RCX] & address_mask(op);
    core.rip = op.next_ip;
    if left == 0 {
        return Ok(());
    }
    let mut done = 0;
    loop {
        let many = if bulk && !O::COMPARES { O::bulk::<T>(core, op, left.min(room - done)) } else { 0 };
        if many == 0
            && let Err(trap) = O::iterate::<T>(core, op)
        {
            core.instructions += done;
            return Err(trap);
        }
        done += many.max(1);
        left -= many.max(1);
        core.set_index(op, RCX, left);
        if left == 0 || (O::COMPARES && core.flags.zf() != op.has(attr::REP)) {
            break;
        }
        if done >= room || core.block_end == 0 {
            core.rip = op.ip();
            break;
        }
    }
    core.instructions += done - 1;
    Ok(())
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let handler: Handler = match code {
        Code::Movsb_m8_m8 => string::<Movs, u8>,
        Code::Movsw_m16_m16 => string::<Movs, u16>,
        Code::Movsd_m32_m32 => string::<Movs, u32>,
        Code::Movsq_m64_m64 => string::<Movs, u64>,
        Code::Stosb_m8_AL => string::<Stos, u8>,
        Code::Stosw_m16_AX => string::<Stos, u16>,
        Code::Stosd_m32_EAX => string::<Stos, u32>,
        Code::Stosq_m64_RAX => string::<Stos, u64>,
        Code::Lodsb_AL_m8 => string::<Lods, u8>,
        Code::Lodsw_AX_m16 => string::<Lods, u16>,
        Code::Lodsd_EAX_m32 => string::<Lods, u32>,
        Code::Lodsq_RAX_m64 => string::<Lods, u64>,
        Code::Scasb_AL_m8 => string::<Scas, u8>,
        Code::Scasw_AX_m16 => string::<Scas, u16>,
        Code::Scasd_EAX_m32 => string::<Scas, u32>,
        Code::Scasq_RAX_m64 => string::<Scas, u64>,
        Code::Cmpsb_m8_m8 => string::<Cmps, u8>,
        Code::Cmpsw_m16_m16 => string::<Cmps, u16>,
        Code::Cmpsd_m32_m32 => string::<Cmps, u32>,
        Code::Cmpsq_m64_m64 => string::<Cmps, u64>,
        Code::Insb_m8_DX => string::<Ins, u8>,
        Code::Insw_m16_DX => string::<Ins, u16>,
        Code::Insd_m32_DX => string::<Ins, u32>,
        Code::Outsb_DX_m8 => string::<Outs, u8>,
        Code::Outsw_DX_m16 => string::<Outs, u16>,
        Code::Outsd_DX_m32 => string::<Outs, u32>,
        _ => return None,
    };
    Entry::one(FAMILY, handler)
}
