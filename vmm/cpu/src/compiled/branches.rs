// SPDX-License-Identifier: AGPL-3.0-or-later
//! Control transfers as host code.

use super::asm::*;
use super::emit::{After, Emitter, Rare};
use super::frame::{CALLS_END, LAST_CALL, NO_CALLS, SPILL, dispatch, dispatch_call, field};
use super::kinds::{Kind, needs};
use crate::op::attr;

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
                self.attend(Some(op.imm));
                self.remember_call(op.next_ip);
                let after = self.asm.label();
                self.go_through(op.imm, Some(after));
                self.go_on_after_call(after, op.next_ip);
            }
            Kind::Ret => self.ret(index),
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
                self.edge_to_rax(op);
                self.attend_at_rax();
                self.remember_call(op.next_ip);
                let (after, second) = (self.asm.label(), self.asm.label());
                dispatch_call(self.asm, &self.setting.routines, second);
                self.rare.push(Rare::Second { from: second, back: after });
                self.go_on_after_call(after, op.next_ip);
            }
        }
    }

    /// A RET that returns from the last call that is remembered needs no look-up, and its target was looked at when it was called.
    fn ret(&mut self, index: usize) {
        let ops = self.ops;
        let op = &ops[index];
        let moves = 8 + op.imm as i32;
        let (cold, back) = self.cold(index, After::Target);
        let from = self.asm.label();
        let target = self.stack_operand(0, false, cold);
        self.asm.load(8, RAX, target);
        if self.calls || self.recorded(op).is_some() {
            self.check_canonical(cold);
            self.move_stack(moves);
            let done = self.asm.label();
            self.asm.bind(back);
            self.edge_to_rax(op);
            self.attend_at_rax();
            self.asm.alu_load(alu::CMP, 8, RAX, LAST_CALL);
            self.asm.jcc(cc::NZ, from);
            self.asm.ret();
            self.rare.push(Rare::Return { from, back: done, cold, moves: None });
        } else {
            self.asm.alu_load(alu::CMP, 8, RAX, LAST_CALL);
            self.asm.jcc(cc::NZ, from);
            self.move_stack(moves);
            self.asm.ret();
            self.rare.push(Rare::Return { from, back, cold, moves: Some(moves) });
        }
    }

    /// Puts a call on the host's stack; the host's own call follows. RAX stays.
    fn remember_call(&mut self, ip: u64) {
        let (from, back) = (self.asm.label(), self.asm.label());
        self.asm.alu_load(alu::CMP, 8, RSP, CALLS_END);
        self.asm.jcc(cc::C, from);
        self.asm.bind(back);
        self.rare.push(Rare::Full { from, back });
        match i32::try_from(ip as i64) {
            Ok(short) => self.asm.push_imm(short),
            Err(_) => {
                self.asm.constant(RCX, ip);
                self.asm.push(RCX);
            }
        }
    }

    /// Where the host comes back to when the callee has returned: at the beginning of another block.
    fn go_on_after_call(&mut self, after: Label, ip: u64) {
        self.asm.bind(after);
        self.asm.lea(8, RSP, Rm::Base(RSP, 8));
        if ip == self.setting.ip {
            return self.asm.jmp(self.head);
        }
        self.go_through(ip, None);
    }

    pub fn rare_stubs(&mut self) {
        let routines = self.setting.routines;
        for rare in std::mem::take(&mut self.rare) {
            match rare {
                Rare::Full { from, back } => {
                    self.asm.bind(from);
                    self.asm.load(8, RSP, NO_CALLS);
                    self.asm.jmp(back);
                }
                Rare::Second { from, back } => {
                    self.asm.bind(from);
                    self.asm.call_to(routines.second);
                    self.asm.jmp(back);
                }
                Rare::Return { from, back, cold, moves } => {
                    self.asm.bind(from);
                    if let Some(moves) = moves {
                        self.check_canonical(cold);
                        self.move_stack(moves);
                    }
                    self.asm.bind(back);
                    self.asm.load(8, RSP, NO_CALLS);
                    dispatch(self.asm, &routines);
                }
            }
        }
    }

    /// At the boundary before the address in RAX, leaves if a handler of this block may have asked for attention.
    pub fn attend_at_rax(&mut self) {
        if self.calls {
            self.asm.store(8, field!(rip), RAX);
            self.attend(None);
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
        let place = self.stack_operand(-8, true, cold);
        match i32::try_from(ip as i64) {
            Ok(short) => self.asm.store_imm(8, place, short),
            Err(_) => {
                self.asm.constant(RCX, ip);
                self.asm.store(8, place, RCX);
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
