// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a cluster consists of: enough to boot it again.

use chaoscontrol_fault::{MAX_VMS, Schedule};
use serde::{Deserialize, Serialize};

use super::ObjectRef;
use crate::U64;
use crate::document::{Document, MediaType};

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

/// One VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmConfiguration {
    /// Appended to the kernel's command line.
    pub append: String,
    /// RAM.
    pub memory_bytes: U64,
    /// Disks, in order.
    pub disks: Vec<DiskConfiguration>,
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
    /// Guest nanoseconds per instruction.
    pub ns_per_instruction: u32,
    /// The kernel of all VMs.
    pub kernel: ObjectRef,
    /// The initrd of all VMs.
    pub initrd: Option<ObjectRef>,
    /// The VMs, in order.
    pub vms: Vec<VmConfiguration>,
    /// The network at rest.
    pub network: NetworkConfiguration,
    /// Cluster time by which every VM must have completed its setup.
    pub setup_limit_ns: U64,
}

impl Document for RunConfiguration {
    const MEDIA: MediaType = MediaType::Run;

    fn check(&self) -> Result<(), String> {
        let vms = self.vms.len();
        if vms == 0 || vms > usize::from(MAX_VMS) {
            return Err(format!("vms has {vms} entries, it must have 1 to {MAX_VMS}"));
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
