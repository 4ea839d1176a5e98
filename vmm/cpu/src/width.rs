// SPDX-License-Identifier: AGPL-3.0-or-later
//! Operand widths: the integer types that handlers are generic over.

use std::fmt::Debug;

/// A value that can be loaded and stored: 1, 2, 4, 8 or 16 bytes, little endian.
pub(crate) trait Mem: Copy + Debug + PartialEq {
    const BYTES: u64;
    fn to_bits(self) -> u128;
    fn from_bits(bits: u128) -> Self;
}

macro_rules! mem {
    ($($t:ty)*) => { $(impl Mem for $t {
        const BYTES: u64 = size_of::<$t>() as u64;
        #[inline(always)]
        fn to_bits(self) -> u128 { u128::from(self) }
        #[inline(always)]
        fn from_bits(bits: u128) -> Self { bits as $t }
    })* };
}
mem!(u8 u16 u32 u64 u128);

/// An integer operand width.
pub(crate) trait Width: Mem + Ord {
    const BITS: u32;
    /// Zero-extends.
    fn zx(self) -> u64;
    /// Sign-extends.
    fn sx(self) -> u64;
    /// Truncates.
    fn cut(value: u64) -> Self;
}

macro_rules! width {
    ($($t:ty: $s:ty)*) => { $(impl Width for $t {
        const BITS: u32 = <$t>::BITS;
        #[inline(always)]
        fn zx(self) -> u64 { u64::from(self) }
        #[inline(always)]
        fn sx(self) -> u64 { self as $s as i64 as u64 }
        #[inline(always)]
        fn cut(value: u64) -> Self { value as $t }
    })* };
}
width!(u8: i8 u16: i16 u32: i32 u64: i64);
