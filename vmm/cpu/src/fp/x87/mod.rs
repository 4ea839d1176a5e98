// SPDX-License-Identifier: AGPL-3.0-or-later
//! The x87 unit on [`X87`] alone: stack, control and status words, and every operation as the manuals define it (AMD64 APM
//! vol. 1 chapter 6 and vol. 5; Intel SDM vol. 1 chapter 8).
//!
//! An operation computes a value and status flags first ([`f80::Outcome`]); [`X87::raise`] then records the flags and says whether
//! the value may be written: an unmasked invalid operation, denormal operand or division by zero leaves the destination
//! and the stack as they were. An unmasked exception sets ES; the next waiting instruction raises #MF.

pub mod arith;
pub mod f80;
pub mod functions;
pub mod memory;
pub mod stack;
pub mod transcendental;

#[cfg(all(test, target_arch = "x86_64"))]
mod host_tests;
#[cfg(test)]
mod transcendental_tests;
#[cfg(test)]
mod vectors;

/// Bits of the status word, as `u16`.
pub mod flag {
    /// Invalid operation.
    pub const IE: u16 = 0x01;
    /// Denormal operand.
    pub const DE: u16 = 0x02;
    /// Division by zero.
    pub const ZE: u16 = 0x04;
    /// Overflow.
    pub const OE: u16 = 0x08;
    /// Underflow.
    pub const UE: u16 = 0x10;
    /// Inexact result.
    pub const PE: u16 = 0x20;
    /// All exceptions.
    pub const ALL: u16 = 0x3f;
    /// Stack fault; always together with IE.
    pub const SF: u16 = 1 << 6;
    /// An unmasked exception is pending.
    pub const ES: u16 = 1 << 7;
    /// Condition code 0.
    pub const C0: u16 = 1 << 8;
    /// Condition code 1: rounded up, or stack overflow.
    pub const C1: u16 = 1 << 9;
    /// Condition code 2.
    pub const C2: u16 = 1 << 10;
    /// Condition code 3.
    pub const C3: u16 = 1 << 14;
    /// Busy, a copy of ES.
    pub const B: u16 = 1 << 15;
    /// TOP.
    pub const TOP: u16 = 7 << 11;
    /// All condition codes.
    pub const CODES: u16 = C0 | C1 | C2 | C3;
}
