// SPDX-License-Identifier: AGPL-3.0-or-later
//! Registers and memory operands: where a register is, and from a linear address to a host address.

use super::asm::*;
use super::emit::{Elsewhere, Emitter, Miss};
use super::frame::{FRAME_LINK, PINNED, STACK_ADDEND, STACK_PAGE, STACK_READ, STACK_WRITE, at, probe, slot};
use super::window::{Window, covers};
use crate::core_state::Core;
use crate::op::{NO_REGISTER, Op, attr};
use crate::state::seg;
use std::mem::offset_of;

const GUEST_RSP: u8 = 4;

impl Emitter<'_> {
    /// Where a general register is.
    pub fn rm(guest: u8) -> Rm {
        match PINNED[usize::from(guest & 15)] {
            Some(host) => Rm::Reg(host),
            None => slot(guest & 15),
        }
    }

    /// The host register of a general register, or `scratch` with its value.
    pub fn value(&mut self, guest: u8, scratch: Reg) -> Reg {
        match PINNED[usize::from(guest & 15)] {
            Some(host) => host,
            None => {
                self.asm.load(8, scratch, slot(guest & 15));
                scratch
            }
        }
    }

    /// The host register of a general register, or `scratch`: where to put what is then to be [`Emitter::set`].
    pub fn value_place(&self, guest: u8, scratch: Reg) -> Reg {
        PINNED[usize::from(guest & 15)].unwrap_or(scratch)
    }

    /// Writes a general register from a host register whose upper part is as an operation of this size leaves it.
    pub fn set(&mut self, guest: u8, size: u8, from: Reg) {
        match (PINNED[usize::from(guest & 15)], size) {
            (Some(host), 8) => self.asm.mov(host, from),
            (Some(host), 4) if host == from => {}
            (Some(host), _) => self.asm.load(size, host, Rm::Reg(from)),
            (None, 4 | 8) => self.asm.store(8, slot(guest & 15), from),
            (None, _) => self.asm.store(size, slot(guest & 15), from),
        }
    }

    /// The effective address of the memory operand into RAX; no flag changes. Changes RCX and RDX.
    pub fn effective(&mut self, op: &Op) {
        self.effective_into(op, RAX);
    }

    /// The same into any register that may be written at once.
    pub fn effective_into(&mut self, op: &Op, into: Reg) {
        let size = if op.has(attr::ADDRESS_32) { 4 } else { 8 };
        let short = i32::try_from(op.displacement as i64);
        let disp = short.unwrap_or(0);
        let base = (op.base != NO_REGISTER).then(|| self.value(op.base, RAX));
        let index = (op.index != NO_REGISTER).then(|| self.value(op.index, RCX));
        match (base, index) {
            (Some(base), Some(index)) => self.asm.lea(size, into, Rm::Index(base, index, op.scale & 3, disp)),
            (Some(base), None) => self.asm.lea(size, into, Rm::Base(base, disp)),
            (None, Some(index)) => self.asm.lea(size, into, Rm::Scaled(index, op.scale & 3, disp)),
            (None, None) => {
                let cut = if size == 4 { 0xffff_ffff } else { u64::MAX };
                return self.asm.constant(into, op.displacement & cut);
            }
        }
        if short.is_err() {
            self.asm.constant(RDX, op.displacement);
            self.asm.lea(size, into, Rm::Index(into, RDX, 0, 0));
        }
    }

    /// The host address of the memory operand into RAX, or off to the stub. Changes RCX, RDX and flags.
    pub fn probe(&mut self, op: &Op, bytes: u8, write: bool, cold: Label) {
        self.effective(op);
        let in_window = self.index < self.window_end;
        if in_window && covers(op) {
            return self.asm.alu_load(alu::ADD, 8, RAX, STACK_ADDEND);
        }
        if !in_window
            && op.base == GUEST_RSP
            && bytes <= 8
            && !op.has(attr::ADDRESS_32)
            && usize::from(op.segment) == seg::SS
        {
            return self.probe_stack(write, cold);
        }
        let segment = usize::from(op.segment & 7);
        if segment == seg::FS || segment == seg::GS {
            self.asm.alu_load(alu::ADD, 8, RAX, at(offset_of!(Core, segment_base) + segment * 8));
        }
        self.probe_rax(bytes, write, cold);
    }

    /// The same for the linear address in RAX.
    pub fn probe_rax(&mut self, bytes: u8, write: bool, cold: Label) {
        probe(self.asm, self.setting.tlb_bits, bytes, write, cold);
    }

    /// Checks the stack accesses of a window together, or leaves the rest of the block to the reference.
    pub fn open_window(&mut self, window: Window) {
        let (from, back) = (self.asm.label(), self.asm.label());
        let pointer = self.value(GUEST_RSP, RAX);
        self.asm.lea(8, RCX, Rm::Base(pointer, window.highest));
        self.asm.alu_load(alu::SUB, 8, RCX, STACK_PAGE);
        self.asm.alu_load(alu::CMP, 8, RCX, if window.writes { STACK_WRITE } else { STACK_READ });
        self.asm.jcc(cc::AE, from);
        self.asm.alu_imm(alu::CMP, 8, Rm::Reg(RCX), window.span);
        self.asm.jcc(cc::C, from);
        self.asm.bind(back);
        self.window_end = window.end;
        self.misses.push(Miss { from, back, window });
    }

    /// The page may just be another than last time.
    pub fn window_stubs(&mut self) {
        let routines = self.setting.routines;
        for Miss { from, back, window } in std::mem::take(&mut self.misses) {
            self.asm.bind(from);
            let pointer = self.value(GUEST_RSP, RAX);
            self.asm.lea(8, RAX, Rm::Base(pointer, window.highest));
            self.asm.call_to(if window.writes { routines.stack_write } else { routines.stack_read });
            let rest = self.asm.label();
            self.asm.jcc(cc::NZ, rest);
            let pointer = self.value(GUEST_RSP, RAX);
            self.asm.lea(8, RCX, Rm::Base(pointer, window.highest));
            self.asm.alu_load(alu::SUB, 8, RCX, STACK_PAGE);
            self.asm.alu_imm(alu::CMP, 8, Rm::Reg(RCX), window.span);
            self.asm.jcc(cc::AE, back);
            self.asm.bind(rest);
            self.leave_rest(window.first);
        }
    }

    /// Lets the reference execute the block from an operation on. All flags are in their place.
    pub fn leave_rest(&mut self, index: usize) {
        let op: *const Op = &self.ops[index];
        self.asm.constant(RAX, op as u64);
        self.asm.store_imm(8, FRAME_LINK, self.setting.unit as i32);
        self.asm.constant(RDX, self.ops.len() as u64);
        self.asm.jmp_to(self.setting.routines.rest);
    }

    /// The same for eight bytes (or fewer) of stack, which mostly lie in the page where the last ones lay.
    pub fn probe_stack(&mut self, write: bool, cold: Label) {
        if self.index < self.window_end {
            return self.asm.alu_load(alu::ADD, 8, RAX, STACK_ADDEND);
        }
        let (from, back) = (self.asm.label(), self.asm.label());
        self.asm.mov(RCX, RAX);
        self.asm.alu_load(alu::SUB, 8, RCX, STACK_PAGE);
        self.asm.alu_load(alu::CMP, 8, RCX, if write { STACK_WRITE } else { STACK_READ });
        self.asm.jcc(cc::AE, from);
        self.asm.alu_load(alu::ADD, 8, RAX, STACK_ADDEND);
        self.asm.bind(back);
        self.elsewhere.push(Elsewhere { from, back, cold, write });
    }

    /// Eight bytes of stack at a distance from RSP, checked. Changes RAX, RCX and flags.
    pub fn stack_operand(&mut self, distance: i32, write: bool, cold: Label) -> Rm {
        let pointer = self.value(GUEST_RSP, RCX);
        if self.index < self.window_end {
            self.asm.load(8, RAX, STACK_ADDEND);
            return Rm::Index(RAX, pointer, 0, distance);
        }
        self.asm.lea(8, RAX, Rm::Base(pointer, distance));
        self.probe_stack(write, cold);
        Rm::Base(RAX, 0)
    }

    pub fn elsewhere_stubs(&mut self) {
        let routines = self.setting.routines;
        for Elsewhere { from, back, cold, write } in std::mem::take(&mut self.elsewhere) {
            self.asm.bind(from);
            self.asm.call_to(if write { routines.stack_write } else { routines.stack_read });
            self.asm.jcc(cc::Z, back);
            self.asm.jmp(cold);
        }
    }
}
