// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a cluster is made of, and how booting it can fail.

use std::sync::Arc;

use crate::oracle::OracleLimit;
use chaoscontrol_fault::ScheduleError;
use chaoscontrol_machine::engine::CoverageFilter;
use chaoscontrol_machine::pages::PageMap;
use chaoscontrol_machine::{
    DiskConfig, EngineKind, Firmware, KvmOptions, MachineError, NetConfig, SmpConfig, VmConfig,
};
use chaoscontrol_sim::{ConfigError, NetworkConfig, SimConfig, Stream, mac_of};

/// A disk that every VM gets its own copy of.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskSpec {
    /// Contents at power-on; what is absent is zero.
    pub image: Arc<PageMap>,
    /// Size; a multiple of 512.
    pub size_bytes: u64,
    /// Whether FLUSH is offered.
    pub flush: bool,
}

/// A cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Number of VMs.
    pub vms: u16,
    /// Kernel of all VMs.
    pub kernel: Arc<[u8]>,
    /// Initial RAM file system of all VMs.
    pub initrd: Option<Arc<[u8]>>,
    /// Kernel command line of all VMs, after the fixed part.
    pub append: String,
    /// What single VMs get on top, by VM; VMs past its end get nothing.
    pub append_vm: Vec<String>,
    /// RAM of each VM.
    pub memory_bytes: u64,
    /// What runs guest code.
    pub engine: EngineKind,
    /// What the host's owner decides about KVM, where it is the engine.
    pub kvm: KvmOptions,
    /// What the guests are told about their platform.
    pub firmware: Firmware,
    /// Disks of each VM.
    pub disks: Vec<DiskSpec>,
    /// Seeds every random stream up to the first branch.
    pub seed: u64,
    /// The network.
    pub network: NetworkConfig,
    /// Guest ns per instruction.
    pub ns_per_instruction: u32,
    /// CPUs of each VM, and how they take turns.
    pub smp: SmpConfig,
    /// Wall clock at cluster time 0: ns since 1970.
    pub wall_clock_start_ns: u64,
    /// Cluster time within which every VM must report `setup_complete`.
    pub setup_limit_ns: u64,
    /// Which edges the engine counts when coverage is on, if any.
    pub coverage: Option<CoverageFilter>,
}

/// Cluster time within which setup must be complete unless configured: half a minute, which costs a guest that spins a minute of
/// the host's time. Linux and a workload that elects a leader take less than a second.
pub const SETUP_LIMIT_NS: u64 = 30_000_000_000;

/// All edges of user space.
const USER_EDGES: CoverageFilter = CoverageFilter { user_only: true, range: (0, u64::MAX) };

impl ClusterConfig {
    /// `vms` VMs of one kernel with the defaults: 64 MiB each, no disks, seed 0.
    #[must_use]
    pub fn new(vms: u16, kernel: Arc<[u8]>) -> Self {
        Self {
            vms,
            kernel,
            initrd: None,
            append: String::new(),
            append_vm: Vec::new(),
            memory_bytes: 64 << 20,
            engine: EngineKind::default(),
            kvm: KvmOptions::default(),
            firmware: Firmware::Acpi,
            disks: Vec::new(),
            seed: 0,
            network: NetworkConfig::default(),
            ns_per_instruction: chaoscontrol_machine::config::NS_PER_INSTRUCTION,
            smp: SmpConfig::default(),
            wall_clock_start_ns: chaoscontrol_machine::config::WALL_CLOCK_START_NS,
            setup_limit_ns: SETUP_LIMIT_NS,
            coverage: Some(USER_EDGES),
        }
    }

    /// What the pure core is told.
    #[must_use]
    pub fn sim(&self) -> SimConfig {
        let disks = u16::try_from(self.disks.len()).unwrap_or(u16::MAX);
        SimConfig { disks: vec![disks; usize::from(self.vms)], network: self.network.clone(), cpus: self.smp.cpus }
    }

    /// The machine of one VM. Its command line says which VM of how many it is.
    #[must_use]
    pub fn vm(&self, vm: u16) -> VmConfig {
        let own = self.append_vm.get(usize::from(vm)).map_or("", String::as_str);
        let parts = [self.append.as_str(), own].into_iter().filter(|part| !part.is_empty());
        let append = parts.fold(format!("chaos.vm={vm} chaos.vms={}", self.vms), |line, part| line + " " + part);
        let seed = |purpose| {
            let mut seed = [0; 32];
            Stream::named(self.seed, purpose, u64::from(vm)).fill(&mut seed);
            seed
        };
        let disk = |spec: &DiskSpec| DiskConfig {
            image: spec.image.clone(),
            size_bytes: spec.size_bytes,
            flush: spec.flush,
            read_only: false,
        };
        VmConfig {
            initrd: self.initrd.clone(),
            append,
            boot_seed: seed("boot seed"),
            rng_seed: seed("entropy device"),
            ns_per_instruction: self.ns_per_instruction,
            engine: self.engine,
            kvm: self.kvm,
            smp: self.smp,
            firmware: self.firmware,
            disks: self.disks.iter().map(disk).collect(),
            net: Some(NetConfig { mac: mac_of(vm) }),
            wall_clock_start_ns: self.wall_clock_start_ns,
            coverage: self.coverage,
            ..VmConfig::new(self.memory_bytes, self.kernel.clone())
        }
    }
}

/// Why a cluster did not get to `setup_complete`. Console text comes from the guest and must be escaped where it is shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootFailure {
    /// The kernel panicked.
    #[error("vm {vm}: the guest kernel panicked: {hint}")]
    Panic {
        /// Which VM.
        vm: u16,
        /// The console line that says so.
        hint: String,
    },
    /// The kernel found no init, or init could not start the workload.
    #[error("vm {vm}: no init: {hint}; the initrd must hold an executable /init")]
    NoInit {
        /// Which VM.
        vm: u16,
        /// What the console said.
        hint: String,
    },
    /// Time ran out.
    #[error("no setup_complete from {} within {limit_ns} ns of cluster time; if it needs longer, raise the limit (--setup-limit-ns)", vm_list(.vms))]
    NoSetup {
        /// VMs that did not report.
        vms: Vec<u16>,
        /// The limit.
        limit_ns: u64,
    },
    /// The workload ended first.
    #[error("vm {vm}: the workload ended before setup_complete ({how})")]
    WorkloadExited {
        /// Which VM.
        vm: u16,
        /// Code or signal.
        how: String,
    },
    /// The VM ended first.
    #[error("vm {vm}: the guest ended before setup_complete: {how}")]
    Shutdown {
        /// Which VM.
        vm: u16,
        /// How.
        how: String,
    },
    /// The guests exceeded a bound of the oracle, or contradict each other.
    #[error("{limit}: {what}")]
    Oracle {
        /// The bound or rule.
        limit: OracleLimit,
        /// What was reported first.
        what: String,
    },
    /// An assertion failed before setup was complete.
    #[error("vm {vm}: a violation before setup_complete: {what}")]
    Violation {
        /// Which VM.
        vm: u16,
        /// Its signature.
        what: String,
    },
}

fn vm_list(vms: &[u16]) -> String {
    let names: Vec<String> = vms.iter().map(|vm| format!("vm {vm}")).collect();
    names.join(", ")
}

/// A failure of the cluster or of its caller.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError<E: std::error::Error + 'static = MachineError> {
    /// A machine failed.
    #[error("vm {vm}")]
    Machine {
        /// Which VM.
        vm: u16,
        /// Why.
        #[source]
        source: E,
    },
    /// A value of the configuration is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A schedule that does not fit the cluster.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A round failed after it had changed the cluster: nothing it would do or say can be believed any more.
    #[error("this cluster is not to be trusted any more: {0}")]
    Poisoned(String),
    /// A recording of turns that the run did not follow to its end, or that is of another cluster.
    #[error("turns of CPUs, vm {vm}: {what}")]
    Turns {
        /// Which VM.
        vm: u16,
        /// What is wrong.
        what: String,
    },
    /// A snapshot that does not fit.
    #[error("cluster snapshot: {0}")]
    Snapshot(String),
    /// The guests did not get to `setup_complete`.
    #[error(transparent)]
    Boot(#[from] BootFailure),
}
