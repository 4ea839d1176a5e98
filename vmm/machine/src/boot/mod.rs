// SPDX-License-Identifier: AGPL-3.0-or-later
//! Placing a kernel in memory and the CPU at its 64-bit entry point.
//!
//! Low memory, all of it RAM (addresses in [`place`]): GDT, boot parameters, page tables, command line, seed; ACPI tables
//! from 0xE0000. The kernel lies where its file says, the initrd at the top of RAM below 2 GiB.

pub mod acpi;
pub mod cmdline;
pub mod entry;
pub mod identify;
pub mod params;

use std::io::Cursor;

use chaoscontrol_cpu::CpuState;
use linux_loader::loader::{BzImage, Elf, KernelLoader};
use vm_memory::{Address, GuestAddress};

use crate::board::Board;
use crate::config::VmConfig;
use crate::memory::{GuestMemory, LOW_RAM_END, MemoryError};
use identify::Kernel;

/// Where boot structures lie, in guest-physical memory.
pub mod place {
    /// Global descriptor table.
    pub const GDT: u64 = 0x500;
    /// Boot parameters ("zero page").
    pub const PARAMS: u64 = 0x7000;
    /// Page tables: one PML4, one PDPT, four page directories.
    pub const PAGE_TABLES: u64 = 0x9000;
    /// Stack for code that needs one before the kernel has its own.
    pub const STACK_TOP: u64 = 0x1_8000;
    /// Command line.
    pub const COMMAND_LINE: u64 = 0x2_0000;
    /// Setup data: the random seed.
    pub const SETUP_DATA: u64 = 0x2_2000;
    /// ACPI tables, to the end of the first MiB.
    pub const ACPI: u64 = 0xe_0000;
    /// The page of the VM Generation ID.
    pub const GENERATION_ID: u64 = 0xf_f000;
    /// Where usable memory above the first MiB begins.
    pub const HIGH: u64 = 0x10_0000;
}

/// Highest address of an initrd (exclusive), whatever the kernel allows.
const INITRD_END_MAX: u64 = 0x7fff_f000;

/// Why a guest cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The file is not a kernel that this machine boots.
    #[error("kernel: {found}: expected an x86-64 ELF vmlinux or a bzImage with a 64-bit entry point")]
    NotAKernel {
        /// What the file is.
        found: String,
    },
    /// The file is not an initrd.
    #[error("initrd: {found}: expected a cpio archive in newc format, plain or compressed")]
    NotAnInitrd {
        /// What the file is.
        found: String,
    },
    /// Kernel, initrd or command line do not fit.
    #[error("{what}: {bytes} bytes do not fit: {limit}")]
    TooLarge {
        /// Which part.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The limit it breaks.
        limit: String,
    },
    /// The kernel file says something impossible.
    #[error("kernel: {0}")]
    Load(String),
    /// The command line holds what no kernel can read.
    #[error("command line: {0}")]
    CommandLine(String),
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A kernel in memory.
struct Loaded {
    entry: u64,
    /// First byte after what the kernel needs before it can read its memory map.
    end: u64,
    header: Option<linux_loader::loader::bootparam::setup_header>,
}

/// Loads everything and returns the CPU state at the kernel's entry.
pub(crate) fn load(config: &VmConfig, memory: &GuestMemory, board: &Board) -> Result<CpuState, BootError> {
    let kernel = match identify::kernel(&config.kernel)? {
        Kernel::Elf => load_elf(&config.kernel, memory)?,
        Kernel::BzImage => load_bzimage(&config.kernel, memory)?,
    };
    let low_end = memory.ram_bytes().min(LOW_RAM_END);
    if kernel.entry < place::HIGH || kernel.entry >= low_end || kernel.end > low_end {
        let bytes = kernel.end.saturating_sub(place::HIGH);
        let limit =
            format!("it needs {:#x} to {:#x} of {} bytes of memory", kernel.entry, kernel.end, memory.ram_bytes());
        return Err(BootError::TooLarge { what: "kernel", bytes, limit });
    }
    let initrd = load_initrd(config, memory, &kernel)?;
    let command_line = cmdline::build(config, board)?;
    memory.write(place::COMMAND_LINE, &command_line)?;
    params::write(config, memory, kernel.header, initrd, command_line.len())?;
    acpi::write(memory, board)?;
    entry::write_tables(memory)?;
    Ok(entry::state(kernel.entry))
}

fn load_elf(image: &[u8], memory: &GuestMemory) -> Result<Loaded, BootError> {
    // An offset, even none, keeps the loader from reading notes, which this protocol has no use for.
    let loaded = Elf::load(memory.mmap(), Some(GuestAddress(0)), &mut Cursor::new(image), None)
        .map_err(|error| BootError::Load(error.to_string()))?;
    Ok(Loaded { entry: loaded.kernel_load.raw_value(), end: loaded.kernel_end, header: None })
}

fn load_bzimage(image: &[u8], memory: &GuestMemory) -> Result<Loaded, BootError> {
    let loaded = BzImage::load(memory.mmap(), None, &mut Cursor::new(image), None)
        .map_err(|error| BootError::Load(error.to_string()))?;
    let header = loaded.setup_header.ok_or_else(|| BootError::Load("the bzImage has no setup header".to_owned()))?;
    // The 64-bit entry is 0x200 past the start of the protected-mode code (boot protocol, "64-bit Boot Protocol").
    let entry = loaded.kernel_load.raw_value() + 0x200;
    let runs_at = header.pref_address.max(loaded.kernel_load.raw_value());
    let end = loaded.kernel_end.max(runs_at.saturating_add(u64::from(header.init_size)));
    Ok(Loaded { entry, end, header: Some(header) })
}

/// Places the initrd; returns its address and size, zero without one.
fn load_initrd(config: &VmConfig, memory: &GuestMemory, kernel: &Loaded) -> Result<(u64, u64), BootError> {
    let Some(initrd) = &config.initrd else { return Ok((0, 0)) };
    identify::initrd(initrd)?;
    let kernel_limit = kernel.header.map_or(INITRD_END_MAX, |header| u64::from(header.initrd_addr_max) + 1);
    let end = memory.ram_bytes().min(LOW_RAM_END).min(INITRD_END_MAX).min(kernel_limit);
    let bytes = initrd.len() as u64;
    let start = end.checked_sub(bytes).map(|start| start & !0xfff).filter(|start| *start >= kernel.end);
    let Some(start) = start else {
        let limit = format!("{} bytes of memory and a kernel that ends at {:#x}", memory.ram_bytes(), kernel.end);
        return Err(BootError::TooLarge { what: "initrd", bytes, limit });
    };
    memory.write(start, initrd)?;
    Ok((start, bytes))
}
