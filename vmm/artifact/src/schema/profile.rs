// SPDX-License-Identifier: AGPL-3.0-or-later
//! Profiles: what someone wrote in Nickel, projected to JSON, with everything that it was made of.

use chaoscontrol_fault::{MAX_VMS, Role, Schedule};
use serde::{Deserialize, Serialize};

use super::{Class, HORIZON_NS_MAX, WINDOW_MAX, rule};
use crate::document::{Document, MediaType};
use crate::json::{self, JsonError};
use crate::{Digest, U64};

/// Files that one profile imports.
const IMPORTS_MAX: usize = 256;
const SECOND_NS: u64 = 1_000_000_000;
/// Most MiB of RAM or of one disk: 1 TiB.
const MIB_MAX: u32 = 1 << 20;
/// Disks of one VM.
const DISKS_MAX: usize = 16;

/// A file of a profile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileSource {
    /// Path relative to the profile's folder.
    pub name: String,
    /// BLAKE3 of the text.
    pub digest: Digest,
}

/// A cluster, as options of `chaos-boot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmProfile {
    /// Number of VMs.
    pub vms: u16,
    /// RAM of each VM.
    pub memory_mib: u32,
    /// Appended to every kernel command line.
    pub append: String,
    /// What single VMs get on top, in order of VMs.
    pub append_vm: Vec<String>,
    /// An empty disk of each size for each VM.
    pub disks_mib: Vec<u32>,
    /// Whether disks offer FLUSH.
    pub flush: bool,
    /// Seeds everything random up to the snapshot.
    pub seed: U64,
    /// Delay of every link.
    pub latency_ns: U64,
    /// Largest random delay on top.
    pub jitter_ns: U64,
    /// Chance of every frame to get lost, in a million.
    pub loss_ppm: u32,
    /// `acpi` or `legacy`.
    pub firmware: String,
    /// Guest ns an instruction.
    pub ns_per_instruction: u32,
    /// Cluster time by which setup must be complete.
    pub setup_limit_ns: U64,
}

/// How to explore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CampaignProfile {
    /// Seed of planning; none is that of the stage before.
    #[serde(deserialize_with = "rule::present")]
    pub seed: Option<U64>,
    /// Rounds, for what drives many.
    pub rounds: u32,
    /// Branches a round.
    pub branches: u32,
    /// Length of a branch.
    pub horizon_ns: U64,
    /// Branch i is planned from the results of branches up to i - window.
    pub window: u32,
    /// Stop once so many distinct bugs are known; none is never.
    #[serde(deserialize_with = "rule::present")]
    pub stop_after_bugs: Option<u32>,
    /// Budget of guest instructions of the whole campaign.
    #[serde(deserialize_with = "rule::present")]
    pub instructions: Option<U64>,
}

/// Faults for a cluster of some size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultScheduleProfile {
    /// Number of VMs that it is made for.
    pub vms: u16,
    /// Length of the branch that it is made for.
    pub horizon_ns: U64,
    /// The faults, by ns after the snapshot.
    pub schedule: Schedule,
}

/// A workload: what runs, in which cluster, how it is explored, and what must come of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadProfile {
    /// What it is called.
    pub name: String,
    /// One sentence.
    pub about: String,
    /// The initrd that holds it.
    pub initrd: String,
    /// The cluster, as a profile of its own.
    pub vm: ProfileValues,
    /// The campaign, as a profile of its own.
    pub campaign: ProfileValues,
    /// The class that its verdict must have.
    pub expect: Class,
}

/// What a profile says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ProfileValues {
    /// A cluster.
    VmRun(VmProfile),
    /// How to explore.
    Campaign(CampaignProfile),
    /// Faults.
    FaultSchedule(FaultScheduleProfile),
    /// All that a test needs.
    Workload(Box<WorkloadProfile>),
}

/// The projection of a profile, and what it was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileDocument {
    /// The file that was projected.
    pub source: ProfileSource,
    /// All files that it imports, by name; the contracts are not among them.
    pub imports: Vec<ProfileSource>,
    /// The contract set.
    pub contracts: Digest,
    /// What evaluated it.
    pub evaluator: String,
    /// BLAKE3 of the canonical JSON of `values`.
    pub projection: Digest,
    /// The projection.
    pub values: ProfileValues,
}

impl ProfileSource {
    fn check(&self, field: &str) -> rule::Rule {
        let first = self.name.bytes().next();
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let rest = self.name.bytes().all(|b| plain(b) || matches!(b, b'.' | b'/' | b'-'));
        if first.is_some_and(plain) && rest && self.name.len() <= 255 {
            return Ok(());
        }
        Err(format!("{field}.name is {:?}, it must be a relative path of at most 255 plain characters", self.name))
    }
}

impl VmProfile {
    fn check(&self) -> rule::Rule {
        rule::within("values.vms", self.vms, 1, MAX_VMS)?;
        rule::within("values.memory_mib", self.memory_mib, 1, MIB_MAX)?;
        rule::at_most("values.append_vm", self.append_vm.len(), usize::from(self.vms))?;
        rule::at_most("values.disks_mib", self.disks_mib.len(), DISKS_MAX)?;
        self.disks_mib.iter().try_for_each(|mib| rule::within("values.disks_mib", *mib, 1, MIB_MAX))?;
        rule::within("values.latency_ns", self.latency_ns.0, 50_000, 60 * SECOND_NS)?;
        rule::within("values.jitter_ns", self.jitter_ns.0, 0, 60 * SECOND_NS)?;
        rule::within("values.loss_ppm", self.loss_ppm, 0, 500_000)?;
        rule::one_of("values.firmware", &self.firmware, &["acpi", "legacy"])?;
        rule::within("values.ns_per_instruction", self.ns_per_instruction, 1, 1000)?;
        rule::within("values.setup_limit_ns", self.setup_limit_ns.0, 1, 86_400 * SECOND_NS)
    }
}

impl CampaignProfile {
    fn check(&self) -> rule::Rule {
        rule::within("values.rounds", self.rounds, 1, 65_536)?;
        rule::within("values.branches", self.branches, 1, 1_000_000_000)?;
        rule::within("values.horizon_ns", self.horizon_ns.0, 1, HORIZON_NS_MAX)?;
        rule::within("values.window", self.window, 1, WINDOW_MAX)?;
        self.stop_after_bugs.map_or(Ok(()), |bugs| rule::within("values.stop_after_bugs", bugs, 1, 4096))
    }
}

impl FaultScheduleProfile {
    fn check(&self) -> rule::Rule {
        rule::within("values.vms", self.vms, 1, MAX_VMS)?;
        rule::within("values.horizon_ns", self.horizon_ns.0, 1, HORIZON_NS_MAX)?;
        for event in self.schedule.events() {
            if event.time_ns >= self.horizon_ns.0 {
                return Err(format!("values.schedule has time_ns {}, past the horizon", event.time_ns));
            }
            for (parameter, value) in event.fault.kind().spec().parameters.iter().zip(event.fault.values()) {
                let end = match parameter.domain.role {
                    Role::Vm => i128::from(self.vms),
                    Role::VmSet => 1i128 << self.vms,
                    Role::Disk | Role::Cpu | Role::Duration | Role::Quantity => continue,
                };
                if value >= end {
                    return Err(format!("values.schedule has {} {value}, there are {} VMs", parameter.name, self.vms));
                }
            }
        }
        Ok(())
    }
}

impl ProfileValues {
    /// Its kind's name.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::VmRun(_) => "vm-run",
            Self::Campaign(_) => "campaign",
            Self::FaultSchedule(_) => "fault-schedule",
            Self::Workload(_) => "workload",
        }
    }

    /// The cluster that it describes, if it does.
    pub fn vm(&self) -> Option<&VmProfile> {
        match self {
            Self::VmRun(vm) => Some(vm),
            Self::Workload(workload) => workload.vm.vm(),
            Self::Campaign(_) | Self::FaultSchedule(_) => None,
        }
    }

    /// The campaign that it describes, if it does.
    pub fn campaign(&self) -> Option<&CampaignProfile> {
        match self {
            Self::Campaign(campaign) => Some(campaign),
            Self::Workload(workload) => workload.campaign.campaign(),
            Self::VmRun(_) | Self::FaultSchedule(_) => None,
        }
    }

    /// BLAKE3 of its canonical JSON.
    pub fn digest(&self) -> Result<Digest, JsonError> {
        Ok(Digest::of(&json::to_canonical(self)?))
    }

    fn check(&self) -> rule::Rule {
        match self {
            Self::VmRun(vm) => vm.check(),
            Self::Campaign(campaign) => campaign.check(),
            Self::FaultSchedule(faults) => faults.check(),
            Self::Workload(workload) => {
                rule::name("values.name", &workload.name)?;
                rule::name("values.initrd", &workload.initrd)?;
                match (&workload.vm, &workload.campaign) {
                    (Self::VmRun(vm), Self::Campaign(campaign)) => vm.check().and_then(|()| campaign.check()),
                    (vm, campaign) => {
                        let kinds = format!("{} and {}", vm.kind(), campaign.kind());
                        Err(format!("values.vm and values.campaign are {kinds}, they must be vm-run and campaign"))
                    }
                }
            }
        }
    }
}

impl Document for ProfileDocument {
    const MEDIA: MediaType = MediaType::Profile;
    /// 2: the network at rest loses frames.
    const VERSION: u32 = 2;

    fn check(&self) -> Result<(), String> {
        self.source.check("source")?;
        rule::at_most("imports", self.imports.len(), IMPORTS_MAX)?;
        self.imports.iter().try_for_each(|import| import.check("imports"))?;
        if !self.imports.is_sorted_by(|a, b| a.name < b.name) {
            return Err("imports must be in order of names, each once".to_owned());
        }
        self.values.check()?;
        let found = self.values.digest().map_err(|error| format!("values: {error}"))?;
        if found != self.projection {
            return Err(format!("projection is {}, but values have the digest {found}", self.projection));
        }
        Ok(())
    }
}
