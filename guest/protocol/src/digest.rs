// SPDX-License-Identifier: Apache-2.0
//! SHA-256 (FIPS 180-4), for agreement values and catalogs. Written here so that the guest side needs no dependency.

/// Bytes of a digest.
pub const DIGEST_BYTES: usize = 32;

/// A SHA-256 digest.
pub type Digest = [u8; DIGEST_BYTES];

/// FIPS 180-4, 4.2.2: fractional parts of the cube roots of the first 64 primes.
const ROUND: [u32; 64] = fractional_roots::<64>(3);
/// FIPS 180-4, 5.3.3: fractional parts of the square roots of the first 8 primes.
const INITIAL: [u32; 8] = fractional_roots::<8>(2);

/// The first 32 fractional bits of the `degree`-th roots of the first `N` primes.
const fn fractional_roots<const N: usize>(degree: u32) -> [u32; N] {
    let mut out = [0; N];
    let mut found = 0;
    let mut candidate = 2u128;
    while found < N {
        let mut divisor = 2;
        let mut prime = true;
        while divisor * divisor <= candidate {
            if candidate.is_multiple_of(divisor) {
                prime = false;
            }
            divisor += 1;
        }
        if prime {
            // The largest r with r^degree <= prime * 2^(32 * degree) is the root in 32.32 fixed point.
            let target = candidate << (32 * degree);
            let mut root = 0u128;
            let mut bit = 36;
            while bit > 0 {
                bit -= 1;
                let trial = root | (1 << bit);
                if trial.pow(degree) <= target {
                    root = trial;
                }
            }
            out[found] = root as u32;
            found += 1;
        }
        candidate += 1;
    }
    out
}

/// A running SHA-256.
#[derive(Clone)]
pub struct Sha256 {
    state: [u32; 8],
    block: [u8; 64],
    filled: usize,
    bytes: u64,
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

impl Sha256 {
    /// Starts with nothing hashed.
    pub const fn new() -> Self {
        Self { state: INITIAL, block: [0; 64], filled: 0, bytes: 0 }
    }

    /// Adds bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.bytes = self.bytes.wrapping_add(bytes.len() as u64);
        while !bytes.is_empty() {
            let take = bytes.len().min(64 - self.filled);
            let (now, rest) = bytes.split_at(take);
            self.block[self.filled..self.filled + take].copy_from_slice(now);
            self.filled += take;
            bytes = rest;
            if self.filled == 64 {
                compress(&mut self.state, &self.block);
                self.filled = 0;
            }
        }
    }

    /// The digest of everything added.
    pub fn finish(mut self) -> Digest {
        let bits = self.bytes.wrapping_mul(8);
        self.update(&[0x80]);
        while self.filled != 56 {
            self.update(&[0]);
        }
        self.update(&bits.to_be_bytes());
        let mut out = [0; DIGEST_BYTES];
        for (chunk, word) in out.chunks_exact_mut(4).zip(self.state) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        out
    }
}

/// The SHA-256 of `bytes`.
pub fn sha256(bytes: &[u8]) -> Digest {
    let mut hash = Sha256::new();
    hash.update(bytes);
    hash.finish()
}

fn compress(state: &mut [u32; 8], block: &[u8; 64]) {
    let mut schedule = [0u32; 64];
    for (word, bytes) in schedule.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for t in 16..64 {
        let (a, b) = (schedule[t - 15], schedule[t - 2]);
        let small0 = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
        let small1 = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
        schedule[t] = schedule[t - 16].wrapping_add(small0).wrapping_add(schedule[t - 7]).wrapping_add(small1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (k, w) in ROUND.iter().zip(schedule) {
        let big1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let first = h.wrapping_add(big1).wrapping_add((e & f) ^ (!e & g)).wrapping_add(*k).wrapping_add(w);
        let big0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let second = big0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(first), c, b, a, first.wrapping_add(second));
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(add);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::String;

    fn hex(digest: Digest) -> String {
        digest.iter().map(|b| std::format!("{b:02x}")).collect()
    }

    #[test]
    fn agrees_with_the_vectors_of_fips_180() {
        assert_eq!(hex(sha256(b"")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hex(sha256(b"abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let two = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(sha256(two)), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }

    #[test]
    fn how_the_input_is_cut_does_not_matter() {
        let bytes: [u8; 200] = core::array::from_fn(|i| i as u8);
        for cut in 0..bytes.len() {
            let mut hash = Sha256::new();
            hash.update(&bytes[..cut]);
            hash.update(&bytes[cut..]);
            assert_eq!(hash.finish(), sha256(&bytes));
        }
    }
}
