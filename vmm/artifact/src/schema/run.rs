// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a cluster consists of: enough to boot it again.

use chaoscontrol_fault::{MAX_VMS, Schedule};
use serde::{Deserialize, Serialize};

use super::ObjectRef;
use crate::U64;
use crate::document::{Document, MediaType};

/// What can run guest code, and how it counts.
pub const ENGINES: [&str; 4] = ["exact", "kvm", "kvm-single-step", "kvm-pmu"];

/// A disk at power-on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfiguration {
    /// Its contents; none is all zeros.
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
}

impl Document for RunConfiguration {
    const MEDIA: MediaType = MediaType::Run;

    fn check(&self) -> Result<(), String> {
        if !(1..=MAX_VMS).contains(&self.vms) {
            return Err(format!("vms is {}, it must lie between 1 and {MAX_VMS}", self.vms));
        }
        if self.append_vm.len() > usize::from(self.vms) {
            return Err(format!("append_vm has {} entries for {} VMs", self.append_vm.len(), self.vms));
        }
        if !ENGINES.contains(&self.engine.as_str()) {
            return Err(format!("engine is {:?}, it must be one of {}", self.engine, ENGINES.join(", ")));
        }
        if !["acpi", "legacy"].contains(&self.firmware.as_str()) {
            return Err(format!("firmware is {:?}, it must be acpi or legacy", self.firmware));
        }
        if !(1..=1000).contains(&self.ns_per_instruction) {
            return Err(format!("ns_per_instruction is {}, it must lie between 1 and 1000", self.ns_per_instruction));
        }
        if self.kernel.media_type != MediaType::Kernel {
            return Err(format!("kernel is a {}, it must be a kernel", self.kernel.media_type.schema()));
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
