// SPDX-License-Identifier: AGPL-3.0-or-later
//! The one CPU model: what CPUID says.
//!
//! AuthenticAMD, family 17h model 31h, one package with a core for each CPU of the machine: the x86-64 baseline, SSE3 to
//! SSE4.2, POPCNT, NX, 1 GiB pages, SMEP, SMAP, invariant TSC at 1 GHz, TSC deadline. Nothing whose results or layout vary between hosts (RDRAND, XSAVE, AVX, performance
//! counters) and no hypervisor leaves. Leaves that are not listed read as zero.

use crate::memory::PHYSICAL_BITS;

/// EAX, EBX, ECX, EDX.
pub type Leaf = [u32; 4];

/// Every leaf that is not all zeros, with subleaf 0: all that an engine needs that cannot ask for each.
pub const LEAVES: [u32; 12] = [
    0,
    1,
    7,
    0x15,
    0x8000_0000,
    0x8000_0001,
    0x8000_0002,
    0x8000_0003,
    0x8000_0005,
    0x8000_0006,
    0x8000_0007,
    0x8000_0008,
];

const VENDOR: Leaf = [0, u32::from_le_bytes(*b"Auth"), u32::from_le_bytes(*b"cAMD"), u32::from_le_bytes(*b"enti")];
const BRAND: &[u8; 48] = b"ChaosControl exact x86-64 CPU\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const HIGHEST_BASIC: u32 = 0x15;
const HIGHEST_EXTENDED: u32 = 0x8000_0008;
/// Extended family 8, extended model 3, family 15, model 1, stepping 0.
pub(crate) const SIGNATURE: u32 = 0x0083_0f10;
/// TSC ticks a second.
const TSC_HZ: u32 = 1_000_000_000;

const fn bits(list: &[u32]) -> u32 {
    let mut value = 0;
    let mut index = 0;
    while index < list.len() {
        value |= 1 << list[index];
        index += 1;
    }
    value
}

/// FPU VME DE PSE TSC MSR PAE MCE CX8 APIC; MTRR PGE MCA CMOV PAT PSE36; MMX FXSR: in leaf 1 and in leaf 8000_0001h.
const FEATURES_COMMON: u32 = bits(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 23, 24]);
/// SEP CLFSH SSE SSE2.
const FEATURES_1_EDX: u32 = FEATURES_COMMON | bits(&[11, 19, 25, 26]);
/// SSE3 SSSE3 CX16 SSE4.1 SSE4.2 POPCNT TSC-deadline.
const FEATURES_1_ECX: u32 = bits(&[0, 9, 13, 19, 20, 23, 24]);
/// SMEP SMAP.
const FEATURES_7_EBX: u32 = bits(&[7, 20]);
/// SYSCALL NX Page1GB LM.
const FEATURES_EXTENDED_EDX: u32 = FEATURES_COMMON | bits(&[11, 20, 26, 29]);
/// LAHF PREFETCHW.
const FEATURES_EXTENDED_ECX: u32 = bits(&[0, 8]);

/// Which of how many CPUs of a machine this is. With one CPU nothing tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// From 0; also the initial APIC ID.
    pub number: u8,
    /// Cores of the one package: 1 to 8.
    pub count: u8,
}

impl Default for Topology {
    fn default() -> Self {
        Self { number: 0, count: 1 }
    }
}

/// HTT in leaf 1, CMP_LEGACY in leaf 8000_0001h: the package has several cores.
const SEVERAL_EDX: u32 = 1 << 28;
const SEVERAL_ECX: u32 = 1 << 1;

/// The answer to CPUID.
pub fn cpuid(leaf: u32, subleaf: u32, topology: Topology) -> Leaf {
    let mut answer = model(leaf, subleaf);
    let Topology { number, count } = topology;
    if count > 1 {
        match leaf {
            1 => {
                answer[1] = answer[1] & 0xffff | u32::from(count) << 16 | u32::from(number) << 24;
                answer[3] |= SEVERAL_EDX;
            }
            0x8000_0001 => answer[2] |= SEVERAL_ECX,
            // Cores less one, and how many bits of the APIC ID number them.
            0x8000_0008 => {
                let bits = u8::BITS - (count - 1).leading_zeros();
                answer[2] = bits << 12 | u32::from(count - 1);
            }
            _ => {}
        }
    }
    answer
}

fn model(leaf: u32, subleaf: u32) -> Leaf {
    match leaf {
        0 => [HIGHEST_BASIC, VENDOR[1], VENDOR[2], VENDOR[3]],
        // CLFLUSH line of 64 bytes, one logical processor, APIC ID 0.
        1 => [SIGNATURE, 8 << 8 | 1 << 16, FEATURES_1_ECX, FEATURES_1_EDX],
        7 if subleaf == 0 => [0, FEATURES_7_EBX, 0, 0],
        // TSC = crystal * EBX / EAX.
        0x15 => [1, 1, TSC_HZ, 0],
        0x8000_0000 => [HIGHEST_EXTENDED, VENDOR[1], VENDOR[2], VENDOR[3]],
        0x8000_0001 => [SIGNATURE, 0, FEATURES_EXTENDED_ECX, FEATURES_EXTENDED_EDX],
        0x8000_0002..=0x8000_0004 => brand((leaf - 0x8000_0002) as usize),
        // 64-entry fully associative TLBs; L1 caches of 32 KiB, 8 ways, 64-byte lines.
        0x8000_0005 => [0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140],
        // L2: 512 KiB, 8 ways.
        0x8000_0006 => [0, 0, 0x0200_6140, 0],
        // Invariant TSC.
        0x8000_0007 => [0, 0, 0, 1 << 8],
        0x8000_0008 => [48 << 8 | PHYSICAL_BITS, 0, 0, 0],
        _ => [0; 4],
    }
}

fn brand(part: usize) -> Leaf {
    let word = |index: usize| {
        let at = part * 16 + index * 4;
        u32::from_le_bytes([BRAND[at], BRAND[at + 1], BRAND[at + 2], BRAND[at + 3]])
    };
    [word(0), word(1), word(2), word(3)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_leaves_is_complete() {
        for base in [0u32, 0x4000_0000, 0x8000_0000] {
            for leaf in base..base + 0x1_0000 {
                assert_eq!(model(leaf, 0) != [0; 4], LEAVES.contains(&leaf), "{leaf:#x}");
                assert_eq!(model(leaf, 1), if leaf == 7 { [0; 4] } else { model(leaf, 0) }, "{leaf:#x}");
            }
        }
    }

    #[test]
    fn several_cpus_are_cores_of_one_package_and_one_cpu_says_nothing_of_it() {
        for leaf in [0, 1, 7, 0x8000_0001, 0x8000_0008] {
            assert_eq!(cpuid(leaf, 0, Topology::default()), model(leaf, 0));
        }
        let third = |leaf| cpuid(leaf, 0, Topology { number: 2, count: 6 });
        assert_eq!((third(1)[1] >> 16, third(1)[3] >> 28 & 1), (0x0206, 1));
        assert_eq!((third(0x8000_0008)[2], third(0x8000_0001)[2] >> 1 & 1), (3 << 12 | 5, 1));
    }

    #[test]
    fn nothing_that_varies_between_hosts_is_offered() {
        let (ecx, extended) = (model(1, 0)[2], model(0x8000_0001, 0));
        // XSAVE, OSXSAVE, AVX, RDRAND, hypervisor.
        assert_eq!(ecx & bits(&[26, 27, 28, 30, 31]), 0);
        // RDTSCP.
        assert_eq!(extended[3] & bits(&[27]), 0);
        assert_eq!(model(0x4000_0000, 0), [0; 4]);
        assert_eq!(model(0xd, 0), [0; 4]);
        assert_eq!(model(0, 0)[1..], VENDOR[1..]);
    }
}
