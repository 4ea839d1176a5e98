// SPDX-License-Identifier: AGPL-3.0-or-later
//! Where a test case lives: the same virtual addresses on the host and in the guest, all below the host's mmap area.
//!
//! | range | access | why |
//! |---|---|---|
//! | `CODE .. CODE + 0x2000` | read, execute | the code under test, the rest filled with INT3 |
//! | `DATA .. DATA + 0x2000` | read, write | operands and stack |
//! | `DATA + 0x2000 .. DATA + 0x3000` | read | protection faults, also in the middle of an access |
//! | `HIGH .. HIGH + 0x2000` | read, write | the same two pages as `DATA`, beyond 32 bits |
//!
//! The pages before and after each range are not mapped.

/// Bytes in a page.
pub const PAGE: u64 = 0x1000;
/// First address of the code.
pub const CODE: u64 = 0x1000_0000;
/// Bytes of code.
pub const CODE_BYTES: usize = 0x2000;
/// First address of the data.
pub const DATA: u64 = 0x2000_0000;
/// Bytes of writable data.
pub const DATA_BYTES: usize = 0x2000;
/// Bytes of data that can be read: the writable ones and one page more.
pub const READABLE_BYTES: usize = 0x3000;
/// The writable data once more.
pub const HIGH: u64 = 0x10_0000_0000;
/// FS base of every case.
pub const FS_BASE: u64 = HIGH + 0x800;
/// GS base of every case.
pub const GS_BASE: u64 = DATA + 0x400;
/// Selector of the ring-3 64-bit code segment, as Linux has it.
pub const USER_CS64: u16 = 0x33;
/// Selector of the ring-3 32-bit code segment, as Linux has it.
pub const USER_CS32: u16 = 0x23;
/// Selector of the ring-3 data segment, as Linux has it.
pub const USER_DS: u16 = 0x2b;
/// What unused code bytes hold: INT3.
pub const FILLER: u8 = 0xcc;

/// What the data pages hold before a case's patches: the same bytes in every case, with many interesting floating-point
/// numbers and integers among noise.
pub fn base_image() -> Vec<u8> {
    let mut rng = crate::random::stream(0x0da7_a000, 0);
    let mut image = Vec::with_capacity(READABLE_BYTES);
    while image.len() < READABLE_BYTES {
        image.extend_from_slice(&crate::values::vector_half(&mut rng).to_le_bytes());
    }
    image
}
