// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a host was when a stage ran.

use serde::{Deserialize, Serialize};

use super::{ToolIdentity, rule};
use crate::document::{Document, MediaType};
use crate::json::INTEGER_MAX;
use crate::{Digest, U64};

/// Texts of one list, and modes, of a report on KVM.
const KVM_TEXTS_MAX: usize = 256;
const KVM_MODES_MAX: usize = 16;
/// Cores and worker threads that an environment may state.
const THREADS_MAX: u32 = 65_536;

/// Whether one mode of the KVM engine works on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvmModeReport {
    /// Its name.
    pub name: String,
    /// Whether it starts.
    pub works: bool,
    /// Why not.
    #[serde(deserialize_with = "rule::present")]
    pub why_not: Option<String>,
    /// What of the host a guest can see in it.
    pub leaks: Vec<String>,
}

/// What KVM is like on a host, found out with tiny guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvmReport {
    /// /dev/kvm opens and has what the engine needs.
    pub present: bool,
    /// Guest code runs as on a CPU of the model.
    pub faithful: bool,
    /// Why it is not present, or not faithful.
    pub reasons: Vec<String>,
    /// Kernel code is emulated.
    pub ring0_emulated: bool,
    /// CPUID gives the model.
    pub cpuid_filtered: bool,
    /// RDTSC reaches the host's.
    pub rdtsc_reachable: bool,
    /// RDRAND executes though CPUID denies it.
    pub rdrand_reachable: bool,
    /// Features of the model that are not offered.
    pub missing_features: Vec<String>,
    /// One entry executes one instruction.
    pub single_step: bool,
    /// A single step of HLT is reported as such.
    pub halt_seen_in_step: bool,
    /// What the host writes to page tables counts at once.
    pub host_page_tables_seen: bool,
    /// The TSC can be slowed down.
    pub tsc_scaling: bool,
    /// Guest instructions can be counted.
    pub pmu: bool,
    /// Why not.
    #[serde(deserialize_with = "rule::present")]
    pub pmu_why_not: Option<String>,
    /// The modes of the engine.
    pub modes: Vec<KvmModeReport>,
}

/// What the host was when a stage ran. No digest covers it: it may differ between runs that are otherwise the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The stage's tool.
    pub tool: ToolIdentity,
    /// BLAKE3 of the executable, where it can be read.
    #[serde(deserialize_with = "rule::present")]
    pub executable: Option<Digest>,
    /// Cores that the process may use.
    pub cores: u32,
    /// Operating system and architecture that the tool was built for.
    pub platform: String,
    /// Engine and its capabilities, for instance `exact`.
    pub engine: String,
    /// What KVM is like on the host, where the stage ran guests.
    #[serde(default, deserialize_with = "rule::not_null", skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmReport>,
    /// When the stage began, in ns since 1970.
    pub started_ns: U64,
    /// How long it ran.
    pub wall_ns: U64,
    /// Worker threads.
    pub jobs: u32,
}

impl Document for Environment {
    const MEDIA: MediaType = MediaType::Environment;

    fn check(&self) -> Result<(), String> {
        rule::tool("tool", &self.tool)?;
        rule::within("cores", self.cores, 1, THREADS_MAX)?;
        rule::within("jobs", self.jobs, 1, THREADS_MAX)?;
        if let Some(kvm) = &self.kvm {
            rule::at_most("kvm.reasons", kvm.reasons.len(), KVM_TEXTS_MAX)?;
            rule::at_most("kvm.missing_features", kvm.missing_features.len(), KVM_TEXTS_MAX)?;
            rule::at_most("kvm.modes", kvm.modes.len(), KVM_MODES_MAX)?;
            kvm.modes.iter().try_for_each(|mode| rule::at_most("kvm.modes.leaks", mode.leaks.len(), KVM_TEXTS_MAX))?;
        }
        if self.wall_ns.0 > INTEGER_MAX {
            return Err(format!("wall_ns is {}, more than a hundred days", self.wall_ns));
        }
        Ok(())
    }
}
