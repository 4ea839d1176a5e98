// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a cluster consists of: enough to boot it again.

use chaoscontrol_fault::{MAX_VMS, Schedule};
use serde::{Deserialize, Serialize};

use super::{ObjectRef, rule};
use crate::U64;
use crate::document::{Document, MediaType};

/// What can run guest code, and how it counts.
pub const ENGINES: [&str; 4] = ["exact", "kvm", "kvm-single-step", "kvm-pmu"];

/// Disks of one VM: as many as faults can name.
const DISKS_MAX: usize = 16;
const SECOND_NS: u64 = 1_000_000_000;

/// A disk at power-on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfiguration {
    /// Its contents; none is all zeros.
    #[serde(deserialize_with = "rule::present")]
    pub image: Option<ObjectRef>,
    /// Its size, a multiple of 512.
    pub size_bytes: U64,
    /// Whether FLUSH is offered.
    pub flush: bool,
}

/// The network at rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkConfiguration {
    /// Delay of every frame.
    pub latency_ns: U64,
    /// Largest random delay on top.
    pub jitter_ns: U64,
    /// Chance of every frame to get lost, in a million.
    pub loss_ppm: u32,
}

/// Several CPUs in each VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmpConfiguration {
    /// How many: 2 to 8.
    pub cpus: u8,
    /// Instructions a CPU runs before the next one's turn.
    pub quantum_instructions: U64,
    /// How the next one is chosen: `round-robin` or `random`.
    pub schedule: String,
    /// Most records that a VM's schedule journal holds; 0 keeps none.
    pub smp_schedule_journal_limit: u32,
}

/// Which edges the engine counts.
pub const EDGES: [&str; 4] = ["user", "kernel", "all", "none"];

/// Which control-flow edges the engine counts, where that is not all of user space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoverageConfiguration {
    /// Those of `user` space, of the `kernel`, `all`, or `none`.
    pub edges: String,
    /// Lowest address of a branch that counts.
    pub low: U64,
    /// First address behind them.
    pub high: U64,
}

impl Default for CoverageConfiguration {
    fn default() -> Self {
        Self { edges: "user".to_owned(), low: U64(0), high: U64(u64::MAX) }
    }
}

/// A whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfiguration {
    /// Seed of everything random in the cluster.
    pub seed: U64,
    /// What runs guest code.
    pub engine: String,
    /// How the guest finds its devices: `acpi`, or `legacy` (command line and PIC).
    pub firmware: String,
    /// Guest nanoseconds per instruction.
    pub ns_per_instruction: u32,
    /// The kernel of all VMs.
    pub kernel: ObjectRef,
    /// The initrd of all VMs.
    #[serde(deserialize_with = "rule::present")]
    pub initrd: Option<ObjectRef>,
    /// Number of VMs.
    pub vms: u16,
    /// Appended to the kernel's command line of all VMs.
    pub append: String,
    /// What single VMs get on top, in order of VMs; those past its end get nothing.
    pub append_vm: Vec<String>,
    /// RAM of each VM.
    pub memory_bytes: U64,
    /// Disks of each VM; every VM has its own copy.
    pub disks: Vec<DiskConfiguration>,
    /// Wall clock at cluster time 0: ns since 1970.
    pub wall_clock_start_ns: U64,
    /// The network at rest.
    pub network: NetworkConfiguration,
    /// Cluster time by which every VM must have completed its setup.
    pub setup_limit_ns: U64,
    /// CPUs of each VM where it has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smp: Option<SmpConfiguration>,
    /// Which edges are counted, where it is not every one of user space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<CoverageConfiguration>,
}

impl Document for RunConfiguration {
    const MEDIA: MediaType = MediaType::Run;
    /// 2: the network at rest loses frames.
    const VERSION: u32 = 2;

    fn check(&self) -> Result<(), String> {
        rule::within("vms", self.vms, 1, MAX_VMS)?;
        if self.append_vm.len() > usize::from(self.vms) {
            return Err(format!("append_vm has {} entries for {} VMs", self.append_vm.len(), self.vms));
        }
        rule::one_of("engine", &self.engine, &ENGINES)?;
        rule::one_of("firmware", &self.firmware, &["acpi", "legacy"])?;
        rule::within("ns_per_instruction", self.ns_per_instruction, 1, 1000)?;
        rule::media("kernel", &self.kernel, &[MediaType::Kernel])?;
        rule::media_of("initrd", self.initrd.as_ref(), MediaType::Initrd)?;
        rule::within("memory_bytes", self.memory_bytes.0, 1 << 20, 1 << 40)?;
        rule::at_most("disks", self.disks.len(), DISKS_MAX)?;
        for disk in &self.disks {
            rule::media_of("disks.image", disk.image.as_ref(), MediaType::Disk)?;
            rule::within("disks.size_bytes", disk.size_bytes.0, 512, 1 << 40)?;
            if !disk.size_bytes.0.is_multiple_of(512) {
                return Err(format!("disks.size_bytes is {}, it must be a multiple of 512", disk.size_bytes));
            }
        }
        rule::within("network.latency_ns", self.network.latency_ns.0, 50_000, 60 * SECOND_NS)?;
        rule::within("network.jitter_ns", self.network.jitter_ns.0, 0, 60 * SECOND_NS)?;
        rule::within("network.loss_ppm", self.network.loss_ppm, 0, 500_000)?;
        rule::within("setup_limit_ns", self.setup_limit_ns.0, 1, 86_400 * SECOND_NS)?;
        if let Some(smp) = &self.smp {
            rule::within("smp.cpus", smp.cpus, 2, 8)?;
            rule::within("smp.quantum_instructions", smp.quantum_instructions.0, 1, 1_000_000_000)?;
            rule::one_of("smp.schedule", &smp.schedule, &["round-robin", "random"])?;
            rule::within("smp.smp_schedule_journal_limit", smp.smp_schedule_journal_limit, 0, 1 << 20)?;
        }
        if let Some(coverage) = &self.coverage {
            rule::one_of("coverage.edges", &coverage.edges, &EDGES)?;
            rule::within("coverage.high", coverage.high.0, coverage.low.0.saturating_add(1), u64::MAX)?;
        }
        Ok(())
    }
}

/// A schedule on its own, as people write it by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleDocument {
    /// The faults with their times after the snapshot.
    pub schedule: Schedule,
}

impl Document for ScheduleDocument {
    const MEDIA: MediaType = MediaType::Schedule;
}
