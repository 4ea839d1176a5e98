// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shuffles, blends and alignment.

use super::{Lane, Packed, PackedImm};

/// PSHUFB: bytes of `a` picked by `b`; a set top bit gives zero.
pub struct Pshufb;

impl Packed for Pshufb {
    #[inline(always)]
    fn apply<const N: usize>(a: [u8; N], b: [u8; N]) -> [u8; N] {
        let mut out = [0; N];
        for i in 0..N {
            if b[i] & 0x80 == 0 {
                out[i] = a[usize::from(b[i]) & (N - 1)];
            }
        }
        out
    }
}

/// Two bits of `imm` for lane `i`.
#[inline(always)]
fn pick2(imm: u8, i: usize) -> usize {
    usize::from(imm >> (2 * i) & 3)
}

/// Four lanes of `b`, from lane `base` on, rearranged by `imm`; other lanes of `b` are copied.
#[inline(always)]
fn shuffle4<T: Lane, const N: usize>(b: [u8; N], base: usize, imm: u8) -> [u8; N] {
    let mut out = b;
    for i in 0..4 {
        T::get(&b, base + pick2(imm, i)).set(&mut out, base + i);
    }
    out
}

/// SHUFPS: two lanes from each operand.
#[inline(always)]
fn shufps<const N: usize>(a: [u8; N], b: [u8; N], imm: u8) -> [u8; N] {
    let mut out = [0; N];
    for i in 0..4 {
        let source = if i < 2 { &a } else { &b };
        u32::get(source, pick2(imm, i)).set(&mut out, i);
    }
    out
}

/// SHUFPD: one lane from each operand.
#[inline(always)]
fn shufpd<const N: usize>(a: [u8; N], b: [u8; N], imm: u8) -> [u8; N] {
    let mut out = [0; N];
    u64::get(&a, usize::from(imm & 1)).set(&mut out, 0);
    u64::get(&b, usize::from(imm >> 1 & 1)).set(&mut out, 1);
    out
}

/// PALIGNR: the bytes of `a:b` from byte `imm` on, zeros past the end.
#[inline(always)]
fn palignr<const N: usize>(a: [u8; N], b: [u8; N], imm: u8) -> [u8; N] {
    let mut out = [0; N];
    for (i, byte) in out.iter_mut().enumerate() {
        let from = i + usize::from(imm);
        *byte = match from {
            _ if from < N => b[from],
            _ if from < 2 * N => a[from - N],
            _ => 0,
        };
    }
    out
}

/// Lane `i` comes from `b` when bit `i` of `imm` is set.
#[inline(always)]
fn blend<T: Lane, const N: usize>(a: [u8; N], b: [u8; N], imm: u8) -> [u8; N] {
    let mut out = a;
    for i in 0..N / T::BYTES {
        if imm >> i & 1 != 0 {
            T::get(&b, i).set(&mut out, i);
        }
    }
    out
}

macro_rules! packed_imm {
    ($($name:ident: |$a:ident, $b:ident, $imm:ident| $body:expr;)*) => {$(
        #[doc = concat!(stringify!($name), ".")]
        pub struct $name;
        impl PackedImm for $name {
            #[inline(always)]
            fn apply<const N: usize>($a: [u8; N], $b: [u8; N], $imm: u8) -> [u8; N] {
                let _ = $a;
                $body
            }
        }
    )*};
}

packed_imm! {
    Pshufd: |a, b, imm| shuffle4::<u32, N>(b, 0, imm);
    Pshufw: |a, b, imm| shuffle4::<u16, N>(b, 0, imm);
    Pshufhw: |a, b, imm| shuffle4::<u16, N>(b, 4, imm);
    Shufps: |a, b, imm| shufps(a, b, imm);
    Shufpd: |a, b, imm| shufpd(a, b, imm);
    Palignr: |a, b, imm| palignr(a, b, imm);
    Pblendw: |a, b, imm| blend::<u16, N>(a, b, imm);
    Blendps: |a, b, imm| blend::<u32, N>(a, b, imm);
    Blendpd: |a, b, imm| blend::<u64, N>(a, b, imm);
}

/// PSHUFLW is PSHUFW on the low half; the high half is copied.
pub type Pshuflw = Pshufw;

/// PBLENDVB, BLENDVPS, BLENDVPD: a lane comes from `b` when the top bit of the mask's lane is set.
#[inline(always)]
pub fn blend_by_mask<T: Lane>(a: [u8; 16], b: [u8; 16], mask: [u8; 16]) -> [u8; 16] {
    let mut out = a;
    for i in 0..16 / T::BYTES {
        if mask[(i + 1) * T::BYTES - 1] & 0x80 != 0 {
            T::get(&b, i).set(&mut out, i);
        }
    }
    out
}

/// INSERTPS: lane `source` goes to lane `imm[5:4]` of `a`, then the lanes named in `imm[3:0]` are cleared.
pub fn insertps(a: [u8; 16], source: u32, imm: u8) -> [u8; 16] {
    let mut out = a;
    source.set(&mut out, usize::from(imm >> 4 & 3));
    for i in 0..4 {
        if imm >> i & 1 != 0 {
            0u32.set(&mut out, i);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u128 = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100;
    const B: u128 = 0x1f1e_1d1c_1b1a_1918_1716_1514_1312_1110;

    fn imm<P: PackedImm>(imm: u8) -> u128 {
        u128::from_le_bytes(P::apply(A.to_le_bytes(), B.to_le_bytes(), imm))
    }

    #[test]
    fn shuffles_pick_lanes_by_the_immediate() {
        assert_eq!(imm::<Pshufd>(0b00_01_10_11), 0x1312_1110_1716_1514_1b1a_1918_1f1e_1d1c);
        assert_eq!(imm::<Pshuflw>(0b00_01_10_11), 0x1f1e_1d1c_1b1a_1918_1110_1312_1514_1716);
        assert_eq!(imm::<Pshufhw>(0b00_01_10_11), 0x1918_1b1a_1d1c_1f1e_1716_1514_1312_1110);
        assert_eq!(imm::<Shufps>(0b11_00_00_11), 0x1f1e_1d1c_1312_1110_0302_0100_0f0e_0d0c);
        assert_eq!(imm::<Shufpd>(0b01), 0x1716_1514_1312_1110_0f0e_0d0c_0b0a_0908);
    }

    #[test]
    fn alignment_runs_from_source_into_destination_into_zero() {
        assert_eq!(imm::<Palignr>(0), B);
        assert_eq!(imm::<Palignr>(1), (B >> 8) | (A << 120));
        assert_eq!(imm::<Palignr>(16), A);
        assert_eq!(imm::<Palignr>(31), 0x0f);
        assert_eq!(imm::<Palignr>(32), 0);
    }

    #[test]
    fn blends_take_the_named_lanes_from_the_source() {
        assert_eq!(imm::<Pblendw>(0x81), 0x1f1e_0d0c_0b0a_0908_0706_0504_0302_1110);
        assert_eq!(imm::<Blendpd>(0b10), (B >> 64 << 64) | (A & u128::from(u64::MAX)));
        let mask = 0x80_u128 << 120 | 0x7f;
        let blended = blend_by_mask::<u8>(A.to_le_bytes(), B.to_le_bytes(), mask.to_le_bytes());
        assert_eq!(u128::from_le_bytes(blended), 0x1f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
    }

    #[test]
    fn byte_shuffle_zeroes_where_the_top_bit_is_set() {
        let control = 0x80_u128 << 120 | 0x0f;
        let out = Pshufb::apply(A.to_le_bytes(), control.to_le_bytes());
        assert_eq!(u128::from_le_bytes(out), 0x0f);
    }

    #[test]
    fn insertps_clears_after_it_inserts() {
        let out = insertps(A.to_le_bytes(), 0xdead_beef, 0b0001_0100);
        assert_eq!(u128::from_le_bytes(out), 0x0f0e_0d0c_0000_0000_dead_beef_0302_0100);
    }
}
