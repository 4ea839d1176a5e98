// SPDX-License-Identifier: AGPL-3.0-or-later
//! A whole chain of documents without running anything.

use std::collections::BTreeMap;
use std::path::Path;

use chaoscontrol_artifact::pack::PAGE_BYTES;
use chaoscontrol_artifact::schema::*;
use chaoscontrol_artifact::{Bytes, Digest, MediaType, ObjectRef, StageResult, Store, U64};
use chaoscontrol_evidence::{derive, judge};
use chaoscontrol_fault::{Fault, FaultEvent, Ledger, Schedule};

/// How a chain differs from one that is accepted.
#[derive(Clone)]
pub struct Shape {
    pub bugs: Vec<(Outcome, Start)>,
    pub explored: bool,
    pub minimal: bool,
    pub snapshot: bool,
    pub reproduced: bool,
    /// What the stages that ran guests say of their engine.
    pub engine: Parameters,
}

impl Default for Shape {
    fn default() -> Self {
        let bugs = vec![(Outcome::Reproduced, Start::Snapshot)];
        Self { bugs, explored: true, minimal: true, snapshot: true, reproduced: true, engine: Parameters::new() }
    }
}

fn tool(name: &str) -> ToolIdentity {
    ToolIdentity { name: name.into(), version: "0.1.0".into(), source: Digest::of(b"source") }
}

/// Publishes the descriptor of a stage.
pub fn publish(
    store: &Store,
    stage: &str,
    previous: Option<ObjectRef>,
    result: StageResult,
) -> (Descriptor, ObjectRef) {
    let mut inputs = result.inputs;
    if let Some(previous) = previous {
        inputs.insert(0, Link::new("previous", previous));
    }
    let mut parameters = result.parameters;
    parameters.insert("seed".into(), 42u64.into());
    let descriptor = Descriptor {
        stage: stage.into(),
        tool: tool(&format!("chaos-{stage}")),
        parameters,
        inputs,
        outputs: result.outputs,
        receipt: result.receipt,
    };
    let reference = store.publish(&descriptor).unwrap();
    (descriptor, reference)
}

fn outputs(outputs: Vec<Link>) -> StageResult {
    StageResult { outputs, ..StageResult::default() }
}

fn run_and_snapshot(store: &Store) -> (ObjectRef, ObjectRef) {
    let run = RunConfiguration {
        seed: U64(42),
        engine: "exact".into(),
        firmware: "acpi".into(),
        ns_per_instruction: 10,
        kernel: store.put(MediaType::Kernel, b"a kernel").unwrap(),
        initrd: Some(store.put(MediaType::Initrd, b"an initrd").unwrap()),
        vms: 3,
        append: String::new(),
        append_vm: Vec::new(),
        memory_bytes: U64(64 << 20),
        disks: Vec::new(),
        wall_clock_start_ns: U64(0),
        network: NetworkConfiguration { latency_ns: U64(1_000_000), jitter_ns: U64(0), loss_ppm: 500 },
        setup_limit_ns: U64(1),
        smp: None,
        coverage: None,
    };
    let run = store.publish(&run).unwrap();
    let pages: Vec<[u8; PAGE_BYTES]> = (1..=5).map(|fill| [fill; PAGE_BYTES]).collect();
    let pages: BTreeMap<Digest, &[u8; PAGE_BYTES]> = pages.iter().map(|page| (Digest::of(page), page)).collect();
    store.put_pages(&pages).unwrap();
    let manifest = SnapshotManifest {
        run,
        cluster_ns: U64(1),
        vms: 3,
        state: Bytes(vec![1, 2, 3]),
        pages: SnapshotManifest::pages_of(&pages.into_keys().collect()),
    };
    (run, store.publish(&manifest).unwrap())
}

fn bug(store: &Store, run: ObjectRef, snapshot: Option<ObjectRef>, number: u64) -> Bug {
    let event = FaultEvent { time_ns: number, fault: Fault::VmRestart { vm: 1 } };
    let schedule = Schedule::new(vec![event]).unwrap();
    let trace = TraceDocument { digest: Digest::of(b"t"), rolling: Digest::of(b"r"), rounds: Vec::new() };
    Bug {
        violation: Violation {
            identity: BugIdentity { kind: "assertion".into(), property: format!("property {number}") },
            vm: 0,
            cluster_ns: U64(5),
            guest_ns: U64(5),
            instructions: U64(5),
            facts: BTreeMap::new(),
        },
        branch: U64(number),
        record: BranchRecord {
            run,
            snapshot,
            seed: U64(1),
            horizon_ns: U64(100),
            ledger: Ledger::new(&schedule),
            schedule,
            trace: store.publish(&trace).unwrap(),
            turns: None,
            instructions: U64(9),
            cluster_ns: U64(9),
        },
    }
}

fn corpus(store: &Store, run: ObjectRef, snapshot: ObjectRef, bugs: Vec<ObjectRef>) -> ObjectRef {
    let coverage = CoverageMap { slots: Bytes(vec![0, 1]), edges: 1, collisions: 0 };
    let gap = AssertionSummary {
        kind: "sometimes".into(),
        property: "a leader was replaced".into(),
        identity: "a 0.1.0 b.rs:1:1".into(),
        fingerprint: Digest::of(b"descriptor"),
        site: "a/b.rs:1:1".into(),
        must_hit: true,
        passes: U64(0),
        failures: U64(0),
        branches: U64(0),
        first_pass: None,
        first_failure: None,
        verdict: "never_reached".into(),
    };
    let total = RoundSummary {
        branches: U64(3),
        edges: 1,
        entries: 0,
        bugs: bugs.len() as u32,
        instructions: U64(1),
        cluster_ns: U64(1),
        novel: U64(0),
    };
    let planned = PlannedBranch {
        branch: U64(3),
        seed: U64(1),
        origin: Origin::Empty,
        parent: None,
        schedule: Schedule::default(),
        tactic: None,
    };
    let corpus = Corpus {
        run,
        snapshot,
        seed: U64(42),
        window: 1,
        horizon_ns: U64(100),
        mode: Mode::Faults,
        coverage: store.publish(&coverage).unwrap(),
        assertions: store.publish(&Assertions { assertions: vec![gap] }).unwrap(),
        entries: Vec::new(),
        planned: vec![planned],
        bugs,
        faults: BTreeMap::new(),
        labels: BTreeMap::new(),
        rounds: vec![total],
        total,
    };
    store.publish(&corpus).unwrap()
}

/// The chain up to what the verdict is made of.
pub fn up_to_verdict(store: &Store, shape: &Shape) -> (Descriptor, ObjectRef) {
    let (run, snapshot) = run_and_snapshot(store);
    let links = vec![Link::new("run", run), Link::new("snapshot", snapshot)];
    let booted = StageResult { parameters: shape.engine.clone(), ..outputs(links) };
    let boot = publish(store, "boot", None, booted);
    let of = shape.snapshot.then_some(snapshot);
    let bugs: Vec<Bug> = (0..shape.bugs.len() as u64).map(|number| bug(store, run, of, number)).collect();
    let violations: Vec<Violation> = bugs.iter().map(|bug| bug.violation.clone()).collect();
    let refs: Vec<ObjectRef> = bugs.iter().map(|bug| store.publish(bug).unwrap()).collect();
    let mut links: Vec<Link> = refs.iter().map(|bug| Link::new("bug", *bug)).collect();
    if shape.explored {
        links.insert(0, Link::new("corpus", corpus(store, run, snapshot, refs.clone())));
    }
    let explored = StageResult { parameters: shape.engine.clone(), ..outputs(links) };
    let mut last = publish(store, "explore-round", Some(boot.1), explored);
    let minimized: Vec<ObjectRef> = bugs
        .into_iter()
        .zip(refs)
        .map(|(bug, reference)| {
            let minimized = MinimizedBug {
                bug: reference,
                violation: bug.violation,
                record: bug.record,
                original_faults: 4,
                attempts: 9,
                one_minimal: shape.minimal,
            };
            store.publish(&minimized).unwrap()
        })
        .collect();
    let links = minimized.iter().map(|bug| Link::new("minimized-bug", *bug)).collect();
    last = publish(store, "minimize", Some(last.1), outputs(links));
    if shape.reproduced {
        let reproduce = |((bug, (outcome, start)), violation): ((&ObjectRef, &(Outcome, Start)), &Violation)| {
            let reproduction = Reproduction {
                bug: *bug,
                start: *start,
                outcome: outcome.clone(),
                violation: matches!(outcome, Outcome::Reproduced).then(|| violation.clone()),
                trace: matches!(outcome, Outcome::Reproduced | Outcome::Diverged(_)).then(|| Digest::of(b"trace")),
                consoles: Vec::new(),
            };
            Link::new("reproduction", store.publish(&reproduction).unwrap())
        };
        let links = minimized.iter().zip(&shape.bugs).zip(&violations).map(reproduce).collect();
        last = publish(store, "reproduce", Some(last.1), outputs(links));
    }
    last
}

/// The verdict of a chain of this shape, in a store of its own.
pub fn verdict(shape: &Shape) -> Verdict {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &[]).unwrap();
    let previous = up_to_verdict(&store, shape);
    let result = judge(&store, previous, None).unwrap();
    store.load(&result.outputs[0].object).unwrap()
}

/// A whole chain with its receipt.
pub fn receipt(root: &Path) -> Descriptor {
    receipt_of(root, &Shape::default())
}

/// A whole chain of this shape with its receipt.
pub fn receipt_of(root: &Path, shape: &Shape) -> Descriptor {
    let store = Store::open(root, &[]).unwrap();
    let last = up_to_verdict(&store, shape);
    let result = judge(&store, last.clone(), None).unwrap();
    let verdict = publish(&store, "verdict", Some(last.1), result);
    let result = derive(&store, verdict.clone()).unwrap();
    publish(&store, "receipt", Some(verdict.1), result).0
}
