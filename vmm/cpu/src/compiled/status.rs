// SPDX-License-Identifier: AGPL-3.0-or-later
//! Status flags: when they stay in the host's, when they are stored, and how what the architecture leaves undefined becomes the
//! reference's choice.

use super::asm::*;
use super::emit::Emitter;
use super::frame::RAW;
use super::kinds::{effect, flag, kind};
use crate::op::Op;

/// How the flags that the host holds become `Frame::raw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Save {
    /// All are right.
    Plain,
    /// A logical operation: CF, OF and AF are clear.
    Logic,
    /// SHL by more than one: OF is SF xor CF.
    ShiftLeft,
    /// SHR by more than one, and SAR: OF is clear.
    ShiftRight,
    /// A shift by one: all but AF, which is clear.
    ShiftOne,
    /// INC or DEC: CF is that of `Frame::raw`.
    KeepCarry,
    /// BT and its kind: all but CF are those of `Frame::raw`.
    CarryOnly,
}

/// Says of each operation that writes status flags whether they are needed in their place.
pub(super) fn plan(ops: &[Op], needed_after: bool) -> Vec<bool> {
    let mut save = vec![false; ops.len()];
    let mut needed = needed_after;
    let mut wanted = 0;
    for (index, op) in ops.iter().enumerate().rev() {
        let effect = effect(kind(op), op);
        if effect.replaces || effect.merges {
            save[index] = needed || wanted & !effect.provides != 0;
            needed = effect.merges && save[index];
            wanted = 0;
        }
        if effect.stops {
            needed = true;
            wanted = 0;
        } else {
            wanted |= effect.reads;
        }
    }
    save
}

impl Emitter<'_> {
    /// What is known of the flags, for the other side of a branch.
    pub fn flag_state(&self) -> (u8, Option<Save>) {
        (self.host_valid, self.pending)
    }

    pub fn set_flag_state(&mut self, state: (u8, Option<Save>)) {
        (self.host_valid, self.pending) = state;
    }

    /// Says that an operation has just left flags in the host, and how to save them.
    pub fn flags_written(&mut self, index: usize, save: Save) {
        let op = &self.ops[index];
        self.host_valid = effect(kind(op), op).provides;
        self.pending = self.save[index].then_some(save);
    }

    /// INC and DEC leave the host's CF alone: if it was the guest's, all flags are right.
    pub fn flags_stepped(&mut self, index: usize, had_carry: bool) {
        self.host_valid = flag::ALL & !flag::C;
        if had_carry {
            self.host_valid = flag::ALL;
        }
        self.pending = self.save[index].then_some(if had_carry { Save::Plain } else { Save::KeepCarry });
    }

    /// Whether the flags this operation writes are needed in `Frame::raw`.
    pub fn must_save(&self, index: usize) -> bool {
        self.save[index]
    }

    /// The flags were put into `Frame::raw`, and the host's are lost.
    pub fn flags_saved(&mut self) {
        self.pending = None;
        self.host_valid = 0;
    }

    /// Before host code that changes the host's flags.
    pub fn clobber(&mut self) {
        self.save_pending();
        self.host_valid = 0;
    }

    fn save_pending(&mut self) {
        let Some(save) = self.pending.take() else { return };
        if save == Save::CarryOnly {
            self.asm.set(cc::C, Rm::Reg(RAX));
            self.asm.load_zero(4, 1, RCX, Rm::Reg(RAX));
            return self.merge_flags(0xfe01, RCX, None);
        }
        self.asm.lahf();
        let keep = |emitter: &mut Self, mask: i32| {
            emitter.asm.alu_imm(alu::AND, 4, Rm::Reg(RAX), mask);
            emitter.host_valid = 0;
        };
        match save {
            Save::CarryOnly => {}
            Save::Plain => self.asm.set(0, Rm::Reg(RAX)),
            Save::Logic => keep(self, 0xc400),
            Save::ShiftRight => keep(self, 0xc500),
            Save::ShiftOne => {
                self.asm.set(0, Rm::Reg(RAX));
                keep(self, 0xc501);
            }
            Save::ShiftLeft => {
                self.asm.lea(4, RCX, Rm::Base(RAX, 0));
                self.asm.shift_imm(shift::SHR, 4, Rm::Reg(RCX), 7);
                self.asm.alu_load(alu::XOR, 4, RCX, Rm::Reg(RAX));
                self.asm.shift_imm(shift::SHR, 4, Rm::Reg(RCX), 8);
                self.asm.alu_imm(alu::AND, 4, Rm::Reg(RCX), 1);
                keep(self, 0xc500);
                self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(RCX));
            }
            Save::KeepCarry => {
                self.asm.set(0, Rm::Reg(RAX));
                keep(self, 0xfe01);
                self.asm.load(4, RCX, RAW);
                self.asm.alu_imm(alu::AND, 4, Rm::Reg(RCX), 0x100);
                self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(RCX));
            }
        }
        self.asm.store(4, RAW, RAX);
    }

    /// Puts CF (0 or 1 in a register) and, if given, OF into `Frame::raw`, keeping what `mask` says. Changes RAX.
    pub fn merge_flags(&mut self, mask: i32, carry: Reg, overflow: Option<Reg>) {
        self.asm.load(4, RAX, RAW);
        self.asm.alu_imm(alu::AND, 4, Rm::Reg(RAX), mask);
        self.asm.shift_imm(shift::SHL, 4, Rm::Reg(carry), 8);
        self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(carry));
        if let Some(overflow) = overflow {
            self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(overflow));
        }
        self.asm.store(4, RAW, RAX);
        self.host_valid = 0;
    }

    /// Makes the host's flags those of the guest, as far as `mask` says.
    pub fn want_flags(&mut self, mask: u8) {
        if self.host_valid & mask != mask {
            self.save_pending();
            self.load_flags();
            self.host_valid = flag::ALL;
        }
    }

    /// The host's flags from `Frame::raw`; changes RAX.
    pub fn load_flags(&mut self) {
        self.asm.load(4, RAX, RAW);
        self.asm.alu_imm(alu::ADD, 1, Rm::Reg(RAX), 0x7f);
        self.asm.sahf();
    }
}
