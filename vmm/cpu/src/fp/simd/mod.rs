// SPDX-License-Identifier: AGPL-3.0-or-later
//! Packed integer operations as pure functions of byte arrays: no CPU, no flags, no host intrinsics.
//!
//! A register is `[u8; N]`, byte 0 lowest, with `N` 8 for MMX and 16 for SSE, so one definition serves both widths. An
//! operation is a type that implements [`Packed`] (two operands) or [`PackedImm`] (two operands and an immediate); the
//! handlers in `ops` are generic over it. `a` is the destination's old value, `b` the source.
//!
//! Source of every definition: AMD64 APM volume 4 (128-bit media) and volume 5 (64-bit media).

pub mod horizontal;
pub mod lanes;
pub mod pack;
pub mod shift;
pub mod shuffle;
pub mod strings;

/// Two operands in, one result out.
pub trait Packed {
    /// The operation on `N` bytes.
    fn apply<const N: usize>(a: [u8; N], b: [u8; N]) -> [u8; N];
}

/// Two operands and an 8-bit immediate in, one result out.
pub trait PackedImm {
    /// The operation on `N` bytes.
    fn apply<const N: usize>(a: [u8; N], b: [u8; N], imm: u8) -> [u8; N];
}

/// An integer that fills one lane of a register.
pub trait Lane: Copy + Default {
    /// Bytes in a lane.
    const BYTES: usize;
    /// Lane `i` of a register.
    fn get(register: &[u8], i: usize) -> Self;
    /// Replaces lane `i` of a register.
    fn set(self, register: &mut [u8], i: usize);
}

macro_rules! lane_types {
    ($($t:ty),*) => {$(
        impl Lane for $t {
            const BYTES: usize = size_of::<$t>();
            #[inline(always)]
            fn get(register: &[u8], i: usize) -> Self {
                let mut bytes = [0; size_of::<$t>()];
                bytes.copy_from_slice(&register[i * Self::BYTES..][..Self::BYTES]);
                <$t>::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn set(self, register: &mut [u8], i: usize) {
                register[i * Self::BYTES..][..Self::BYTES].copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
lane_types!(i8, u8, i16, u16, i32, u32, i64, u64);

/// Applies `f` to every pair of lanes.
#[inline(always)]
pub fn zip<T: Lane, const N: usize>(a: [u8; N], b: [u8; N], f: impl Fn(T, T) -> T) -> [u8; N] {
    let mut out = [0; N];
    for i in 0..N / T::BYTES {
        f(T::get(&a, i), T::get(&b, i)).set(&mut out, i);
    }
    out
}
