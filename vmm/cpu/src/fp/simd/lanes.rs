// SPDX-License-Identifier: AGPL-3.0-or-later
//! Operations that work on each lane alone: add, subtract, compare, minimum, maximum, average, multiply, logic.

use super::{Packed, zip};

/// Declares operations on pairs of lanes of one type.
macro_rules! lanewise {
    ($($name:ident: $t:ty, |$x:ident, $y:ident| $body:expr;)*) => {$(
        #[doc = concat!(stringify!($name), " on lanes of ", stringify!($t), ".")]
        pub struct $name;
        impl Packed for $name {
            #[inline(always)]
            fn apply<const N: usize>(a: [u8; N], b: [u8; N]) -> [u8; N] {
                zip(a, b, |$x: $t, $y: $t| -> $t { $body })
            }
        }
    )*};
}

/// All ones when true.
macro_rules! mask {
    ($condition:expr, $t:ty) => {
        if $condition { !0 as $t } else { 0 }
    };
}

lanewise! {
    Paddb: u8, |x, y| x.wrapping_add(y);
    Paddw: u16, |x, y| x.wrapping_add(y);
    Paddd: u32, |x, y| x.wrapping_add(y);
    Paddq: u64, |x, y| x.wrapping_add(y);
    Psubb: u8, |x, y| x.wrapping_sub(y);
    Psubw: u16, |x, y| x.wrapping_sub(y);
    Psubd: u32, |x, y| x.wrapping_sub(y);
    Psubq: u64, |x, y| x.wrapping_sub(y);
    Paddsb: i8, |x, y| x.saturating_add(y);
    Paddsw: i16, |x, y| x.saturating_add(y);
    Paddusb: u8, |x, y| x.saturating_add(y);
    Paddusw: u16, |x, y| x.saturating_add(y);
    Psubsb: i8, |x, y| x.saturating_sub(y);
    Psubsw: i16, |x, y| x.saturating_sub(y);
    Psubusb: u8, |x, y| x.saturating_sub(y);
    Psubusw: u16, |x, y| x.saturating_sub(y);
    Pavgb: u8, |x, y| ((u16::from(x) + u16::from(y) + 1) >> 1) as u8;
    Pavgw: u16, |x, y| ((u32::from(x) + u32::from(y) + 1) >> 1) as u16;
    Pmullw: i16, |x, y| x.wrapping_mul(y);
    Pmulhw: i16, |x, y| ((i32::from(x) * i32::from(y)) >> 16) as i16;
    Pmulhuw: u16, |x, y| ((u32::from(x) * u32::from(y)) >> 16) as u16;
    Pmulld: i32, |x, y| x.wrapping_mul(y);
    Pmulhrsw: i16, |x, y| ((((i32::from(x) * i32::from(y)) >> 14) + 1) >> 1) as i16;
    Pminub: u8, |x, y| x.min(y);
    Pminsb: i8, |x, y| x.min(y);
    Pminuw: u16, |x, y| x.min(y);
    Pminsw: i16, |x, y| x.min(y);
    Pminud: u32, |x, y| x.min(y);
    Pminsd: i32, |x, y| x.min(y);
    Pmaxub: u8, |x, y| x.max(y);
    Pmaxsb: i8, |x, y| x.max(y);
    Pmaxuw: u16, |x, y| x.max(y);
    Pmaxsw: i16, |x, y| x.max(y);
    Pmaxud: u32, |x, y| x.max(y);
    Pmaxsd: i32, |x, y| x.max(y);
    Pcmpeqb: u8, |x, y| mask!(x == y, u8);
    Pcmpeqw: u16, |x, y| mask!(x == y, u16);
    Pcmpeqd: u32, |x, y| mask!(x == y, u32);
    Pcmpeqq: u64, |x, y| mask!(x == y, u64);
    Pcmpgtb: i8, |x, y| mask!(x > y, i8);
    Pcmpgtw: i16, |x, y| mask!(x > y, i16);
    Pcmpgtd: i32, |x, y| mask!(x > y, i32);
    Pcmpgtq: i64, |x, y| mask!(x > y, i64);
    Pand: u64, |x, y| x & y;
    Pandn: u64, |x, y| !x & y;
    Por: u64, |x, y| x | y;
    Pxor: u64, |x, y| x ^ y;
    Psignb: i8, |x, y| x.wrapping_mul(y.signum());
    Psignw: i16, |x, y| x.wrapping_mul(y.signum());
    Psignd: i32, |x, y| x.wrapping_mul(y.signum());
    Pabsb: i8, |_x, y| y.wrapping_abs();
    Pabsw: i16, |_x, y| y.wrapping_abs();
    Pabsd: i32, |_x, y| y.wrapping_abs();
    // The odd lanes of 32 bits do not take part.
    Pmuludq: u64, |x, y| (x & 0xffff_ffff) * (y & 0xffff_ffff);
    Pmuldq: i64, |x, y| i64::from(x as i32) * i64::from(y as i32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One operation on the lowest lane of an MMX register.
    fn low<P: Packed>(a: u64, b: u64) -> u64 {
        u64::from_le_bytes(P::apply(a.to_le_bytes(), b.to_le_bytes()))
    }

    #[test]
    fn saturation_stops_at_the_ends_of_the_lane() {
        assert_eq!(low::<Paddsb>(0x7f, 0x01), 0x7f);
        assert_eq!(low::<Paddsb>(0x80, 0xff), 0x80);
        assert_eq!(low::<Paddusb>(0xff, 0x01), 0xff);
        assert_eq!(low::<Psubusw>(0x0001, 0x0002), 0);
        assert_eq!(low::<Psubsw>(0x8000, 0x0001), 0x8000);
    }

    #[test]
    fn lanes_do_not_carry_into_each_other() {
        assert_eq!(low::<Paddb>(0x00ff_00ff, 0x0001_0001), 0);
        assert_eq!(low::<Psubd>(0x0000_0001_0000_0000, 0x0000_0000_0000_0001), 0x0000_0001_ffff_ffff);
    }

    #[test]
    fn multiplications_keep_the_right_half() {
        assert_eq!(low::<Pmulhw>(0x8000, 0x8000), 0x4000);
        assert_eq!(low::<Pmulhuw>(0xffff, 0xffff), 0xfffe);
        assert_eq!(low::<Pmulhrsw>(0x8000, 0x8000), 0x8000);
        assert_eq!(low::<Pmulhrsw>(0x4000, 0x4000), 0x2000);
        assert_eq!(low::<Pmuludq>(0xdead_beef_ffff_ffff, 0x1234_5678_ffff_ffff), 0xffff_fffe_0000_0001);
        assert_eq!(low::<Pmuldq>(0xffff_ffff, 0xffff_ffff), 1);
    }

    #[test]
    fn sign_and_absolute_value_wrap_at_the_most_negative() {
        assert_eq!(low::<Psignb>(0x80, 0xff), 0x80);
        assert_eq!(low::<Psignb>(0x05, 0x00), 0);
        assert_eq!(low::<Pabsd>(0, 0x8000_0000), 0x8000_0000);
    }
}
