// SPDX-License-Identifier: AGPL-3.0-or-later
//! RFLAGS, with the six status flags kept lazily.
//!
//! Instead of flags, an arithmetic operation leaves its sign-extended `result`, `carries` (operand ^ operand ^ result: bit
//! *n* is the carry into bit *n*; sign-extended, so bit 63 is the carry into the top bit of the operand) and the carry out.
//! ZF, SF and PF follow from the result, AF from bit 4 of the carries, and OF is the carry into the top bit xor the carry
//! out. Loading arbitrary flags needs SF and PF to differ from what the result says: `misc` holds those differences.

/// Bits of RFLAGS.
pub(crate) mod bit {
    pub const CF: u64 = 1 << 0;
    pub const FIXED: u64 = 1 << 1;
    pub const PF: u64 = 1 << 2;
    pub const AF: u64 = 1 << 4;
    pub const ZF: u64 = 1 << 6;
    pub const SF: u64 = 1 << 7;
    pub const TF: u64 = 1 << 8;
    pub const IF: u64 = 1 << 9;
    pub const DF: u64 = 1 << 10;
    pub const OF: u64 = 1 << 11;
    pub const IOPL: u64 = 3 << 12;
    pub const NT: u64 = 1 << 14;
    pub const RF: u64 = 1 << 16;
    pub const VM: u64 = 1 << 17;
    pub const AC: u64 = 1 << 18;
    pub const VIF: u64 = 1 << 19;
    pub const VIP: u64 = 1 << 20;
    pub const ID: u64 = 1 << 21;
    pub const STATUS: u64 = CF | PF | AF | ZF | SF | OF;
    /// Every bit that can be set.
    pub const ALL: u64 = STATUS | TF | IF | DF | IOPL | NT | RF | VM | AC | VIF | VIP | ID;
}

const PARITY_SHIFT: u32 = 8;
const SIGN_SHIFT: u32 = 16;

/// The lazy status flags.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LazyFlags {
    pub result: u64,
    pub carries: u64,
    /// Bit 0: CF; bits 8..=15: xor of the low result byte before parity; bit 16: xor of the sign.
    pub misc: u32,
}

impl LazyFlags {
    #[inline(always)]
    pub fn cf(&self) -> bool {
        self.misc & 1 != 0
    }

    #[inline(always)]
    pub fn zf(&self) -> bool {
        self.result == 0
    }

    #[inline(always)]
    pub fn sf(&self) -> bool {
        ((self.result >> 63) as u32 ^ (self.misc >> SIGN_SHIFT)) & 1 != 0
    }

    #[inline(always)]
    pub fn of(&self) -> bool {
        ((self.carries >> 63) as u32 ^ self.misc) & 1 != 0
    }

    #[inline(always)]
    pub fn pf(&self) -> bool {
        ((self.result as u8) ^ (self.misc >> PARITY_SHIFT) as u8).count_ones() & 1 == 0
    }

    #[inline(always)]
    pub fn af(&self) -> bool {
        self.carries & 0x10 != 0
    }

    /// The six flags in their places.
    pub fn bits(&self) -> u64 {
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        flag(self.cf(), bit::CF)
            | flag(self.pf(), bit::PF)
            | flag(self.af(), bit::AF)
            | flag(self.zf(), bit::ZF)
            | flag(self.sf(), bit::SF)
            | flag(self.of(), bit::OF)
    }

    /// Flags from their bits.
    pub fn from_bits(flags: u64) -> Self {
        let zero = flags & bit::ZF != 0;
        let carry = flags & bit::CF != 0;
        let result = u64::from(!zero);
        // With result 0 or 1 the parity flag would be 1 or 0, and the sign 0.
        let parity = (flags & bit::PF != 0) != zero;
        let sign = flags & bit::SF != 0;
        let carry_in = (flags & bit::OF != 0) != carry;
        let carries = (u64::from(carry_in) << 63) | (flags & bit::AF);
        let misc = u32::from(carry) | u32::from(parity) << PARITY_SHIFT | u32::from(sign) << SIGN_SHIFT;
        Self { result, carries, misc }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_of_status_flags_survives() {
        for pattern in 0..64u64 {
            let places = [bit::CF, bit::PF, bit::AF, bit::ZF, bit::SF, bit::OF];
            let flags = places.iter().enumerate().filter(|(i, _)| pattern >> i & 1 == 1).map(|(_, bit)| bit).sum();
            assert_eq!(LazyFlags::from_bits(flags).bits(), flags, "pattern {pattern:#b}");
        }
    }
}
