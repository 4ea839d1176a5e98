// SPDX-License-Identifier: AGPL-3.0-or-later
//! Drift: one run of a named profile, and how a run compares with another one.

use chaoscontrol_artifact::schema::{Descriptor, Link, Parameter, RunConfiguration, SnapshotManifest, TraceDocument};
use chaoscontrol_artifact::{StageResult, Store};
use chaoscontrol_cluster::Cluster;
use chaoscontrol_fault::{Category, FaultKind, Planner, Shape, Stream};

use super::{Talk, same_guest};
use crate::error::ExploreError;
use crate::machines::{Host, Machines, configuration, note_engine};
use crate::pool::Pool;
use crate::replay::first_divergence;
use crate::subject::{Factory, Plan};

/// Names of the profiles: what a cluster must have, and which faults its branches get.
pub const PROFILES: [&str; 5] = ["single", "smp", "cluster", "disk", "net"];

/// One run.
#[derive(Clone, Debug)]
pub struct DriftOptions {
    /// One of [`PROFILES`].
    pub profile: String,
    /// Branches of the run.
    pub branches: u32,
    /// Length of each in cluster ns.
    pub horizon_ns: u64,
    /// Seed of schedules and branches.
    pub seed: u64,
    /// Whether the guests boot in each run, in place of going on from the snapshot.
    pub from_boot: bool,
    /// Threads.
    pub jobs: u32,
    /// Whether and how KVM may be used.
    pub host: Host,
}

/// Which faults a profile's branches get.
fn wanted(profile: &str, kind: FaultKind) -> bool {
    let category = kind.spec().category;
    match profile {
        "smp" => kind == FaultKind::CpuSwitch,
        "cluster" => true,
        // A guest that restarts reads its disk again.
        "disk" => category == Category::Disk || matches!(kind, FaultKind::VmKill | FaultKind::VmRestart),
        "net" => category == Category::Network,
        _ => false,
    }
}

/// Whether a cluster is what the profile is about.
fn check_shape(profile: &str, shape: &Shape) -> Result<(), ExploreError> {
    let needs = match profile {
        "smp" if shape.cpus < 2 => "VMs with several CPUs (chaos-boot --cpus 2)",
        "cluster" | "net" if shape.vms() < 2 => "several VMs (chaos-boot --vms 3)",
        "disk" if shape.disks.iter().all(|disks| *disks == 0) => "a disk (chaos-boot --disk-mib 16)",
        _ => return Ok(()),
    };
    Err(ExploreError::Input(format!("profile {profile} needs {needs}")))
}

/// The branches of a run: a function of shape, profile and seed alone.
fn plans(options: &DriftOptions, shape: Shape) -> Vec<Plan> {
    let planner = Planner::with_kinds(shape, |kind| wanted(&options.profile, kind));
    let plan = |index: u32| {
        let mut stream = Stream::named(options.seed, "drift", u64::from(index));
        let schedule = if planner.is_empty() { Default::default() } else { planner.random(&mut stream) };
        let seed = stream.below(u64::MAX);
        Plan { schedule, seed, horizon_ns: options.horizon_ns, coverage: true, ..Plan::default() }
    };
    (0..options.branches).map(plan).collect()
}

/// Runs the profile's branches once and stores their traces.
pub fn once(
    store: &Store,
    previous: &Descriptor,
    options: &DriftOptions,
    talk: Talk,
) -> Result<StageResult, ExploreError> {
    let snapshot = previous
        .output("snapshot")
        .ok_or_else(|| ExploreError::Input(format!("stage {} wrote no snapshot; chaos-boot does", previous.stage)))?;
    let run_ref = store.load::<SnapshotManifest>(&snapshot)?.run;
    same_guest(store, previous, &run_ref)?;
    let run: RunConfiguration = store.load(&run_ref)?;
    let machines = if options.from_boot {
        let config = configuration(store, &run, options.host.kvm)?;
        let mut cluster = Cluster::boot(&config)?;
        let snapshot = cluster.snapshot()?;
        Machines::booted(config, snapshot)
    } else {
        Machines::load(store, &snapshot, &options.host.on_engine_of(&run))?.0
    };
    let shape = machines.shape(options.horizon_ns);
    check_shape(&options.profile, &shape)?;
    let plans = plans(options, shape);
    let pool = Pool::new(&machines, options.jobs);
    let mut result = StageResult { jobs: options.jobs, ..StageResult::default() };
    note_engine(&mut result, &run);
    for (done, trace) in traces(&pool, &plans)?.into_iter().enumerate() {
        talk(done as u64 + 1, plans.len() as u64, "branches");
        result.outputs.push(Link::new("trace", store.publish(&trace)?));
    }
    parameters(options, &mut result);
    Ok(result)
}

fn parameters(options: &DriftOptions, result: &mut StageResult) {
    let mut set = |name: &str, value: Parameter| result.parameters.insert(name.to_owned(), value);
    set("profile", options.profile.as_str().into());
    set("branches", u64::from(options.branches).into());
    set("horizon_ns", options.horizon_ns.into());
    set("seed", options.seed.into());
    set("from_boot", Parameter::Flag(options.from_boot));
}

/// The traces of all branches, in order, whichever thread ran them.
fn traces(pool: &Pool, plans: &[Plan]) -> Result<Vec<TraceDocument>, ExploreError> {
    let jobs = pool.jobs();
    let part = |first: usize| -> Result<Vec<(usize, TraceDocument)>, ExploreError> {
        let mine = plans.iter().enumerate().skip(first).step_by(jobs);
        mine.map(|(index, plan)| Ok((index, pool.run(plan)?.trace))).collect()
    };
    let parts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|first| scope.spawn(move || part(first))).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut all = Vec::new();
    for part in parts {
        let part = part.map_err(|_| ExploreError::Internal("a thread that ran branches panicked".to_owned()))?;
        all.extend(part?);
    }
    all.sort_by_key(|(index, _)| *index);
    Ok(all.into_iter().map(|(_, trace)| trace).collect())
}

/// The first difference of two runs' traces, in words; none where they are the same to the last bit.
#[must_use]
pub fn compare(first: &[TraceDocument], second: &[TraceDocument]) -> Option<String> {
    for (branch, (first, second)) in first.iter().zip(second).enumerate() {
        if let Some(at) = first_divergence(first, second) {
            let vm = at.vm.map_or(String::new(), |vm| format!(", vm {vm}"));
            let what = format!("{}: {} and {}", at.what, at.expected, at.found);
            return Some(format!("branch {branch}, round {} at {} ns{vm}, {what}", at.round, at.cluster_ns));
        }
    }
    let (first, second) = (first.len(), second.len());
    (first != second).then(|| format!("{first} and {second} branches"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(profile: &str) -> DriftOptions {
        DriftOptions {
            profile: profile.to_owned(),
            branches: 8,
            horizon_ns: 1_000_000_000,
            seed: 3,
            from_boot: false,
            jobs: 1,
            host: Host::default(),
        }
    }

    #[test]
    fn each_profile_has_its_faults_and_refuses_clusters_it_is_not_about() {
        let shape = |vms: usize, cpus, disks| Shape { disks: vec![disks; vms], cpus, horizon_ns: 1_000_000_000 };
        for profile in PROFILES {
            let whole = shape(3, 2, 1);
            check_shape(profile, &whole).unwrap();
            let plans = plans(&options(profile), whole);
            let kinds: Vec<FaultKind> =
                plans.iter().flat_map(|plan| plan.schedule.events()).map(|event| event.fault.kind()).collect();
            assert_eq!(kinds.is_empty(), profile == "single", "{profile}");
            assert!(kinds.iter().all(|kind| wanted(profile, *kind)), "{profile}: {kinds:?}");
            let poor = check_shape(profile, &shape(1, 1, 0));
            assert_eq!(poor.is_ok(), profile == "single", "{profile}");
        }
    }
}
