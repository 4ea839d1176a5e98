// SPDX-License-Identifier: AGPL-3.0-or-later
//! What an ELF file says of itself: whether it is a program that runs in a guest without anything else, and where its code lies
//! (System V ABI, chapters 4 and 5).

const MAGIC: &[u8] = b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const TYPE_EXECUTABLE: u16 = 2;
const TYPE_SHARED: u16 = 3;
const MACHINE_X86_64: u16 = 62;
const SEGMENT_LOAD: u32 = 1;
const SEGMENT_INTERPRETER: u32 = 3;
const FLAG_EXECUTABLE: u32 = 1;
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;

/// Why a file is no such program.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// Not an ELF file at all.
    #[error("is {0}, but a static x86-64 ELF program is needed")]
    NotElf(&'static str),
    /// For another machine.
    #[error(
        "is an ELF file for another machine (class {class}, machine {machine}); build it for x86_64-unknown-linux-gnu or -musl"
    )]
    OtherMachine {
        /// 1 is 32 bits, 2 is 64.
        class: u8,
        /// `e_machine`.
        machine: u16,
    },
    /// An object file, a core dump or the like.
    #[error("is an ELF file, but not a program (type {0})")]
    NotProgram(u16),
    /// Needs a loader that the initrd does not have.
    #[error("is dynamically linked (it asks for {0}); build it static: RUSTFLAGS='-C target-feature=+crt-static'")]
    Dynamic(String),
    /// The kernel chooses its addresses.
    #[error(
        "is position-independent, so that it does not say where its code will lie; link it at fixed addresses: RUSTFLAGS='-C relocation-model=static'"
    )]
    Movable,
    /// Damaged.
    #[error("is a damaged ELF file: {0}")]
    Damaged(&'static str),
}

/// Checks that a guest kernel can start the program with nothing else in the initrd.
pub fn check_static(bytes: &[u8]) -> Result<(), ElfError> {
    if !bytes.starts_with(MAGIC) {
        return Err(ElfError::NotElf(what_else(bytes)));
    }
    let header = bytes.get(..HEADER_BYTES).ok_or(ElfError::Damaged("the header is cut off"))?;
    let machine = u16_at(header, 18);
    if header[4] != CLASS_64 || header[5] != LITTLE_ENDIAN || machine != MACHINE_X86_64 {
        return Err(ElfError::OtherMachine { class: header[4], machine });
    }
    match u16_at(header, 16) {
        TYPE_EXECUTABLE | TYPE_SHARED => {}
        other => return Err(ElfError::NotProgram(other)),
    }
    let mut loads = 0;
    for segment in segments(bytes, header)? {
        let (offset, length) = (u64_at(segment, 8), u64_at(segment, 32));
        let content = range(bytes, offset, length);
        match u32_at(segment, 0) {
            SEGMENT_LOAD => {
                loads += 1;
                content.ok_or(ElfError::Damaged("a segment lies outside the file"))?;
            }
            SEGMENT_INTERPRETER => {
                let path = content.ok_or(ElfError::Damaged("the interpreter lies outside the file"))?;
                let path = path.split(|b| *b == 0).next().unwrap_or_default();
                return Err(ElfError::Dynamic(String::from_utf8_lossy(path).escape_default().to_string()));
            }
            _ => {}
        }
    }
    if loads == 0 { Err(ElfError::Damaged("there is nothing to load")) } else { Ok(()) }
}

/// From the lowest address of a static program's executable segments to the first behind the highest. Only of one at fixed addresses.
pub fn code_range(bytes: &[u8]) -> Result<(u64, u64), ElfError> {
    check_static(bytes)?;
    if u16_at(bytes, 16) == TYPE_SHARED {
        return Err(ElfError::Movable);
    }
    let mut range: Option<(u64, u64)> = None;
    for segment in segments(bytes, &bytes[..HEADER_BYTES])? {
        if u32_at(segment, 0) == SEGMENT_LOAD && u32_at(segment, 4) & FLAG_EXECUTABLE != 0 {
            let low = u64_at(segment, 16);
            let high =
                low.checked_add(u64_at(segment, 40)).ok_or(ElfError::Damaged("a segment ends behind all addresses"))?;
            range = Some(range.map_or((low, high), |(lowest, highest)| (lowest.min(low), highest.max(high))));
        }
    }
    range.filter(|(low, high)| low < high).ok_or(ElfError::Damaged("it has no code"))
}

fn segments<'a>(bytes: &'a [u8], header: &[u8]) -> Result<impl Iterator<Item = &'a [u8]>, ElfError> {
    if usize::from(u16_at(header, 54)) != SEGMENT_BYTES {
        return Err(ElfError::Damaged("its program headers have an unknown size"));
    }
    let length = SEGMENT_BYTES as u64 * u64::from(u16_at(header, 56));
    let table = range(bytes, u64_at(header, 32), length).ok_or(ElfError::Damaged("the program headers are cut off"))?;
    Ok(table.chunks_exact(SEGMENT_BYTES))
}

fn what_else(bytes: &[u8]) -> &'static str {
    match bytes {
        [] => "empty",
        [b'#', b'!', ..] => "a script",
        [0x1f, 0x8b, ..] => "compressed with gzip",
        [b'0', b'7', b'0', b'7', ..] => "a cpio archive",
        _ => "no ELF file",
    }
}

fn range(bytes: &[u8], offset: u64, length: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    bytes.get(start..end)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A minimal static program at fixed addresses: a header, and segments with these flags, addresses and sizes in memory.
    fn with_segments(segments: &[(u32, u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![0u8; HEADER_BYTES + segments.len() * SEGMENT_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..7].copy_from_slice(&[CLASS_64, LITTLE_ENDIAN, 1]);
        bytes[16..18].copy_from_slice(&TYPE_EXECUTABLE.to_le_bytes());
        bytes[18..20].copy_from_slice(&MACHINE_X86_64.to_le_bytes());
        bytes[32..40].copy_from_slice(&(HEADER_BYTES as u64).to_le_bytes());
        bytes[54..56].copy_from_slice(&(SEGMENT_BYTES as u16).to_le_bytes());
        bytes[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        let length = bytes.len() as u64;
        for (into, (flags, address, size)) in bytes[HEADER_BYTES..].chunks_exact_mut(SEGMENT_BYTES).zip(segments) {
            into[..4].copy_from_slice(&SEGMENT_LOAD.to_le_bytes());
            into[4..8].copy_from_slice(&flags.to_le_bytes());
            into[16..24].copy_from_slice(&address.to_le_bytes());
            into[32..40].copy_from_slice(&length.to_le_bytes());
            into[40..48].copy_from_slice(&size.to_le_bytes());
        }
        bytes
    }

    fn program() -> Vec<u8> {
        with_segments(&[(5, 0x1000, 0x1000)])
    }

    #[test]
    fn a_static_program_passes_and_every_truncation_of_it_fails() {
        let program = program();
        assert_eq!(check_static(&program), Ok(()));
        for cut in 0..program.len() {
            assert!(check_static(&program[..cut]).is_err(), "cut to {cut} bytes");
        }
    }

    #[test]
    fn what_cannot_run_is_named() {
        let with = |at: usize, value: u8| {
            let mut bytes = program();
            bytes[at] = value;
            check_static(&bytes).unwrap_err()
        };
        assert_eq!(with(18, 183), ElfError::OtherMachine { class: 2, machine: 183 });
        assert_eq!(with(4, 1), ElfError::OtherMachine { class: 1, machine: 62 });
        assert_eq!(with(16, 1), ElfError::NotProgram(1));
        assert_eq!(check_static(b"#!/bin/sh\n"), Err(ElfError::NotElf("a script")));
        assert_eq!(check_static(b""), Err(ElfError::NotElf("empty")));
        let host = std::fs::read("/bin/sh").unwrap();
        let error = check_static(&host).unwrap_err().to_string();
        assert!(error.contains("dynamically linked (it asks for /lib64/ld-linux"), "{error}");
    }

    #[test]
    fn the_range_of_code_is_that_of_all_executable_segments() {
        let segments = [(4, 0x40_0000, 0x1000), (5, 0x40_1000, 0x2345), (5, 0x50_0000, 7), (6, 1, 1)];
        assert_eq!(code_range(&with_segments(&segments)), Ok((0x40_1000, 0x50_0007)));
        assert_eq!(code_range(&with_segments(&[(6, 0, 0x1000)])), Err(ElfError::Damaged("it has no code")));
        assert!(matches!(code_range(&with_segments(&[(5, u64::MAX, 2)])), Err(ElfError::Damaged(_))));
    }

    #[test]
    fn the_code_of_a_program_that_does_not_say_where_it_will_lie_has_no_range() {
        let mut movable = program();
        movable[16] = TYPE_SHARED as u8;
        assert_eq!((check_static(&movable), code_range(&movable)), (Ok(()), Err(ElfError::Movable)));
        // This very test is one of today's programs, which are position-independent unless asked otherwise, or dynamic.
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(code_range(&own).is_err());
    }

    #[test]
    fn damaged_files_are_survived_whatever_is_changed() {
        for at in 0..program().len() {
            for value in [0, 0x7f, 0xff] {
                let mut bad = program();
                bad[at] = value;
                let _ = code_range(&bad);
            }
        }
    }
}
