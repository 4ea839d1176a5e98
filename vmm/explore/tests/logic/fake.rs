// SPDX-License-Identifier: AGPL-3.0-or-later
//! A subject without machines: violations, coverage and trace are functions of the plan.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chaoscontrol_artifact::schema::{
    AssertionMoment, AssertionSummary, BugIdentity, TraceDocument, TraceRound, TraceVm, Violation,
};
use chaoscontrol_artifact::{Digest, U64};
use chaoscontrol_explore::{ExploreError, Factory, Plan, Ran, Subject};
use chaoscontrol_fault::{Fault, FaultEvent, Ledger, Mark, Rejection, Schedule, Shape, Tactician};

pub const HORIZON_NS: u64 = 5_000_000_000;

/// Whether a schedule shows the planted bug.
pub type Shows = fn(&Schedule) -> bool;

/// A partition of VM 0, and later a kill of VM 1 that keeps it down for 50 ms at least.
pub fn partition_then_kill(schedule: &Schedule) -> bool {
    let events = schedule.events();
    let cut = |fault: &Fault| matches!(fault, Fault::NetworkPartition { vms, .. } if vms & 1 != 0);
    let kill = |fault: &Fault| matches!(fault, Fault::VmKill { vm: 1, down_ns, .. } if *down_ns >= 50_000_000);
    let first = events.iter().position(|event| cut(&event.fault));
    first.is_some_and(|first| events[first..].iter().any(|event| kill(&event.fault)))
}

pub struct Fake {
    pub shows: Shows,
    /// Whether runs take a host time that differs from run to run.
    pub jitter: bool,
    pub runs: Arc<AtomicU64>,
}

impl Fake {
    pub fn new(shows: Shows) -> Self {
        Self { shows, jitter: false, runs: Arc::default() }
    }
}

impl Factory for Fake {
    fn subject(&self) -> Result<Box<dyn Subject>, ExploreError> {
        Ok(Box::new(FakeSubject { shows: self.shows, jitter: self.jitter, runs: self.runs.clone() }))
    }

    fn shape(&self, horizon_ns: u64) -> Shape {
        Shape { disks: vec![1; 3], cpus: 1, horizon_ns }
    }
}

struct FakeSubject {
    shows: Shows,
    jitter: bool,
    runs: Arc<AtomicU64>,
}

impl Subject for FakeSubject {
    fn run(&mut self, plan: &Plan) -> Result<Ran, ExploreError> {
        plan.schedule.check(&Shape { disks: vec![1; 3], cpus: 1, horizon_ns: plan.horizon_ns }).unwrap();
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        if self.jitter {
            std::thread::sleep(Duration::from_micros(run * 7919 % 1500));
        }
        let (schedule, marks) = followed(plan);
        let digest = Digest::of(format!("{schedule:?} {}", plan.seed).as_bytes());
        let bug = (self.shows)(&schedule);
        Ok(Ran {
            turns: Default::default(),
            violations: if bug { vec![violation()] } else { Vec::new() },
            assertions: vec![AssertionSummary {
                kind: "always".into(),
                property: "one leader".into(),
                identity: "raft 0.1.0 src/lib.rs:1:1".into(),
                fingerprint: Digest::of(b"descriptor"),
                site: "raft/src/lib.rs:1:1".into(),
                must_hit: true,
                passes: U64(3),
                failures: U64(u64::from(bug)),
                branches: U64(0),
                first_pass: Some(AssertionMoment { branch: Some(U64(0)), vm: 1, cluster_ns: U64(8) }),
                first_failure: bug.then_some(AssertionMoment { branch: Some(U64(0)), vm: 1, cluster_ns: U64(9) }),
                verdict: if bug { "violated" } else { "held" }.into(),
            }],
            coverage: vec![coverage(&schedule); 3],
            ledger: ledger(&schedule),
            schedule,
            marks,
            randoms: 90,
            closest: Default::default(),
            trace: TraceDocument { digest, rolling: digest, rounds: vec![round(digest)] },
            events: Vec::new(),
            instructions: 1000 + plan.seed % 100,
            cluster_ns: plan.horizon_ns,
            serial: vec![b"console\n".to_vec(); 3],
        })
    }
}

/// A ledger in which every fault is still to come but heals, which find nothing to heal.
fn ledger(schedule: &Schedule) -> Ledger {
    let mut ledger = Ledger::new(schedule);
    for (index, event) in schedule.events().iter().enumerate() {
        if matches!(event.fault, Fault::NetworkHeal {}) {
            ledger.reject(index, Rejection::NothingToHeal);
        }
    }
    ledger
}

/// A barrier of the fake.
const ROUND_NS: u64 = 50_000_000;

/// What the guests do, and the schedule that comes of following it: frames all the time, and a new leader after each partition.
fn followed(plan: &Plan) -> (Schedule, Vec<Mark>) {
    let mut events: Vec<FaultEvent> = plan.schedule.events().to_vec();
    let shape = Shape { disks: vec![1; 3], cpus: 1, horizon_ns: plan.horizon_ns };
    let mut tactician = plan.tactic.clone().map(|tactic| Tactician::new(tactic, shape));
    let mut all = Vec::new();
    for round in 1..=plan.horizon_ns / ROUND_NS {
        let now_ns = round * ROUND_NS;
        let mut marks = vec![Mark::new(now_ns - 9, (round % 3) as u16, "send".into())];
        let elected_after = now_ns.saturating_sub(5 * ROUND_NS)..now_ns.saturating_sub(4 * ROUND_NS);
        for event in events.iter().filter(|event| elected_after.contains(&event.time_ns)) {
            if let Fault::NetworkPartition { vms, .. } = event.fault {
                marks.push(Mark::new(now_ns - 2, (vms.trailing_zeros() as u16 + 1) % 3, "agree: a leader".into()));
            }
        }
        if let Some(tactician) = &mut tactician {
            events.extend(tactician.react(&marks, now_ns));
        }
        all.extend(marks);
    }
    let schedule = Schedule::new(events).unwrap().with_choices(plan.schedule.choices().to_vec());
    (schedule.unwrap(), all)
}

pub fn violation() -> Violation {
    Violation {
        identity: BugIdentity { kind: "assertion".into(), property: "one leader".into() },
        vm: 1,
        cluster_ns: U64(9),
        guest_ns: U64(9),
        instructions: U64(7),
        facts: BTreeMap::new(),
    }
}

pub fn round(digest: Digest) -> TraceRound {
    let vm = TraceVm {
        power: 0,
        instructions: 5,
        registers: digest,
        frames_sent: 0,
        frames: Digest::default(),
        frames_delivered: 0,
        sdk_records: 0,
        sdk: Digest::default(),
    };
    TraceRound { round: 1, start_ns: 0, end_ns: 1_000_000, faults: Vec::new(), vms: vec![vm; 3] }
}

/// Each kind of fault and each ordered pair of kinds is an edge; counts are hit counts.
fn coverage(schedule: &Schedule) -> Vec<u8> {
    let mut map = vec![0u8; 1024];
    map[0] = 1;
    for choice in schedule.choices() {
        map[600 + usize::from(choice.vm) * 8 + (choice.value % 8) as usize] = 1;
    }
    let events = schedule.events();
    for (index, event) in events.iter().enumerate() {
        let kind = event.fault.kind() as usize;
        map[1 + kind] = map[1 + kind].saturating_add(1);
        if let Some(next) = events.get(index + 1) {
            let pair = 32 + kind * 20 + next.fault.kind() as usize;
            map[pair] = map[pair].saturating_add(1);
        }
    }
    map
}
