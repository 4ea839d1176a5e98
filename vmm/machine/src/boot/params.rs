// SPDX-License-Identifier: AGPL-3.0-or-later
//! Boot parameters: setup header, memory map, initrd, command line, random seed, ACPI root pointer.
//!
//! Source: Linux `Documentation/arch/x86/boot.rst` and `zero-page.rst`.

use linux_loader::configurator::{BootConfigurator, BootParams, linux::LinuxBootConfigurator};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use vm_memory::GuestAddress;

use super::{BootError, acpi, place};
use crate::config::{Firmware, VmConfig};
use crate::memory::{GuestMemory, HIGH_RAM_START, LOW_RAM_END};

const USABLE: u32 = 1;
const RESERVED: u32 = 2;
/// End of conventional memory; the kilobyte above belongs to the BIOS in the map of a PC.
const CONVENTIONAL_END: u64 = 0x9_fc00;
/// Setup data of this type holds a random seed.
const SETUP_RNG_SEED: u32 = 9;
/// Next pointer, type and length before the seed.
const SETUP_DATA_HEADER_BYTES: usize = 16;
/// Boot loader without an assigned number.
const LOADER_UNDEFINED: u8 = 0xff;

/// The memory map: start, bytes, type.
pub fn memory_map(ram_bytes: u64) -> Vec<(u64, u64, u32)> {
    let low_end = ram_bytes.min(LOW_RAM_END);
    let mut map = vec![
        (0, CONVENTIONAL_END, USABLE),
        (CONVENTIONAL_END, 0xa_0000 - CONVENTIONAL_END, RESERVED),
        (place::ACPI, place::HIGH - place::ACPI, RESERVED),
        (place::HIGH, low_end - place::HIGH, USABLE),
    ];
    if ram_bytes > LOW_RAM_END {
        map.push((HIGH_RAM_START, ram_bytes - LOW_RAM_END, USABLE));
    }
    map
}

/// The header of a kernel that brought none (`vmlinux`).
fn plain_header() -> setup_header {
    setup_header { boot_flag: 0xaa55, header: 0x5372_6448, kernel_alignment: 0x100_0000, ..Default::default() }
}

/// Writes the boot parameters and what they point to.
pub(crate) fn write(
    config: &VmConfig,
    memory: &GuestMemory,
    header: Option<setup_header>,
    (initrd_address, initrd_bytes): (u64, u64),
    command_line_bytes: usize,
) -> Result<(), BootError> {
    write_seed(config, memory)?;
    let mut params = boot_params { hdr: header.unwrap_or_else(plain_header), ..Default::default() };
    params.hdr.type_of_loader = LOADER_UNDEFINED;
    params.hdr.cmd_line_ptr = place::COMMAND_LINE as u32;
    params.hdr.cmdline_size = command_line_bytes as u32;
    // Below 2 GiB by construction.
    params.hdr.ramdisk_image = initrd_address as u32;
    params.hdr.ramdisk_size = initrd_bytes as u32;
    params.hdr.setup_data = place::SETUP_DATA;
    if config.firmware == Firmware::Acpi {
        params.acpi_rsdp_addr = acpi::RSDP_ADDRESS;
    }
    let map = memory_map(memory.ram_bytes());
    params.e820_entries = map.len() as u8;
    let mut table = params.e820_table;
    for (entry, (addr, size, kind)) in table.iter_mut().zip(map) {
        *entry = boot_e820_entry { addr, size, r#type: kind };
    }
    params.e820_table = table;
    let parameters = BootParams::new::<boot_params>(&params, GuestAddress(place::PARAMS));
    LinuxBootConfigurator::write_bootparams(&parameters, memory.mmap())
        .map_err(|error| BootError::Load(format!("boot parameters: {error}")))
}

fn write_seed(config: &VmConfig, memory: &GuestMemory) -> Result<(), BootError> {
    let seed = &config.boot_seed;
    let mut data = Vec::with_capacity(SETUP_DATA_HEADER_BYTES + seed.len());
    data.extend(0u64.to_le_bytes());
    data.extend(SETUP_RNG_SEED.to_le_bytes());
    data.extend((seed.len() as u32).to_le_bytes());
    data.extend(seed);
    Ok(memory.write(place::SETUP_DATA, &data)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_ascending_and_covers_exactly_the_ram_that_is_usable() {
        for ram in [4 << 20, 64 << 20, LOW_RAM_END, LOW_RAM_END + (2 << 30)] {
            let map = memory_map(ram);
            assert!(map.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{map:x?}");
            let usable: u64 = map.iter().filter(|entry| entry.2 == USABLE).map(|entry| entry.1).sum();
            assert_eq!(usable, ram - (place::HIGH - CONVENTIONAL_END));
        }
    }
}
