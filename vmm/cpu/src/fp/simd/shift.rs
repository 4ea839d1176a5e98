// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shifts of every lane by one count. A count past the lane's width gives zeros, or copies of the sign for arithmetic shifts.

use super::{Lane, zip};

/// A shift of all lanes by a 64-bit count.
pub trait PackedShift {
    /// The operation on `N` bytes.
    fn apply<const N: usize>(a: [u8; N], count: u64) -> [u8; N];
}

macro_rules! shifts {
    ($($name:ident: $t:ty, |$x:ident, $n:ident| $body:expr, past $past:expr;)*) => {$(
        #[doc = concat!(stringify!($name), " on lanes of ", stringify!($t), ".")]
        pub struct $name;
        impl PackedShift for $name {
            #[inline(always)]
            fn apply<const N: usize>(a: [u8; N], count: u64) -> [u8; N] {
                let bits = 8 * <$t>::BYTES as u64;
                if count >= bits {
                    return zip(a, a, |$x: $t, _: $t| -> $t { let _ = $x; $past });
                }
                let $n = count as u32;
                zip(a, a, |$x: $t, _: $t| -> $t { $body })
            }
        }
    )*};
}

shifts! {
    Psllw: u16, |x, n| x << n, past 0;
    Pslld: u32, |x, n| x << n, past 0;
    Psllq: u64, |x, n| x << n, past 0;
    Psrlw: u16, |x, n| x >> n, past 0;
    Psrld: u32, |x, n| x >> n, past 0;
    Psrlq: u64, |x, n| x >> n, past 0;
    Psraw: i16, |x, n| x >> n, past x >> 15;
    Psrad: i32, |x, n| x >> n, past x >> 31;
}

/// PSLLDQ: the whole register to the left by bytes.
pub struct Pslldq;
/// PSRLDQ: the whole register to the right by bytes.
pub struct Psrldq;

impl PackedShift for Pslldq {
    #[inline(always)]
    fn apply<const N: usize>(a: [u8; N], count: u64) -> [u8; N] {
        let mut out = [0; N];
        let n = count.min(N as u64) as usize;
        out[n..].copy_from_slice(&a[..N - n]);
        out
    }
}

impl PackedShift for Psrldq {
    #[inline(always)]
    fn apply<const N: usize>(a: [u8; N], count: u64) -> [u8; N] {
        let mut out = [0; N];
        let n = count.min(N as u64) as usize;
        out[..N - n].copy_from_slice(&a[n..]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_past_the_lane_clear_it_or_spread_the_sign() {
        let a = 0x8000_0000_7fff_ffff_u64.to_le_bytes();
        assert_eq!(u64::from_le_bytes(Psrld::apply(a, 32)), 0);
        assert_eq!(u64::from_le_bytes(Pslld::apply(a, u64::MAX)), 0);
        assert_eq!(u64::from_le_bytes(Psrad::apply(a, 1 << 40)), 0xffff_ffff_0000_0000);
        assert_eq!(u64::from_le_bytes(Psrad::apply(a, 4)), 0xf800_0000_07ff_ffff);
    }

    #[test]
    fn byte_shifts_move_the_whole_register() {
        let a = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100_u128;
        assert_eq!(u128::from_le_bytes(Pslldq::apply(a.to_le_bytes(), 3)), a << 24);
        assert_eq!(u128::from_le_bytes(Psrldq::apply(a.to_le_bytes(), 15)), 0x0f);
        assert_eq!(u128::from_le_bytes(Psrldq::apply(a.to_le_bytes(), 200)), 0);
    }
}
