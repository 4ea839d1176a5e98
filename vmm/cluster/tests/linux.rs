// SPDX-License-Identifier: AGPL-3.0-or-later
//! Real Linux guests: determinism of whole branches, stored snapshots, and what a guest measures of every fault kind.
//!
//! Each test says loudly that it was skipped where no guest kernel or initrd has been built (`guest/kernel/build`, `guest/build`).

mod guests;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use chaoscontrol_cluster::{BranchOutcome, BranchPlan, Cluster, ClusterSnapshot, ClusterState, EndReason, GuestEvent};
use chaoscontrol_fault::{Fault, FaultKind, Planner, SPECS, Schedule, Stream};
use chaoscontrol_machine::pages::{Digest, Page};
use guests::{MS, SECOND, config, schedule};

/// A booted cluster and its snapshot.
type Booted = Option<(Cluster, ClusterSnapshot)>;

fn boot(initrd: &str, vms: u16, append: &str) -> Booted {
    let mut config = config(initrd, vms)?;
    config.append = append.to_owned();
    let mut cluster = Cluster::boot(&config).unwrap();
    let snapshot = cluster.snapshot().expect("sound");
    Some((cluster, snapshot))
}

fn run(cluster: &mut Cluster, from: &ClusterSnapshot, horizon_ns: u64, events: &[(u64, Fault)]) -> BranchOutcome {
    let mut plan = BranchPlan::new(schedule(events), horizon_ns, 7);
    (plan.full_trace, plan.coverage) = (true, false);
    cluster.run_branch(from, &plan).unwrap()
}

/// Sums, maxima and minima of the numbers in events of one name, by VM and field.
fn fields<'a>(events: &'a [GuestEvent], name: &str, field: &str) -> Vec<(&'a GuestEvent, i64)> {
    let number = |event: &'a GuestEvent| {
        let details: serde_json::Value = serde_json::from_str(&event.details).ok()?;
        Some((event, details.get(field)?.as_i64()?))
    };
    events.iter().filter(|event| event.name == name).filter_map(number).collect()
}

/// What the probe of VM 0 and VM 1 saw: `(vm, field) -> (sum, max, min)`.
struct Seen(BTreeMap<(u16, &'static str), (i64, i64, i64)>);

impl Seen {
    fn of(outcome: &BranchOutcome) -> Self {
        let log = outcome.event_log.as_deref().unwrap_or_default();
        let link = ["sent", "heard", "echoed", "large_heard", "duplicated", "reordered", "rtt_max_us", "rate_ppm"];
        let host = [
            "gap_us",
            "wall_step_us",
            "checksum_errors",
            "read_errors",
            "write_errors",
            "torn_writes",
            "flipped_reads",
            "lost_blocks",
            "disk_blocks",
            "disk_max_us",
            "work_max_us",
            "entropy_irqs",
            "nmis",
            "available_kib",
        ];
        let mut seen = BTreeMap::new();
        let names =
            link.iter().map(|field| ("probe_link", *field)).chain(host.iter().map(|field| ("probe_host", *field)));
        for (name, field) in names.chain([("probe_started", "life")]) {
            for (event, value) in fields(log, name, field) {
                let entry = seen.entry((event.vm, field)).or_insert((0, i64::MIN, i64::MAX));
                *entry = (entry.0 + value, entry.1.max(value), entry.2.min(value));
            }
        }
        Self(seen)
    }

    fn sum(&self, vm: u16, field: &'static str) -> i64 {
        self.0.get(&(vm, field)).map_or(0, |(sum, ..)| *sum)
    }

    fn max(&self, vm: u16, field: &'static str) -> i64 {
        self.0.get(&(vm, field)).map_or(0, |(_, max, _)| *max)
    }

    fn min(&self, vm: u16, field: &'static str) -> i64 {
        self.0.get(&(vm, field)).map_or(0, |(.., min)| *min)
    }
}

/// A fault of the kind that the probe cannot miss, on VM 1 or on frames from VM 0 to VM 1.
fn strong(kind: FaultKind) -> Fault {
    let (from_vms, to_vms, duration_ns) = (1, 2, SECOND);
    let (vm, disk) = (1, 0);
    match kind {
        FaultKind::NetworkLatency => Fault::NetworkLatency { from_vms, to_vms, latency_ns: 50 * MS, duration_ns },
        FaultKind::NetworkJitter => Fault::NetworkJitter { from_vms, to_vms, jitter_ns: 100 * MS, duration_ns },
        FaultKind::NetworkLoss => Fault::NetworkLoss { from_vms, to_vms, loss_ppm: 500_000, duration_ns },
        FaultKind::NetworkDuplication => {
            Fault::NetworkDuplication { from_vms, to_vms, duplication_ppm: 500_000, delay_ns: MS, duration_ns }
        }
        FaultKind::NetworkReorder => {
            Fault::NetworkReorder { from_vms, to_vms, reorder_ppm: 300_000, delay_ns: 70 * MS, duration_ns }
        }
        FaultKind::NetworkCorruption => {
            Fault::NetworkCorruption { from_vms, to_vms, corruption_ppm: 500_000, duration_ns }
        }
        FaultKind::NetworkBandwidth => {
            Fault::NetworkBandwidth { from_vms, to_vms, bytes_per_second: 2_000, duration_ns }
        }
        FaultKind::NetworkPartition => Fault::NetworkPartition { vms: 2, duration_ns },
        FaultKind::NetworkPartitionOneWay => Fault::NetworkPartitionOneWay { from_vms, to_vms, duration_ns },
        FaultKind::NetworkHeal => Fault::NetworkHeal {},
        FaultKind::NetworkClog => Fault::NetworkClog { from_vms, to_vms, duration_ns: 500 * MS },
        FaultKind::NetworkMtu => Fault::NetworkMtu { from_vms, to_vms, mtu_bytes: 200, duration_ns },
        FaultKind::DiskLatency => Fault::DiskLatency { vm, disk, latency_ns: 40 * MS, duration_ns },
        FaultKind::ClockFreeze => Fault::ClockFreeze { vm, duration_ns: 400 * MS },
        FaultKind::ClockJitter => {
            Fault::ClockJitter { vm, jitter_ns: 10 * SECOND, every_ns: 150 * MS, duration_ns: 700 * MS }
        }
        FaultKind::CpuStall => Fault::CpuStall { vm, stall_ns: 150 * MS, every_ns: 400 * MS, duration_ns },
        FaultKind::CpuThrottle => Fault::CpuThrottle { vm, speed_ppm: 100_000, duration_ns },
        FaultKind::InterruptIrq => Fault::InterruptIrq { vm, irq: 5, every_ns: 10 * MS, duration_ns },
        FaultKind::InterruptNmi => Fault::InterruptNmi { vm },
        FaultKind::ProcessKill => Fault::ProcessKill { vm, process: 0, down_ns: 100 * MS },
        FaultKind::ProcessPause => Fault::ProcessPause { vm, process: 0, duration_ns: 400 * MS },
        FaultKind::ProcessRestart => Fault::ProcessRestart { vm },
        FaultKind::MemoryPressure => Fault::MemoryPressure { vm, part_ppm: 800_000, duration_ns },
        FaultKind::VmKill => Fault::VmKill { vm, survivors: u64::MAX, torn_write: 0, torn_bytes: 0, down_ns: 100 * MS },
        FaultKind::VmPause => Fault::VmPause { vm, duration_ns: 400 * MS },
        FaultKind::VmRestart => Fault::VmRestart { vm },
        FaultKind::DiskReadError => Fault::DiskReadError { vm, disk, error_ppm: 500_000, duration_ns },
        FaultKind::DiskWriteError => Fault::DiskWriteError { vm, disk, error_ppm: 1_000_000, duration_ns },
        FaultKind::DiskTornWrite => {
            Fault::DiskTornWrite { vm, disk, torn_ppm: 1_000_000, torn_bytes: 1_000, duration_ns }
        }
        FaultKind::DiskCorruption => Fault::DiskCorruption { vm, disk, corruption_ppm: 500_000, duration_ns },
        FaultKind::DiskFull => Fault::DiskFull { vm, disk, duration_ns },
        FaultKind::ClockSkew => Fault::ClockSkew { vm, numerator: 3, denominator: 2, duration_ns },
        FaultKind::ClockJump => Fault::ClockJump { vm, jump_ns: -(5 * SECOND as i64) },
        FaultKind::CpuSwitch => Fault::CpuSwitch { vm, cpu: 1, hold_ns: MS },
    }
}

/// Whether the guests measured the fault, against the same branch without it. VM 0's echoes of VM 1's probes and VM 1's
/// own probes tell the directions apart.
fn measured(kind: FaultKind, quiet: &Seen, seen: &Seen) -> bool {
    let fewer = |vm, field| seen.sum(vm, field) * 3 < quiet.sum(vm, field) * 2;
    match kind {
        FaultKind::NetworkLatency => seen.max(0, "rtt_max_us") > quiet.max(0, "rtt_max_us") + 45_000,
        FaultKind::NetworkJitter => {
            seen.max(0, "rtt_max_us") > quiet.max(0, "rtt_max_us") + 45_000 && seen.sum(1, "reordered") > 0
        }
        FaultKind::NetworkLoss => seen.sum(1, "heard") * 10 < quiet.sum(1, "heard") * 9,
        FaultKind::NetworkDuplication => seen.sum(1, "duplicated") > 0 && quiet.sum(1, "duplicated") == 0,
        FaultKind::NetworkReorder => seen.sum(1, "reordered") > 0 && quiet.sum(1, "reordered") == 0,
        FaultKind::NetworkCorruption => seen.sum(1, "checksum_errors") > 0 && quiet.sum(1, "checksum_errors") == 0,
        FaultKind::NetworkBandwidth => seen.max(0, "rtt_max_us") > quiet.max(0, "rtt_max_us") + 45_000,
        FaultKind::NetworkPartition => fewer(0, "heard") && fewer(1, "heard"),
        FaultKind::NetworkPartitionOneWay => fewer(1, "heard") && !fewer(0, "heard"),
        // Compared with a partition that nobody heals, below.
        FaultKind::NetworkHeal => seen.sum(1, "heard") > quiet.sum(1, "heard"),
        FaultKind::NetworkClog => {
            seen.max(0, "rtt_max_us") > quiet.max(0, "rtt_max_us") + 450_000
                && seen.sum(1, "heard") * 10 > quiet.sum(1, "heard") * 9
        }
        FaultKind::NetworkMtu => fewer(1, "large_heard") && seen.sum(1, "heard") * 5 > quiet.sum(1, "heard") * 4,
        FaultKind::DiskLatency => seen.max(1, "disk_max_us") > quiet.max(1, "disk_max_us") + 75_000,
        // The others see its clock fall behind; it sees no gap itself.
        FaultKind::ClockFreeze => {
            seen.min(0, "rate_ppm") < -300_000 && quiet.min(0, "rate_ppm") > -50_000 && seen.max(1, "gap_us") < 100_000
        }
        FaultKind::ClockJitter => {
            let (ahead, back) = (seen.max(1, "wall_step_us"), seen.min(1, "wall_step_us"));
            ahead > 100_000 && back < -100_000 && seen.sum(1, "wall_step_us").abs() < 10_000
        }
        FaultKind::CpuStall => (140_000..300_000).contains(&seen.max(1, "gap_us")) && quiet.max(1, "gap_us") < 100_000,
        FaultKind::CpuThrottle => seen.max(1, "work_max_us") > quiet.max(1, "work_max_us") * 4,
        FaultKind::InterruptIrq => seen.sum(1, "entropy_irqs") > 50 && quiet.sum(1, "entropy_irqs") < 10,
        FaultKind::InterruptNmi => seen.sum(1, "nmis") == 1 && quiet.sum(1, "nmis") == 0,
        FaultKind::MemoryPressure => seen.min(1, "available_kib") * 2 < quiet.min(1, "available_kib"),
        FaultKind::ProcessPause => seen.max(1, "gap_us") > 390_000 && quiet.max(1, "gap_us") < 100_000,
        FaultKind::VmKill | FaultKind::VmRestart | FaultKind::ProcessKill | FaultKind::ProcessRestart => {
            seen.max(1, "life") == 2 && quiet.max(1, "life") == 0
        }
        FaultKind::VmPause => seen.max(1, "gap_us") > 390_000 && quiet.max(1, "gap_us") < 100_000,
        FaultKind::DiskReadError => seen.sum(1, "read_errors") > 0 && quiet.sum(1, "read_errors") == 0,
        FaultKind::DiskWriteError | FaultKind::DiskFull => {
            seen.sum(1, "write_errors") > 0 && quiet.sum(1, "write_errors") == 0 && seen.sum(1, "torn_writes") == 0
        }
        FaultKind::DiskTornWrite => seen.sum(1, "torn_writes") > 0 && quiet.sum(1, "torn_writes") == 0,
        FaultKind::DiskCorruption => seen.sum(1, "flipped_reads") > 0 && quiet.sum(1, "flipped_reads") == 0,
        FaultKind::ClockSkew => seen.max(0, "rate_ppm") > 300_000 && quiet.max(0, "rate_ppm") < 50_000,
        FaultKind::ClockJump => seen.sum(1, "wall_step_us") < -4_000_000 && quiet.sum(1, "wall_step_us") == 0,
        // Guests of one CPU have no turns to cut.
        FaultKind::CpuSwitch => false,
    }
}

#[test]
fn a_guest_measures_the_effect_of_every_fault_kind() {
    let Some((mut cluster, snapshot)) = boot("fault-probe", 2, "") else { return };
    let horizon_ns = 2 * SECOND;
    let calm = Seen::of(&run(&mut cluster, &snapshot, horizon_ns, &[]));
    assert!(calm.sum(0, "heard") > 50 && calm.sum(1, "disk_blocks") > 3, "the probes work");
    let cut = (300 * MS, Fault::NetworkPartition { vms: 1, duration_ns: 0 });
    let cut_off = Seen::of(&run(&mut cluster, &snapshot, horizon_ns, &[cut]));
    let mut missed = Vec::new();
    // These guests have one CPU; `checks/e2e/tests/races.rs` shows what cutting turns of several does.
    for spec in SPECS.iter().filter(|spec| spec.kind != FaultKind::CpuSwitch) {
        let fault = (600 * MS, strong(spec.kind));
        let (events, quiet) = match spec.kind {
            FaultKind::NetworkHeal => (vec![cut, fault], &cut_off),
            _ => (vec![fault], &calm),
        };
        let outcome = run(&mut cluster, &snapshot, horizon_ns, &events);
        assert_eq!(outcome.violations, [], "{}", spec.name);
        let entry = outcome.ledger.entries().last().unwrap();
        let seen = Seen::of(&outcome);
        if entry.observed == 0 || !measured(spec.kind, quiet, &seen) {
            missed.push(format!("{}: {entry:?} {:?}", spec.name, seen.0));
        }
    }
    assert!(missed.is_empty(), "not measured:\n{}\nwithout faults: {:?}", missed.join("\n"), calm.0);
}

#[test]
fn with_three_unflushed_writes_a_guest_finds_all_eight_surviving_subsets_and_a_torn_one() {
    let Some((mut cluster, snapshot)) = boot("fault-probe", 1, "probe_disk=unflushed") else { return };
    let mut life = |survivors, torn_write, torn_bytes| {
        let kill = Fault::VmKill { vm: 0, survivors, torn_write, torn_bytes, down_ns: MS };
        let outcome = run(&mut cluster, &snapshot, SECOND, &[(MS, kill)]);
        let log = outcome.event_log.unwrap();
        let one = |field| fields(&log, "probe_started", field).last().map(|(_, value)| *value);
        (one("life"), one("survivors"), one("torn"))
    };
    for survivors in 0..8 {
        assert_eq!(life(survivors, 0, 0), (Some(2), Some(survivors as i64), Some(0)), "subset {survivors:#b}");
    }
    assert_eq!(life(0b001, 2, 1_000), (Some(2), Some(0b001), Some(0b100)));
}

fn raft() -> Booted {
    boot("raft", 3, "")
}

/// Schedules for three VMs with a disk each.
fn schedules(cluster: &Cluster, horizon_ns: u64, number: u64) -> Vec<Schedule> {
    let planner = Planner::new(cluster.sim().config().shape(horizon_ns));
    (0..number).map(|seed| planner.random(&mut Stream::named(seed, "linux test", 0))).collect()
}

#[test]
fn the_same_plan_gives_the_same_branch_in_any_order_and_in_another_cluster() {
    let Some((mut cluster, snapshot)) = raft() else { return };
    let schedules = schedules(&cluster, SECOND, 4);
    let plan = |seed: usize| BranchPlan::new(schedules[seed].clone(), SECOND, seed as u64);
    let first: Vec<BranchOutcome> = (0..4).map(|seed| cluster.run_branch(&snapshot, &plan(seed)).unwrap()).collect();
    let (mut other, own) = raft().unwrap();
    assert!(own == snapshot, "two boots are one");
    for seed in (0..4).rev() {
        assert_eq!(other.run_branch(&own, &plan(seed)).unwrap(), first[seed], "seed {seed}");
        assert_eq!(cluster.run_branch(&own, &plan(seed)).unwrap().digest, first[seed].digest, "seed {seed}");
    }
    assert_ne!(first[0].digest, first[1].digest);
}

#[test]
fn a_stored_snapshot_runs_as_the_one_it_was_made_of() {
    let Some((mut cluster, snapshot)) = raft() else { return };
    let pages: BTreeMap<Digest, Arc<Page>> = snapshot.pages().map(|page| (page.digest(), page.clone())).collect();
    let state = snapshot.to_parts();
    let stored: ClusterState = serde_json::from_slice(&serde_json::to_vec(&state).unwrap()).unwrap();
    assert_eq!(stored, state);
    let mut source = |digest: &Digest| pages.get(digest).cloned().ok_or("no such page");
    let loaded = ClusterSnapshot::from_parts(stored, &mut source).unwrap();
    assert!(loaded == snapshot);
    let missing = ClusterSnapshot::from_parts(state, &mut |_: &Digest| Err("no such page"));
    assert!(missing.is_err());

    let schedule = schedules(&cluster, SECOND, 2).remove(1);
    let plan = BranchPlan::new(schedule, SECOND, 3);
    let expected = cluster.run_branch(&snapshot, &plan).unwrap();
    let mut fresh = Cluster::new(&config("raft", 3).unwrap()).unwrap();
    assert_eq!(fresh.run_branch(&loaded, &plan).unwrap(), expected);
}

#[test]
fn a_calm_raft_cluster_serves_its_clients_and_violates_nothing() {
    let Some((mut cluster, snapshot)) = raft() else { return };
    let outcome = cluster.run_branch(&snapshot, &BranchPlan::new(Schedule::default(), SECOND, 1)).unwrap();
    assert_eq!((outcome.end, outcome.violations), (EndReason::Horizon, vec![]));
    let served = outcome.assertions.iter().find(|row| row.message == "a client is served").unwrap();
    assert!(served.passes > 0);
    assert!(outcome.coverage.unwrap().iter().all(|edges| edges.iter().any(|count| *count > 0)));
}

/// Guests that reboot are expensive in a debug build: they share one cluster.
static KILLED: LazyLock<Option<BranchOutcome>> = LazyLock::new(|| {
    let (mut cluster, snapshot) = raft()?;
    let kill = |vm| Fault::VmKill { vm, survivors: 0, torn_write: 0, torn_bytes: 0, down_ns: 100 * MS };
    Some(run(&mut cluster, &snapshot, 3 * SECOND, &[(MS, kill(0)), (500 * MS, kill(1)), (900 * MS, kill(2))]))
});

#[test]
fn killed_nodes_come_back_with_what_was_flushed() {
    let Some(outcome) = &*KILLED else { return };
    assert_eq!(outcome.violations, []);
    let passes = |message: &str| outcome.assertions.iter().find(|row| row.message == message).unwrap().passes;
    assert!(passes("a node starts again with its log") >= 3);
    assert!(passes("what was flushed survives") >= 6);
}
