// SPDX-License-Identifier: AGPL-3.0-or-later
//! Seeded randomness: one ChaCha20 stream per virtual machine and purpose.
//!
//! Each machine has a root seed of its own. A stream's key is BLAKE3 in key-derivation mode over (root seed, purpose), so that
//! no two streams share a key and adding a draw for one purpose moves no other. The saved state is the key and the
//! position, which is plain data: a restored stream goes on where the saved one stood.

use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

/// Names the derivation; a change of the scheme changes this string and so every stream.
const CONTEXT: &str = "chaoscontrol entropy stream v1";

/// What a stream is drawn for. Each purpose has its own stream, so that draws for one never move another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Purpose {
    /// The seed that the boot protocol hands to the kernel.
    BootSeed,
    /// Bytes read through virtio-rng.
    VirtioRng,
    /// Which cached disk writes reach the medium when the cache is full. The number is the disk's index.
    DiskWriteBack(u32),
    /// Which requests a disk fault meets. The number is the disk's index.
    DiskFault(u32),
    /// `get_random` of the SDK.
    SdkRandom,
    /// `random_choice` of the SDK where the explorer gave no answer.
    SdkChoice,
    /// The identifier that the VM Generation ID device shows.
    GenerationId,
    /// Turns of CPUs under the random schedule.
    CpuSchedule,
}

impl Purpose {
    /// A number that is unique to the purpose and never changes.
    fn code(self) -> u64 {
        let (kind, index) = match self {
            Purpose::BootSeed => (1, 0),
            Purpose::VirtioRng => (2, 0),
            Purpose::DiskWriteBack(disk) => (3, disk),
            Purpose::SdkRandom => (4, 0),
            Purpose::SdkChoice => (5, 0),
            Purpose::GenerationId => (6, 0),
            Purpose::DiskFault(disk) => (7, disk),
            Purpose::CpuSchedule => (8, 0),
        };
        (kind << 32) | u64::from(index)
    }
}

/// A seeded stream of random bytes.
///
/// Draws are whole 32-bit words of the ChaCha20 key stream: a draw of `n` bytes takes `ceil(n / 4)` words.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stream {
    purpose: Purpose,
    key: [u8; 32],
    /// Words drawn so far.
    words: u64,
}

impl Stream {
    /// The stream for `purpose` of the machine with this root seed.
    #[must_use]
    pub fn new(root: &[u8; 32], purpose: Purpose) -> Self {
        Stream { purpose, key: derive_key(root, purpose), words: 0 }
    }

    /// Starts over under another root seed, as exploration does when it forks a branch with fresh entropy.
    pub fn reseed(&mut self, root: &[u8; 32]) {
        *self = Stream::new(root, self.purpose);
    }

    /// Words drawn so far.
    #[must_use]
    pub fn words(&self) -> u64 {
        self.words
    }

    /// Fills `out` with the next bytes of the stream.
    pub fn fill(&mut self, out: &mut [u8]) {
        let mut generator = ChaCha20Rng::from_seed(self.key);
        generator.set_word_pos(u128::from(self.words));
        generator.fill_bytes(out);
        self.words = self.words.wrapping_add((out.len() as u64).div_ceil(4));
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A number below `bound`, each equally likely; `bound` of zero gives zero.
    ///
    /// Draws again where the plain remainder would favour small numbers (less than once in two draws at the worst bound).
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound < 2 {
            return 0;
        }
        let whole = u64::MAX - (u64::MAX % bound + 1) % bound;
        loop {
            let draw = self.next_u64();
            if draw <= whole {
                return draw % bound;
            }
        }
    }
}

fn derive_key(root: &[u8; 32], purpose: Purpose) -> [u8; 32] {
    let mut material = [0u8; 40];
    material[..32].copy_from_slice(root);
    material[32..].copy_from_slice(&purpose.code().to_le_bytes());
    blake3::derive_key(CONTEXT, &material)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_its_golden_bytes() {
        let mut stream = Stream::new(&[7; 32], Purpose::VirtioRng);
        let mut bytes = [0; 16];
        stream.fill(&mut bytes);
        assert_eq!(bytes, [25, 61, 144, 50, 2, 112, 37, 227, 68, 14, 63, 148, 113, 245, 168, 175]);
        assert_eq!(stream.words(), 4);
    }

    #[test]
    fn a_restored_stream_goes_on_where_it_stood() {
        let mut stream = Stream::new(&[1; 32], Purpose::SdkRandom);
        stream.fill(&mut [0; 13]);
        let mut restored: Stream = stream.clone();
        let (mut a, mut b) = ([0; 32], [0; 32]);
        stream.fill(&mut a);
        restored.fill(&mut b);
        assert_eq!(a, b);
    }

    #[test]
    fn a_split_draw_of_whole_words_equals_one_draw() {
        let mut split = Stream::new(&[1; 32], Purpose::SdkRandom);
        let mut whole = split.clone();
        let (mut a, mut b) = ([0; 300], [0; 300]);
        for part in a.chunks_mut(20) {
            split.fill(part);
        }
        whole.fill(&mut b);
        assert_eq!(a, b);
    }

    #[test]
    fn streams_differ_by_root_and_purpose() {
        let purposes = [Purpose::VirtioRng, Purpose::DiskWriteBack(0), Purpose::DiskWriteBack(1), Purpose::SdkChoice];
        let mut seen = std::collections::BTreeSet::new();
        for root in [[0; 32], [1; 32]] {
            for purpose in purposes {
                assert!(seen.insert(Stream::new(&root, purpose).next_u64()));
            }
        }
    }

    #[test]
    fn reseeding_equals_a_new_stream() {
        let mut stream = Stream::new(&[1; 32], Purpose::VirtioRng);
        stream.next_u64();
        stream.reseed(&[2; 32]);
        assert_eq!(stream, Stream::new(&[2; 32], Purpose::VirtioRng));
    }

    #[test]
    fn below_stays_below_and_reaches_everything() {
        let mut stream = Stream::new(&[3; 32], Purpose::SdkChoice);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[stream.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(stream.below(0), 0);
        assert_eq!(stream.below(1), 0);
    }
}
