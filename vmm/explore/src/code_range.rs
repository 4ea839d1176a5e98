// SPDX-License-Identifier: AGPL-3.0-or-later
//! Where a program's code lies: for coverage of that program alone.

/// The sizes of what is read: an ELF header, and one program header, both of 64 bits.
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// Kinds of program headers: what is loaded, and the name of an interpreter.
const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;
const EXECUTABLE: u32 = 1;
/// Kinds of files: at fixed addresses, and at addresses that the kernel chooses.
const FIXED: u16 = 2;
const MOVABLE: u16 = 3;

/// From the lowest address of a program's executable segments to the first behind the highest. Only of a static program at fixed
/// addresses: of any other, the file does not say where its code will lie.
pub fn code_range(elf: &[u8]) -> Result<(u64, u64), &'static str> {
    let header = elf.get(..HEADER_BYTES).ok_or("it is no ELF file")?;
    if header[..7] != *b"\x7fELF\x02\x01\x01" || half(header, 18) != 62 {
        return Err("it is no ELF file for x86-64");
    }
    match half(header, 16) {
        FIXED => {}
        MOVABLE => {
            return Err(
                "it is a position-independent program, and the kernel chooses where its code lies: link it at fixed \
                 addresses (rustc -C relocation-model=static, gcc -no-pie), or give --coverage-range",
            );
        }
        _ => return Err("it is no program"),
    }
    let (table, size, count) = (wide(header, 32), half(header, 54), half(header, 56));
    let table = usize::try_from(table).ok().filter(|_| usize::from(size) == SEGMENT_BYTES);
    let table = table.and_then(|table| elf.get(table..)).ok_or("its program headers are damaged")?;
    let segments = table.get(..usize::from(count) * SEGMENT_BYTES).ok_or("its program headers are damaged")?;
    let mut range: Option<(u64, u64)> = None;
    for segment in segments.chunks_exact(SEGMENT_BYTES) {
        let (kind, flags) = (word(segment, 0), word(segment, 4));
        if kind == INTERPRETER {
            return Err(
                "it is linked dynamically, and its libraries lie elsewhere: link it statically, or give --coverage-range",
            );
        }
        if kind == LOAD && flags & EXECUTABLE != 0 {
            let low = wide(segment, 16);
            let high = low.checked_add(wide(segment, 40)).ok_or("its program headers are damaged")?;
            range = Some(range.map_or((low, high), |(lowest, highest)| (lowest.min(low), highest.max(high))));
        }
    }
    range.filter(|(low, high)| low < high).ok_or("it has no code")
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

fn wide(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with segments of these kinds, flags, addresses and sizes.
    fn program(kind: u16, segments: &[(u32, u32, u64, u64)]) -> Vec<u8> {
        let mut elf = vec![0; HEADER_BYTES];
        elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        elf[16..18].copy_from_slice(&kind.to_le_bytes());
        elf[18] = 62;
        elf[32] = HEADER_BYTES as u8;
        elf[54] = SEGMENT_BYTES as u8;
        elf[56] = segments.len() as u8;
        for (kind, flags, address, bytes) in segments {
            let mut segment = [0; SEGMENT_BYTES];
            segment[..4].copy_from_slice(&kind.to_le_bytes());
            segment[4..8].copy_from_slice(&flags.to_le_bytes());
            segment[16..24].copy_from_slice(&address.to_le_bytes());
            segment[40..48].copy_from_slice(&bytes.to_le_bytes());
            elf.extend(segment);
        }
        elf
    }

    #[test]
    fn the_range_is_that_of_all_executable_segments() {
        let segments =
            [(LOAD, 4, 0x40_0000, 0x1000), (LOAD, 5, 0x40_1000, 0x2345), (LOAD, 5, 0x50_0000, 7), (LOAD, 6, 1, 1)];
        assert_eq!(code_range(&program(FIXED, &segments)), Ok((0x40_1000, 0x50_0007)));
    }

    #[test]
    fn a_program_that_does_not_say_where_it_lies_is_refused() {
        let code = (LOAD, 5, 0x1000, 0x1000);
        assert!(code_range(&program(MOVABLE, &[code])).unwrap_err().contains("position-independent"));
        assert!(code_range(&program(FIXED, &[(INTERPRETER, 4, 0, 0), code])).unwrap_err().contains("dynamically"));
        assert_eq!(code_range(&program(1, &[code])), Err("it is no program"));
        assert_eq!(code_range(&program(FIXED, &[(LOAD, 6, 0, 0x1000)])), Err("it has no code"));
        // This very test is one of today's programs, which are position-independent unless asked otherwise, or dynamic.
        let own = std::fs::read(std::env::current_exe().expect("a path")).expect("it can be read");
        assert!(code_range(&own).is_err());
    }

    #[test]
    fn damaged_files_are_refused_whatever_is_cut_or_changed() {
        let good = program(FIXED, &[(LOAD, 5, 0x1000, 0x1000)]);
        for bytes in 0..good.len() {
            assert!(code_range(&good[..bytes]).is_err(), "{bytes} bytes");
        }
        for at in 0..good.len() {
            for value in [0, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = code_range(&bad);
            }
        }
    }
}
