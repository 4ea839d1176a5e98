// SPDX-License-Identifier: AGPL-3.0-or-later
//! Operations whose result lanes draw on several source lanes: horizontal sums, dot products, absolute differences.

use super::{Lane, Packed};

/// Combines neighbours of `a`, then neighbours of `b`.
#[inline(always)]
fn neighbours<T: Lane, const N: usize>(a: [u8; N], b: [u8; N], f: impl Fn(T, T) -> T) -> [u8; N] {
    let mut out = [0; N];
    let pairs = N / T::BYTES / 2;
    for i in 0..pairs {
        f(T::get(&a, 2 * i), T::get(&a, 2 * i + 1)).set(&mut out, i);
        f(T::get(&b, 2 * i), T::get(&b, 2 * i + 1)).set(&mut out, i + pairs);
    }
    out
}

/// Each 16-bit result is the sum of absolute differences of eight bytes, zero-extended to 64 bits.
#[inline(always)]
fn psadbw<const N: usize>(a: [u8; N], b: [u8; N]) -> [u8; N] {
    let mut out = [0; N];
    for group in 0..N / 8 {
        let sum: u64 = (group * 8..group * 8 + 8).map(|i| u64::from(a[i].abs_diff(b[i]))).sum();
        sum.set(&mut out, group);
    }
    out
}

/// PMADDWD. The one overflow, all four factors -32768, wraps to 0x8000_0000.
#[inline(always)]
fn pmaddwd<const N: usize>(a: [u8; N], b: [u8; N]) -> [u8; N] {
    let mut out = [0; N];
    for i in 0..N / 4 {
        let product = |j: usize| i32::from(i16::get(&a, j)) * i32::from(i16::get(&b, j));
        product(2 * i).wrapping_add(product(2 * i + 1)).set(&mut out, i);
    }
    out
}

/// PMADDUBSW: unsigned bytes of `a` times signed bytes of `b`, pairs added with signed saturation.
#[inline(always)]
fn pmaddubsw<const N: usize>(a: [u8; N], b: [u8; N]) -> [u8; N] {
    let mut out = [0; N];
    for i in 0..N / 2 {
        let product = |j: usize| i32::from(a[j]) * i32::from(b[j] as i8);
        let sum = product(2 * i) + product(2 * i + 1);
        (sum.clamp(-32768, 32767) as i16).set(&mut out, i);
    }
    out
}

macro_rules! packed {
    ($($name:ident: $f:expr;)*) => {$(
        #[doc = concat!(stringify!($name), ".")]
        pub struct $name;
        impl Packed for $name {
            #[inline(always)]
            fn apply<const N: usize>(a: [u8; N], b: [u8; N]) -> [u8; N] {
                ($f)(a, b)
            }
        }
    )*};
}

packed! {
    Phaddw: |a, b| neighbours(a, b, i16::wrapping_add);
    Phaddd: |a, b| neighbours(a, b, i32::wrapping_add);
    Phaddsw: |a, b| neighbours(a, b, i16::saturating_add);
    Phsubw: |a, b| neighbours(a, b, i16::wrapping_sub);
    Phsubd: |a, b| neighbours(a, b, i32::wrapping_sub);
    Phsubsw: |a, b| neighbours(a, b, i16::saturating_sub);
    Psadbw: psadbw;
    Pmaddwd: pmaddwd;
    Pmaddubsw: pmaddubsw;
}

/// MPSADBW: eight sums of four absolute differences. `imm` bit 2 chooses where in `a` to start, bits 1..0 which four bytes
/// of `b` to compare with.
pub fn mpsadbw(a: [u8; 16], b: [u8; 16], imm: u8) -> [u8; 16] {
    let (from_a, from_b) = (usize::from(imm >> 2 & 1) * 4, usize::from(imm & 3) * 4);
    let mut out = [0; 16];
    for i in 0..8 {
        let sum: u16 = (0..4).map(|j| u16::from(a[from_a + i + j].abs_diff(b[from_b + j]))).sum();
        sum.set(&mut out, i);
    }
    out
}

/// PHMINPOSUW: the smallest 16-bit lane and, above it, the index of its first occurrence.
pub fn phminposuw(b: [u8; 16]) -> [u8; 16] {
    let mut best = (u16::get(&b, 0), 0u16);
    for i in 1..8 {
        let value = u16::get(&b, usize::from(i));
        if value < best.0 {
            best = (value, i);
        }
    }
    let mut out = [0; 16];
    best.0.set(&mut out, 0);
    best.1.set(&mut out, 1);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiply_add_wraps_or_saturates_as_the_manual_says() {
        let all = [0x00, 0x80, 0x00, 0x80, 0, 0, 0, 0];
        assert_eq!(u64::from_le_bytes(Pmaddwd::apply(all, all)), 0x8000_0000);
        let a = [0xff, 0xff, 0, 0, 0, 0, 0, 0];
        let b = [0x7f, 0x7f, 0, 0, 0, 0, 0, 0];
        assert_eq!(u64::from_le_bytes(Pmaddubsw::apply(a, b)), 0x7fff);
    }

    #[test]
    fn sums_of_absolute_differences_are_per_eight_bytes() {
        let a = [0xff; 16];
        let b = [0; 16];
        assert_eq!(u128::from_le_bytes(Psadbw::apply(a, b)), (0x7f8 << 64) | 0x7f8);
    }

    #[test]
    fn mpsadbw_slides_over_the_destination() {
        let mut a = [0; 16];
        for (i, byte) in a.iter_mut().enumerate() {
            *byte = i as u8;
        }
        let out = mpsadbw(a, a, 0b101);
        // Start at byte 4 of the destination, against bytes 4..8 of the source: 0, 4, 8, ...
        let expected: Vec<u16> = (0..8).map(|i| i * 4).collect();
        let found: Vec<u16> = (0..8).map(|i| u16::get(&out, i)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn phminposuw_names_the_first_smallest() {
        let mut b = [0xff; 16];
        b[6] = 3;
        b[7] = 0;
        b[10] = 3;
        b[11] = 0;
        assert_eq!(u128::from_le_bytes(phminposuw(b)), 0x0003_0003);
    }
}
