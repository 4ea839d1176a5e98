// SPDX-License-Identifier: AGPL-3.0-or-later
//! What one virtual machine is made of, as plain data.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::engine::CoverageFilter;
use crate::pages::PageMap;

/// Default guest nanoseconds per unit of progress.
pub const NS_PER_INSTRUCTION: u32 = 10;
/// Largest guest nanoseconds per unit of progress.
pub const NS_PER_INSTRUCTION_MAX: u32 = 1_000;
/// Most disks of one machine.
pub const DISKS_MAX: usize = 4;
/// Largest disk.
pub const DISK_BYTES_MAX: u64 = 1 << 40;

/// What runs guest code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// The CPU in software: every instruction counted, the same on every host.
    #[default]
    Exact,
}

/// What the guest is told about its platform.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    /// ACPI tables.
    #[default]
    Acpi,
    /// None, and the PIC only: devices are named on the command line.
    Legacy,
}

/// A disk at power-on.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskConfig {
    /// Contents in 4 KiB pages; what is absent is zero.
    pub image: Arc<PageMap>,
    /// Size; a multiple of 512.
    pub size_bytes: u64,
    /// Whether FLUSH is offered. Without it, completion means durable.
    pub flush: bool,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// A network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetConfig {
    /// Hardware address.
    pub mac: [u8; 6],
}

/// One virtual machine. Two machines of equal configurations, given the same inputs at the same guest times, are equal to
/// the last bit.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// RAM; a multiple of 4,096 within [`crate::memory::MEMORY_BYTES_MIN`]..=[`crate::memory::MEMORY_BYTES_MAX`].
    pub memory_bytes: u64,
    /// An ELF `vmlinux` or a `bzImage`.
    pub kernel: Arc<[u8]>,
    /// Initial RAM file system.
    pub initrd: Option<Arc<[u8]>>,
    /// Appended to the fixed kernel command line.
    pub append: String,
    /// What the kernel's random pool starts from.
    pub boot_seed: [u8; 32],
    /// What the virtio entropy device draws from.
    pub rng_seed: [u8; 32],
    /// Guest nanoseconds per unit of progress: 1..=[`NS_PER_INSTRUCTION_MAX`].
    pub ns_per_instruction: u32,
    /// What runs guest code.
    pub engine: EngineKind,
    /// What the guest is told about its platform.
    pub firmware: Firmware,
    /// Disks, at most [`DISKS_MAX`].
    pub disks: Vec<DiskConfig>,
    /// Network card, if any.
    pub net: Option<NetConfig>,
    /// Wall clock at guest time zero: nanoseconds since 1970-01-01 UTC.
    pub wall_clock_start_ns: u64,
    /// Which control-flow edges are counted, if any.
    pub coverage: Option<CoverageFilter>,
}

/// 2025-01-01 00:00:00 UTC, the wall clock at power-on unless configured.
pub const WALL_CLOCK_START_NS: u64 = 1_735_689_600_000_000_000;

impl VmConfig {
    /// A machine of `memory_bytes` with one kernel and nothing else attached.
    pub fn new(memory_bytes: u64, kernel: Arc<[u8]>) -> Self {
        Self {
            memory_bytes,
            kernel,
            initrd: None,
            append: String::new(),
            boot_seed: [0; 32],
            rng_seed: [0; 32],
            ns_per_instruction: NS_PER_INSTRUCTION,
            engine: EngineKind::Exact,
            firmware: Firmware::Acpi,
            disks: Vec::new(),
            net: None,
            wall_clock_start_ns: WALL_CLOCK_START_NS,
            coverage: None,
        }
    }
}
