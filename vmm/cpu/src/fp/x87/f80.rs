// SPDX-License-Identifier: AGPL-3.0-or-later
//! The 80-bit format: classes, taking apart, and rounding under the control word.

use super::flag::{C1, DE, IE, OE, PE, UE};
use crate::fp::soft::{Format, Num, Rounding};

/// Exponent bias.
pub const BIAS: i32 = 16383;
/// What an unmasked overflow subtracts from the exponent, and an unmasked underflow adds (Intel SDM vol. 1, 4.9.1.4).
const WRAP: i32 = 24576;
/// The explicit leading bit.
pub const LEADING: u64 = 1 << 63;
/// The bit that makes a NaN quiet.
pub const QUIET: u64 = 1 << 62;

/// A register's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct F80 {
    /// Sign (bit 15) and exponent.
    pub se: u16,
    /// Significand with explicit leading bit.
    pub sig: u64,
}

/// What an operation gives: the value for masked exceptions, and status word bits to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<T = F80> {
    /// The value.
    pub value: T,
    /// Exception flags and C1.
    pub flags: u16,
}

impl<T> Outcome<T> {
    /// Without flags.
    pub fn exact(value: T) -> Self {
        Self { value, flags: 0 }
    }

    /// The same with more flags.
    pub fn with(self, flags: u16) -> Self {
        Self { flags: self.flags | flags, ..self }
    }
}

/// An operand that is no NaN and no unsupported pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Signed zero.
    Zero(bool),
    /// Signed infinity.
    Infinity(bool),
    /// Everything else.
    Finite(Num),
}

/// The x87 control word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control(pub u16);

impl Control {
    /// RC.
    pub fn rounding(self) -> Rounding {
        Rounding::from_bits(u32::from(self.0) >> 10)
    }

    /// Significant bits of results: PC 0 is 24, 2 is 53, the rest 64.
    pub fn precision(self) -> u32 {
        match self.0 >> 8 & 3 {
            0 => 24,
            2 => 53,
            _ => 64,
        }
    }

    /// The same with full precision.
    pub fn full_precision(self) -> Self {
        Self(self.0 | 0x300)
    }

    /// Whether an exception is masked.
    pub fn masks(self, flag: u16) -> bool {
        self.0 & flag != 0
    }
}

impl F80 {
    /// Plus zero.
    pub const ZERO: Self = Self { se: 0, sig: 0 };
    /// One.
    pub const ONE: Self = Self { se: 0x3fff, sig: LEADING };
    /// What invalid operations give.
    pub const DEFAULT_NAN: Self = Self { se: 0xffff, sig: 0xc000_0000_0000_0000 };

    /// A zero of a sign.
    pub fn zero(negative: bool) -> Self {
        Self { se: u16::from(negative) << 15, sig: 0 }
    }

    /// An infinity of a sign.
    pub fn infinity(negative: bool) -> Self {
        Self { se: 0x7fff | u16::from(negative) << 15, sig: LEADING }
    }

    /// The sign.
    pub fn negative(self) -> bool {
        self.se & 0x8000 != 0
    }

    /// The exponent field.
    pub fn field(self) -> u16 {
        self.se & 0x7fff
    }

    /// Unnormals, pseudo-infinities and pseudo-NaNs: a nonzero exponent without the leading bit.
    pub fn unsupported(self) -> bool {
        self.field() != 0 && self.sig & LEADING == 0
    }

    /// Any NaN.
    pub fn is_nan(self) -> bool {
        self.field() == 0x7fff && self.sig & LEADING != 0 && self.sig & !LEADING != 0
    }

    /// A signaling NaN.
    pub fn is_signaling(self) -> bool {
        self.is_nan() && self.sig & QUIET == 0
    }

    /// Denormal or pseudo-denormal.
    pub fn is_denormal(self) -> bool {
        self.field() == 0 && self.sig != 0
    }

    /// A zero.
    pub fn is_zero(self) -> bool {
        self.field() == 0 && self.sig == 0
    }

    /// A NaN made quiet.
    pub fn quiet(self) -> Self {
        Self { sig: self.sig | QUIET, ..self }
    }

    /// The value with the other sign.
    pub fn negated(self) -> Self {
        Self { se: self.se ^ 0x8000, ..self }
    }

    /// Takes a pattern apart that is neither a NaN nor unsupported.
    pub fn unpack(self) -> Value {
        let negative = self.negative();
        match self.field() {
            0x7fff => Value::Infinity(negative),
            0 if self.sig == 0 => Value::Zero(negative),
            // Denormals and pseudo-denormals share the smallest exponent.
            field => {
                let exponent = i32::from(field.max(1)) - BIAS;
                Value::Finite(Num::normalize(negative, exponent, u128::from(self.sig) << 64))
            }
        }
    }

    /// An integer, exactly.
    pub fn from_i64(value: i64) -> Self {
        match Num::from_integer(value < 0, value.unsigned_abs()) {
            Some(num) => Self::assemble(num.negative, num.exponent, (num.significand >> 64) as u64),
            None => Self::ZERO,
        }
    }

    /// A number from its exponent and its significand with the leading bit set.
    pub fn assemble(negative: bool, exponent: i32, sig: u64) -> Self {
        Self { se: u16::from(negative) << 15 | (exponent + BIAS) as u16, sig }
    }

    /// DE, if an operand is denormal.
    pub fn denormal_flag(operands: &[Self]) -> u16 {
        if operands.iter().any(|x| x.is_denormal()) { DE } else { 0 }
    }

    /// Rounds to the control word's precision and this format's range.
    pub fn round(value: Num, control: Control) -> Outcome {
        let precision = control.precision();
        let format = Format { precision, exponent_min: 1 - BIAS, exponent_max: BIAS };
        let rounding = control.rounding();
        let rounded = value.round(format, rounding);
        let lost = |inexact: bool, up: bool| if inexact { PE } else { 0 } | if up { C1 } else { 0 };
        let place =
            |exponent: i32, significand: u64| Self::assemble(value.negative, exponent, significand << (64 - precision));
        if rounded.overflow {
            if control.masks(OE) {
                return Self::overflow(value.negative, precision, rounding);
            }
            let exponent = rounded.exponent - WRAP;
            if exponent > BIAS {
                // Only FSCALE gets that far.
                return Outcome { value: Self::infinity(value.negative), flags: OE | PE | C1 };
            }
            let flags = OE | lost(rounded.inexact, rounded.up);
            return Outcome { value: place(exponent, rounded.significand), flags };
        }
        if rounded.tiny && !control.masks(UE) {
            let wrapped = value.round_unbounded(precision, rounding);
            let exponent = wrapped.exponent + WRAP;
            if exponent <= -BIAS {
                return Outcome { value: Self::zero(value.negative), flags: UE | PE };
            }
            let flags = UE | lost(wrapped.inexact, wrapped.up);
            return Outcome { value: place(exponent, wrapped.significand), flags };
        }
        let sig = rounded.significand << (64 - precision);
        let flags = lost(rounded.inexact, rounded.up) | if rounded.tiny && rounded.inexact { UE } else { 0 };
        let exponent = if sig & LEADING != 0 { rounded.exponent } else { -BIAS };
        Outcome { value: Self::assemble(value.negative, exponent, sig), flags }
    }

    /// The masked response to an overflow: infinity, or the largest finite number of the precision.
    fn overflow(negative: bool, precision: u32, rounding: Rounding) -> Outcome {
        let to_infinity = match rounding {
            Rounding::Nearest => true,
            Rounding::Down => negative,
            Rounding::Up => !negative,
            Rounding::Zero => false,
        };
        if to_infinity {
            Outcome { value: Self::infinity(negative), flags: OE | PE | C1 }
        } else {
            Outcome { value: Self::assemble(negative, BIAS, u64::MAX << (64 - precision)), flags: OE | PE }
        }
    }
}

/// The outcome of an operation on operands that include an unsupported pattern or a NaN: the rules of the SDM's table 4-7.
pub fn nan_outcome(a: F80, b: F80) -> Option<Outcome> {
    if a.unsupported() || b.unsupported() {
        return Some(Outcome { value: F80::DEFAULT_NAN, flags: IE });
    }
    if !a.is_nan() && !b.is_nan() {
        return None;
    }
    let flags = if a.is_signaling() || b.is_signaling() { IE } else { 0 };
    let value = match (a.is_nan(), b.is_nan()) {
        (true, false) => a,
        (false, true) => b,
        // A quiet NaN beats a signaling one; else the larger significand, then the positive one.
        _ if a.is_signaling() != b.is_signaling() => {
            if a.is_signaling() {
                b
            } else {
                a
            }
        }
        _ if a.sig != b.sig => {
            if a.sig > b.sig {
                a
            } else {
                b
            }
        }
        _ => {
            if a.negative() {
                b
            } else {
                a
            }
        }
    };
    Some(Outcome { value: value.quiet(), flags })
}
