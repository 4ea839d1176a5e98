// SPDX-License-Identifier: AGPL-3.0-or-later
//! The CPU as the 64-bit boot protocol wants it: long mode, flat segments, the first 4 GiB mapped one to one.

use chaoscontrol_cpu::CpuState;
use chaoscontrol_cpu::state::{DescriptorTable, Msrs, Segment, seg};

use super::{BootError, place};
use crate::memory::GuestMemory;

/// `__BOOT_CS` and `__BOOT_DS` of the boot protocol.
const CODE_SELECTOR: u16 = 0x10;
const DATA_SELECTOR: u16 = 0x18;
const TASK_SELECTOR: u16 = 0x20;
/// Null, null, 64-bit code, data, busy 64-bit TSS (two entries).
const GDT: [u64; 6] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x0080_8b00_0000_ffff, 0];
const PRESENT_WRITABLE: u64 = 3;
const LARGE_PAGE: u64 = 1 << 7;
const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// PE, MP, ET, NE, WP, PG.
const CR0: u64 = 0x8001_0033;
/// PAE.
const CR4: u64 = 1 << 5;
/// LME, LMA.
const EFER: u64 = 0x500;
/// Power-on value of the page attribute table.
const PAT: u64 = 0x0007_0406_0007_0406;
/// MTRRs on, default write-back.
const MTRR_DEFAULT: u64 = 0x806;
/// Encodings of RSP and RSI.
const RSP: usize = 4;
const RSI: usize = 6;
const MXCSR: u32 = 0x1f80;

/// Writes GDT and page tables.
pub(crate) fn write_tables(memory: &GuestMemory) -> Result<(), BootError> {
    let gdt: Vec<u8> = GDT.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    memory.write(place::GDT, &gdt)?;
    let (pml4, pdpt, directory) = (place::PAGE_TABLES, place::PAGE_TABLES + 0x1000, place::PAGE_TABLES + 0x2000);
    memory.write(pml4, &(pdpt | PRESENT_WRITABLE).to_le_bytes())?;
    for gigabyte in 0..4 {
        let table = directory + gigabyte * 0x1000;
        memory.write(pdpt + gigabyte * 8, &(table | PRESENT_WRITABLE).to_le_bytes())?;
        let entries: Vec<u8> = (0..512)
            .map(|index| (gigabyte << 30) + index * LARGE_PAGE_BYTES)
            .flat_map(|address| (address | PRESENT_WRITABLE | LARGE_PAGE).to_le_bytes())
            .collect();
        memory.write(table, &entries)?;
    }
    Ok(())
}

/// The state at a kernel's 64-bit entry point.
pub fn state(entry: u64) -> CpuState {
    let data = Segment { selector: DATA_SELECTOR, base: 0, limit: u32::MAX, attributes: 0xc093 };
    let mut segments = [data; 6];
    segments[seg::CS] = Segment { selector: CODE_SELECTOR, base: 0, limit: u32::MAX, attributes: 0xa09b };
    let mut gpr = [0; 16];
    gpr[RSP] = place::STACK_TOP;
    gpr[RSI] = place::PARAMS;
    CpuState {
        gpr,
        rip: entry,
        rflags: 2,
        segments,
        tr: Segment { selector: TASK_SELECTOR, base: 0, limit: 0xffff, attributes: 0x8b },
        ldtr: Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0x82 },
        gdtr: DescriptorTable { base: place::GDT, limit: (GDT.len() * 8 - 1) as u16 },
        cr0: CR0,
        cr3: place::PAGE_TABLES,
        cr4: CR4,
        dr6: 0xffff_0ff0,
        dr7: 0x400,
        msrs: Msrs { efer: EFER, pat: PAT, mtrr_def_type: MTRR_DEFAULT, ..Msrs::default() },
        mxcsr: MXCSR,
        ..CpuState::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MEMORY_BYTES_MIN;

    #[test]
    fn the_first_four_gigabytes_are_mapped_one_to_one() {
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).unwrap();
        write_tables(&memory).unwrap();
        let read = |address: u64| {
            let mut bytes = [0; 8];
            memory.read(address, &mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        };
        for address in [0u64, 0x1234_5678, 0xfee0_0000, 0xffff_ffff] {
            let pdpt = read(place::PAGE_TABLES) & !0xfff;
            let directory = read(pdpt + (address >> 30) * 8) & !0xfff;
            let entry = read(directory + (address >> 21 & 511) * 8);
            assert_eq!(entry & !0x1f_ffff | address & 0x1f_ffff, address);
            assert_eq!(entry & 0x83, 0x83);
        }
    }
}
