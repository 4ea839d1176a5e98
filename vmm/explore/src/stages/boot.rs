// SPDX-License-Identifier: AGPL-3.0-or-later
//! Boot: N VMs to `setup_complete`, one snapshot.

use chaoscontrol_artifact::schema::{
    CoverageConfiguration, DiskConfiguration, Link, NetworkConfiguration, Parameter, Parameters, RunConfiguration,
    SmpConfiguration,
};
use chaoscontrol_artifact::{MediaType, ObjectRef, StageResult, Store, U64, escape};
use chaoscontrol_cluster::Cluster;
pub use chaoscontrol_cluster::SETUP_LIMIT_NS;
use chaoscontrol_machine::{EngineKind, KvmOptions};

use super::Talk;
use crate::error::ExploreError;
use crate::machines::{configuration, note_engine};
use crate::snapshots;

/// Lines of console output that a failure shows.
const CONSOLE_LINES: usize = 12;

/// A disk that every VM gets its own copy of.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Its contents; none is all zeros.
    pub image: Option<Vec<u8>>,
    /// Its size; at least that of the image.
    pub size_bytes: u64,
    /// Whether FLUSH is offered.
    pub flush: bool,
}

/// What to boot.
#[derive(Clone, Debug)]
pub struct BootOptions {
    /// A kernel image.
    pub kernel: Vec<u8>,
    /// An initrd.
    pub initrd: Option<Vec<u8>>,
    /// Number of VMs.
    pub vms: u16,
    /// Appended to the kernel's command line.
    pub append: String,
    /// By VM, on top.
    pub append_vm: Vec<String>,
    /// RAM of each VM.
    pub memory_bytes: u64,
    /// Disks of each VM.
    pub disks: Vec<DiskOptions>,
    /// Seed of everything random.
    pub seed: u64,
    /// Delay of every frame, and the largest random delay on top.
    pub network: (u64, u64, u32),
    /// What runs the guests.
    pub engine: EngineKind,
    /// Whether and how KVM may be used.
    pub kvm: KvmOptions,
    /// Whether the guest finds its devices without ACPI.
    pub legacy: bool,
    /// Guest nanoseconds per instruction.
    pub ns_per_instruction: u32,
    /// Wall clock at cluster time 0.
    pub wall_clock_start_ns: u64,
    /// Cluster time by which setup must be complete.
    pub setup_limit_ns: u64,
    /// Several CPUs in each VM.
    pub smp: Option<SmpConfiguration>,
    /// Which edges are counted; none is every one of user space.
    pub coverage: Option<CoverageConfiguration>,
}

/// Boots and stores kernel, initrd, disks, run configuration, snapshot and console output.
pub fn boot(store: &Store, options: &BootOptions, talk: Talk) -> Result<StageResult, ExploreError> {
    let run = publish_inputs(store, options)?;
    let config = configuration(store, &run, options.kvm)?;
    let run_ref = store.publish(&run)?;
    talk(0, 0, "loading the guests");
    let mut cluster = Cluster::new(&config)?;
    talk(0, 0, "booting to setup_complete");
    if let Err(error) = cluster.run_to_setup(config.seed, config.setup_limit_ns) {
        return Err(with_console(error.into(), &cluster, config.vms));
    }
    let mut outputs = vec![Link::new("run", run_ref), Link::new("kernel", run.kernel)];
    outputs.extend(run.initrd.map(|initrd| Link::new("initrd", initrd)));
    for vm in 0..config.vms {
        outputs.push(Link::new("console", store.put(MediaType::Console, cluster.serial_tail(vm))?));
    }
    talk(0, 0, "storing the snapshot");
    outputs.push(Link::new("snapshot", snapshots::save(store, run_ref, &cluster.snapshot()?)?));
    let mut result = StageResult { parameters: parameters(options), outputs, ..StageResult::default() };
    note_engine(&mut result, &run);
    Ok(result)
}

fn publish_inputs(store: &Store, options: &BootOptions) -> Result<RunConfiguration, ExploreError> {
    let kernel = store.put(MediaType::Kernel, &options.kernel)?;
    let initrd = match &options.initrd {
        Some(initrd) => Some(store.put(MediaType::Initrd, initrd)?),
        None => None,
    };
    let disk = |disk: &DiskOptions| -> Result<DiskConfiguration, ExploreError> {
        let image: Option<ObjectRef> = match &disk.image {
            Some(image) => Some(store.put(MediaType::Disk, image)?),
            None => None,
        };
        Ok(DiskConfiguration { image, size_bytes: U64(disk.size_bytes), flush: disk.flush })
    };
    Ok(RunConfiguration {
        seed: U64(options.seed),
        engine: options.engine.name().to_owned(),
        firmware: if options.legacy { "legacy" } else { "acpi" }.to_owned(),
        ns_per_instruction: options.ns_per_instruction,
        kernel,
        initrd,
        vms: options.vms,
        append: options.append.clone(),
        append_vm: options.append_vm.clone(),
        memory_bytes: U64(options.memory_bytes),
        disks: options.disks.iter().map(disk).collect::<Result<_, _>>()?,
        wall_clock_start_ns: U64(options.wall_clock_start_ns),
        network: {
            let (latency_ns, jitter_ns, loss_ppm) = options.network;
            NetworkConfiguration { latency_ns: U64(latency_ns), jitter_ns: U64(jitter_ns), loss_ppm }
        },
        setup_limit_ns: U64(options.setup_limit_ns),
        smp: options.smp.clone(),
        coverage: options.coverage.clone(),
    })
}

fn parameters(options: &BootOptions) -> Parameters {
    let mut parameters = Parameters::new();
    let mut set = |name: &str, value: Parameter| parameters.insert(name.to_owned(), value);
    set("seed", options.seed.into());
    set("vms", u64::from(options.vms).into());
    set("append", options.append.as_str().into());
    set("append_vm", Parameter::List(options.append_vm.clone()));
    set("memory_bytes", options.memory_bytes.into());
    set("latency_ns", options.network.0.into());
    set("jitter_ns", options.network.1.into());
    set("loss_ppm", u64::from(options.network.2).into());
    set("legacy", Parameter::Flag(options.legacy));
    set("ns_per_instruction", u64::from(options.ns_per_instruction).into());
    set("setup_limit_ns", options.setup_limit_ns.into());
    if let Some(smp) = &options.smp {
        set("cpus", u64::from(smp.cpus).into());
        set("quantum_instructions", smp.quantum_instructions.0.into());
        set("cpu_schedule", smp.schedule.as_str().into());
        set("smp_schedule_journal_limit", u64::from(smp.smp_schedule_journal_limit).into());
    }
    if let Some(coverage) = &options.coverage {
        set("coverage", coverage.edges.as_str().into());
        set("coverage_low", coverage.low.0.into());
        set("coverage_high", coverage.high.0.into());
    }
    parameters
}

/// The failure with the end of the console of each VM: what people look at first.
fn with_console(error: ExploreError, cluster: &Cluster, vms: u16) -> ExploreError {
    let ExploreError::Guest(mut text) = error else { return error };
    for vm in 0..vms {
        let console = String::from_utf8_lossy(cluster.serial_tail(vm)).into_owned();
        let lines: Vec<&str> = console.lines().collect();
        let tail = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n");
        if tail.is_empty() {
            text.push_str(&format!("\nvm {vm}: the console is empty"));
        } else {
            text.push_str(&format!("\nvm {vm}: the console ends with:\n{}", escape::terminal_lines(&tail)));
        }
    }
    ExploreError::Guest(text)
}
