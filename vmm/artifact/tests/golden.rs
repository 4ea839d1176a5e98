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
use chaoscontrol_fault::{Fault, FaultEvent, Ledger, Schedule};

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
        at(1 << 60, Fault::ClockJump { vm: 2, jump_ns: -5 }),
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
        instructions: U64(900_000_000),
        cluster_ns: U64(2_402_000_000),
    }
}

fn planned(branch: u64) -> PlannedBranch {
    let (branch, seed) = (U64(branch), U64(7));
    PlannedBranch { branch, seed, origin: Origin::Mutation, parent: Some(U64(0)), schedule: schedule() }
}

fn total() -> RoundSummary {
    RoundSummary {
        branches: U64(1),
        edges: 900,
        entries: 1,
        bugs: 1,
        instructions: U64(900_000_000),
        cluster_ns: U64(2_402_000_000),
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
            instructions: U64(5),
            trace: digest("trace"),
        }],
        planned: vec![planned(1), planned(2)],
        bugs: vec![reference(MediaType::Bug)],
        faults: BTreeMap::from([(
            "network_partition".into(),
            FaultCounts { observed: U64(1), ..FaultCounts::default() },
        )]),
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
            artifacts: vec![reference(MediaType::Snapshot)],
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
        network: NetworkConfiguration { latency_ns: U64(1_000_000), jitter_ns: U64(0) },
        setup_limit_ns: U64(120_000_000_000),
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

fn assertions() -> Assertions {
    Assertions {
        assertions: vec![AssertionSummary {
            kind: "always".into(),
            property: "one leader a term".into(),
            site: "raft/src/node.rs:12:5".into(),
            must_hit: true,
            passes: U64(1 << 50),
            failures: U64(0),
            branches: U64(64),
        }],
    }
}

fn held<D: Document + PartialEq + Debug>(document: D) {
    let bytes = encode(&document).unwrap();
    let ending = if D::MEDIA.encoding() == Encoding::Json { "json" } else { "cbor.hex" };
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{}.{ending}", D::MEDIA.schema()));
    // CBOR is kept as hexadecimal text, so that a change can be read.
    let text = if ending == "json" {
        String::from_utf8(bytes.clone()).unwrap()
    } else {
        bytes.chunks(32).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n").collect()
    };
    if std::env::var("CHAOS_GOLDEN").is_ok_and(|value| value == "write") {
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
    let newer = if D::MEDIA.encoding() == Encoding::Json {
        changed(b"\"version\":1", b"\"version\":2")
    } else {
        changed(b"version\x01", b"version\x02")
    };
    let error = decode::<D>(&newer).unwrap_err().to_string();
    assert!(error.contains("version 2 is not supported"), "{error}");
    let error = decode::<D>(&changed(b"schema", b"schemb")).unwrap_err().to_string();
    assert!(error.contains("expected a"), "{error}");
}

#[test]
fn the_bytes_of_every_document_are_held() {
    held(receipt());
    held(ErrorDescriptor { stage: "boot".into(), tool: tool(), exit_code: 5, message: "vm 0: no init".into() });
    held(run());
    held(ScheduleDocument { schedule: schedule() });
    held(SnapshotManifest {
        run: reference(MediaType::Run),
        cluster_ns: U64(1 << 40),
        vms: 3,
        state: Bytes(vec![0xa0]),
        pages: SnapshotManifest::pages_of(&[digest("page 1"), digest("page 2")].into()),
    });
    held(corpus());
    held(CoverageMap { slots: Bytes(vec![0, 3, 0, 128]), edges: 2, collisions: 0 });
    held(trace());
    held(Bug { violation: violation(), branch: U64(12), record: record() });
    held(MinimizedBug {
        bug: reference(MediaType::Bug),
        violation: violation(),
        record: record(),
        original_faults: 7,
        attempts: 40,
        one_minimal: true,
    });
    held(reproduction());
    held(Verdict {
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
    });
    held(assertions());
    held(Environment {
        tool: tool(),
        executable: Some(digest("executable")),
        cores: 2,
        platform: "x86_64-linux".into(),
        engine: "exact".into(),
        kvm: None,
        started_ns: U64(1_796_000_000_000_000_000),
        wall_ns: U64(5_000_000_000),
        jobs: 2,
    });
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
    refused(&Corpus { snapshot: reference(MediaType::Bug), ..corpus() }, "a bug stands where a snapshot must");
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
