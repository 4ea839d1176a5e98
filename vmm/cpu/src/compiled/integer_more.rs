// SPDX-License-Identifier: AGPL-3.0-or-later
//! Integer instructions as host code: turns by CL, rotates, single bits, exchanges, wide products and divisions, and the
//! interrupt flag.

use super::asm::*;
use super::emit::{After, Emitter};
use super::frame::{PINNED, ROOM, SLACK, SPILL, at, field};
use super::kinds::Kind;
use super::status::Save;
use crate::core_state::Core;
use crate::flags::bit;
use crate::op::attr;
use crate::state::{Segment, seg};
use std::mem::offset_of;

const GUEST_RAX: u8 = 0;
const GUEST_RCX: u8 = 1;
const GUEST_RDX: u8 = 2;
const GUEST_RSP: u8 = 4;

impl Emitter<'_> {
    /// Shifts by CL and rotates: flags that are needed are put in their place at once.
    pub fn turn(&mut self, index: usize, what: Kind) {
        let (kind, size, by_cl) = match what {
            Kind::RotateImm { kind, size } => (kind, size, false),
            Kind::ShiftCl { kind, size } | Kind::RotateCl { kind, size } => (kind, size, true),
            _ => return,
        };
        let ops = self.ops;
        let op = &ops[index];
        let save = self.must_save(index);
        // Merging needs the flags before.
        self.clobber();
        let memory = op.has(attr::MEMORY);
        let mut join = None;
        if memory {
            let (cold, back) = self.cold(index, After::Saved);
            self.probe(op, size, true, cold);
            self.asm.mov(RDX, RAX);
            join = Some(back);
        }
        let at = if memory { Rm::Base(RDX, 0) } else { Self::rm(op.dst) };
        let unchanged = self.asm.label();
        if by_cl {
            self.asm.load(4, RCX, Self::rm(GUEST_RCX));
        }
        // A 32-bit register outside the host's registers is turned in RAX, so that its upper half becomes zero.
        let wide = size == 4 && !memory && PINNED[usize::from(op.dst & 15)].is_none();
        let place = if wide { Rm::Reg(RAX) } else { at };
        if wide {
            self.asm.load(4, RAX, at);
        }
        if by_cl {
            self.asm.shift_cl(kind, size, place);
        } else {
            self.asm.shift_imm(kind, size, place, op.imm as u8 & if size == 8 { 63 } else { 31 });
        }
        if wide {
            self.set(op.dst, 8, RAX);
        }
        if save {
            self.save_turn(what, kind, size, at, unchanged);
        }
        self.asm.bind(unchanged);
        if let Some(back) = join {
            self.asm.bind(back);
        }
        self.flags_saved();
    }

    /// OF follows the rule for a turn by one, applied to the result; see the reference.
    fn save_turn(&mut self, what: Kind, kind: u8, size: u8, at: Rm, unchanged: Label) {
        let bits = size * 8;
        let (by_cl, rotates) = match what {
            Kind::ShiftCl { .. } => (true, false),
            Kind::RotateCl { .. } => (true, true),
            _ => (false, true),
        };
        if by_cl {
            // The flags of the turn are computed anew from its result, but for the carry of a shift.
            self.asm.set(cc::C, Rm::Reg(RAX));
            self.asm.test_imm(1, Rm::Reg(RCX), if size == 8 { 63 } else { 31 });
            self.asm.jcc(cc::Z, unchanged);
        }
        if !rotates {
            self.asm.load_zero(4, 1, RCX, Rm::Reg(RAX));
            self.asm.load(size, RDX, at);
            return self.save_shift(kind, size);
        }
        self.asm.load_zero(size, size, RDX, at);
        if kind == shift::ROL {
            self.asm.load(4, RCX, Rm::Reg(RDX));
            self.asm.alu_imm(alu::AND, 4, Rm::Reg(RCX), 1);
            self.asm.shift_imm(shift::SHR, 8, Rm::Reg(RDX), bits - 1);
            self.asm.alu_load(alu::XOR, 4, RDX, Rm::Reg(RCX));
        } else {
            self.asm.shift_imm(shift::SHR, 8, Rm::Reg(RDX), bits - 2);
            self.asm.load(4, RCX, Rm::Reg(RDX));
            self.asm.shift_imm(shift::SHR, 4, Rm::Reg(RCX), 1);
            self.asm.alu_load(alu::XOR, 4, RDX, Rm::Reg(RCX));
            self.asm.alu_imm(alu::AND, 4, Rm::Reg(RDX), 1);
        }
        self.merge_flags(0xfe00, RCX, Some(RDX));
    }

    /// The flags of a shift, from its result in RDX and its carry in ECX.
    fn save_shift(&mut self, kind: u8, size: u8) {
        self.asm.test(size, Rm::Reg(RDX), RDX);
        self.asm.lahf();
        self.asm.alu_imm(alu::AND, 4, Rm::Reg(RAX), 0xc400);
        if kind == shift::SHL {
            self.asm.shift_imm(shift::SHR, 8, Rm::Reg(RDX), size * 8 - 1);
            self.asm.alu_load(alu::XOR, 4, RDX, Rm::Reg(RCX));
            self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(RDX));
        } else if kind == shift::SHR {
            // The top bit of the result is clear.
            self.asm.shift_imm(shift::SHR, 8, Rm::Reg(RDX), size * 8 - 2);
            self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(RDX));
        }
        self.asm.shift_imm(shift::SHL, 4, Rm::Reg(RCX), 8);
        self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(RCX));
        self.asm.store(4, super::frame::RAW, RAX);
    }

    pub fn bit(&mut self, index: usize, what: Kind) {
        let (kind, size) = match what {
            Kind::BitImm { kind, size } | Kind::BitReg { kind, size } => (kind, size),
            _ => return,
        };
        let ops = self.ops;
        let op = &ops[index];
        if self.must_save(index) {
            self.clobber();
        }
        let bit = op.imm as u8 & (size * 8 - 1);
        if op.has(attr::MEMORY) {
            let (cold, back) = self.cold(index, After::Flags);
            self.probe(op, size, kind != 4, cold);
            self.asm.bit_imm(kind, size, Rm::Base(RAX, 0), bit);
            self.asm.bind(back);
        } else if matches!(what, Kind::BitImm { .. }) {
            if kind == 4 {
                self.asm.bit_imm(kind, size, Self::rm(op.dst), bit);
            } else {
                self.in_register(op.dst, size, |asm, at| asm.bit_imm(kind, size, at, bit));
            }
        } else {
            // A register index counts modulo the width only with a register operand.
            let by = self.value(op.src, RCX);
            let place = self.value(op.dst, RDX);
            self.asm.bit(kind, size, Rm::Reg(place), by);
            if kind != 4 && place == RDX {
                self.set(op.dst, size, RDX);
            }
        }
        self.flags_written(index, Save::CarryOnly);
    }

    /// BSF and BSR leave the destination alone if the source is zero; the other flags are those of testing the source.
    pub fn scan(&mut self, index: usize, kind: u8, size: u8) {
        let ops = self.ops;
        let op = &ops[index];
        let mut join = None;
        if op.has(attr::MEMORY) {
            let (cold, back) = self.cold(index, After::Flags);
            self.probe(op, size, false, cold);
            self.asm.load(size, RCX, Rm::Base(RAX, 0));
            join = Some(back);
        } else {
            self.asm.load(size, RCX, Self::rm(op.src));
        }
        let zero = self.asm.label();
        self.asm.test(size, Rm::Reg(RCX), RCX);
        self.asm.jcc(cc::Z, zero);
        self.asm.scan(kind, size, RAX, Rm::Reg(RCX));
        self.set(op.dst, size, RAX);
        self.asm.test(size, Rm::Reg(RCX), RCX);
        self.asm.bind(zero);
        if let Some(back) = join {
            self.asm.bind(back);
        }
        self.flags_written(index, Save::Logic);
    }

    pub fn exchange(&mut self, index: usize, size: u8) {
        let ops = self.ops;
        let op = &ops[index];
        if op.has(attr::MEMORY) {
            let (cold, back) = self.cold(index, After::Plain);
            self.probe(op, size, true, cold);
            self.asm.load(size, RCX, Rm::Base(RAX, 0));
            let new = self.value(op.src, RDX);
            self.asm.store(size, Rm::Base(RAX, 0), new);
            self.set(op.src, size, RCX);
            self.asm.bind(back);
        } else {
            self.asm.load(size, RAX, Self::rm(op.dst));
            self.asm.load(size, RCX, Self::rm(op.src));
            self.set(op.dst, size, RCX);
            self.set(op.src, size, RAX);
        }
    }

    /// The accumulator is written only if the comparison fails.
    pub fn compare_exchange(&mut self, index: usize, size: u8) {
        let ops = self.ops;
        let op = &ops[index];
        let (cold, back) = self.cold(index, After::Flags);
        self.probe(op, size, true, cold);
        let new = self.value(op.src, RCX);
        self.asm.mov(RDX, RAX);
        self.asm.load(size, RAX, Self::rm(GUEST_RAX));
        self.asm.cmpxchg(size, Rm::Base(RDX, 0), new);
        let equal = self.asm.label();
        self.asm.jcc(cc::Z, equal);
        self.set(GUEST_RAX, size, RAX);
        self.asm.bind(equal);
        self.asm.bind(back);
        self.flags_written(index, Save::Plain);
    }

    pub fn exchange_add(&mut self, index: usize, size: u8) {
        let ops = self.ops;
        let op = &ops[index];
        let (cold, back) = self.cold(index, After::Flags);
        self.probe(op, size, true, cold);
        self.asm.load(size, RCX, Self::rm(op.src));
        self.asm.xadd(size, Rm::Base(RAX, 0), RCX);
        self.set(op.src, size, RCX);
        self.asm.bind(back);
        self.flags_written(index, Save::Plain);
    }

    pub fn multiply_wide(&mut self, index: usize, kind: u8, size: u8) {
        let ops = self.ops;
        let op = &ops[index];
        let mut join = None;
        let source = if op.has(attr::MEMORY) {
            let (cold, back) = self.cold(index, After::Flags);
            self.probe(op, size, false, cold);
            self.asm.load(size, RCX, Rm::Base(RAX, 0));
            join = Some(back);
            Rm::Reg(RCX)
        } else {
            Self::rm(op.dst)
        };
        self.asm.load(size, RAX, Self::rm(GUEST_RAX));
        self.asm.unary(kind, size, source);
        self.set(GUEST_RAX, size, RAX);
        self.set(GUEST_RDX, size, RDX);
        let save = self.must_save(index);
        if save {
            self.asm.mov(RDX, RAX);
            self.save_product(size, RDX);
        }
        if let Some(back) = join {
            self.asm.bind(back);
        }
        if save {
            self.flags_saved();
        } else {
            self.flags_written(index, Save::Plain);
        }
    }

    /// Divisions that cannot fault; the others are left to the reference.
    pub fn divide(&mut self, index: usize, kind: u8, size: u8) {
        let ops = self.ops;
        let op = &ops[index];
        let (cold, back) = self.cold(index, After::Plain);
        if op.has(attr::MEMORY) {
            self.probe(op, size, false, cold);
            self.asm.load(size, RCX, Rm::Base(RAX, 0));
        } else {
            self.asm.load(size, RCX, Self::rm(op.dst));
        }
        self.asm.load(size, RAX, Self::rm(GUEST_RAX));
        self.asm.load(size, RDX, Self::rm(GUEST_RDX));
        if kind == 6 {
            // The quotient fits exactly if the upper half is below the divisor, which then is not zero.
            self.asm.alu_load(alu::CMP, size, RDX, Rm::Reg(RCX));
            self.asm.jcc(cc::AE, cold);
        } else {
            // A dividend that is a sign-extended half, by neither 0 nor -1: 0 and -1 are the divisors d with d + 1 below 2.
            self.asm.cdq(size);
            self.asm.alu_load(alu::CMP, size, RDX, Self::rm(GUEST_RDX));
            self.asm.jcc(cc::NZ, cold);
            self.asm.lea(size, RDX, Rm::Base(RCX, 1));
            self.asm.alu_imm(alu::CMP, size, Rm::Reg(RDX), 1);
            self.asm.jcc(cc::BE, cold);
            self.asm.cdq(size);
        }
        self.asm.unary(kind, size, Rm::Reg(RCX));
        self.set(GUEST_RAX, size, RAX);
        self.set(GUEST_RDX, size, RDX);
        self.asm.bind(back);
    }

    /// CLI and STI at CPL 0. STI is left to the reference where it changes nothing, and where somebody waits for it.
    pub fn interrupts(&mut self, index: usize, on: bool) {
        const RING: i32 = 3 << 5;
        let (cold, back) = self.cold(index, After::Plain);
        let stack = offset_of!(Core, segments) + seg::SS * size_of::<Segment>() + offset_of!(Segment, attributes);
        self.asm.test_imm(1, at(stack), RING);
        self.asm.jcc(cc::NZ, cold);
        let flags = field!(system_flags);
        if on {
            // The reference asks for attention.
            self.calls = true;
            self.asm.test_imm(4, flags, bit::IF as i32);
            self.asm.jcc(cc::NZ, cold);
            self.asm.alu_imm(alu::CMP, 1, field!(window_wanted), 0);
            self.asm.jcc(cc::NZ, cold);
            self.asm.alu_imm(alu::OR, 4, flags, bit::IF as i32);
            // The count behind this instruction, see `Core::hold_interrupts`.
            self.asm.load(8, RCX, field!(limit));
            self.asm.alu_load(alu::SUB, 8, RCX, Rm::Reg(ROOM));
            let behind = index as i32 + 1 - self.ops.len() as i32 - SLACK;
            self.asm.lea(8, RCX, Rm::Base(RCX, behind));
            self.asm.store(8, field!(shadow_at), RCX);
        } else {
            self.asm.alu_imm(alu::AND, 4, flags, !(bit::IF as i32));
        }
        self.asm.bind(back);
    }

    /// PUSH of memory.
    pub fn push_memory(&mut self, index: usize) {
        let ops = self.ops;
        let op = &ops[index];
        let (cold, back) = self.cold(index, After::Plain);
        self.probe(op, 8, false, cold);
        self.asm.load(8, RAX, Rm::Base(RAX, 0));
        self.asm.store(8, SPILL, RAX);
        let pointer = self.value(GUEST_RSP, RAX);
        self.asm.lea(8, RAX, Rm::Base(pointer, -8));
        self.probe_stack(true, cold);
        self.asm.load(8, RCX, SPILL);
        self.asm.store(8, Rm::Base(RAX, 0), RCX);
        self.move_stack(-8);
        self.asm.bind(back);
    }
}
