// SPDX-License-Identifier: AGPL-3.0-or-later
//! SSE instructions as host code. The guest's XMM registers are always right in the `Core`. Inside a block those that it has used are
//! held in the host's as well, until a reference handler has run, so that chains of operations need not go through memory; the host's
//! XMM0 and XMM1 hold operands for one instruction.

use super::asm::*;
use super::emit::{After, Emitter};
use super::frame::{PINNED, UNMASKED, at, field};
use super::kinds::Kind;
use super::status::Save;
use super::vector_kinds::care;
use crate::core_state::{Core, cr};
use crate::op::{Op, attr};
use std::mem::offset_of;

const XMM0: Reg = Reg(0);
const XMM1: Reg = Reg(1);
/// Guest XMM registers that the host has registers for.
const HELD: u8 = 14;

/// The host's register for one of the first guest registers.
fn host_xmm(guest: u8) -> Option<Reg> {
    (guest & 15 < HELD).then_some(Reg(2 + (guest & 15)))
}

/// A guest XMM register's place.
fn xmm(guest: u8) -> Rm {
    at(offset_of!(Core, xmm) + usize::from(guest & 15) * 16)
}

fn parts(code: u32) -> (u8, u32) {
    ((code >> 24) as u8, code & 0xff_ffff)
}

impl Emitter<'_> {
    pub fn vector(&mut self, index: usize, kind: Kind) {
        let ops = self.ops;
        let op = &ops[index];
        let after = if matches!(kind, Kind::VectorCompare { .. }) { After::Flags } else { After::Plain };
        let (cold, back) = self.cold(index, after);
        self.check_sse(cold);
        match kind {
            Kind::Vector { code, bytes, care: needs } => self.vector_load(op, code, bytes, needs, cold),
            Kind::VectorStore { code, bytes, aligned } => self.vector_store(op, code, bytes, aligned, cold),
            Kind::VectorShift { code, group } => {
                let (prefix, opcode) = parts(code);
                let place = self.target(op.dst, true);
                self.asm.sse_imm(4, prefix, opcode, Reg(group), Rm::Reg(place), op.imm as u8);
                self.store_xmm(op.dst, place);
            }
            Kind::VectorFromGeneral { size } => {
                let source = self.general_source(op, size, cold);
                let place = self.target(op.dst, false);
                self.asm.sse(size, 0x66, 0x0f6e, place, source);
                self.store_xmm(op.dst, place);
            }
            Kind::VectorToGeneral { size } => self.vector_to_general(op, size, cold),
            Kind::VectorMask { code } => {
                let (prefix, opcode) = parts(code);
                let source = self.operand(op.src, XMM0);
                self.asm.sse(4, prefix, opcode, RAX, Rm::Reg(source));
                self.set(op.dst, 8, RAX);
            }
            Kind::VectorCompare { code, bytes } => {
                self.check_arithmetic(cold);
                let (prefix, opcode) = parts(code);
                let source = self.vector_source(op, bytes, false, cold);
                let first = self.operand(op.dst, XMM0);
                self.asm.sse(4, prefix, opcode, first, source);
            }
            Kind::IntegerToFloat { code, size } => {
                self.check_arithmetic(cold);
                let (prefix, opcode) = parts(code);
                let source = self.general_source(op, size, cold);
                let place = self.target(op.dst, true);
                self.sized(size, prefix, opcode, place, source);
                self.store_xmm(op.dst, place);
            }
            Kind::FloatToInteger { code, size, bytes } => {
                self.check_arithmetic(cold);
                let (prefix, opcode) = parts(code);
                let source = self.vector_source(op, bytes, false, cold);
                self.sized(size, prefix, opcode, RAX, source);
                self.set(op.dst, 8, RAX);
            }
            _ => {}
        }
        self.asm.bind(back);
        if after == After::Flags {
            self.flags_written(index, Save::Plain);
        }
    }

    fn sized(&mut self, size: u8, prefix: u8, opcode: u32, reg: Reg, rm: Rm) {
        self.asm.sse(size, prefix, opcode, reg, rm);
    }

    /// SSE is available: once until a reference handler may have changed that.
    fn check_sse(&mut self, cold: Label) {
        if !self.sse_checked {
            self.asm.test_imm(1, field!(cr0), (cr::CR0_EM | cr::CR0_TS) as i32);
            self.asm.jcc(cc::NZ, cold);
            self.asm.test_imm(4, field!(cr4), cr::CR4_OSFXSR as i32);
            self.asm.jcc(cc::Z, cold);
            self.sse_checked = true;
        }
    }

    /// All floating-point exceptions are masked. The host's MXCSR is the guest's, so what is left is what the host does.
    fn check_arithmetic(&mut self, cold: Label) {
        self.asm.alu_imm(alu::CMP, 4, UNMASKED, 0);
        self.asm.jcc(cc::NZ, cold);
    }

    fn load_xmm(&mut self, host: Reg, guest: u8) {
        self.asm.sse(4, 0, 0x0f28, host, xmm(guest));
    }

    /// The host's register of a guest register gets its value back.
    pub fn reload_xmm(&mut self, guest: u8) {
        if let Some(host) = host_xmm(guest) {
            self.load_xmm(host, guest);
        }
    }

    /// A host register with the value of a guest register, which may be `scratch`.
    fn operand(&mut self, guest: u8, scratch: Reg) -> Reg {
        let Some(host) = host_xmm(guest) else {
            self.load_xmm(scratch, guest);
            return scratch;
        };
        if self.xmm_held >> (guest & 15) & 1 == 0 {
            self.load_xmm(host, guest);
            self.xmm_held |= 1 << (guest & 15);
        }
        host
    }

    /// The host register that a guest register's new value is made in, out of the old one if the operation reads it. After it comes
    /// [`Self::store_xmm`].
    fn target(&mut self, guest: u8, reads: bool) -> Reg {
        if reads { self.operand(guest, XMM0) } else { host_xmm(guest).unwrap_or(XMM0) }
    }

    /// The new value of a guest register, made in its [`Self::target`].
    fn store_xmm(&mut self, guest: u8, place: Reg) {
        self.asm.sse(4, 0, 0x0f29, place, xmm(guest));
        if host_xmm(guest).is_some() {
            self.xmm_held |= 1 << (guest & 15);
        }
    }

    /// Operand 1: a register, or memory.
    fn vector_source(&mut self, op: &Op, bytes: u8, aligned: bool, cold: Label) -> Rm {
        if op.has(attr::MEMORY) {
            self.vector_probe(op, bytes, false, aligned, cold);
            Rm::Base(RAX, 0)
        } else {
            Rm::Reg(self.operand(op.src, XMM1))
        }
    }

    /// Host pages are aligned as guest pages are, so the host address says whether the guest's is aligned.
    fn vector_probe(&mut self, op: &Op, bytes: u8, write: bool, aligned: bool, cold: Label) {
        self.probe(op, bytes, write, cold);
        if aligned {
            self.asm.test_imm(1, Rm::Reg(RAX), 15);
            self.asm.jcc(cc::NZ, cold);
        }
    }

    /// Operand 1: a general register or memory.
    fn general_source(&mut self, op: &Op, size: u8, cold: Label) -> Rm {
        if op.has(attr::MEMORY) {
            self.probe(op, size, false, cold);
            Rm::Base(RAX, 0)
        } else {
            Self::rm(op.src)
        }
    }

    fn vector_load(&mut self, op: &Op, code: u32, bytes: u8, needs: u8, cold: Label) {
        if needs & care::ARITHMETIC != 0 {
            self.check_arithmetic(cold);
        }
        let (prefix, opcode) = parts(code);
        let source = self.vector_source(op, bytes, needs & care::ALIGNED != 0, cold);
        let place = self.target(op.dst, needs & care::REPLACES == 0);
        if needs & care::IMMEDIATE != 0 {
            // Only the low three bits of a predicate count.
            let value = if opcode == 0x0fc2 { op.imm as u8 & 7 } else { op.imm as u8 };
            self.asm.sse_imm(4, prefix, opcode, place, source, value);
        } else {
            self.asm.sse(4, prefix, opcode, place, source);
        }
        self.store_xmm(op.dst, place);
    }

    fn vector_store(&mut self, op: &Op, code: u32, bytes: u8, aligned: bool, cold: Label) {
        let (prefix, opcode) = parts(code);
        if op.has(attr::MEMORY) {
            self.vector_probe(op, bytes, true, aligned, cold);
            let source = self.operand(op.src, XMM1);
            self.asm.sse(4, prefix, opcode, source, Rm::Base(RAX, 0));
        } else {
            let source = self.operand(op.src, XMM1);
            let place = self.target(op.dst, true);
            self.asm.sse(4, prefix, opcode, source, Rm::Reg(place));
            self.store_xmm(op.dst, place);
        }
    }

    fn vector_to_general(&mut self, op: &Op, size: u8, cold: Label) {
        if op.has(attr::MEMORY) {
            self.probe(op, size, true, cold);
            let source = self.operand(op.src, XMM0);
            self.asm.sse(size, 0x66, 0x0f7e, source, Rm::Base(RAX, 0));
            return;
        }
        match PINNED[usize::from(op.dst & 15)] {
            Some(host) => self.asm.load(size, host, xmm(op.src)),
            None => {
                self.asm.load(size, RAX, xmm(op.src));
                self.set(op.dst, 8, RAX);
            }
        }
    }
}
