// SPDX-License-Identifier: AGPL-3.0-or-later
//! Integer instructions as host code.

use super::asm::*;
use super::emit::{After, Emitter};
use super::frame::{PINNED, RAW};
use super::kinds::{Form, Kind, flag, needs};
use super::status::Save;
use crate::op::{Op, attr};

const GUEST_RAX: u8 = 0;
const GUEST_RDX: u8 = 2;
const GUEST_RSP: u8 = 4;
const GUEST_RBP: u8 = 5;

fn is_pinned(guest: u8) -> bool {
    PINNED[usize::from(guest & 15)].is_some()
}

impl Emitter<'_> {
    pub fn integer(&mut self, index: usize, kind: Kind) {
        let ops = self.ops;
        let op = &ops[index];
        let memory = op.has(attr::MEMORY);
        match kind {
            Kind::Alu { op: operation, size, form } => self.alu(index, operation, size, form),
            Kind::Test { size, form } => self.test(index, size, form),
            Kind::Not { size } if memory => self.modify(index, size, After::Plain, |asm, at| asm.unary(2, size, at)),
            Kind::Not { size } => self.in_register(op.dst, size, |asm, at| asm.unary(2, size, at)),
            Kind::Neg { size } => {
                if memory {
                    self.modify(index, size, After::Flags, |asm, at| asm.unary(3, size, at));
                } else {
                    self.in_register(op.dst, size, |asm, at| asm.unary(3, size, at));
                }
                self.flags_written(index, Save::Plain);
            }
            Kind::Step { kind, size } => self.step(index, kind, size),
            Kind::Mov { size, form } => self.mov(index, size, form),
            Kind::Extend { signed, to, from } => self.extend(index, signed, to, from),
            Kind::Lea { size } => {
                let target = PINNED[usize::from(op.dst & 15)].filter(|_| size == 8);
                self.effective_into(op, target.unwrap_or(RAX));
                if target.is_none() {
                    self.set_cut(op.dst, size, RAX);
                }
            }
            Kind::PushReg if memory => self.push_memory(index),
            Kind::PushReg | Kind::PushImm => self.push(index, kind),
            Kind::PopReg => self.pop(index),
            Kind::Leave => self.leave(index),
            Kind::ShiftImm { kind, size } => self.shift_imm(index, kind, size),
            Kind::ShiftCl { .. } | Kind::RotateImm { .. } | Kind::RotateCl { .. } => self.turn(index, kind),
            Kind::BitImm { .. } | Kind::BitReg { .. } => self.bit(index, kind),
            Kind::Scan { kind, size } => self.scan(index, kind, size),
            Kind::Xchg { size } => self.exchange(index, size),
            Kind::Cmpxchg { size } => self.compare_exchange(index, size),
            Kind::Xadd { size } => self.exchange_add(index, size),
            Kind::Multiply { kind, size } => self.multiply_wide(index, kind, size),
            Kind::Divide { kind, size } => self.divide(index, kind, size),
            Kind::ExtendHigh { .. } => {
                self.asm.load(8, RAX, Self::rm(op.src & 3));
                self.asm.zero_extend_ah();
                self.set(op.dst, 8, RAX);
            }
            Kind::Interrupts { on } => self.interrupts(index, on),
            Kind::Imul2 { size } | Kind::Imul3 { size } => self.multiply(index, kind, size),
            Kind::Set { cc } => {
                self.want_flags(needs(cc));
                self.asm.set(cc, Self::rm(op.dst));
            }
            Kind::Cmov { cc, size } => self.cmov(index, cc, size),
            Kind::SignAx { to } => {
                let from = to / 2;
                self.asm.load_sign(to, from, RAX, Self::rm(GUEST_RAX));
                self.set(GUEST_RAX, to, RAX);
            }
            Kind::SignDx { size } => {
                self.asm.load(size, RAX, Self::rm(GUEST_RAX));
                if size == 2 {
                    self.asm.load_sign(4, 2, RAX, Rm::Reg(RAX));
                }
                self.asm.cdq(size.max(4));
                self.set(GUEST_RDX, size, RDX);
            }
            Kind::Bswap { size } => self.in_register(op.dst, size, |asm, at| match at {
                Rm::Reg(reg) => asm.bswap(size, reg),
                _ => {
                    asm.load(size, RAX, at);
                    asm.bswap(size, RAX);
                    asm.store(size, at, RAX);
                }
            }),
            _ => {}
        }
    }

    /// Writes the low part of a 64-bit value.
    fn set_cut(&mut self, guest: u8, size: u8, from: Reg) {
        match size {
            4 => match PINNED[usize::from(guest & 15)] {
                Some(host) => self.asm.load(4, host, Rm::Reg(from)),
                None => {
                    self.asm.load(4, from, Rm::Reg(from));
                    self.set(guest, 8, from);
                }
            },
            _ => self.set(guest, size, from),
        }
    }

    /// Changes a general register in place.
    pub fn in_register(&mut self, guest: u8, size: u8, change: impl FnOnce(&mut Asm, Rm)) {
        if size == 4 && !is_pinned(guest) {
            // The upper half must become zero.
            self.asm.load(4, RDX, Self::rm(guest));
            change(self.asm, Rm::Reg(RDX));
            self.set(guest, 8, RDX);
        } else {
            change(self.asm, Self::rm(guest));
        }
    }

    /// Changes the memory operand in place.
    pub fn modify(&mut self, index: usize, size: u8, after: After, change: impl FnOnce(&mut Asm, Rm)) {
        let (cold, back) = self.cold(index, after);
        self.probe(&self.ops[index], size, true, cold);
        change(self.asm, Rm::Base(RAX, 0));
        self.asm.bind(back);
    }

    pub fn immediate(op: &Op, size: u8) -> i32 {
        match size {
            1 => i32::from(op.imm as i8),
            2 => i32::from(op.imm as i16),
            _ => op.imm as i32,
        }
    }

    fn alu(&mut self, index: usize, operation: u8, size: u8, form: Form) {
        let ops = self.ops;
        let op = &ops[index];
        let carries = operation == alu::ADC || operation == alu::SBB;
        if op.has(attr::MEMORY) {
            self.alu_memory(index, operation, size, form, carries);
        } else {
            if carries {
                self.want_flags(flag::C);
            }
            self.alu_register(op, operation, size, form);
        }
        let logic = matches!(operation, alu::AND | alu::OR | alu::XOR);
        self.flags_written(index, if logic { Save::Logic } else { Save::Plain });
    }

    fn alu_register(&mut self, op: &Op, operation: u8, size: u8, form: Form) {
        let writes = operation != alu::CMP;
        let wide = size == 4 && writes && !is_pinned(op.dst);
        if wide {
            self.asm.load(4, RDX, Self::rm(op.dst));
        }
        let to = if wide { Rm::Reg(RDX) } else { Self::rm(op.dst) };
        match (form, to) {
            (Form::RmImm, _) => self.asm.alu_imm(operation, size, to, Self::immediate(op, size)),
            (_, Rm::Reg(reg)) => self.asm.alu_load(operation, size, reg, Self::rm(op.src)),
            _ => {
                let from = self.value(op.src, RCX);
                self.asm.alu_store(operation, size, to, from);
            }
        }
        if wide {
            self.set(op.dst, 8, RDX);
        }
    }

    fn alu_memory(&mut self, index: usize, operation: u8, size: u8, form: Form, carries: bool) {
        let ops = self.ops;
        let op = &ops[index];
        let writes_memory = form != Form::RegRm && operation != alu::CMP;
        let (cold, back) = self.cold(index, After::Flags);
        self.probe(op, size, writes_memory, cold);
        if carries {
            // CF is bit 8 of the saved flags; nothing else is looked at.
            self.asm.load(4, RCX, RAW);
            self.asm.shift_imm(shift::SHR, 4, Rm::Reg(RCX), 9);
        }
        let at = Rm::Base(RAX, 0);
        match form {
            Form::RmImm => self.asm.alu_imm(operation, size, at, Self::immediate(op, size)),
            Form::RmReg => {
                let from = self.value(op.src, RCX);
                self.asm.alu_store(operation, size, at, from);
            }
            Form::RegRm if operation != alu::CMP && !is_pinned(op.dst) => {
                let from = self.value(op.dst, RCX);
                self.asm.alu_load(operation, size, from, at);
                self.set(op.dst, size, from);
            }
            Form::RegRm => {
                let from = self.value(op.dst, RCX);
                self.asm.alu_load(operation, size, from, at);
            }
        }
        self.asm.bind(back);
    }

    fn test(&mut self, index: usize, size: u8, form: Form) {
        let ops = self.ops;
        let op = &ops[index];
        let memory = op.has(attr::MEMORY);
        let mut join = None;
        let at = if memory {
            let (cold, back) = self.cold(index, After::Flags);
            self.probe(op, size, false, cold);
            join = Some(back);
            Rm::Base(RAX, 0)
        } else {
            Self::rm(op.dst)
        };
        if form == Form::RmImm {
            self.asm.test_imm(size, at, Self::immediate(op, size));
        } else {
            let from = self.value(op.src, RCX);
            self.asm.test(size, at, from);
        }
        if let Some(back) = join {
            self.asm.bind(back);
        }
        self.flags_written(index, Save::Logic);
    }

    fn step(&mut self, index: usize, kind: u8, size: u8) {
        let ops = self.ops;
        let op = &ops[index];
        if op.has(attr::MEMORY) {
            self.modify(index, size, After::Flags, |asm, at| asm.step(kind, size, at));
            return self.flags_stepped(index, false);
        }
        let had_carry = self.host_valid & flag::C != 0;
        self.in_register(op.dst, size, |asm, at| asm.step(kind, size, at));
        self.flags_stepped(index, had_carry);
    }

    fn mov(&mut self, index: usize, size: u8, form: Form) {
        let ops = self.ops;
        let op = &ops[index];
        if !op.has(attr::MEMORY) {
            return self.mov_register(op, size, form);
        }
        let (cold, back) = self.cold(index, After::Plain);
        self.probe(op, size, form != Form::RegRm, cold);
        let at = Rm::Base(RAX, 0);
        match form {
            Form::RmImm => self.asm.store_imm(size, at, Self::immediate(op, size)),
            Form::RmReg => {
                let from = self.value(op.src, RCX);
                self.asm.store(size, at, from);
            }
            Form::RegRm => match PINNED[usize::from(op.dst & 15)] {
                Some(host) => self.asm.load(size, host, at),
                None => {
                    self.asm.load(size, RAX, at);
                    self.set(op.dst, size, RAX);
                }
            },
        }
        self.asm.bind(back);
    }

    fn mov_register(&mut self, op: &Op, size: u8, form: Form) {
        if form == Form::RmImm {
            match (PINNED[usize::from(op.dst & 15)], size) {
                (Some(host), 8) => self.asm.constant(host, op.imm),
                (Some(host), 4) => self.asm.constant(host, op.imm & 0xffff_ffff),
                (None, 4 | 8) => {
                    self.asm.constant(RAX, if size == 4 { op.imm & 0xffff_ffff } else { op.imm });
                    self.set(op.dst, 8, RAX);
                }
                _ => self.asm.store_imm(size, Self::rm(op.dst), Self::immediate(op, size)),
            }
            return;
        }
        match PINNED[usize::from(op.dst & 15)] {
            Some(host) => self.asm.load(size, host, Self::rm(op.src)),
            None => {
                self.asm.load(size, RAX, Self::rm(op.src));
                self.set(op.dst, size, RAX);
            }
        }
    }

    fn extend(&mut self, index: usize, signed: bool, to: u8, from: u8) {
        let ops = self.ops;
        let op = &ops[index];
        let mut join = None;
        let source = if op.has(attr::MEMORY) {
            let (cold, back) = self.cold(index, After::Plain);
            self.probe(op, from, false, cold);
            join = Some(back);
            Rm::Base(RAX, 0)
        } else {
            Self::rm(op.src)
        };
        let target = PINNED[usize::from(op.dst & 15)].filter(|_| to >= 4);
        let register = target.unwrap_or(RAX);
        if signed {
            self.asm.load_sign(to, from, register, source);
        } else {
            self.asm.load_zero(to, from, register, source);
        }
        if target.is_none() {
            self.set(op.dst, to, RAX);
        }
        if let Some(back) = join {
            self.asm.bind(back);
        }
    }

    fn push(&mut self, index: usize, kind: Kind) {
        let ops = self.ops;
        let op = &ops[index];
        let (cold, back) = self.cold(index, After::Plain);
        let place = self.stack_operand(-8, true, cold);
        if kind == Kind::PushImm {
            self.asm.store_imm(8, place, op.imm as i32);
        } else {
            let from = self.value(op.dst, RCX);
            self.asm.store(8, place, from);
        }
        self.move_stack(-8);
        self.asm.bind(back);
    }

    /// Moves the stack pointer; no flag changes.
    pub fn move_stack(&mut self, bytes: i32) {
        let pointer = self.value(GUEST_RSP, RCX);
        self.asm.lea(8, pointer, Rm::Base(pointer, bytes));
        self.set(GUEST_RSP, 8, pointer);
    }

    fn pop(&mut self, index: usize) {
        let ops = self.ops;
        let op = &ops[index];
        let (cold, back) = self.cold(index, After::Plain);
        let place = self.stack_operand(0, false, cold);
        let into = self.value_place(op.dst, RAX);
        self.asm.load(8, into, place);
        if op.dst != GUEST_RSP {
            self.move_stack(8);
        }
        self.set(op.dst, 8, into);
        self.asm.bind(back);
    }

    fn leave(&mut self, index: usize) {
        let (cold, back) = self.cold(index, After::Plain);
        let frame = self.value(GUEST_RBP, RAX);
        self.asm.mov(RAX, frame);
        self.probe_stack(false, cold);
        self.asm.load(8, RAX, Rm::Base(RAX, 0));
        let frame = self.value(GUEST_RBP, RCX);
        self.asm.lea(8, RCX, Rm::Base(frame, 8));
        self.set(GUEST_RSP, 8, RCX);
        self.set(GUEST_RBP, 8, RAX);
        self.asm.bind(back);
    }

    fn shift_imm(&mut self, index: usize, kind: u8, size: u8) {
        let ops = self.ops;
        let op = &ops[index];
        let count = op.imm as u8 & if size == 8 { 63 } else { 31 };
        let change = |asm: &mut Asm, at: Rm| asm.shift_imm(kind, size, at, count);
        if op.has(attr::MEMORY) {
            self.modify(index, size, After::Flags, change);
        } else {
            self.in_register(op.dst, size, change);
        }
        let save = match (kind, count) {
            (shift::SAR, _) => Save::ShiftRight,
            (_, 1) => Save::ShiftOne,
            (shift::SHL, _) => Save::ShiftLeft,
            _ => Save::ShiftRight,
        };
        self.flags_written(index, save);
    }

    /// IMUL with two or three operands. SF and PF follow the result, ZF and AF are clear.
    fn multiply(&mut self, index: usize, kind: Kind, size: u8) {
        let ops = self.ops;
        let op = &ops[index];
        let mut join = None;
        let source = if op.has(attr::MEMORY) {
            let (cold, back) = self.cold(index, After::Flags);
            self.probe(op, size, false, cold);
            join = Some(back);
            Rm::Base(RAX, 0)
        } else {
            Self::rm(op.src)
        };
        let pinned = PINNED[usize::from(op.dst & 15)];
        let target = pinned.filter(|_| size >= 4).unwrap_or(RDX);
        if matches!(kind, Kind::Imul3 { .. }) {
            self.asm.imul_imm(size, target, source, Self::immediate(op, size));
        } else {
            if target == RDX {
                self.asm.load(size, RDX, Self::rm(op.dst));
            }
            self.asm.imul(size, target, source);
        }
        if target == RDX {
            self.set(op.dst, size, RDX);
        }
        if self.must_save(index) {
            self.save_product(size, target);
        }
        if let Some(back) = join {
            self.asm.bind(back);
        }
        if self.must_save(index) {
            self.flags_saved();
        } else {
            self.flags_written(index, Save::Plain);
        }
    }

    pub fn save_product(&mut self, size: u8, low: Reg) {
        self.asm.set(0, Rm::Reg(RCX));
        self.asm.test(size, Rm::Reg(low), low);
        self.asm.lahf();
        self.asm.alu_imm(alu::AND, 4, Rm::Reg(RAX), 0x8400);
        self.asm.load_zero(4, 1, RCX, Rm::Reg(RCX));
        self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(RCX));
        self.asm.shift_imm(shift::SHL, 4, Rm::Reg(RCX), 8);
        self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(RCX));
        self.asm.store(4, RAW, RAX);
    }

    fn cmov(&mut self, index: usize, condition: u8, size: u8) {
        let ops = self.ops;
        let op = &ops[index];
        let mut join = None;
        let source = if op.has(attr::MEMORY) {
            let (cold, back) = self.cold(index, After::Flags);
            self.probe(op, size, false, cold);
            self.asm.load(size, RCX, Rm::Base(RAX, 0));
            self.load_flags();
            join = Some(back);
            Rm::Reg(RCX)
        } else {
            self.want_flags(needs(condition));
            Self::rm(op.src)
        };
        match PINNED[usize::from(op.dst & 15)] {
            Some(host) => self.asm.cmov(condition, size, host, source),
            None => {
                self.asm.load(size, RDX, Self::rm(op.dst));
                self.asm.cmov(condition, size, RDX, source);
                self.set(op.dst, size, RDX);
            }
        }
        if let Some(back) = join {
            self.asm.bind(back);
        }
    }
}
