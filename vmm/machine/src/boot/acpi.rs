// SPDX-License-Identifier: AGPL-3.0-or-later
//! ACPI tables: what the board is, told to the guest.
//!
//! RSDP -> XSDT -> FADT (-> FACS, DSDT), MADT. Source: ACPI specification 6.5, chapters 5 (tables) and 20 (AML). The DSDT
//! names COM1, the clock, each virtio-mmio slot that has a device (LNRO0005), the SDK window (CHAO0001) and the VM
//! Generation ID (VMGENCTR), whose change arrives as general-purpose event 0.

use acpi_tables::aml::{
    AmlStr, Device, EISAName, IO, Interrupt, Memory32Fixed, Method, Name, Notify, Package, Path, ResourceTemplate,
    Scope,
};
use acpi_tables::{Aml, facs::FACS, rsdp::Rsdp, sdt::Sdt, xsdt::XSDT};

use super::{BootError, cmdline, place};
use crate::board::Board;
use crate::chips::power::{
    GPE0_PORT, PM_TIMER_PORT, PM1_CONTROL_PORT, PM1_EVENT_PORT, RESET_PORT, RESET_VALUE, SLEEP_TYPE_S5,
};
use crate::layout::{
    IOAPIC_ADDRESS, IOAPIC_INPUT_PIT, IRQ_PIT, IRQ_RTC, IRQ_SCI, IRQ_SERIAL, LAPIC_ADDRESS, RTC_PORT, SDK_ADDRESS,
    SDK_BYTES, SERIAL_PORT, VIRTIO_IRQS, VIRTIO_SLOT_BYTES, virtio_address,
};
use crate::memory::GuestMemory;

/// Where the root pointer lies.
pub const RSDP_ADDRESS: u64 = place::ACPI;
const XSDT_ADDRESS: u64 = place::ACPI + 0x100;
const FADT_ADDRESS: u64 = place::ACPI + 0x200;
const MADT_ADDRESS: u64 = place::ACPI + 0x400;
/// 64-byte aligned, as the specification asks.
const FACS_ADDRESS: u64 = place::ACPI + 0x500;
const DSDT_ADDRESS: u64 = place::ACPI + 0x1000;
/// Offset of the ID in its page: the guest may map only what lies past the first bytes.
const GENERATION_ID_ADDRESS: u64 = place::GENERATION_ID + 0x28;

const OEM: [u8; 6] = *b"CHAOS ";
const OEM_TABLE: [u8; 8] = *b"CHAOSVM ";

/// FADT flags.
mod fadt_flag {
    pub const WBINVD: u32 = 1 << 0;
    pub const PROC_C1: u32 = 1 << 2;
    /// No fixed-hardware power button.
    pub const POWER_BUTTON: u32 = 1 << 4;
    /// No fixed-hardware sleep button.
    pub const SLEEP_BUTTON: u32 = 1 << 5;
    /// The clock's alarm is no fixed-hardware wake event.
    pub const FIXED_RTC: u32 = 1 << 6;
    pub const TIMER_32_BITS: u32 = 1 << 8;
    pub const RESET_REGISTER: u32 = 1 << 10;
}

/// Boot architecture: legacy devices on ISA, no VGA.
const BOOT_ARCHITECTURE: u16 = 1 | 1 << 2;

fn bytes_of(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// Writes all tables.
pub(crate) fn write(memory: &GuestMemory, board: &Board) -> Result<(), BootError> {
    memory.write(RSDP_ADDRESS, &bytes_of(&Rsdp::new(OEM, XSDT_ADDRESS)))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, 1);
    xsdt.add_entry(FADT_ADDRESS);
    xsdt.add_entry(MADT_ADDRESS);
    memory.write(XSDT_ADDRESS, &bytes_of(&xsdt))?;
    memory.write(FADT_ADDRESS, fadt().as_slice())?;
    memory.write(MADT_ADDRESS, madt(board.lapics.len() as u8).as_slice())?;
    memory.write(FACS_ADDRESS, &bytes_of(&FACS::new()))?;
    let dsdt = dsdt(board);
    let room = place::GENERATION_ID - DSDT_ADDRESS;
    if dsdt.len() as u64 > room {
        let limit = format!("the area has {room}");
        return Err(BootError::TooLarge { what: "dsdt", bytes: dsdt.len() as u64, limit });
    }
    memory.write(DSDT_ADDRESS, dsdt.as_slice())?;
    write_generation_id(memory, &board.generation_id);
    Ok(())
}

/// Writes the VM Generation ID where the guest looks for it.
pub(crate) fn write_generation_id(memory: &GuestMemory, id: &[u8; 16]) {
    memory.write(GENERATION_ID_ADDRESS, id).expect("the first MiB is always memory");
}

fn fadt() -> Sdt {
    // Offsets of ACPI 6.5 table 5.9; the extended addresses repeat the ports as generic address structures.
    let mut table = Sdt::new(*b"FACP", 276, 6, OEM, OEM_TABLE, 1);
    table.write_u32(36, FACS_ADDRESS as u32);
    table.write_u32(40, DSDT_ADDRESS as u32);
    table.write_u16(46, u16::from(IRQ_SCI));
    table.write_u32(56, u32::from(PM1_EVENT_PORT));
    table.write_u32(64, u32::from(PM1_CONTROL_PORT));
    table.write_u32(76, u32::from(PM_TIMER_PORT));
    table.write_u32(80, u32::from(GPE0_PORT));
    table.write_u8(88, 4);
    table.write_u8(89, 2);
    table.write_u8(91, 4);
    table.write_u8(92, 2);
    // No C2 or C3 state.
    table.write_u16(96, 101);
    table.write_u16(98, 1001);
    table.write_u8(108, 0x32);
    table.write_u16(109, BOOT_ARCHITECTURE);
    let flags = fadt_flag::WBINVD
        | fadt_flag::PROC_C1
        | fadt_flag::POWER_BUTTON
        | fadt_flag::SLEEP_BUTTON
        | fadt_flag::FIXED_RTC
        | fadt_flag::TIMER_32_BITS
        | fadt_flag::RESET_REGISTER;
    table.write_u32(112, flags);
    port(&mut table, 116, RESET_PORT, 8);
    table.write_u8(128, RESET_VALUE);
    table.write_u8(131, 5);
    table.write_u64(140, DSDT_ADDRESS);
    port(&mut table, 148, PM1_EVENT_PORT, 32);
    port(&mut table, 172, PM1_CONTROL_PORT, 16);
    port(&mut table, 208, PM_TIMER_PORT, 32);
    port(&mut table, 220, GPE0_PORT, 16);
    table.update_checksum();
    table
}

/// A generic address structure (ACPI 6.5, 5.2.3.2) of an I/O port.
fn port(table: &mut Sdt, offset: usize, port: u16, bits: u8) {
    table.write_bytes(offset, &[1, bits, 0, bits.trailing_zeros() as u8 - 2]);
    table.write_u64(offset + 4, u64::from(port));
}

fn madt(cpus: u8) -> Sdt {
    let mut table = Sdt::new(*b"APIC", 44, 5, OEM, OEM_TABLE, 1);
    table.write_u32(36, LAPIC_ADDRESS as u32);
    // A pair of 8259s is there too.
    table.write_u32(40, 1);
    for cpu in 0..cpus {
        table.append_slice(&[0, 8, cpu, cpu, 1, 0, 0, 0]);
    }
    let mut ioapic = vec![1, 12, 0, 0];
    ioapic.extend((IOAPIC_ADDRESS as u32).to_le_bytes());
    ioapic.extend(0u32.to_le_bytes());
    table.append_slice(&ioapic);
    // Bus ISA; flags: 0 as the bus has it (edge, active high), 13 level and active high.
    source_override(&mut table, IRQ_PIT, IOAPIC_INPUT_PIT, 0);
    source_override(&mut table, IRQ_SCI, IRQ_SCI, 0xd);
    // NMI on LINT1 of all processors.
    table.append_slice(&[4, 6, 0xff, 0, 0, 1]);
    table
}

fn source_override(table: &mut Sdt, irq: u8, input: u8, flags: u16) {
    let mut entry = vec![2, 10, 0, irq];
    entry.extend(u32::from(input).to_le_bytes());
    entry.extend(flags.to_le_bytes());
    table.append_slice(&entry);
}

fn dsdt(board: &Board) -> Sdt {
    let mut table = Sdt::new(*b"DSDT", 36, 2, OEM, OEM_TABLE, 1);
    let mut devices = vec![serial(), clock(), sdk_window(), generation_id()];
    devices.extend(cmdline::slots(board).into_iter().map(virtio));
    table.append_slice(&Scope::raw(Path::new("\\_SB_"), devices.concat()));
    let sleep = u8::try_from(SLEEP_TYPE_S5).expect("three bits");
    let s5 = Package::new(vec![&sleep, &sleep, &0u8, &0u8]);
    table.append_slice(&bytes_of(&Name::new(Path::new("\\_S5_"), &s5)));
    let notify_path = Path::new("\\_SB_.VGEN");
    let notify = Notify::new(&notify_path, &0x80u8);
    let method = Method::new(Path::new("_E00"), 0, false, vec![&notify]);
    table.append_slice(&bytes_of(&Scope::new(Path::new("\\_GPE"), vec![&method])));
    table
}

fn interrupt(irq: u8, edge: bool) -> Interrupt {
    Interrupt::new(true, edge, false, false, u32::from(irq))
}

fn serial() -> Vec<u8> {
    let resources = (IO::new(SERIAL_PORT, SERIAL_PORT, 0, 8), interrupt(IRQ_SERIAL, true));
    bytes_of(&Device::new(
        Path::new("COM1"),
        vec![
            &Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
            &Name::new(Path::new("_UID"), &0u8),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&resources.0, &resources.1])),
        ],
    ))
}

fn clock() -> Vec<u8> {
    let resources = (IO::new(RTC_PORT, RTC_PORT, 0, 2), interrupt(IRQ_RTC, true));
    bytes_of(&Device::new(
        Path::new("RTC_"),
        vec![
            &Name::new(Path::new("_HID"), &EISAName::new("PNP0B00")),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&resources.0, &resources.1])),
        ],
    ))
}

fn sdk_window() -> Vec<u8> {
    // Linux' generic UIO driver takes only memory that is not marked writeable; its mappings are writeable all the same.
    let window = Memory32Fixed::new(false, SDK_ADDRESS as u32, SDK_BYTES as u32);
    let hid: AmlStr = "CHAO0001";
    bytes_of(&Device::new(
        Path::new("CHAO"),
        vec![
            &Name::new(Path::new("_HID"), &hid),
            &Name::new(Path::new("_UID"), &0u8),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&window])),
        ],
    ))
}

fn generation_id() -> Vec<u8> {
    let (hid, cid): (AmlStr, AmlStr) = ("VMGENCTR", "VM_Gen_Counter");
    let (low, high) = (GENERATION_ID_ADDRESS as u32, (GENERATION_ID_ADDRESS >> 32) as u32);
    bytes_of(&Device::new(
        Path::new("VGEN"),
        vec![
            &Name::new(Path::new("_HID"), &hid),
            &Name::new(Path::new("_CID"), &cid),
            &Name::new(Path::new("_DDN"), &cid),
            &Name::new(Path::new("ADDR"), &Package::new(vec![&low, &high])),
        ],
    ))
}

fn virtio(slot: usize) -> Vec<u8> {
    let registers = Memory32Fixed::new(true, virtio_address(slot) as u32, VIRTIO_SLOT_BYTES as u32);
    let line = interrupt(VIRTIO_IRQS[slot], false);
    let hid: AmlStr = "LNRO0005";
    bytes_of(&Device::new(
        Path::new(&format!("VIO{slot}")),
        vec![
            &Name::new(Path::new("_HID"), &hid),
            &Name::new(Path::new("_UID"), &(slot as u8)),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&registers, &line])),
        ],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::VmConfig;
    use crate::memory::MEMORY_BYTES_MIN;

    fn table(memory: &GuestMemory, address: u64) -> Vec<u8> {
        let mut header = [0; 36];
        memory.read(address, &mut header).unwrap();
        let length = u32::from_le_bytes(*header[4..].first_chunk().unwrap());
        let mut bytes = vec![0; length as usize];
        memory.read(address, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn every_table_has_its_signature_and_a_zero_sum() {
        let config = VmConfig::new(MEMORY_BYTES_MIN, Vec::new().into());
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).unwrap();
        write(&memory, &Board::new(&config)).unwrap();
        let tables =
            [(XSDT_ADDRESS, b"XSDT"), (FADT_ADDRESS, b"FACP"), (MADT_ADDRESS, b"APIC"), (DSDT_ADDRESS, b"DSDT")];
        for (address, signature) in tables {
            let bytes = table(&memory, address);
            assert_eq!(&bytes[..4], signature);
            assert_eq!(bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0, "{signature:?}");
        }
        let mut rsdp = [0; 36];
        memory.read(RSDP_ADDRESS, &mut rsdp).unwrap();
        assert_eq!(&rsdp[..8], b"RSD PTR ");
    }

    #[test]
    fn the_tables_do_not_overlap() {
        let config = VmConfig::new(MEMORY_BYTES_MIN, Vec::new().into());
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).unwrap();
        write(&memory, &Board::new(&config)).unwrap();
        for (address, next) in
            [(XSDT_ADDRESS, FADT_ADDRESS), (FADT_ADDRESS, MADT_ADDRESS), (MADT_ADDRESS, FACS_ADDRESS)]
        {
            assert!(address + table(&memory, address).len() as u64 <= next);
        }
    }
}
