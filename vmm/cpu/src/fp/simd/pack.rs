// SPDX-License-Identifier: AGPL-3.0-or-later
//! Packing with saturation, interleaving, and widening moves.

use super::{Lane, Packed};

/// Packs the lanes of `a`, then those of `b`, into lanes of half the size.
#[inline(always)]
fn pack<T: Lane, H: Lane, const N: usize>(a: [u8; N], b: [u8; N], f: impl Fn(T) -> H) -> [u8; N] {
    let mut out = [0; N];
    let lanes = N / T::BYTES;
    for i in 0..lanes {
        f(T::get(&a, i)).set(&mut out, i);
        f(T::get(&b, i)).set(&mut out, i + lanes);
    }
    out
}

/// Interleaves lanes of `W` bytes from one half of each operand; `HIGH` chooses the half.
#[inline(always)]
fn interleave<const W: usize, const HIGH: bool, const N: usize>(a: [u8; N], b: [u8; N]) -> [u8; N] {
    let mut out = [0; N];
    let base = if HIGH { N / 2 } else { 0 };
    for i in 0..N / (2 * W) {
        let from = base + i * W;
        out[2 * i * W..][..W].copy_from_slice(&a[from..][..W]);
        out[(2 * i + 1) * W..][..W].copy_from_slice(&b[from..][..W]);
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
    Packsswb: |a, b| pack(a, b, |x: i16| x.clamp(-128, 127) as i8);
    Packuswb: |a, b| pack(a, b, |x: i16| x.clamp(0, 255) as u8);
    Packssdw: |a, b| pack(a, b, |x: i32| x.clamp(-32768, 32767) as i16);
    Packusdw: |a, b| pack(a, b, |x: i32| x.clamp(0, 65535) as u16);
    Punpcklbw: interleave::<1, false, N>;
    Punpcklwd: interleave::<2, false, N>;
    Punpckldq: interleave::<4, false, N>;
    Punpcklqdq: interleave::<8, false, N>;
    Punpckhbw: interleave::<1, true, N>;
    Punpckhwd: interleave::<2, true, N>;
    Punpckhdq: interleave::<4, true, N>;
    Punpckhqdq: interleave::<8, true, N>;
}

/// PMOVSX and PMOVZX: lanes of `From` at the bottom of `source` become lanes of `To`.
#[inline(always)]
pub fn widen<From: Lane, To: Lane>(source: [u8; 16], f: impl Fn(From) -> To) -> [u8; 16] {
    let mut out = [0; 16];
    for i in 0..16 / To::BYTES {
        f(From::get(&source, i)).set(&mut out, i);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_saturates_and_puts_the_source_above() {
        let a = 0x7fff_8000_0001_ffff_u64.to_le_bytes();
        let b = 0x0100_00ff_ff00_0080_u64.to_le_bytes();
        assert_eq!(u64::from_le_bytes(Packsswb::apply(a, b)), 0x7f7f_807f_7f80_01ff);
        assert_eq!(u64::from_le_bytes(Packuswb::apply(a, b)), 0xffff_0080_ff00_0100);
    }

    #[test]
    fn interleaving_starts_with_the_destination() {
        let a = 0x0706_0504_0302_0100_u64.to_le_bytes();
        let b = 0x1716_1514_1312_1110_u64.to_le_bytes();
        assert_eq!(u64::from_le_bytes(Punpcklbw::apply(a, b)), 0x1303_1202_1101_1000);
        assert_eq!(u64::from_le_bytes(Punpckhwd::apply(a, b)), 0x1716_0706_1514_0504);
    }

    #[test]
    fn widening_keeps_the_sign_when_asked() {
        let mut source = [0; 16];
        source[0] = 0xff;
        source[1] = 0x7f;
        let signed = widen(source, |x: i8| i64::from(x));
        let unsigned = widen(source, |x: u8| u64::from(x));
        assert_eq!(u128::from_le_bytes(signed), (0x7f << 64) | u128::from(u64::MAX));
        assert_eq!(u128::from_le_bytes(unsigned), (0x7f << 64) | 0xff);
    }
}
