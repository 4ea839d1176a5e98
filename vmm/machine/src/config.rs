// SPDX-License-Identifier: AGPL-3.0-or-later
//! What one virtual machine is made of, as plain data.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::engine::CoverageFilter;
use crate::pages::PageMap;
use crate::smp::SmpConfig;

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
    /// The host CPU, through KVM.
    Kvm(KvmMode),
}

impl EngineKind {
    /// Every engine and mode.
    pub const ALL: [Self; 4] =
        [Self::Exact, Self::Kvm(KvmMode::Exits), Self::Kvm(KvmMode::SingleStep), Self::Kvm(KvmMode::Pmu)];

    /// Its name in documents and after `--engine`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Kvm(mode) => mode.name(),
        }
    }

    /// The engine of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|engine| engine.name() == name)
    }
}

/// How the KVM engine makes and counts progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvmMode {
    /// Freely from exit to exit; exits are counted.
    Exits,
    /// Every instruction on its own.
    SingleStep,
    /// Freely under a counter of guest instructions, the last stretch in single steps.
    Pmu,
}

impl KvmMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Exits, Self::SingleStep, Self::Pmu];

    /// Its name in documents and after `--engine`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exits => "kvm",
            Self::SingleStep => "kvm-single-step",
            Self::Pmu => "kvm-pmu",
        }
    }
}

/// Seconds of the host after which a run by KVM without an exit is given up, unless configured.
pub const WATCHDOG_S: u32 = 60;

/// What the host's owner decides about KVM. Nothing of it can change a result: it only lets runs happen or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvmOptions {
    /// Whether a KVM that is not faithful may be used.
    pub allow_unfaithful: bool,
    /// The core on which guests run, if one is given.
    pub pin_core: Option<usize>,
    /// Seconds without an exit after which a run ends with an error.
    pub watchdog_s: u32,
}

impl Default for KvmOptions {
    fn default() -> Self {
        Self { allow_unfaithful: false, pin_core: None, watchdog_s: WATCHDOG_S }
    }
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
    /// What the host's owner decides about KVM, where it is the engine.
    pub kvm: KvmOptions,
    /// CPUs, and how they take turns.
    pub smp: SmpConfig,
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
            kvm: KvmOptions::default(),
            smp: SmpConfig::default(),
            firmware: Firmware::Acpi,
            disks: Vec::new(),
            net: None,
            wall_clock_start_ns: WALL_CLOCK_START_NS,
            coverage: None,
        }
    }
}
