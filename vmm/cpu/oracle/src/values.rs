// SPDX-License-Identifier: AGPL-3.0-or-later
//! Random values that sit where bugs sit: edges of integers, and every class of floating-point number.

use crate::random::{Stream, below, one_in, pick};
use rand_core::Rng;

/// A general register's value.
pub fn integer(rng: &mut Stream) -> u64 {
    const EDGES: [u64; 22] = [
        0,
        1,
        2,
        0x7e,
        0x7f,
        0x80,
        0xff,
        0x100,
        0x7fff,
        0x8000,
        0xffff,
        0x1_0000,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x1_0000_0000,
        0x7fff_ffff_ffff_ffff,
        0x8000_0000_0000_0000,
        0xffff_ffff_ffff_ff80,
        0xffff_ffff_8000_0000,
        0xffff_ffff_ffff_fffe,
        u64::MAX,
    ];
    match below(rng, 8) {
        0 => pick(rng, &EDGES),
        1 => pick(rng, &EDGES).wrapping_add(rng.next_u64() % 5).wrapping_sub(2),
        2 => u64::from(below(rng, 80)),
        3 => 1 << below(rng, 64),
        4 => i64::from(rng.next_u32() as i32) as u64,
        5 => rng.next_u64() & rng.next_u64() & rng.next_u64(),
        _ => rng.next_u64(),
    }
}

/// A binary floating-point number with `exponent_bits` and `fraction_bits`, of a random class.
fn binary(rng: &mut Stream, exponent_bits: u32, fraction_bits: u32) -> u64 {
    let fraction_mask = (1u64 << fraction_bits) - 1;
    let exponent_max = (1u64 << exponent_bits) - 1;
    let bias = exponent_max >> 1;
    let fraction = match below(rng, 6) {
        0 => 0,
        1 => fraction_mask,
        2 => 1,
        3 => 1 << (fraction_bits - 1),
        // Few significant bits: exact results, halves between two integers.
        4 => rng.next_u64() << (fraction_bits - 1 - below(rng, fraction_bits / 2)),
        _ => rng.next_u64(),
    } & fraction_mask;
    let exponent = match below(rng, 10) {
        0 => 0,
        1 => exponent_max,
        2 => pick(rng, &[1, 2, exponent_max - 1, exponent_max - 2]),
        3 => rng.next_u64() & exponent_max,
        // Near one, and where conversions to integers end.
        4 => bias + u64::from(pick(rng, &[7u32, 8, 15, 16, 30, 31, 32, 62, 63, 64])).min(bias),
        _ => (bias - 4) + u64::from(below(rng, 30)).min(bias / 2),
    };
    (rng.next_u64() & 1) << (exponent_bits + fraction_bits) | exponent << fraction_bits | fraction
}

/// A single-precision number.
pub fn single(rng: &mut Stream) -> u32 {
    binary(rng, 8, 23) as u32
}

/// A double-precision number.
pub fn double(rng: &mut Stream) -> u64 {
    binary(rng, 11, 52)
}

/// Half of an XMM register: floating point of either size, or an integer vector.
pub fn vector_half(rng: &mut Stream) -> u64 {
    match below(rng, 8) {
        0..=2 => double(rng),
        3..=5 => u64::from(single(rng)) | u64::from(single(rng)) << 32,
        6 => {
            const BYTES: [u8; 8] = [0, 1, 0x7f, 0x80, 0x81, 0xff, b'a', 0x0f];
            u64::from_le_bytes(std::array::from_fn(|_| {
                if one_in(rng, 3) { rng.next_u32() as u8 } else { pick(rng, &BYTES) }
            }))
        }
        _ => integer(rng),
    }
}

/// An XMM register's value.
pub fn vector(rng: &mut Stream) -> u128 {
    if one_in(rng, 4) {
        let lane = single(rng);
        return (0..4).fold(0, |value, _| value << 32 | u128::from(if one_in(rng, 2) { single(rng) } else { lane }));
    }
    u128::from(vector_half(rng)) | u128::from(vector_half(rng)) << 64
}

/// An 80-bit number as significand and sign with exponent, unsupported encodings included.
pub fn extended(rng: &mut Stream) -> (u64, u16) {
    const INTEGER_BIT: u64 = 1 << 63;
    let sign = (rng.next_u32() as u16) & 0x8000;
    let fraction = match below(rng, 7) {
        0 => 0,
        1 => INTEGER_BIT - 1,
        2 => 1,
        3 => 1 << 62,
        4 => rng.next_u64() << below(rng, 64),
        // What a double or a single can hold.
        5 => rng.next_u64() << pick(rng, &[11, 40]),
        _ => rng.next_u64(),
    };
    let (significand, exponent) = match below(rng, 16) {
        0 => (0, 0),
        1 => (INTEGER_BIT, 0x7fff),
        2 => (INTEGER_BIT | fraction, 0x7fff),
        3 => (fraction & !INTEGER_BIT, 0),
        4 => (INTEGER_BIT | fraction, 0),
        // Without the integer bit: unnormal, pseudo-infinity, pseudo-NaN.
        5 => (fraction & !INTEGER_BIT, pick(rng, &[1, 0x3fff, 0x7ffe, 0x7fff])),
        6 => (INTEGER_BIT | fraction, pick(rng, &[1, 2, 64, 0x7ffd, 0x7ffe])),
        7 => (INTEGER_BIT | fraction, rng.next_u32() as u16 & 0x7fff),
        // The ends of double, single and integer range.
        8 => (
            INTEGER_BIT | fraction,
            pick(rng, &[0x3c00, 0x3c01, 0x3bcd, 0x43fe, 0x43ff, 0x3f80, 0x3f81, 0x407e, 0x407f]),
        ),
        9 => (INTEGER_BIT | fraction, 0x3fff + pick(rng, &[14, 15, 16, 30, 31, 32, 59, 61, 62, 63, 64])),
        10 => (INTEGER_BIT | fraction & !((1 << 40) - 1), 0x3ff0 + below(rng, 40) as u16),
        _ => (INTEGER_BIT | fraction, 0x3ff8 + below(rng, 16) as u16),
    };
    (significand, sign | exponent)
}

/// RFLAGS for ring 3: arithmetic flags and DF at random, IF set, AC sometimes.
pub fn rflags(rng: &mut Stream) -> u64 {
    let mut flags = 0x202 | rng.next_u64() & 0x8d5;
    if one_in(rng, 4) {
        flags |= 0x400;
    }
    if one_in(rng, 24) {
        // AC, which Linux makes effective through CR0.AM. ID cannot be set by a signal frame.
        flags |= 0x4_0000;
    }
    flags
}

/// MXCSR: mostly all exceptions masked, every rounding mode, flags at random.
pub fn mxcsr(rng: &mut Stream) -> u32 {
    let mut value = 0x1f80;
    if one_in(rng, 2) {
        value |= rng.next_u32() & 0x6000;
    }
    if one_in(rng, 4) {
        value |= rng.next_u32() & 0x8040;
    }
    if one_in(rng, 3) {
        value |= rng.next_u32() & 0x3f;
    }
    if one_in(rng, 8) {
        value &= !(rng.next_u32() & 0x1f80);
    }
    value
}

/// x87 control word: every precision and rounding, mostly all exceptions masked.
pub fn control_word(rng: &mut Stream) -> u16 {
    let mut value = 0x037f;
    if one_in(rng, 2) {
        value = value & !0xf00 | rng.next_u32() as u16 & 0xf00;
    }
    if one_in(rng, 8) {
        value &= !(rng.next_u32() as u16 & 0x3f);
    }
    value
}
