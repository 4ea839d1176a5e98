// SPDX-License-Identifier: AGPL-3.0-or-later
//! String instructions: counts, directions, faults in the middle, in both code sizes.

use super::build::{Builder, Program};
use crate::qemu::world::{DATA, PROBE, USER_CS32, USER_CS64};

pub fn programs() -> Vec<Program> {
    vec![repeats(), faults()]
}

/// MOVS, STOS, LODS, CMPS, SCAS in byte, word, dword and qword size.
const OPERATIONS: [u8; 10] = [0xa4, 0xa5, 0xaa, 0xab, 0xac, 0xad, 0xa6, 0xa7, 0xae, 0xaf];

fn set32(bytes: &mut Vec<u8>, register: u8, value: u32) {
    bytes.push(0xb8 | register);
    bytes.extend(value.to_le_bytes());
}

fn piece(count: u32, from: u64, to: u64, down: bool, prefixes: &[u8], operation: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    set32(&mut bytes, 1, count);
    set32(&mut bytes, 6, from as u32);
    set32(&mut bytes, 7, to as u32);
    set32(&mut bytes, 0, 0x4141_4141);
    bytes.push(if down { 0xfd } else { 0xfc });
    bytes.extend(prefixes);
    bytes.push(operation);
    bytes.push(0xfc);
    bytes
}

fn repeats() -> Program {
    let mut builder = Builder::new("string instructions");
    for at in 0..0x100 {
        builder.memory(DATA + at, &[if at % 7 == 6 { 0x42 } else { 0x41 }]);
    }
    for operation in OPERATIONS {
        for prefixes in [&[0xf3u8][..], &[0xf2], &[], &[0x66, 0xf3], &[0x67, 0xf3]] {
            for (count, down) in [(0, false), (1, false), (5, false), (5, true)] {
                let bytes = piece(count, DATA + 0x40, DATA + 0x45, down, prefixes, operation);
                builder.attempt_bytes(&bytes);
                // With 16-bit addresses nothing is mapped, and which of two operands faults first is open.
                if prefixes.first() != Some(&0x67) {
                    builder.user_bytes(USER_CS32, &bytes);
                }
            }
        }
        let bytes = piece(5, DATA + 0x40, DATA + 0x45, false, &[0xf3, 0x48], operation);
        builder.attempt_bytes(&bytes);
    }
    builder.finish()
}

/// Runs into a page that is not there, one that is read-only for ring 3, and with a 64-bit count and address.
fn faults() -> Program {
    let mut builder = Builder::new("string faults");
    for operation in OPERATIONS {
        for prefix in [0xf3u8, 0xf2] {
            // Up to the end of what ring 3 may use, and down from its start.
            let end = 0x17_0000u64;
            let start = 0x14_8000u64;
            builder.user_bytes(USER_CS64, &piece(9, DATA, end - 5, false, &[prefix], operation));
            builder.user_bytes(USER_CS64, &piece(9, end - 5, DATA, false, &[prefix], operation));
            builder.user_bytes(USER_CS32, &piece(9, DATA, start + 3, true, &[prefix], operation));
        }
    }
    builder.set(1, 1 << 40);
    builder.set(7, PROBE + 0xff0);
    builder.attempt_bytes(&[0xf3, 0xaa]);
    builder.set(1, 1 << 40);
    builder.set(7, PROBE + 0xff1);
    builder.attempt_bytes(&[0xf3, 0x48, 0xab]);
    builder.finish()
}
