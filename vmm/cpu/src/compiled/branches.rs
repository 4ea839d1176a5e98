// SPDX-License-Identifier: AGPL-3.0-or-later
//! Control transfers as host code.

use super::asm::*;
use super::emit::{After, Emitter};
use super::frame::SPILL;
use super::kinds::{Kind, needs};
use crate::op::attr;

const GUEST_RSP: u8 = 4;

impl Emitter<'_> {
    /// Emits the transfer that ends the block.
    pub fn branch(&mut self, index: usize, kind: Kind) {
        let ops = self.ops;
        let op = &ops[index];
        match kind {
            Kind::Jcc { cc } => {
                self.want_flags(needs(cc));
                let taken = self.asm.label();
                self.asm.jcc(cc, taken);
                let flags = self.flag_state();
                self.edge_to(op, op.next_ip);
                self.go_to(op.next_ip);
                self.set_flag_state(flags);
                self.asm.bind(taken);
                self.edge_to(op, op.imm);
                self.go_to(op.imm);
            }
            Kind::Jmp => {
                self.edge_to(op, op.imm);
                self.go_to(op.imm);
            }
            Kind::Call => {
                let (cold, back) = self.cold(index, After::Plain);
                self.push_return(op.next_ip, cold);
                self.asm.bind(back);
                self.edge_to(op, op.imm);
                self.go_to(op.imm);
            }
            Kind::Ret => {
                let (cold, back) = self.cold(index, After::Target);
                let pointer = self.value(GUEST_RSP, RAX);
                self.asm.mov(RAX, pointer);
                self.probe_stack(false, cold);
                self.asm.load(8, RAX, Rm::Base(RAX, 0));
                self.check_canonical(cold);
                self.move_stack(8 + op.imm as i32);
                self.asm.bind(back);
                self.go_to_rax(index);
            }
            Kind::JmpRm => {
                let (cold, back) = self.cold(index, After::Target);
                self.load_target(index, cold);
                self.check_canonical(cold);
                self.asm.bind(back);
                self.go_to_rax(index);
            }
            _ => {
                let (cold, back) = self.cold(index, After::Target);
                self.load_target(index, cold);
                self.check_canonical(cold);
                self.asm.store(8, SPILL, RAX);
                self.push_return(op.next_ip, cold);
                self.asm.load(8, RAX, SPILL);
                self.asm.bind(back);
                self.go_to_rax(index);
            }
        }
    }

    /// The target of an indirect transfer into RAX.
    fn load_target(&mut self, index: usize, cold: Label) {
        let ops = self.ops;
        let op = &ops[index];
        if op.has(attr::MEMORY) {
            self.probe(op, 8, false, cold);
            self.asm.load(8, RAX, Rm::Base(RAX, 0));
        } else {
            let target = self.value(op.dst, RAX);
            self.asm.mov(RAX, target);
        }
    }

    fn check_canonical(&mut self, cold: Label) {
        self.asm.mov(RCX, RAX);
        self.asm.shift_imm(shift::SHL, 8, Rm::Reg(RCX), 16);
        self.asm.shift_imm(shift::SAR, 8, Rm::Reg(RCX), 16);
        self.asm.alu_load(alu::CMP, 8, RCX, Rm::Reg(RAX));
        self.asm.jcc(cc::NZ, cold);
    }

    fn push_return(&mut self, ip: u64, cold: Label) {
        let pointer = self.value(GUEST_RSP, RAX);
        self.asm.lea(8, RAX, Rm::Base(pointer, -8));
        self.probe_stack(true, cold);
        match i32::try_from(ip as i64) {
            Ok(short) => self.asm.store_imm(8, Rm::Base(RAX, 0), short),
            Err(_) => {
                self.asm.constant(RCX, ip);
                self.asm.store(8, Rm::Base(RAX, 0), RCX);
            }
        }
        self.move_stack(-8);
    }

    fn go_to_rax(&mut self, index: usize) {
        let ops = self.ops;
        self.edge_to_rax(&ops[index]);
        self.dispatch();
    }
}
