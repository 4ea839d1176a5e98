// SPDX-License-Identifier: AGPL-3.0-or-later
//! The cluster as a subject: real machines behind [`Subject`].

use std::sync::{Arc, Mutex, PoisonError};

use chaoscontrol_artifact::schema::{
    AssertionMoment, AssertionSummary, BugIdentity, CoverageConfiguration, DiskConfiguration, KvmReport, Parameter,
    RunConfiguration, TraceDocument, TraceRound, TraceVm, Violation,
};
use chaoscontrol_artifact::{Digest, ObjectRef, StageResult, Store, U64};
use chaoscontrol_cluster::sim::{NetworkConfig, NetworkCounts, RoundRecord, VmRecord};
use chaoscontrol_cluster::{
    AssertionRow, BranchLog, BranchOutcome, BranchPlan, Cluster, ClusterConfig, ClusterError, ClusterSnapshot,
    DiskSpec, EndReason, FLUSH, FirstTime, HostClock, Midway, SEND, Spent, TurnRecording, ViolationKind,
};
use chaoscontrol_fault::{Mark, Shape};
use chaoscontrol_machine::engine::{CoverageFilter, EngineError, KvmError};
use chaoscontrol_machine::exact::{TierChoice, choose_tier as choose};
use chaoscontrol_machine::kvm::HostReport;
use chaoscontrol_machine::pages::PageMap;
use chaoscontrol_machine::{CpuSchedule, EngineKind, Firmware, KvmOptions, MachineError, SmpConfig, kvm};

use crate::error::ExploreError;
use crate::prefix_cache::PrefixCache;
use crate::snapshots;
use crate::subject::{Factory, Plan, Ran, Subject};

/// Chooses how the machines of this process run guest instructions: `reference`, `both`, or else `compiled`. No result depends on it.
pub fn choose_tier(name: Option<&str>) {
    choose(match name {
        Some("reference") => TierChoice::Reference,
        Some("both") => TierChoice::Both,
        _ => TierChoice::Compiled,
    });
}

impl From<ClusterError> for ExploreError {
    fn from(error: ClusterError) -> Self {
        match error {
            ClusterError::Boot(failure) => Self::Guest(failure.to_string()),
            ClusterError::Turns { .. } => Self::Turns(error.to_string()),
            ClusterError::Machine { vm, source } => {
                let text = format!("vm {vm}: {source}");
                match source {
                    MachineError::Config { .. }
                    | MachineError::Boot(_)
                    | MachineError::Snapshot(_)
                    | MachineError::LogFull { .. }
                    | MachineError::State(_) => Self::Input(text),
                    MachineError::Engine(EngineError::State(_)) => Self::Input(text),
                    MachineError::Engine(EngineError::HostLacks(_)) => Self::HostLacks(text),
                    MachineError::Engine(EngineError::Kvm(error)) => match error {
                        KvmError::HostLacks(_) | KvmError::Unfaithful(_) | KvmError::NotEmulated { .. } => {
                            Self::HostLacks(text)
                        }
                        KvmError::Watchdog { .. } => Self::Watchdog(text),
                        KvmError::Call { .. } | KvmError::UnexpectedExit { .. } | KvmError::Inexact { .. } => {
                            Self::Internal(text)
                        }
                    },
                    MachineError::Journal(_) => Self::Turns(text),
                    MachineError::Memory(_)
                    | MachineError::Engine(EngineError::TiersDiffer(_))
                    | MachineError::Poisoned(_) => Self::Internal(text),
                }
            }
            ClusterError::Poisoned(_) => Self::Internal(error.to_string()),
            ClusterError::Config(_) | ClusterError::Schedule(_) | ClusterError::Snapshot(_) => {
                Self::Input(error.to_string())
            }
        }
    }
}

/// Name of the random schedule of CPUs.
pub const RANDOM: &str = "random";

/// The configuration of the cluster that `run` describes, with its kernel, initrd and disks from the store.
pub fn configuration(store: &Store, run: &RunConfiguration, kvm: KvmOptions) -> Result<ClusterConfig, ExploreError> {
    let engine = EngineKind::from_name(&run.engine);
    let unknown = || ExploreError::Input(format!("run: there is no engine {:?}", run.engine));
    let mut config = ClusterConfig::new(run.vms, store.read(&run.kernel)?.into());
    config.initrd = match &run.initrd {
        Some(initrd) => Some(store.read(initrd)?.into()),
        None => None,
    };
    config.engine = engine.ok_or_else(unknown)?;
    config.kvm = kvm;
    config.append = run.append.clone();
    config.append_vm = run.append_vm.clone();
    config.firmware = if run.firmware == "legacy" { Firmware::Legacy } else { Firmware::Acpi };
    config.memory_bytes = run.memory_bytes.0;
    config.disks = run.disks.iter().map(|disk| disk_spec(store, disk)).collect::<Result<_, _>>()?;
    config.seed = run.seed.0;
    config.network = NetworkConfig {
        latency_ns: run.network.latency_ns.0,
        jitter_ns: run.network.jitter_ns.0,
        loss_ppm: run.network.loss_ppm,
        links: Vec::new(),
    };
    config.ns_per_instruction = run.ns_per_instruction;
    config.wall_clock_start_ns = run.wall_clock_start_ns.0;
    config.setup_limit_ns = run.setup_limit_ns.0;
    if let Some(smp) = &run.smp {
        config.smp = SmpConfig {
            cpus: smp.cpus,
            quantum_instructions: smp.quantum_instructions.0,
            schedule: if smp.schedule == RANDOM { CpuSchedule::Random } else { CpuSchedule::RoundRobin },
            journal_limit: smp.smp_schedule_journal_limit,
        };
    }
    if let Some(coverage) = &run.coverage {
        config.coverage = counted(coverage);
    }
    Ok(config)
}

/// Where the kernel's addresses begin: the upper half.
pub const KERNEL_FROM: u64 = 1 << 63;

/// Which edges the engine counts, if any.
fn counted(coverage: &CoverageConfiguration) -> Option<CoverageFilter> {
    let (low, high) = (coverage.low.0, coverage.high.0);
    match coverage.edges.as_str() {
        "none" => None,
        "kernel" => Some(CoverageFilter { user_only: false, range: (low.max(KERNEL_FROM), high) }),
        edges => Some(CoverageFilter { user_only: edges == "user", range: (low, high) }),
    }
}

fn disk_spec(store: &Store, disk: &DiskConfiguration) -> Result<DiskSpec, ExploreError> {
    let image = match &disk.image {
        Some(image) => PageMap::from_bytes(&store.read(image)?),
        None => PageMap::default(),
    };
    Ok(DiskSpec { image: Arc::new(image), size_bytes: disk.size_bytes.0, flush: disk.flush })
}

/// What the caller decides about where guests run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host {
    /// Another engine than that of the snapshot.
    pub engine: Option<EngineKind>,
    /// Whether and how KVM may be used.
    pub kvm: KvmOptions,
    /// Bytes for branches in their middle, from which others go on that are the same so far; 0 is none.
    pub prefix_cache_bytes: u64,
    /// Measures where the host's time goes.
    pub clock: Option<HostClock>,
}

impl Host {
    /// What the flags of a tool say, or which of them is wrong.
    pub fn from_flags(
        engine: Option<&str>,
        allow_unfaithful: bool,
        pin_core: Option<u64>,
        watchdog_s: u64,
    ) -> Result<Self, String> {
        let names = EngineKind::ALL.map(EngineKind::name).join(", ");
        let unknown = |name: &str| format!("--engine is {name:?}, it must be one of {names}");
        let engine = engine.map(|name| EngineKind::from_name(name).ok_or_else(|| unknown(name))).transpose()?;
        let pin_core = pin_core.map(|core| usize::try_from(core).unwrap_or(usize::MAX));
        let watchdog_s = u32::try_from(watchdog_s).unwrap_or(u32::MAX);
        let kvm = KvmOptions { allow_unfaithful, pin_core, watchdog_s };
        Ok(Self { engine, kvm, ..Self::default() })
    }

    /// The same, on the engine that `run` names.
    pub fn on_engine_of(&self, run: &RunConfiguration) -> Self {
        Self { engine: EngineKind::from_name(&run.engine), ..*self }
    }
}

/// What was found out about KVM, as the environment document has it: field by field the same, which a test holds.
fn document_of(report: &HostReport) -> KvmReport {
    let value = serde_json::to_value(report).expect("a report is plain data");
    serde_json::from_value(value).expect("the document has the report's fields and no others")
}

/// Notes in a stage's result what its guests run on: the host for the environment document and, where that is not the exact
/// engine, what of the host they can see, among the parameters.
pub fn note_engine(result: &mut StageResult, run: &RunConfiguration) {
    let report = kvm::report();
    result.engine = run.engine.clone();
    result.kvm = Some(document_of(report));
    let Some(EngineKind::Kvm(mode)) = EngineKind::from_name(&run.engine) else { return };
    let mut set = |name: &str, list: Vec<String>| result.parameters.insert(name.to_owned(), Parameter::List(list));
    set("engine_leaks", report.leaks(mode));
    if !report.faithful {
        set("unfaithful_kvm", report.reasons.clone());
    }
    result.parameters.insert("engine".to_owned(), run.engine.as_str().into());
}

/// Makes clusters that run branches from one snapshot.
pub struct Machines {
    config: ClusterConfig,
    snapshot: Arc<ClusterSnapshot>,
    prefixes: Arc<PrefixCache<Midway>>,
    clock: Option<HostClock>,
    spent: Arc<Mutex<Spent>>,
}

/// Moments of a branch at which it may be kept in its middle where none is known to be novel, evenly spaced: what differs lies a fortieth
/// of its length behind one of them on average.
const MOMENTS: u64 = 20;
/// Of those, every so manieth is one where two branches differ in an answer, which may be given at any time.
const COARSE: u64 = 5;

impl Machines {
    /// Machines for the snapshot `reference` names, on the engine that took it or on another. Gives the run configuration
    /// too: the snapshot's, with that engine.
    pub fn load(store: &Store, reference: &ObjectRef, host: &Host) -> Result<(Self, ObjectRef), ExploreError> {
        let manifest = store.load::<chaoscontrol_artifact::schema::SnapshotManifest>(reference)?;
        let mut run: RunConfiguration = store.load(&manifest.run)?;
        let mut run_ref = manifest.run;
        if let Some(engine) = host.engine.filter(|engine| engine.name() != run.engine) {
            run.engine = engine.name().to_owned();
            run_ref = store.publish(&run)?;
        }
        if manifest.vms != run.vms {
            let (have, want) = (manifest.vms, run.vms);
            return Err(ExploreError::Input(format!("snapshot: it has {have} VMs, its run configuration {want}")));
        }
        let config = configuration(store, &run, host.kvm)?;
        let snapshot = snapshots::load(store, &manifest)?;
        let machines = Self { clock: host.clock, ..Self::booted(config, snapshot) };
        Ok((machines.with_prefix_cache(host.prefix_cache_bytes), run_ref))
    }

    /// Machines for a cluster that has just booted.
    pub fn booted(config: ClusterConfig, snapshot: ClusterSnapshot) -> Self {
        Self {
            config,
            snapshot: Arc::new(snapshot),
            prefixes: Arc::new(PrefixCache::new(0)),
            clock: None,
            spent: Arc::default(),
        }
    }

    /// The same with room for branches in their middle. Not for engines that count other than instructions: they promise less
    /// than that going on is running on to the last bit.
    #[must_use]
    pub fn with_prefix_cache(self, bytes: u64) -> Self {
        let bytes = if self.config.engine == EngineKind::Exact { bytes } else { 0 };
        Self { prefixes: Arc::new(PrefixCache::new(bytes)), ..self }
    }

    /// Where the host's time went in all branches that ran, on all threads.
    pub fn spent(&self) -> Spent {
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cluster ns that branches did not run because they went on from the middle of others.
    pub fn saved_ns(&self) -> u64 {
        self.prefixes.saved_ns()
    }
}

impl Machines {
    /// Runs a branch in which every VM's CPUs must take exactly these turns, if there are any.
    pub fn held_to(&self, plan: &Plan, turns: Option<TurnRecording>) -> Result<Ran, ExploreError> {
        let mut cluster = Cluster::new(&self.config)?;
        cluster.restore(&self.snapshot)?;
        Ok(ran(cluster.run_held_to(&branch_plan(plan), turns)?, self.snapshot.sim().now_ns()))
    }

    /// Runs a branch and watches it. Gives the network's counts since power-on too.
    pub fn watched(&self, plan: &Plan) -> Result<(Ran, BranchLog, NetworkCounts), ExploreError> {
        let mut cluster = Cluster::new(&self.config)?;
        let (outcome, log) = cluster.run_watched(Some(&self.snapshot), &branch_plan(plan))?;
        let network = outcome.network;
        Ok((ran(outcome, self.snapshot.sim().now_ns()), log, network))
    }
}

impl Factory for Machines {
    fn subject(&self) -> Result<Box<dyn Subject>, ExploreError> {
        let mut cluster = Cluster::new(&self.config)?;
        cluster.time(self.clock);
        let (snapshot, prefixes, spent) = (self.snapshot.clone(), self.prefixes.clone(), self.spent.clone());
        Ok(Box::new(Branches { cluster, snapshot, prefixes, spent }))
    }

    fn labels(&self) -> Vec<(String, u64)> {
        let reported = |row: &AssertionRow| {
            let label = if row.kind == "agree" { "agree" } else { "passes" };
            Mark::new(0, 0, format!("{label}: {}", row.message)).label
        };
        let rows = self.snapshot.oracle().assertions();
        let of_rows = rows.iter().map(|row| (reported(row), row.passes));
        of_rows.chain([(SEND.to_owned(), 100), (FLUSH.to_owned(), 100)]).collect()
    }

    fn shape(&self, horizon_ns: u64) -> Shape {
        self.config.sim().shape(horizon_ns)
    }
}

/// A cluster that is set back to its snapshot before each branch.
struct Branches {
    cluster: Cluster,
    snapshot: Arc<ClusterSnapshot>,
    prefixes: Arc<PrefixCache<Midway>>,
    spent: Arc<Mutex<Spent>>,
}

impl Subject for Branches {
    fn run(&mut self, plan: &Plan) -> Result<Ran, ExploreError> {
        let stops_ns = self.stops_ns(plan);
        let plan = branch_plan(plan);
        let midway = self.prefixes.farthest(plan.entropy_seed, |midway| midway.leads_to(&plan));
        let (outcome, kept) = self.cluster.run_branch_keeping(&self.snapshot, midway.as_deref(), &plan, &stops_ns)?;
        self.spent.lock().unwrap_or_else(PoisonError::into_inner).add(&self.cluster.spent());
        self.prefixes.ran(plan.entropy_seed, &outcome.schedule);
        for midway in kept {
            let (bytes, time_ns) = (midway.own_bytes(&self.snapshot), midway.time_ns());
            self.prefixes.keep(plan.entropy_seed, midway, bytes, time_ns);
        }
        Ok(ran(outcome, self.snapshot.sim().now_ns()))
    }
}

impl Branches {
    /// Where to keep the branch: at the last novel moment of the branch that it grows from at which it is still the same, as others will
    /// grow from there, too. Of a branch like no other, nobody knows yet whether any will grow from it, and most never see one.
    fn stops_ns(&self, plan: &Plan) -> Vec<u64> {
        let step_ns = (plan.horizon_ns / MOMENTS).max(1);
        match self.prefixes.alike_until(plan.seed, &plan.schedule) {
            None => Vec::new(),
            Some((until_ns, true)) => {
                let until_ns = until_ns.unwrap_or(plan.horizon_ns);
                let novel_ns = plan.novel_ns.iter().copied().take_while(|novel_ns| *novel_ns < until_ns).last();
                vec![novel_ns.unwrap_or(until_ns.saturating_sub(1) / step_ns * step_ns)]
            }
            Some((until_ns, false)) => {
                let coarse_ns = (1..).map(|stop| stop * COARSE * step_ns);
                coarse_ns.take_while(|stop_ns| *stop_ns < until_ns.unwrap_or(plan.horizon_ns)).collect()
            }
        }
    }
}

/// What the cluster is asked for. Every record is kept: that costs little beside the round itself, and a bug's are needed.
pub fn branch_plan(plan: &Plan) -> BranchPlan {
    let mut branch = BranchPlan::new(plan.schedule.clone(), plan.horizon_ns, plan.seed);
    branch.coverage = plan.coverage;
    branch.full_trace = true;
    branch.tactic.clone_from(&plan.tactic);
    branch
}

/// What a branch's outcome says to exploration.
pub fn ran(outcome: BranchOutcome, start_ns: u64) -> Ran {
    let mut violations: Vec<Violation> = outcome.violations.iter().map(violation).collect();
    if let EndReason::OracleLimit(limit) = &outcome.end {
        // Judging on would not be sound, and someone has to know.
        let identity = BugIdentity { kind: "oracle_limit".to_owned(), property: limit.to_string() };
        violations.push(Violation {
            identity,
            vm: 0,
            cluster_ns: U64(start_ns + outcome.cluster_ns),
            guest_ns: U64(0),
            instructions: U64(0),
            facts: Default::default(),
        });
    }
    Ran {
        violations,
        assertions: outcome
            .assertions
            .into_iter()
            .map(|row| assertion(row, start_ns))
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect(),
        coverage: outcome.coverage.unwrap_or_default(),
        schedule: outcome.schedule,
        marks: outcome.marks,
        randoms: outcome.randoms,
        closest: outcome.closest,
        ledger: outcome.ledger,
        trace: TraceDocument {
            digest: Digest(outcome.digest),
            rolling: Digest(outcome.trace.rolling),
            rounds: outcome.records.unwrap_or_default().iter().map(trace_round).collect(),
        },
        turns: outcome.turns,
        events: outcome.event_log.unwrap_or_default(),
        instructions: outcome.instructions,
        cluster_ns: outcome.cluster_ns,
        serial: outcome.serial,
    }
}

fn violation(violation: &chaoscontrol_cluster::Violation) -> Violation {
    let kind = violation.kind.name();
    let signature = violation.kind.signature();
    let property = signature.strip_prefix(kind).map_or(signature.as_str(), |rest| rest.trim_start_matches(": "));
    let fact = |name: &str, value: &dyn std::fmt::Display| (name.to_owned(), value.to_string());
    let facts = match &violation.kind {
        ViolationKind::Assertion { site, details, .. } => vec![fact("site", site), fact("details", details)],
        ViolationKind::Disagreement { key, first_vm, first_value, value, .. } => {
            vec![fact("key", key), fact("first_vm", first_vm), fact("first_value", first_value), fact("value", value)]
        }
        ViolationKind::GuestPanic { hint } => vec![fact("hint", hint)],
        ViolationKind::WorkloadExited { .. } | ViolationKind::GuestShutdown { .. } => Vec::new(),
    };
    Violation {
        identity: BugIdentity { kind: kind.to_owned(), property: property.to_owned() },
        vm: violation.vm,
        cluster_ns: U64(violation.cluster_ns),
        guest_ns: U64(violation.guest_ns),
        instructions: U64(violation.instructions),
        facts: facts.into_iter().filter(|(_, value)| !value.is_empty()).collect(),
    }
}

/// The row as the campaign merges it; moments after the start of the branch are the branch's, which gets its index there.
fn assertion(row: AssertionRow, start_ns: u64) -> AssertionSummary {
    let moment = |first: FirstTime| AssertionMoment {
        branch: (first.cluster_ns >= start_ns).then_some(U64(0)),
        vm: first.vm,
        cluster_ns: U64(first.cluster_ns),
    };
    let mut summary = AssertionSummary {
        identity: row.identity(),
        fingerprint: Digest(row.fingerprint()),
        first_pass: row.first_pass.map(moment),
        first_failure: row.first_failure.map(moment),
        verdict: String::new(),
        site: format!("{}/{}:{}:{}", row.package, row.file, row.line, row.column),
        kind: row.kind,
        property: row.message,
        must_hit: row.must_hit,
        passes: U64(row.passes),
        failures: U64(row.failures),
        branches: U64(u64::from(row.passes > 0)),
    };
    summary.verdict = summary.judged().to_owned();
    summary
}

fn trace_round(record: &RoundRecord) -> TraceRound {
    let vm = |vm: &VmRecord| TraceVm {
        power: vm.power,
        instructions: vm.instructions,
        registers: Digest(vm.registers),
        frames_sent: vm.frames_sent,
        frames: Digest(vm.frames),
        frames_delivered: vm.frames_delivered,
        sdk_records: vm.sdk_records,
        sdk: Digest(vm.sdk),
    };
    TraceRound {
        round: record.round,
        start_ns: record.start_ns,
        end_ns: record.end_ns,
        faults: record.faults.clone(),
        vms: record.vms.iter().map(vm).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_out_about_kvm_is_what_the_document_says() {
        // The modes are there also where KVM is not.
        let report = kvm::report();
        let document = document_of(report);
        assert_eq!(serde_json::to_value(&document).unwrap(), serde_json::to_value(report).unwrap());
        assert!(!document.modes.is_empty());
    }
}
