// SPDX-License-Identifier: AGPL-3.0-or-later
//! The comparison behind PCMPESTRI, PCMPESTRM, PCMPISTRI and PCMPISTRM (AMD64 APM vol. 4, "String compare instructions").
//!
//! `a` is the first operand (a set, ranges or a needle), `b` the second (the text). Immediate bits: 0 words, 1 signed,
//! 3..2 how to compare, 5..4 polarity, 6 which index or which kind of mask.

use super::Lane;

/// What the four instructions draw on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// One bit an element, polarity applied.
    pub bits: u16,
    /// Elements in a register: 16 or 8.
    pub elements: u32,
    /// The first operand ends within its register (SF).
    pub a_ends: bool,
    /// The second operand ends within its register (ZF).
    pub b_ends: bool,
}

/// Element `i` as the immediate's format reads it.
fn element(register: &[u8; 16], i: usize, imm: u8) -> i32 {
    match imm & 3 {
        0 => i32::from(register[i]),
        1 => i32::from(u16::get(register, i)),
        2 => i32::from(register[i] as i8),
        _ => i32::from(i16::get(register, i)),
    }
}

/// Elements in a register for this immediate.
pub fn elements(imm: u8) -> usize {
    if imm & 1 == 0 { 16 } else { 8 }
}

/// Length of a string that a zero element ends.
pub fn implicit_length(register: &[u8; 16], imm: u8) -> usize {
    let n = elements(imm);
    (0..n).find(|&i| element(register, i, imm) == 0).unwrap_or(n)
}

/// Length given in a register: the absolute value, at most a full register.
pub fn explicit_length(value: i64, imm: u8) -> usize {
    value.unsigned_abs().min(elements(imm) as u64) as usize
}

/// Compares as `imm` says; `a_len` and `b_len` are lengths in elements.
pub fn compare(a: &[u8; 16], a_len: usize, b: &[u8; 16], b_len: usize, imm: u8) -> Comparison {
    let n = elements(imm);
    let at = |register, i| element(register, i, imm);
    let hit = |j: usize| match imm >> 2 & 3 {
        0 => j < b_len && (0..a_len).any(|i| at(a, i) == at(b, j)),
        1 => {
            let within = |i: usize| at(a, i) <= at(b, j) && at(b, j) <= at(a, i + 1);
            j < b_len && (0..a_len / 2).any(|pair| within(2 * pair))
        }
        2 if j < a_len && j < b_len => at(a, j) == at(b, j),
        2 => j >= a_len && j >= b_len,
        _ => (0..n - j).all(|i| i >= a_len || (i + j < b_len && at(a, i) == at(b, i + j))),
    };
    let raw: u16 = (0..n).filter(|&j| hit(j)).map(|j| 1u16 << j).sum();
    let all = if n == 16 { 0xffff } else { 0xff };
    let valid = ((1u32 << b_len) - 1) as u16;
    let bits = match imm >> 4 & 3 {
        1 => raw ^ all,
        3 => raw ^ valid,
        _ => raw,
    };
    Comparison { bits, elements: n as u32, a_ends: a_len < n, b_ends: b_len < n }
}

impl Comparison {
    /// ECX of the index forms.
    pub fn index(self, imm: u8) -> u32 {
        match (self.bits, imm & 0x40 != 0) {
            (0, _) => self.elements,
            (bits, false) => bits.trailing_zeros(),
            (bits, true) => 15 - bits.leading_zeros(),
        }
    }

    /// XMM0 of the mask forms.
    pub fn mask(self, imm: u8) -> [u8; 16] {
        if imm & 0x40 == 0 {
            return u128::from(self.bits).to_le_bytes();
        }
        let mut out = [0; 16];
        let width = 16 / self.elements as usize;
        for (i, byte) in out.iter_mut().enumerate() {
            if self.bits >> (i / width) & 1 != 0 {
                *byte = 0xff;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(text: &str) -> [u8; 16] {
        let mut out = [0; 16];
        out[..text.len()].copy_from_slice(text.as_bytes());
        out
    }

    fn implicit(a: &str, b: &str, imm: u8) -> Comparison {
        let (a, b) = (register(a), register(b));
        compare(&a, implicit_length(&a, imm), &b, implicit_length(&b, imm), imm)
    }

    #[test]
    fn finds_a_byte_of_a_set() {
        let found = implicit("xyz", "hello zoo", 0x00);
        assert_eq!((found.bits, found.index(0)), (1 << 6, 6));
        assert!(found.a_ends && found.b_ends);
        assert_eq!(implicit("q", "hello", 0x00).index(0), 16);
    }

    #[test]
    fn ranges_are_inclusive_pairs() {
        assert_eq!(implicit("az09", "A5z-", 0x04).bits, 0b0110);
        // An odd bound has no partner and matches nothing.
        assert_eq!(implicit("a", "a", 0x04).bits, 0);
    }

    #[test]
    fn equality_counts_both_ends_as_equal() {
        assert_eq!(implicit("abc", "abd", 0x08).bits, 0xfffb);
        assert_eq!(implicit("abc", "abd", 0x18).index(0x18), 2);
        // Masked polarity leaves what lies past the text alone.
        assert_eq!(implicit("abc", "abd", 0x38).bits, 0xfff8 | 0b100);
    }

    #[test]
    fn a_needle_is_found_in_order_also_cut_off_at_the_end() {
        assert_eq!(implicit("lo", "hello", 0x0c).index(0), 3);
        let text = [b'a'; 16];
        let needle = register("ab");
        assert_eq!(compare(&needle, 2, &text, 16, 0x0c).bits, 0x8000);
    }

    #[test]
    fn explicit_lengths_are_absolute_and_bounded() {
        assert_eq!(explicit_length(-3, 0), 3);
        assert_eq!(explicit_length(i64::MIN, 1), 8);
    }

    #[test]
    fn masks_come_as_bits_or_as_elements() {
        let found = implicit("l", "hello", 0x00);
        assert_eq!(u128::from_le_bytes(found.mask(0x00)), 0b1100);
        assert_eq!(u128::from_le_bytes(found.mask(0x40)), 0xffff_0000);
        assert_eq!(found.index(0x40), 3);
    }
}
