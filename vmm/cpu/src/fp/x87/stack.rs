// SPDX-License-Identifier: AGPL-3.0-or-later
//! The register stack and the words around it.

use super::arith::Remainder;
use super::f80::{Control, F80, Outcome};
use super::flag::{ALL, B, C0, C1, C2, C3, CODES, DE, ES, IE, OE, SF, TOP, UE, ZE};
use crate::state::X87;

/// A stack underflow: an empty register was to be read.
pub const UNDERFLOW: u16 = IE | SF;
/// A stack overflow: a register that is not empty was to be pushed onto.
pub const OVERFLOW: u16 = IE | SF | C1;

impl X87 {
    /// Sets the control word. Bit 6 always reads as one, bits 7 and 13 to 15 as zero; bit 12 is kept.
    pub(crate) fn set_control(&mut self, control: u16) {
        self.control = (control & 0x1f7f) | 0x40;
        self.update_summary();
    }

    /// Sets the status word; ES and B follow from the flags and masks.
    pub(crate) fn load_status(&mut self, status: u16) {
        self.status = status;
        self.update_summary();
    }

    /// ES and B say whether an unmasked exception flag is set.
    pub(crate) fn update_summary(&mut self) {
        self.status &= !(ES | B);
        if self.status & !self.control & ALL != 0 {
            self.status |= ES | B;
        }
    }

    /// The control word as the environment of an operation.
    pub(crate) fn environment(&self) -> Control {
        Control(self.control)
    }

    /// FNINIT.
    pub(crate) fn init(&mut self) {
        let (significand, sign_exponent) = (self.significand, self.sign_exponent);
        *self = Self { significand, sign_exponent, ..Self::default() };
    }

    /// Stack top.
    pub(crate) fn top(&self) -> u16 {
        (self.status & TOP) >> 11
    }

    /// Moves the stack top.
    pub(crate) fn set_top(&mut self, top: u16) {
        self.status = (self.status & !TOP) | (top & 7) << 11;
    }

    /// The physical register of ST(i).
    pub(crate) fn physical(&self, i: u8) -> usize {
        usize::from((self.top() + u16::from(i)) & 7)
    }

    /// Whether ST(i) is empty.
    pub(crate) fn empty(&self, i: u8) -> bool {
        self.tag >> (2 * self.physical(i)) & 3 == 3
    }

    /// Contents of ST(i), also of an empty one.
    pub(crate) fn st(&self, i: u8) -> F80 {
        let register = self.physical(i);
        F80 { se: self.sign_exponent[register], sig: self.significand[register] }
    }

    /// Writes ST(i), which is then not empty.
    pub(crate) fn set_st(&mut self, i: u8, value: F80) {
        let register = self.physical(i);
        self.sign_exponent[register] = value.se;
        self.significand[register] = value.sig;
        self.tag &= !(3 << (2 * register));
    }

    /// Makes ST(i) empty.
    pub(crate) fn free(&mut self, i: u8) {
        self.tag |= 3 << (2 * self.physical(i));
    }

    /// Pops the stack.
    pub(crate) fn pop(&mut self) {
        self.free(0);
        self.set_top(self.top() + 1);
    }

    /// Pushes onto the stack whatever is there.
    pub(crate) fn push_over(&mut self, value: F80) {
        self.set_top(self.top().wrapping_sub(1));
        self.set_st(0, value);
    }

    /// Records flags and C1 (cleared unless among them); says whether the operation's result may be written.
    pub(crate) fn raise(&mut self, flags: u16) -> bool {
        self.status = (self.status & !C1) | flags;
        self.update_summary();
        self.permits(flags, IE | DE | ZE)
    }

    /// Records flags where C1 stays as it is.
    pub(crate) fn raise_only(&mut self, flags: u16) -> bool {
        self.status |= flags;
        self.update_summary();
        self.permits(flags, IE | DE | ZE)
    }

    /// None of the exceptions in `flags` that are in `blocking` is unmasked.
    pub(crate) fn permits(&self, flags: u16, blocking: u16) -> bool {
        flags & !self.control & blocking == 0
    }

    /// Whether a store to memory with these flags takes place: also an unmasked overflow or underflow keeps it from.
    pub(crate) fn permits_store(&self, flags: u16) -> bool {
        self.permits(flags, IE | DE | ZE | OE | UE)
    }

    /// Sets C3, C2 and C0 (and C1 stays as `raise` left it).
    pub(crate) fn set_codes(&mut self, codes: u16) {
        self.status = (self.status & !(CODES & !C1)) | codes;
    }

    /// Writes a partial remainder to ST(0), its quotient's low bits to C0, C3 and C1, and whether it is incomplete to C2.
    pub(crate) fn remainder(&mut self, outcome: Outcome<Remainder>) {
        self.status &= !C2;
        if !self.raise(outcome.flags) {
            return;
        }
        let Remainder { value, incomplete, quotient } = outcome.value;
        self.set_st(0, value);
        if let Some(quotient) = quotient {
            let code = |set: bool, code: u16| if set { code } else { 0 };
            let low = code(quotient & 4 != 0, C0) | code(quotient & 2 != 0, C3) | code(quotient & 1 != 0, C1);
            self.status = (self.status & !CODES) | low | code(incomplete, C2);
        }
    }

    /// Pushes the outcome of a load; only an unmasked invalid operation keeps it from, not a denormal.
    pub(crate) fn push(&mut self, outcome: Outcome) {
        if !self.empty(7) {
            if self.raise(OVERFLOW) {
                self.push_over(F80::DEFAULT_NAN);
            }
            return;
        }
        self.raise(outcome.flags);
        if self.permits(outcome.flags, IE) {
            self.push_over(outcome.value);
        }
    }

    /// Replaces ST(i) by the outcome of an operation on it and on ST(j), then pops if asked.
    pub(crate) fn replace(&mut self, i: u8, j: u8, pop: bool, f: impl FnOnce(F80, F80, Control) -> Outcome) {
        let outcome = if self.empty(i) || self.empty(j) {
            Outcome { value: F80::DEFAULT_NAN, flags: UNDERFLOW }
        } else {
            f(self.st(i), self.st(j), self.environment())
        };
        if self.raise(outcome.flags) {
            self.set_st(i, outcome.value);
            if pop {
                self.pop();
            }
        }
    }
}
