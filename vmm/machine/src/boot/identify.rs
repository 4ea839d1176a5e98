// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a file is, so that a wrong one gets an answer that helps.

use super::BootError;

/// A kernel file that can be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// `vmlinux`.
    Elf,
    /// `bzImage`.
    BzImage,
}

const ELF_MACHINE_X86_64: u16 = 62;
/// Program header types that only user programs have: interpreter, thread-local storage.
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_TLS: u32 = 7;

/// Signatures of files that people mistake for a kernel or an initrd.
const SIGNATURES: [(usize, &[u8], &str); 16] = [
    (0, b"\x1f\x8b", "gzip data"),
    (0, b"\xfd7zXZ\0", "xz data"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data"),
    (0, b"BZh", "bzip2 data"),
    (0, b"\x02\x21\x4c\x18", "lz4 data"),
    (0, b"\x04\x22\x4d\x18", "lz4 data"),
    (0, b"\x5d\0\0", "lzma data"),
    (0, b"\x89LZO\0", "lzo data"),
    (0, b"070701", "a cpio archive (an initrd?)"),
    (0, b"070702", "a cpio archive (an initrd?)"),
    (0, b"!<arch>\n", "an ar archive"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"\x7fELF", "an ELF file"),
    (0x38, b"ARM\x64", "an arm64 kernel image"),
    (0x438, b"\x53\xef", "an ext file system image"),
    (0, b"MZ", "a PE executable"),
];

fn u16_at(data: &[u8], offset: usize) -> Option<u16> {
    data.get(offset..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(data: &[u8], offset: usize) -> Option<u32> {
    data.get(offset..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(data: &[u8], offset: usize) -> Option<u64> {
    data.get(offset..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// What `data` looks like, in a few words.
pub fn describe(data: &[u8]) -> String {
    if data.is_empty() {
        return "an empty file".to_owned();
    }
    for (offset, magic, name) in SIGNATURES {
        if data.get(offset..).is_some_and(|rest| rest.starts_with(magic)) {
            return name.to_owned();
        }
    }
    let start = &data[..data.len().min(512)];
    if start.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
        return "text".to_owned();
    }
    if start.iter().all(|byte| *byte == 0) {
        return "a file that begins with zeros".to_owned();
    }
    let hex: Vec<String> = start.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("an unknown file that begins with {}", hex.join(" "))
}

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "i386".to_owned(),
        8 => "MIPS".to_owned(),
        20 | 21 => "PowerPC".to_owned(),
        22 => "s390".to_owned(),
        40 => "32-bit ARM".to_owned(),
        183 => "aarch64".to_owned(),
        243 => "RISC-V".to_owned(),
        258 => "LoongArch".to_owned(),
        other => format!("machine {other}"),
    }
}

/// Says whether `data` is a kernel, and which kind.
pub fn kernel(data: &[u8]) -> Result<Kernel, BootError> {
    let refuse = |found: String| Err(BootError::NotAKernel { found });
    if data.starts_with(b"\x7fELF") {
        return match elf_fault(data) {
            Some(found) => refuse(found),
            None => Ok(Kernel::Elf),
        };
    }
    if data.get(0x202..0x206) == Some(b"HdrS") {
        return match bzimage_fault(data) {
            Some(found) => refuse(found),
            None => Ok(Kernel::BzImage),
        };
    }
    let mut found = describe(data);
    if found.ends_with(" data") {
        found.push_str(" (a compressed kernel? decompress it first)");
    }
    refuse(found)
}

fn elf_fault(data: &[u8]) -> Option<String> {
    let (Some(class), Some(order), Some(kind), Some(machine)) =
        (data.get(4), data.get(5), u16_at(data, 16), u16_at(data, 18))
    else {
        return Some("a truncated ELF file".to_owned());
    };
    if *order != 1 {
        return Some("a big-endian ELF file".to_owned());
    }
    if machine != ELF_MACHINE_X86_64 {
        return Some(format!("an ELF file for {}", machine_name(machine)));
    }
    if *class != 2 {
        return Some("a 32-bit ELF file".to_owned());
    }
    match kind {
        2 => {}
        1 => return Some("an ELF object file".to_owned()),
        3 => return Some("a shared library or position-independent program".to_owned()),
        4 => return Some("a core dump".to_owned()),
        other => return Some(format!("an ELF file of unknown type {other}")),
    }
    program_header_fault(data)
}

fn program_header_fault(data: &[u8]) -> Option<String> {
    let truncated = || Some(format!("a truncated ELF file of {} bytes", data.len()));
    let (Some(offset), Some(size), Some(count)) = (u64_at(data, 32), u16_at(data, 54), u16_at(data, 56)) else {
        return truncated();
    };
    let mut loads = 0;
    for index in 0..u64::from(count) {
        let header = offset.checked_add(index * u64::from(size)).and_then(|at| usize::try_from(at).ok());
        let header = header.and_then(|at| data.get(at..at.checked_add(56)?));
        let Some(header) = header else { return truncated() };
        let (Some(kind), Some(from), Some(bytes)) = (u32_at(header, 0), u64_at(header, 8), u64_at(header, 32)) else {
            return truncated();
        };
        match kind {
            PT_INTERP | PT_TLS => return Some("a user-space program".to_owned()),
            PT_LOAD => {
                loads += 1;
                if from.checked_add(bytes).is_none_or(|end| end > data.len() as u64) {
                    return truncated();
                }
            }
            _ => {}
        }
    }
    (loads == 0).then(|| "an ELF file with nothing to load".to_owned())
}

fn bzimage_fault(data: &[u8]) -> Option<String> {
    // Offsets of the boot protocol's "Real-Mode Kernel Header".
    let (Some(sectors), Some(paragraphs), Some(version), Some(flags)) =
        (data.get(0x1f1), u32_at(data, 0x1f4), u16_at(data, 0x206), u16_at(data, 0x236))
    else {
        return Some(format!("a truncated bzImage of {} bytes", data.len()));
    };
    if version < 0x20c {
        return Some(format!("a bzImage of boot protocol {}.{:02}, before 2.12", version >> 8, version & 0xff));
    }
    if flags & 1 == 0 {
        return Some("a 32-bit bzImage".to_owned());
    }
    let setup = (u64::from(if *sectors == 0 { 4 } else { *sectors }) + 1) * 512;
    let wanted = setup + u64::from(paragraphs) * 16;
    // syszie counts whole paragraphs, so the file may end up to 15 bytes before.
    if (data.len() as u64) + 16 <= wanted {
        return Some(format!("a truncated bzImage: {} of {wanted} bytes", data.len()));
    }
    None
}

/// Says whether `data` is an initrd.
pub fn initrd(data: &[u8]) -> Result<(), BootError> {
    let known = ["070701", "070702"];
    if known.iter().any(|magic| data.starts_with(magic.as_bytes())) || describe(data).ends_with(" data") {
        return Ok(());
    }
    Err(BootError::NotAnInitrd { found: describe(data) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A minimal ELF header with one loadable segment.
    fn elf(machine: u16, class: u8, kind: u16, segment: u32) -> Vec<u8> {
        let mut data = vec![0; 64 + 56 + 16];
        data[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
        data[16..18].copy_from_slice(&kind.to_le_bytes());
        data[18..20].copy_from_slice(&machine.to_le_bytes());
        data[32..40].copy_from_slice(&64u64.to_le_bytes());
        data[54..56].copy_from_slice(&56u16.to_le_bytes());
        data[56..58].copy_from_slice(&1u16.to_le_bytes());
        data[64..68].copy_from_slice(&segment.to_le_bytes());
        data[72..80].copy_from_slice(&120u64.to_le_bytes());
        data[96..104].copy_from_slice(&16u64.to_le_bytes());
        data
    }

    fn bzimage(version: u16, flags: u16, paragraphs: u32) -> Vec<u8> {
        let mut data = vec![0; 1024 + 1024];
        data[0x1f1] = 1;
        data[0x1f4..0x1f8].copy_from_slice(&paragraphs.to_le_bytes());
        data[0x202..0x206].copy_from_slice(b"HdrS");
        data[0x206..0x208].copy_from_slice(&version.to_le_bytes());
        data[0x236..0x238].copy_from_slice(&flags.to_le_bytes());
        data
    }

    #[test]
    fn kernels_are_recognized() {
        assert_eq!(kernel(&elf(62, 2, 2, PT_LOAD)).unwrap(), Kernel::Elf);
        assert_eq!(kernel(&bzimage(0x20f, 1, 64)).unwrap(), Kernel::BzImage);
    }

    #[test]
    fn wrong_kernels_are_named() {
        let long_text = "all work and no play\n".repeat(100);
        let cases: [(Vec<u8>, &str); 17] = [
            (Vec::new(), "an empty file"),
            (b"\x7fELF\x02".to_vec(), "truncated ELF"),
            (elf(183, 2, 2, PT_LOAD), "an ELF file for aarch64"),
            (elf(62, 1, 2, PT_LOAD), "a 32-bit ELF file"),
            (elf(62, 2, 3, PT_LOAD), "position-independent program"),
            (elf(62, 2, 1, PT_LOAD), "an ELF object file"),
            (elf(62, 2, 2, PT_TLS), "a user-space program"),
            (elf(62, 2, 2, 4), "nothing to load"),
            (elf(62, 2, 2, PT_LOAD)[..130].to_vec(), "a truncated ELF file of 130 bytes"),
            (bzimage(0x20f, 0, 64), "a 32-bit bzImage"),
            (bzimage(0x204, 1, 64), "boot protocol 2.04"),
            (bzimage(0x20f, 1, 65_536), "a truncated bzImage: 2048 of"),
            (b"\x1f\x8b\x08\0".to_vec(), "gzip data (a compressed kernel? decompress it first)"),
            (long_text.into_bytes(), "text"),
            (b"070701000000".to_vec(), "a cpio archive (an initrd?)"),
            (vec![0; 4096], "begins with zeros"),
            (vec![0xab, 0xcd], "begins with ab cd"),
        ];
        for (data, wanted) in cases {
            let error = kernel(&data).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
            assert!(error.contains("expected an x86-64 ELF vmlinux or a bzImage"), "{error}");
        }
    }

    #[test]
    fn wrong_initrds_are_named() {
        assert!(initrd(b"070701").is_ok());
        assert!(initrd(b"\x1f\x8b\x08").is_ok());
        let error = initrd(b"hello").unwrap_err().to_string();
        assert!(error.contains("text: expected a cpio archive"), "{error}");
        assert!(initrd(b"").is_err());
    }

    #[test]
    fn no_prefix_of_a_kernel_panics() {
        for data in [elf(62, 2, 2, PT_LOAD), bzimage(0x20f, 1, 64)] {
            for length in 0..data.len() {
                let _ = kernel(&data[..length]);
            }
        }
    }
}
