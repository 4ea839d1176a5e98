// SPDX-License-Identifier: AGPL-3.0-or-later
//! Diverge: run one thing twice and name the first event that differs.

use chaoscontrol_artifact::schema::{Descriptor, Divergence, RunConfiguration, TraceDocument};
use chaoscontrol_artifact::{ObjectRef, Store};
use chaoscontrol_cluster::{Cluster, GuestEvent};
use chaoscontrol_fault::Schedule;
use chaoscontrol_machine::{CpuState, EngineKind, KvmOptions};
use chaoscontrol_trace::{Entry, Found, Narrowing, narrow};

use super::dlog::logged;
use super::{AnyBug, Talk, bugs_of, same_guest};
use crate::error::ExploreError;
use crate::machines::{branch_plan, configuration, ran};
use crate::replay::first_divergence;
use crate::snapshots;
use crate::subject::Plan;

/// What to run twice.
#[derive(Clone, Debug)]
pub struct DivergeOptions {
    /// From cold boot in place of the snapshot.
    pub from_boot: bool,
    /// The bug of this number, counted from 1, where the stage before wrote bugs; else the first.
    pub bug: Option<u64>,
    /// Length of a branch without a bug.
    pub horizon_ns: u64,
    /// Seed of a branch without a bug.
    pub seed: u64,
    /// Schedule of a branch without a bug.
    pub schedule: Option<Schedule>,
    /// Whether and how KVM may be used.
    pub kvm: KvmOptions,
}

/// Two runs that are not the same.
#[derive(Clone, Debug)]
pub struct Diverged {
    /// The first difference.
    pub at: Divergence,
    /// The VM's state at the end of that round: name, first run, second run. Where the two ran to, and what differs.
    pub registers: Vec<(String, String, String)>,
    /// The instruction after which they are not the same, where more runs found one.
    pub instruction: Option<Instruction>,
}

/// An instruction of a VM.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// Instructions of the VM before it.
    pub count: u64,
    /// The CPU that ran it.
    pub cpu: u8,
    /// Where it is.
    pub rip: Option<u64>,
    /// What follows it in the first run and in the second one.
    pub follows: [String; 2],
    /// Registers that differ behind it: name, first run, second run.
    pub registers: Vec<(String, String, String)>,
}

/// What two equal runs were.
#[derive(Clone, Debug)]
pub struct Same {
    /// Rounds of the branch.
    pub rounds: usize,
    /// Instructions of all VMs.
    pub instructions: u64,
    /// Digest of the whole branch.
    pub digest: chaoscontrol_artifact::Digest,
    /// What the guests reported as events.
    pub events: Vec<GuestEvent>,
}

/// Runs a branch twice, each time on machines of its own.
pub fn diverge(
    store: &Store,
    previous: &Descriptor,
    options: &DivergeOptions,
    talk: Talk,
) -> Result<Result<Same, Diverged>, ExploreError> {
    let (start, plan) = what(store, previous, options)?;
    talk(0, 2, "runs");
    let (first, start_ns) = start.run(store, &plan)?;
    talk(1, 2, "runs");
    let (second, _) = start.run(store, &plan)?;
    let Some(at) = first_divergence(&first.trace, &second.trace) else {
        let (rounds, digest) = (first.trace.rounds.len(), first.trace.digest);
        return Ok(Ok(Same { rounds, instructions: first.instructions, digest, events: first.events }));
    };
    talk(2, 2, "runs, and two more to the difference");
    let horizon_ns = at.cluster_ns.0.saturating_sub(start_ns).max(1);
    let Some(vm) = at.vm else { return Ok(Err(Diverged { at, registers: Vec::new(), instruction: None })) };
    let plan = Plan { schedule: before(&plan.schedule, horizon_ns), horizon_ns, ..plan };
    let registers = differing(start.registers(store, &plan, vm)?, start.registers(store, &plan, vm)?);
    let instruction = if start.counts_instructions(store)? {
        talk(2, 2, "runs, and some more to the instruction");
        let stretch = stretch(&first.trace, &second.trace, at.round.0, vm);
        start.instruction(store, &plan, vm, stretch)?
    } else {
        None
    };
    Ok(Err(Diverged { at, registers, instruction }))
}

/// A VM's counts at the barrier before a round, and at the later end of the round of two runs.
fn stretch(first: &TraceDocument, second: &TraceDocument, round: u64, vm: u16) -> (u64, u64) {
    let counts = |before: bool| {
        let rounds = [first, second].into_iter().flat_map(|trace| &trace.rounds);
        let wanted = rounds.filter(move |other| if before { other.round + 1 == round } else { other.round == round });
        wanted.filter_map(|round| round.vms.get(usize::from(vm))).map(|vm| vm.instructions)
    };
    (counts(true).min().unwrap_or(0), counts(false).max().unwrap_or(u64::MAX))
}

/// Where a run starts.
pub(super) struct Begin {
    pub run: ObjectRef,
    pub snapshot: Option<ObjectRef>,
    pub kvm: KvmOptions,
}

impl Begin {
    pub fn cluster(&self, store: &Store) -> Result<Cluster, ExploreError> {
        let config = configuration(store, &store.load::<RunConfiguration>(&self.run)?, self.kvm)?;
        let Some(snapshot) = &self.snapshot else { return Ok(Cluster::boot(&config)?) };
        let snapshot = snapshots::load(store, &store.load(snapshot)?)?;
        let mut cluster = Cluster::new(&config)?;
        cluster.restore(&snapshot)?;
        Ok(cluster)
    }

    fn run(&self, store: &Store, plan: &Plan) -> Result<(crate::Ran, u64), ExploreError> {
        let mut cluster = self.cluster(store)?;
        let start_ns = cluster.sim().now_ns();
        Ok((ran(cluster.run(&branch_plan(plan))?, start_ns), start_ns))
    }

    /// A VM's registers at the end of the plan.
    fn registers(&self, store: &Store, plan: &Plan, vm: u16) -> Result<Vec<(String, String)>, ExploreError> {
        let mut cluster = self.cluster(store)?;
        cluster.run(&branch_plan(plan))?;
        let missing = || ExploreError::Internal(format!("there is no vm {vm}"));
        flat(cluster.node_mut(vm).ok_or_else(missing)?.cpu())
    }

    /// Whether a count names one instruction.
    fn counts_instructions(&self, store: &Store) -> Result<bool, ExploreError> {
        let engine = store.load::<RunConfiguration>(&self.run)?.engine;
        Ok(matches!(EngineKind::from_name(&engine), Some(EngineKind::Exact)))
    }

    /// The instruction of a VM after which two more runs are not the same, if they come apart as the first two did.
    fn instruction(
        &self,
        store: &Store,
        plan: &Plan,
        vm: u16,
        (from, to): (u64, u64),
    ) -> Result<Option<Instruction>, ExploreError> {
        let run = |_, config| {
            let (_, mut vms) = logged(store, self, plan, Some(vm), config)?;
            Ok::<_, ExploreError>(vms.swap_remove(usize::from(vm)))
        };
        match narrow(vm, from, to, run)? {
            Narrowing::Same | Narrowing::Unsteady => Ok(None),
            Narrowing::Instruction(found) => instruction_of(&found).map(Some),
        }
    }
}

fn instruction_of(found: &Found) -> Result<Instruction, ExploreError> {
    let difference = &found.difference;
    let state = |entry: &Option<Entry>| entry.as_ref()?.mark.as_ref()?.state.clone();
    let line = |entry: &Option<Entry>| entry.as_ref().map_or("(ends)".to_owned(), Entry::line);
    let sides = [&difference.first, &difference.second];
    let registers = match sides.map(state) {
        [Some(first), Some(second)] => differing(flat(*first)?, flat(*second)?),
        _ => Vec::new(),
    };
    let cpu = sides.into_iter().flatten().next().map_or(0, |entry| entry.cpu);
    let rip = state(&difference.before).map(|state| state.rip);
    Ok(Instruction { count: found.progress, cpu, rip, follows: sides.map(line), registers })
}

/// Every number of a CPU's state by name.
fn flat(mut cpu: CpuState) -> Result<Vec<(String, String)>, ExploreError> {
    // JSON values hold no numbers of 128 bits.
    let xmm = std::mem::take(&mut cpu.xmm);
    let value = serde_json::to_value(cpu).map_err(|error| ExploreError::Internal(error.to_string()))?;
    let mut flat = Vec::new();
    flatten(&value, String::new(), &mut flat);
    flat.retain(|(name, _)| !name.starts_with("xmm["));
    flat.extend(xmm.iter().enumerate().map(|(index, value)| (format!("xmm[{index}]"), format!("{value:#x}"))));
    Ok(flat)
}

pub(super) fn what(
    store: &Store,
    previous: &Descriptor,
    options: &DivergeOptions,
) -> Result<(Begin, Plan), ExploreError> {
    let bugs = bugs_of(previous, None)?;
    if !bugs.is_empty() {
        let number = options.bug.unwrap_or(1);
        let bug = AnyBug::load(store, bugs_of(previous, Some(number))?[0])?;
        let snapshot = bug.record.snapshot.filter(|_| !options.from_boot);
        return Ok((Begin { run: bug.record.run, snapshot, kvm: options.kvm }, bug.plan()));
    }
    let snapshot = previous.output("snapshot").ok_or_else(|| {
        ExploreError::Input(format!("stage {} wrote neither bugs nor a snapshot to run", previous.stage))
    })?;
    let run = store.load::<chaoscontrol_artifact::schema::SnapshotManifest>(&snapshot)?.run;
    same_guest(store, previous, &run)?;
    let schedule = options.schedule.clone().unwrap_or_default();
    let plan = Plan { schedule, seed: options.seed, horizon_ns: options.horizon_ns, coverage: true, ..Plan::default() };
    Ok((Begin { run, snapshot: (!options.from_boot).then_some(snapshot), kvm: options.kvm }, plan))
}

/// The faults that are due before the end of a shorter branch.
fn before(schedule: &Schedule, horizon_ns: u64) -> Schedule {
    let events = schedule.events().iter().filter(|event| event.time_ns < horizon_ns).copied().collect();
    Schedule::new(events).expect("no more events than before")
}

/// Every number of a CPU's state with its path.
fn flatten(value: &serde_json::Value, path: String, out: &mut Vec<(String, String)>) {
    const GPR: [&str; 16] =
        ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
    let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| flatten(value, join(name), out)),
        serde_json::Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let name = match GPR.get(index) {
                    Some(name) if path == "gpr" => (*name).to_owned(),
                    _ => format!("{path}[{index}]"),
                };
                flatten(item, name, out);
            }
        }
        serde_json::Value::Number(number) if number.is_u64() => {
            out.push((path, format!("{:#x}", number.as_u64().unwrap_or(0))));
        }
        other => out.push((path, other.to_string())),
    }
}

/// Shown also where they are equal.
const WHERE: [&str; 2] = ["instructions", "rip"];

fn differing(first: Vec<(String, String)>, second: Vec<(String, String)>) -> Vec<(String, String, String)> {
    let pairs = first.into_iter().zip(second);
    let wanted = |(a, b): &((String, String), (String, String))| a.1 != b.1 || WHERE.contains(&a.0.as_str());
    pairs.filter(wanted).map(|(a, b)| (a.0, a.1, b.1)).collect()
}
