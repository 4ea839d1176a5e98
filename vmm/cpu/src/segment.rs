// SPDX-License-Identifier: AGPL-3.0-or-later
//! Segments: loading in all modes, limit and type checks outside 64-bit mode, effective bases.

use crate::core_state::{Core, vector};
use crate::op::{Step, Trap};
use crate::state::{Segment, seg};
use crate::tlb::Privilege;
use crate::width::Mem;

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
    pub const LONG: u16 = 1 << 13;
    pub const BIG: u16 = 1 << 14;
    pub const GRANULAR: u16 = 1 << 15;
}

/// The attributes of a flat, accessed, writable stack segment with a given DPL.
pub(crate) fn flat_stack_attributes(dpl: u8) -> u16 {
    let data = desc::PRESENT | desc::NOT_SYSTEM | desc::WRITABLE | desc::ACCESSED;
    data | desc::BIG | desc::GRANULAR | u16::from(dpl) << desc::DPL_SHIFT
}

/// The attributes of a flat, accessed, readable code segment.
pub(crate) fn flat_code_attributes(dpl: u8, long: bool) -> u16 {
    let code = desc::PRESENT | desc::NOT_SYSTEM | desc::CODE | desc::WRITABLE | desc::ACCESSED | desc::GRANULAR;
    code | if long { desc::LONG } else { desc::BIG } | u16::from(dpl) << desc::DPL_SHIFT
}

/// The selector's index and table, as error codes carry them.
pub(crate) fn error_of(selector: u16) -> u32 {
    u32::from(selector & !3)
}

pub(crate) fn is_null(selector: u16) -> bool {
    selector & !3 == 0
}

/// A descriptor as it lies in a table; `high` is the upper half of the 16-byte system descriptors of long mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub low: u64,
    pub high: u64,
    /// Linear address, for setting the accessed or busy bit.
    pub address: u64,
}

impl Descriptor {
    pub fn attributes(&self) -> u16 {
        ((self.low >> 40) as u16) & !0x0f00
    }

    pub fn has(&self, bits: u16) -> bool {
        self.attributes() & bits == bits
    }

    pub fn dpl(&self) -> u8 {
        (self.attributes() >> desc::DPL_SHIFT & 3) as u8
    }

    /// Type field of a system descriptor.
    pub fn system_type(&self) -> u16 {
        self.attributes() & desc::TYPE
    }

    pub fn is_system(&self) -> bool {
        !self.has(desc::NOT_SYSTEM)
    }

    pub fn is_code(&self) -> bool {
        self.has(desc::NOT_SYSTEM | desc::CODE)
    }

    pub fn is_conforming_code(&self) -> bool {
        self.has(desc::NOT_SYSTEM | desc::CODE | desc::CONFORMING)
    }

    pub fn is_writable_data(&self) -> bool {
        self.has(desc::NOT_SYSTEM | desc::WRITABLE) && !self.has(desc::CODE)
    }

    /// Data, or code that can be read.
    pub fn is_readable(&self) -> bool {
        self.has(desc::NOT_SYSTEM) && (!self.has(desc::CODE) || self.has(desc::WRITABLE))
    }

    fn limit(&self) -> u32 {
        let limit = (self.low & 0xffff) as u32 | ((self.low >> 32) as u32 & 0xf_0000);
        if self.has(desc::GRANULAR) { limit << 12 | 0xfff } else { limit }
    }

    fn base(&self) -> u64 {
        (self.low >> 16 & 0xff_ffff) | (self.low >> 56) << 24
    }

    /// The register contents for a code or data segment.
    pub fn segment(&self, selector: u16) -> Segment {
        let attributes = self.attributes() | desc::ACCESSED;
        Segment { selector, base: self.base(), limit: self.limit(), attributes }
    }

    /// The register contents for an LDT or TSS, whose base has 64 bits.
    pub fn system_segment(&self, selector: u16) -> Segment {
        let base = self.base() | self.high << 32;
        Segment { selector, base, limit: self.limit(), attributes: self.attributes() }
    }
}

/// Loading segment registers.
impl Core {
    /// Runs `body` with the access rights of another privilege.
    pub fn as_privilege<R>(&mut self, privilege: Privilege, body: impl FnOnce(&mut Core) -> R) -> R {
        let own = self.privilege;
        if own == privilege {
            return body(self);
        }
        self.privilege = privilege;
        self.tlb.borrow_privilege(privilege);
        let result = body(self);
        self.update_privilege();
        result
    }

    /// Reads a system structure: an access of the supervisor whatever the CPL.
    pub fn read_system<T: Mem>(&mut self, address: u64) -> Result<T, Trap> {
        self.as_privilege(Privilege::Supervisor, |core| core.read(address, seg::DS as u8))
    }

    fn write_system<T: Mem>(&mut self, address: u64, value: T) -> Step {
        self.as_privilege(Privilege::Supervisor, |core| core.write(address, seg::DS as u8, value))
    }

    /// Reads the descriptor that a selector names; `vector` is raised with the selector where the table ends before it.
    pub fn descriptor(&mut self, selector: u16, vector: u8) -> Result<Descriptor, Trap> {
        let (base, limit) = if selector & 4 == 0 {
            (self.gdtr.base, u32::from(self.gdtr.limit))
        } else {
            (self.ldtr.base, if self.ldtr.attributes & desc::PRESENT != 0 { self.ldtr.limit } else { 0 })
        };
        let offset = u32::from(selector & !7);
        if offset + 7 > limit {
            return Err(self.fault_code(vector, error_of(selector)));
        }
        let address = base.wrapping_add(offset.into());
        let low = self.read_system::<u64>(address)?;
        Ok(Descriptor { low, high: 0, address })
    }

    /// [`Core::descriptor`] of a system descriptor, which has 16 bytes in long mode.
    pub fn system_descriptor(&mut self, selector: u16, vector: u8) -> Result<Descriptor, Trap> {
        let mut descriptor = self.descriptor(selector, vector)?;
        if !self.in_long_mode() {
            return Ok(descriptor);
        }
        let limit = if selector & 4 == 0 { u32::from(self.gdtr.limit) } else { self.ldtr.limit };
        if u32::from(selector & !7) + 15 > limit {
            return Err(self.fault_code(vector, error_of(selector)));
        }
        descriptor.high = self.read_system::<u64>(descriptor.address.wrapping_add(8))?;
        Ok(descriptor)
    }

    /// Sets the accessed bit in the table.
    pub fn mark_accessed(&mut self, descriptor: &Descriptor) -> Step {
        if descriptor.has(desc::ACCESSED) {
            return Ok(());
        }
        let byte = descriptor.low.to_le_bytes()[5] | 1;
        self.write_system(descriptor.address.wrapping_add(5), byte)
    }

    /// Sets or clears the busy bit of a TSS descriptor.
    pub fn mark_busy(&mut self, descriptor: &Descriptor) -> Step {
        let byte = descriptor.low.to_le_bytes()[5] | 2;
        self.write_system(descriptor.address.wrapping_add(5), byte)
    }

    /// MOV, POP and the far loads to ES, SS, DS, FS and GS.
    pub fn load_segment(&mut self, register: usize, selector: u16) -> Step {
        if self.in_real_mode() {
            self.segments[register] = self.real_segment(register, selector);
            self.update_segment_bases();
            return Ok(());
        }
        let segment =
            if register == seg::SS { self.stack_segment(selector, self.cpl())? } else { self.data_segment(selector)? };
        self.segments[register] = segment;
        self.update_segment_bases();
        Ok(())
    }

    /// Real mode changes selector and base; limit and attributes stay, so that a limit from protected mode goes on.
    pub fn real_segment(&self, register: usize, selector: u16) -> Segment {
        Segment { selector, base: u64::from(selector) << 4, ..self.segments[register] }
    }

    fn data_segment(&mut self, selector: u16) -> Result<Segment, Trap> {
        if is_null(selector) {
            return Ok(Segment { selector, ..Segment::default() });
        }
        let descriptor = self.descriptor(selector, vector::GP)?;
        let lowest = self.cpl().max((selector & 3) as u8);
        if !descriptor.is_readable() || (!descriptor.is_conforming_code() && lowest > descriptor.dpl()) {
            return Err(self.fault_code(vector::GP, error_of(selector)));
        }
        if !descriptor.has(desc::PRESENT) {
            return Err(self.fault_code(vector::NP, error_of(selector)));
        }
        self.mark_accessed(&descriptor)?;
        Ok(descriptor.segment(selector))
    }

    /// Checks a selector for SS at a privilege level. A null selector is allowed in 64-bit code below CPL 3.
    fn stack_segment(&mut self, selector: u16, cpl: u8) -> Result<Segment, Trap> {
        if is_null(selector) {
            if self.in_long_code() && cpl != 3 && (selector & 3) as u8 == cpl {
                return Ok(null_stack(selector));
            }
            return Err(self.fault_code(vector::GP, 0));
        }
        self.present_stack_segment(selector, cpl, vector::GP)
    }

    /// Checks a selector for SS that is not null; type and privilege errors raise `wrong`.
    pub fn present_stack_segment(&mut self, selector: u16, cpl: u8, wrong: u8) -> Result<Segment, Trap> {
        let descriptor = self.descriptor(selector, wrong)?;
        if !descriptor.is_writable_data() || descriptor.dpl() != cpl || (selector & 3) as u8 != cpl {
            return Err(self.fault_code(wrong, error_of(selector)));
        }
        if !descriptor.has(desc::PRESENT) {
            return Err(self.fault_code(vector::SS, error_of(selector)));
        }
        self.mark_accessed(&descriptor)?;
        Ok(descriptor.segment(selector))
    }

    /// Makes CS and SS real after a far transfer, with everything that follows from them.
    pub fn set_code_and_stack(&mut self, cs: Segment, ss: Option<Segment>) {
        let old = self.segments[seg::CS];
        self.segments[seg::CS] = cs;
        if let Some(ss) = ss {
            self.segments[seg::SS] = ss;
        }
        if !self.in_long_code() && (old.base != cs.base || old.limit != cs.limit || old.attributes & desc::LONG != 0) {
            // Blocks are found by instruction pointer: another base or limit means other bytes.
            self.forget_code = true;
        }
        self.block_end = 0;
        self.attention = true;
        self.update_segment_bases();
        self.update_privilege();
    }
}

/// SS after a null selector was loaded, which 64-bit code below CPL 3 may do.
pub(crate) fn null_stack(selector: u16) -> Segment {
    Segment { selector, base: 0, limit: 0xffff_ffff, attributes: flat_stack_attributes((selector & 3) as u8) }
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

    /// Linear address outside 64-bit mode: checks presence, type and limit (in real mode the limit alone).
    #[cold]
    #[inline(never)]
    pub fn segmented(&mut self, segment: u8, offset: u64, bytes: u64, write: bool) -> Result<u64, Trap> {
        let index = usize::from(segment & 7);
        let Segment { base, limit, attributes, .. } = self.segments[index];
        let code = attributes & desc::CODE != 0;
        let permitted = self.in_real_mode()
            || attributes & desc::PRESENT != 0
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
