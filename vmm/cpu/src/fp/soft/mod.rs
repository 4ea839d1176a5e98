// SPDX-License-Identifier: AGPL-3.0-or-later
//! Binary floating point in integers: exact results, x86 rounding, x86 flags, nothing of the host.
//!
//! A finite nonzero value is a [`Num`]: sign, exponent, and a 128-bit significand whose top bit is set. `arith` computes
//! exactly, or with a sticky lowest bit; [`Num::round`] turns that into any format. `sse` adds what MXCSR asks for on 32 and
//! 64-bit numbers, `x80` what the x87 control word asks for on 80-bit numbers.

pub mod approx;
pub mod arith;
pub mod sse;
pub mod sse_convert;
pub mod wide;

/// Exception flags: bits 5..0 of MXCSR and of the x87 status word; the mask bits of both control words are in the same order.
pub mod flag {
    /// Invalid operation.
    pub const IE: u32 = 0x01;
    /// Denormal operand.
    pub const DE: u32 = 0x02;
    /// Division by zero.
    pub const ZE: u32 = 0x04;
    /// Overflow.
    pub const OE: u32 = 0x08;
    /// Underflow.
    pub const UE: u32 = 0x10;
    /// Inexact result.
    pub const PE: u32 = 0x20;
    /// All of them.
    pub const ALL: u32 = 0x3f;
    /// Exceptions that are found before a result exists.
    pub const BEFORE_RESULT: u32 = IE | DE | ZE;
}

/// Rounding direction, numbered as MXCSR.RC, the x87 control word's RC and the immediate of ROUNDxx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, ties to even.
    Nearest,
    /// Toward minus infinity.
    Down,
    /// Toward plus infinity.
    Up,
    /// Toward zero.
    Zero,
}

impl Rounding {
    /// From the low two bits.
    pub fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Nearest,
            1 => Self::Down,
            2 => Self::Up,
            _ => Self::Zero,
        }
    }

    /// Whether a magnitude `kept` with discarded bits `rest` (top-aligned: half is the top bit) grows by one.
    fn grows(self, negative: bool, kept: u128, rest: u128) -> bool {
        const HALF: u128 = 1 << 127;
        match self {
            Self::Nearest => rest > HALF || (rest == HALF && kept & 1 != 0),
            Self::Down => negative && rest != 0,
            Self::Up => !negative && rest != 0,
            Self::Zero => false,
        }
    }
}

/// A format's precision and the exponents of its smallest and largest normal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Significant bits, the leading one included; at most 64.
    pub precision: u32,
    /// Exponent of the smallest normal number.
    pub exponent_min: i32,
    /// Exponent of the largest finite number.
    pub exponent_max: i32,
}

/// A finite nonzero value: `significand * 2^(exponent - 127)`, bit 127 set; bit 0 may stand for anything nonzero below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Num {
    /// Sign.
    pub negative: bool,
    /// Exponent of the leading bit.
    pub exponent: i32,
    /// Significand.
    pub significand: u128,
}

/// A value rounded to a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounded {
    /// The significand as an integer of at most `precision` bits; smaller than a normal one if subnormal, possibly zero.
    pub significand: u64,
    /// Exponent of bit `precision - 1`.
    pub exponent: i32,
    /// Something was lost.
    pub inexact: bool,
    /// The magnitude was rounded up (C1 of the x87 status word).
    pub up: bool,
    /// Rounded with unbounded exponent, it lies below the normal numbers (x86 detects tininess after rounding).
    pub tiny: bool,
    /// It lies above the finite numbers; significand and exponent are as with unbounded exponent.
    pub overflow: bool,
}

/// Shifts right and keeps a record of lost ones in bit 0.
pub fn shift_right_sticky(value: u128, count: u32) -> u128 {
    match count {
        0 => value,
        1..=127 => (value >> count) | u128::from(value << (128 - count) != 0),
        _ => u128::from(value != 0),
    }
}

impl Num {
    /// Normalizes `significand * 2^(exponent - 127)`; `significand` must not be zero.
    pub fn normalize(negative: bool, exponent: i32, significand: u128) -> Self {
        debug_assert_ne!(significand, 0);
        let shift = significand.leading_zeros();
        Self { negative, exponent: exponent - shift as i32, significand: significand << shift }
    }

    /// An integer; zero has no `Num`.
    pub fn from_integer(negative: bool, magnitude: u64) -> Option<Self> {
        (magnitude != 0).then(|| Self::normalize(negative, 63, u128::from(magnitude) << 64))
    }

    /// Rounds to `precision` bits with unbounded exponent.
    pub fn round_unbounded(self, precision: u32, rounding: Rounding) -> Rounded {
        let kept = self.significand >> (128 - precision);
        let rest = self.significand << precision;
        let up = rounding.grows(self.negative, kept, rest);
        let mut significand = kept + u128::from(up);
        let mut exponent = self.exponent;
        if significand >> precision != 0 {
            significand >>= 1;
            exponent += 1;
        }
        Rounded { significand: significand as u64, exponent, inexact: rest != 0, up, tiny: false, overflow: false }
    }

    /// Rounds to `format`. An overflow is reported with the unbounded result, for the caller to replace.
    pub fn round(self, format: Format, rounding: Rounding) -> Rounded {
        let unbounded = self.round_unbounded(format.precision, rounding);
        if self.exponent >= format.exponent_min {
            return Rounded { overflow: unbounded.exponent > format.exponent_max, ..unbounded };
        }
        let tiny = unbounded.exponent < format.exponent_min;
        let significand = shift_right_sticky(self.significand, (format.exponent_min - self.exponent) as u32);
        let kept = significand >> (128 - format.precision);
        let rest = significand << format.precision;
        let up = rounding.grows(self.negative, kept, rest);
        Rounded {
            significand: (kept + u128::from(up)) as u64,
            exponent: format.exponent_min,
            inexact: rest != 0,
            up,
            tiny,
            overflow: false,
        }
    }

    /// Rounds to an integer; `None` if the magnitude does not fit 64 bits. Also says whether something was lost and whether
    /// the magnitude was rounded up.
    pub fn to_integer(self, rounding: Rounding) -> Option<(u64, bool, bool)> {
        if self.exponent > 63 {
            return None;
        }
        let (kept, rest) = if self.exponent >= 0 {
            (self.significand >> (127 - self.exponent), self.significand << (self.exponent + 1))
        } else {
            (0, shift_right_sticky(self.significand, (-1 - self.exponent) as u32))
        };
        let up = rounding.grows(self.negative, kept, rest);
        let magnitude = u64::try_from(kept + u128::from(up)).ok()?;
        Some((magnitude, rest != 0, up))
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod host_sse;
