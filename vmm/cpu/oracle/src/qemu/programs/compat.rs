// SPDX-License-Identifier: AGPL-3.0-or-later
//! Ring-3 code in a 32-bit segment: what exists only there, and its way to 64-bit code and back. QEMU checks no segment
//! limits, presence or types on accesses, so the table tests cover those.

use super::build::{Builder, Program};
use crate::qemu::world::USER_CS32;

pub fn programs() -> Vec<Program> {
    vec![instructions()]
}

fn instructions() -> Program {
    let mut builder = Builder::new("compatibility mode");
    let stack = [0xbc, 0x00, 0x00, 0x16, 0x00];
    let pieces: &[&[u8]] = &[
        // pusha, popa, 32 and 16 bits.
        &[0x60, 0x61],
        &[0x66, 0x60, 0x66, 0x61],
        // daa, das, aaa, aas, aam, aad.
        &[0xb0, 0x9a, 0x27, 0x2f, 0x37, 0x3f, 0xd4, 0x0a, 0xd5, 0x0a],
        // inc, dec, salc is undefined on this model's siblings and left out.
        &[0x40, 0x48, 0x47, 0x4f],
        // arpl, bound, les, lds.
        &[0xb8, 0x03, 0, 0, 0, 0xb9, 0x10, 0, 0, 0, 0x63, 0xc1],
        // push and pop of segments.
        &[0x06, 0x0e, 0x16, 0x1e, 0x58, 0x58, 0x58, 0x1f],
        // enter and leave, nested.
        &[0xc8, 0x10, 0x00, 0x00, 0xc9],
        &[0xc8, 0x10, 0x00, 0x02, 0xc9],
        // call, ret, ret imm.
        &[0xe8, 0x00, 0x00, 0x00, 0x00, 0x58],
        // 16-bit addressing: below 64 KiB nothing is mapped.
        &[0x67, 0x8b, 0x07],
        // jecxz, loop with 16-bit counts.
        &[0xb9, 0x02, 0x00, 0x01, 0x00, 0x67, 0xe2, 0xfd],
        // Absolute moffs.
        &[0xa1, 0x00, 0x10, 0x16, 0x00, 0xa3, 0x08, 0x10, 0x16, 0x00],
        // REX prefixes are inc and dec; 64-bit only instructions do not exist.
        &[0x0f, 0x01, 0xf8],
        // sysenter is undefined.
        &[0x0f, 0x34],
        // into, not taken.
        &[0x31, 0xc0, 0xce],
        // xlat, lahf, sahf, cwde.
        &[0xbb, 0x00, 0x10, 0x16, 0x00, 0xb0, 0x05, 0xd7, 0x9f, 0x9e, 0x98],
        // pop into memory through esp, push of memory.
        &[0x6a, 0x07, 0x8f, 0x04, 0x24, 0xff, 0x34, 0x24],
        // iretd to the same ring, below.
        &[0x9c, 0x0e, 0xe8, 0x01, 0, 0, 0, 0x90, 0xcf],
    ];
    for bytes in pieces {
        let mut code = stack.to_vec();
        code.extend_from_slice(bytes);
        builder.user_bytes(USER_CS32, &code);
    }
    builder.finish()
}
