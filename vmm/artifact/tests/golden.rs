// SPDX-License-Identifier: AGPL-3.0-or-later
//! The bytes of every document, held against files: a change of a format shows here, and old bytes stay readable or are
//! refused with a clear word.
//!
//! `CHAOS_GOLDEN=write cargo test -p chaoscontrol-artifact --test golden` writes the files anew.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;

use chaoscontrol_artifact::document::{Document, Encoding, decode, encode};
use chaoscontrol_artifact::schema::*;
use chaoscontrol_artifact::{Bytes, Digest, MediaType, ObjectRef, U64};
use chaoscontrol_fault::{Choice, Fault, FaultEvent, Ledger, Reaction, Rejection, SPECS, Schedule, Spec, Tactic};

fn digest(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

fn reference(media_type: MediaType) -> ObjectRef {
    ObjectRef { digest: digest(media_type.schema()), size_bytes: U64(1 << 60), media_type }
}

fn tool() -> ToolIdentity {
    ToolIdentity { name: "chaos-boot".into(), version: "0.1.0".into(), source: digest("source") }
}

fn schedule() -> Schedule {
    let at = |time_ns, fault| FaultEvent { time_ns, fault };
    Schedule::new(vec![
        at(812_000_000, Fault::NetworkPartition { vms: 1, duration_ns: 500_000_000 }),
        at(4_900_000_000, Fault::ClockJump { vm: 2, jump_ns: -5 }),
    ])
    .unwrap()
}

fn violation() -> Violation {
    Violation {
        identity: BugIdentity { kind: "assertion".into(), property: "one leader a term \u{1b}[2J".into() },
        vm: 1,
        cluster_ns: U64(3_214_000_000),
        guest_ns: U64(3_214_000_000),
        instructions: U64(321_400_000),
        facts: BTreeMap::from([("site".into(), "raft/src/node.rs:12:5".into())]),
    }
}

fn record() -> BranchRecord {
    let mut ledger = Ledger::new(&schedule());
    ledger.apply(0, 812_000_000);
    ledger.observe(0, 34);
    BranchRecord {
        run: reference(MediaType::Run),
        snapshot: Some(reference(MediaType::Snapshot)),
        seed: U64(u64::MAX),
        horizon_ns: U64(5_000_000_000),
        schedule: schedule(),
        ledger,
        trace: reference(MediaType::Trace),
        turns: Some(reference(MediaType::Turns)),
        instructions: U64(900_000_000),
        cluster_ns: U64(2_402_000_000),
    }
}

fn tactic() -> Tactic {
    let faults = Schedule::new(vec![FaultEvent { time_ns: 5, fault: Fault::NetworkHeal {} }]).unwrap();
    Tactic {
        reactions: vec![Reaction { label: "agree: one leader per term".into(), skip: 1, faults }],
        repeats: true,
        settle_ns: 150_000_000,
    }
}

fn planned(branch: u64) -> PlannedBranch {
    let (branch, seed) = (U64(branch), U64(7));
    PlannedBranch {
        branch,
        seed,
        origin: Origin::Mutation,
        parent: Some(U64(0)),
        schedule: schedule(),
        tactic: Some(tactic()),
    }
}

fn total() -> RoundSummary {
    RoundSummary {
        branches: U64(1),
        edges: 900,
        entries: 1,
        bugs: 1,
        instructions: U64(900_000_000),
        cluster_ns: U64(2_402_000_000),
        novel: U64(1),
    }
}

fn corpus() -> Corpus {
    let PlannedBranch { seed, origin, parent, schedule, .. } = planned(0);
    Corpus {
        run: reference(MediaType::Run),
        snapshot: reference(MediaType::Snapshot),
        seed: U64(42),
        window: 2,
        horizon_ns: U64(5_000_000_000),
        mode: Mode::Faults,
        coverage: reference(MediaType::Coverage),
        assertions: reference(MediaType::Assertions),
        entries: vec![CorpusEntry {
            branch: U64(0),
            seed,
            origin,
            parent,
            schedule,
            new_edges: 900,
            new_counts: 12,
            new_labels: 1,
            grown: 3,
            moments: vec![Moment { time_ns: U64(1_000), vm: 2, label: "flush".into() }],
            instructions: U64(5),
            trace: digest("trace"),
        }],
        planned: vec![planned(1), planned(2)],
        bugs: vec![reference(MediaType::Bug)],
        faults: BTreeMap::from([(
            "network_partition".into(),
            FaultCounts { observed: U64(1), ..FaultCounts::default() },
        )]),
        labels: BTreeMap::from([
            ("flush".into(), LabelCounts { branches: U64(1), marks: U64(40), most: U64(40), closest: None }),
            (
                "closer: the queue is bounded".into(),
                LabelCounts { closest: Some(U64(1 << 62)), ..LabelCounts::default() },
            ),
        ]),
        rounds: vec![total()],
        total: total(),
    }
}

fn trace() -> TraceDocument {
    let vm = TraceVm {
        power: 0,
        instructions: 1 << 40,
        registers: digest("registers"),
        frames_sent: 2,
        frames: digest("frames"),
        frames_delivered: 1,
        sdk_records: 3,
        sdk: digest("sdk"),
    };
    let round = TraceRound { round: 24, start_ns: 23, end_ns: 1 << 33, faults: vec![0, 300], vms: vec![vm] };
    TraceDocument { digest: digest("whole"), rolling: digest("rolling"), rounds: vec![round] }
}

fn receipt() -> Descriptor {
    let mut artifacts = [MediaType::Snapshot, MediaType::Kernel, MediaType::Descriptor].map(reference);
    artifacts.sort();
    Descriptor {
        stage: "receipt".into(),
        tool: tool(),
        parameters: Parameters::from([
            ("seed".into(), u64::MAX.into()),
            ("append_vm".into(), Parameter::List(vec!["a".into()])),
            ("serial".into(), Parameter::Flag(true)),
            ("small".into(), Parameter::Number(3)),
        ]),
        inputs: vec![Link::new("previous", reference(MediaType::Descriptor))],
        outputs: Vec::new(),
        receipt: Some(Receipt {
            claims: Vec::new(),
            status: Status::Accepted,
            class: Class::SnapshotBackedReproduced,
            kernel: Some(reference(MediaType::Kernel)),
            initrd: None,
            stages: vec![ReceiptStage {
                stage: "boot".into(),
                descriptor: reference(MediaType::Descriptor),
                tool: tool(),
                parameters: Parameters::new(),
            }],
            artifacts: artifacts.to_vec(),
        }),
    }
}

fn run() -> RunConfiguration {
    RunConfiguration {
        seed: U64(42),
        engine: "exact".into(),
        firmware: "acpi".into(),
        ns_per_instruction: 10,
        kernel: reference(MediaType::Kernel),
        initrd: Some(reference(MediaType::Initrd)),
        vms: 3,
        append: "raft_bug=double_vote".into(),
        append_vm: vec!["first=1".into()],
        memory_bytes: U64(64 << 20),
        disks: vec![DiskConfiguration { image: None, size_bytes: U64(16 << 20), flush: true }],
        wall_clock_start_ns: U64(1_735_689_600_000_000_000),
        network: NetworkConfiguration { latency_ns: U64(1_000_000), jitter_ns: U64(0), loss_ppm: 500 },
        setup_limit_ns: U64(120_000_000_000),
        smp: None,
        coverage: None,
    }
}

fn two_cpus() -> SmpConfiguration {
    SmpConfiguration {
        cpus: 2,
        quantum_instructions: U64(2_000),
        schedule: "random".into(),
        smp_schedule_journal_limit: 4_096,
    }
}

fn reproduction() -> Reproduction {
    Reproduction {
        bug: reference(MediaType::MinimizedBug),
        start: Start::Boot,
        outcome: Outcome::Diverged(Divergence {
            round: U64(7),
            cluster_ns: U64(8),
            vm: Some(2),
            what: "registers".into(),
            expected: "a".into(),
            found: "b".into(),
        }),
        violation: Some(violation()),
        trace: Some(digest("whole")),
        consoles: vec![reference(MediaType::Console)],
    }
}

fn on_kvm() -> Environment {
    let mode = |name: &str, why_not: Option<&str>| KvmModeReport {
        name: name.into(),
        works: why_not.is_none(),
        why_not: why_not.map(str::to_owned),
        leaks: vec!["the TSC".into()],
    };
    let kvm = KvmReport {
        present: true,
        faithful: false,
        reasons: vec!["kernel code is emulated".into()],
        ring0_emulated: true,
        cpuid_filtered: true,
        rdtsc_reachable: false,
        rdrand_reachable: true,
        missing_features: vec!["cx16".into()],
        single_step: true,
        halt_seen_in_step: false,
        host_page_tables_seen: true,
        tsc_scaling: false,
        pmu: false,
        pmu_why_not: Some("not permitted".into()),
        modes: vec![mode("kvm", None), mode("kvm-pmu", Some("no PMU"))],
    };
    Environment { kvm: Some(kvm), engine: "kvm".into(), ..environment() }
}

fn environment() -> Environment {
    Environment {
        tool: tool(),
        executable: Some(digest("executable")),
        cores: 2,
        platform: "x86_64-linux".into(),
        engine: "exact".into(),
        kvm: None,
        started_ns: U64(1_796_000_000_000_000_000),
        wall_ns: U64(5_000_000_000),
        jobs: 2,
    }
}

/// One fault of each kind, each with the smallest values that are allowed.
fn every_kind() -> Schedule {
    let smallest = |spec: &Spec| {
        let values: Vec<i128> = spec.parameters.iter().map(|parameter| parameter.domain.min).collect();
        FaultEvent { time_ns: 1, fault: Fault::from_values(spec.kind, &values).unwrap() }
    };
    Schedule::new(SPECS.iter().map(smallest).collect()).unwrap()
}

/// A branch whose first fault could not be applied, and whose second one the machine refused.
fn rejected() -> BranchRecord {
    let mut ledger = Ledger::new(&schedule());
    ledger.reject(0, Rejection::VmDown);
    ledger.fail(1, "the disk was read before".into());
    // The second one lies near the horizon: the branch has to get there.
    BranchRecord { ledger, turns: None, cluster_ns: U64(5_000_000_000), ..record() }
}

fn vm_profile() -> VmProfile {
    VmProfile {
        vms: 3,
        memory_mib: 64,
        append: "raft_bug=double_vote".into(),
        append_vm: vec!["first=1".into()],
        disks_mib: vec![16],
        flush: true,
        seed: U64(42),
        latency_ns: U64(1_000_000),
        jitter_ns: U64(0),
        loss_ppm: 500,
        firmware: "acpi".into(),
        ns_per_instruction: 10,
        setup_limit_ns: U64(120_000_000_000),
    }
}

fn campaign_profile() -> CampaignProfile {
    CampaignProfile {
        seed: Some(U64(7)),
        rounds: 32,
        branches: 256,
        horizon_ns: U64(5_000_000_000),
        window: 16,
        stop_after_bugs: Some(1),
        instructions: None,
    }
}

fn workload() -> WorkloadProfile {
    WorkloadProfile {
        name: "raft".into(),
        about: "three nodes".into(),
        initrd: "raft".into(),
        vm: ProfileValues::VmRun(vm_profile()),
        campaign: ProfileValues::Campaign(campaign_profile()),
        expect: Class::SnapshotBackedReproduced,
    }
}

fn profile(values: ProfileValues) -> ProfileDocument {
    let source = |name: &str| ProfileSource { name: name.into(), digest: digest(name) };
    ProfileDocument {
        source: source("raft.ncl"),
        imports: vec![source("lib/raft.ncl"), source("lib/units.ncl")],
        contracts: digest("contracts"),
        evaluator: "nickel-lang-core 0.19.0".into(),
        projection: values.digest().unwrap(),
        values,
    }
}

fn assertions() -> Assertions {
    Assertions {
        assertions: vec![AssertionSummary {
            kind: "always".into(),
            property: "one leader a term".into(),
            identity: "raft 0.1.0 src/node.rs:12:5".into(),
            fingerprint: digest("descriptor"),
            site: "raft/src/node.rs:12:5".into(),
            must_hit: true,
            passes: U64(1 << 50),
            failures: U64(1),
            branches: U64(64),
            first_pass: Some(AssertionMoment { branch: None, vm: 0, cluster_ns: U64(812_000_000) }),
            first_failure: Some(AssertionMoment { branch: Some(U64(41)), vm: 2, cluster_ns: U64(3_214_000_000) }),
            verdict: "violated".into(),
        }],
    }
}

#[test]
fn what_was_violated_is_no_gap_and_what_never_held_is_one() {
    let of = |kind: &str, passes, failures| {
        let Assertions { mut assertions } = assertions();
        let assertion = assertions.swap_remove(0);
        AssertionSummary { kind: kind.into(), passes: U64(passes), failures: U64(failures), ..assertion }.is_gap()
    };
    assert!(!of("always", 0, 3) && !of("sometimes", 1, 3));
    assert!(of("sometimes", 0, 3) && of("reachable", 0, 0) && of("always", 0, 0));
}

/// Good documents stand where the contracts' tests find them too.
fn held<D: Document + PartialEq + Debug>(name: &str, document: D) {
    let bytes = encode(&document).unwrap();
    let ending = if D::MEDIA.encoding() == Encoding::Json { "json" } else { "cbor.hex" };
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../contracts/tests/good").join(D::MEDIA.schema());
    let path = folder.join(format!("{name}.{ending}"));
    // CBOR is kept as hexadecimal text, so that a change can be read.
    let text = if ending == "json" {
        String::from_utf8(bytes.clone()).unwrap()
    } else {
        bytes.chunks(32).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n").collect()
    };
    if std::env::var("CHAOS_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(golden, text, "{}: the format changed: bump the version, or undo it", path.display());
    assert_eq!(decode::<D>(&bytes).unwrap(), document);
    other_versions_and_kinds_are_refused::<D>(&bytes);
}

fn other_versions_and_kinds_are_refused<D: Document + Debug>(bytes: &[u8]) {
    let changed = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        [&bytes[..at], to, &bytes[at + from.len()..]].concat()
    };
    let version = D::VERSION;
    for other in [version - 1, version + 1] {
        let changed = if D::MEDIA.encoding() == Encoding::Json {
            changed(format!("\"version\":{version}").as_bytes(), format!("\"version\":{other}").as_bytes())
        } else {
            changed(&[&b"version"[..], &[version as u8]].concat(), &[&b"version"[..], &[other as u8]].concat())
        };
        let error = decode::<D>(&changed).unwrap_err().to_string();
        assert!(error.contains(&format!("version {other} is not supported")), "{error}");
    }
    let error = decode::<D>(&changed(b"schema", b"schemb")).unwrap_err().to_string();
    assert!(error.contains("expected a"), "{error}");
}

#[test]
fn the_bytes_of_every_document_are_held() {
    held("whole", receipt());
    held(
        "whole",
        ErrorDescriptor { stage: "boot".into(), tool: tool(), exit_code: 5, message: "vm 0: no init".into() },
    );
    held("whole", run());
    held("whole", ScheduleDocument { schedule: schedule() });
    held(
        "whole",
        SnapshotManifest {
            run: reference(MediaType::Run),
            cluster_ns: U64(1 << 40),
            vms: 3,
            state: Bytes(vec![0xa0]),
            pages: SnapshotManifest::pages_of(&[digest("page 1"), digest("page 2")].into()),
        },
    );
    held("whole", corpus());
    held("whole", CoverageMap { slots: Bytes(vec![0, 3, 0, 128]), edges: 2, collisions: 0 });
    held("whole", trace());
    held("whole", Bug { violation: violation(), branch: U64(12), record: record() });
    held(
        "whole",
        MinimizedBug {
            bug: reference(MediaType::Bug),
            violation: violation(),
            record: record(),
            original_faults: 7,
            attempts: 40,
            one_minimal: true,
        },
    );
    held("whole", reproduction());
    held(
        "whole",
        Verdict {
            class: Class::SnapshotBackedReproduced,
            status: Status::Accepted,
            bugs: vec![BugVerdict {
                bug: reference(MediaType::MinimizedBug),
                identity: violation().identity,
                reproduction: Some(reference(MediaType::Reproduction)),
                class: Class::SnapshotBackedReproduced,
            }],
            corpus: Some(reference(MediaType::Corpus)),
            gaps: vec!["a leader was replaced".into()],
        },
    );
    held("whole", assertions());
    held("whole", environment());
    held("whole", profile(ProfileValues::Workload(Box::new(workload()))));
}

/// The other shapes of documents that have several.
#[test]
fn the_bytes_of_other_shapes_are_held() {
    held("stage", Descriptor { stage: "boot".into(), inputs: Vec::new(), receipt: None, ..receipt() });
    held("bare", RunConfiguration { initrd: None, append_vm: Vec::new(), disks: Vec::new(), ..run() });
    held("several-cpus", RunConfiguration { smp: Some(two_cpus()), ..run() });
    let of_workload = CoverageConfiguration { low: U64(0x40_1000), high: U64(0x48_0000), ..Default::default() };
    held("coverage-of-a-range", RunConfiguration { coverage: Some(of_workload), ..run() });
    held("on-kvm", on_kvm());
    let claimed = receipt().receipt.map(|receipt| Receipt { claims: vec!["kvm: the TSC".into()], ..receipt });
    held("claims", Descriptor { receipt: claimed, ..receipt() });
    held("empty", ScheduleDocument::default());
    held("every-kind", ScheduleDocument { schedule: every_kind() });
    let choices = vec![Choice { vm: 1, nth: 40, value: 3 }, Choice { vm: 0, nth: 7, value: u64::MAX }];
    held("choices", ScheduleDocument { schedule: schedule().with_choices(choices).unwrap() });
    held(
        "without-snapshot",
        Bug {
            violation: violation(),
            branch: U64(0),
            record: BranchRecord {
                snapshot: None,
                schedule: Schedule::default(),
                ledger: Ledger::default(),
                ..record()
            },
        },
    );
    held("rejected", Bug { violation: violation(), branch: U64(0), record: rejected() });
    let nothing_ran = || Reproduction { violation: None, trace: None, consoles: Vec::new(), ..reproduction() };
    held("reproduced", Reproduction { outcome: Outcome::Reproduced, start: Start::Snapshot, ..reproduction() });
    held("missing", Reproduction { outcome: Outcome::MissingSnapshotRef, ..nothing_ran() });
    held("invalid", Reproduction { outcome: Outcome::InvalidSnapshotDigest("damaged".into()), ..nothing_ran() });
    held("error", Reproduction { outcome: Outcome::Error("no room".into()), ..nothing_ran() });
    let (class, status) = (Class::NoBugFound, Status::RawLogOnly);
    held("nothing-found", Verdict { class, status, bugs: Vec::new(), corpus: None, gaps: Vec::new() });
    held("empty", Assertions::default());
    held("vm-run", profile(ProfileValues::VmRun(vm_profile())));
    held("campaign", profile(ProfileValues::Campaign(campaign_profile())));
    let (vms, horizon_ns) = (3, U64(5_000_000_000));
    held(
        "fault-schedule",
        profile(ProfileValues::FaultSchedule(FaultScheduleProfile { vms, horizon_ns, schedule: schedule() })),
    );
}

#[test]
fn rules_that_types_do_not_state_are_kept() {
    let refused = |document: &Corpus, part: &str| {
        let error = encode(document).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(&Corpus { window: 0, ..corpus() }, "window is 0");
    refused(&Corpus { planned: vec![planned(1)], ..corpus() }, "planned must hold the 2 branches from 1 on");
    refused(&Corpus { planned: vec![planned(2), planned(1)], ..corpus() }, "planned must hold");
    refused(&Corpus { snapshot: reference(MediaType::Bug), ..corpus() }, "snapshot is a bug, it must be a snapshot");
    let error = encode(&CoverageMap { slots: Bytes(vec![1]), edges: 0, collisions: 0 }).unwrap_err().to_string();
    assert!(error.contains("edges is 0, but 1 slots"), "{error}");
    let error = encode(&RunConfiguration { vms: 33, ..run() }).unwrap_err().to_string();
    assert!(error.contains("vms is 33, it must lie between 1 and 32"), "{error}");
    let error = encode(&Descriptor { receipt: None, ..receipt() }).unwrap_err().to_string();
    assert!(error.contains("receipt must be there"), "{error}");
}

#[test]
fn unknown_missing_and_mistyped_fields_are_refused_by_name() {
    let text = String::from_utf8(encode(&ScheduleDocument { schedule: schedule() }).unwrap()).unwrap();
    let cases = [
        (text.replace("{\"schedule\"", "{\"extra\":1,\"schedule\""), "extra"),
        (text.replace("\"schema\":\"chaoscontrol.schedule\",", ""), "without `schema`"),
        (text.replace("\"812000000\"", "812000000"), "time_ns must be a string"),
        (text.replace("\"vms\":1", "\"vms\":0"), "vms is 0"),
        (text.replace(",\"version\":1", ""), "version null"),
        ("[]".to_owned(), "no object"),
    ];
    for (text, part) in cases {
        let error = decode::<ScheduleDocument>(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
