// SPDX-License-Identifier: AGPL-3.0-or-later
//! The whole pipeline over KVM, wherever /dev/kvm opens, with a guest of a few instructions that speaks the SDK protocol.
//!
//! The guest takes a tick a millisecond and holds that no two of them are far apart, which a pause of its VM breaks.

use chaoscontrol_e2e::{Bench, Ran};
use chaoscontrol_protocol::digest::Sha256;
use chaoscontrol_protocol::layout::{
    PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, SLOT_COUNTERS, SLOT_GENERATION, SLOT_HEAD, SLOT_OWNER, SLOT_RING, SLOT_SITES,
    SLOTS_OFFSET,
};
use chaoscontrol_protocol::{AssertionKind, CatalogEntry, DOORBELL_BYTES, Doorbell, Outcome, REGION_ADDRESS, Record};
use iced_x86::code_asm::*;
use serde_json::Value;

/// The tools of the build that this test belongs to.
fn bench() -> Bench {
    Bench::with_profile(if cfg!(debug_assertions) { "debug" } else { "release" })
}

/// Whether the tests can run; says so where they cannot.
fn kvm_opens() -> bool {
    match std::fs::File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => true,
        Err(why) => {
            eprintln!("skipped: /dev/kvm does not open: {why}");
            false
        }
    }
}

/// What `chaos-capabilities` says of this host.
fn capabilities(bench: &Bench) -> Value {
    let text = bench.run("chaos-capabilities", &["--json", "--no-measure"], b"").expect_code(0);
    serde_json::from_slice(&text).expect("JSON")
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        let mut buffer = [0; RECORD_BYTES_MAX];
        let length = record.encode(&mut buffer).expect("a record fits");
        bytes.extend(&buffer[..length]);
    }
    bytes
}

/// What the guest says once, and what it says when a tick is late.
fn messages() -> (Vec<u8>, Vec<u8>) {
    let entry = CatalogEntry {
        site: 0,
        kind: AssertionKind::Always,
        must_hit: true,
        line: 1,
        column: 1,
        message: "ticks are near each other",
        package: "tiny",
        version: "0.1.0",
        file: "tiny.s",
        module: "tiny",
        namespace: "",
        key: "",
    };
    let mut payload = [0; PAYLOAD_BYTES_MAX];
    let length = entry.encode_payload(&mut payload).expect("an entry fits");
    let mut hash = Sha256::new();
    hash.update(&payload[..length]);
    let setup = encoded(&[
        Record::ProcessStart { pid: 1, generation: 1, name: "tiny" },
        Record::Catalog(entry),
        Record::CatalogEnd { sites: 1, digest: hash.finish() },
        Record::SetupComplete { details: "" },
    ]);
    (setup, encoded(&[Record::Assertion { site: 0, outcome: Outcome::Fail, details: "" }]))
}

const ADDRESS: u64 = 0x10_0000;
const HEADER_BYTES: u64 = 120;
const IDT: u64 = 0x20_0000;
const IDT_POINTER: u64 = 0x20_2000;
const LAPIC: u64 = 0xfee0_0000;
const PM_TIMER: i32 = 0x608;
/// Five milliseconds of the PM timer's 3,579,545 Hz.
const LATE: i32 = 17_898;
const SLOT: u64 = REGION_ADDRESS + DOORBELL_BYTES + SLOTS_OFFSET as u64;

/// Appends the bytes at `source` to slot 0's ring and rings the doorbell. RBP is the doorbell page, RBX the slot.
fn say(a: &mut CodeAssembler, source: CodeLabel, bytes: usize) {
    a.lea(rsi, ptr(source)).unwrap();
    a.mov(eax, dword_ptr(rbx + SLOT_HEAD)).unwrap();
    a.lea(rdi, qword_ptr(rbx + rax + SLOT_RING)).unwrap();
    a.mov(ecx, bytes as u32).unwrap();
    a.rep().movsb().unwrap();
    a.add(dword_ptr(rbx + SLOT_HEAD), bytes as i32).unwrap();
    a.mov(dword_ptr(rbp), Doorbell::Drain(0).encode()).unwrap();
}

/// The guest as an ELF kernel.
fn guest() -> Vec<u8> {
    let (setup, failure) = messages();
    let mut a = CodeAssembler::new(64).unwrap();
    let mut handler = a.create_label();
    let mut idle = a.create_label();
    let mut late = a.create_label();
    let mut done = a.create_label();
    let mut setup_bytes = a.create_label();
    let mut failure_bytes = a.create_label();
    a.mov(rsp, 0x30_0000u64).unwrap();
    // The gate of vector 0x40.
    a.mov(rdi, IDT + 0x40 * 16).unwrap();
    a.lea(rax, ptr(handler)).unwrap();
    a.mov(word_ptr(rdi), ax).unwrap();
    a.mov(dword_ptr(rdi + 2), 0x10).unwrap();
    a.mov(byte_ptr(rdi + 5), 0x8eu32).unwrap();
    a.shr(rax, 16).unwrap();
    a.mov(word_ptr(rdi + 6), ax).unwrap();
    a.mov(qword_ptr(rdi + 8), 0).unwrap();
    a.mov(rdi, IDT_POINTER).unwrap();
    a.mov(word_ptr(rdi), 0xfff).unwrap();
    a.mov(rax, IDT).unwrap();
    a.mov(qword_ptr(rdi + 2), rax).unwrap();
    a.lidt(qword_ptr(rdi)).unwrap();
    a.mov(rbp, REGION_ADDRESS).unwrap();
    a.mov(rbx, SLOT).unwrap();
    a.mov(dword_ptr(rbp), Doorbell::RestartPoint.encode()).unwrap();
    for (field, value) in [(SLOT_OWNER, 1), (SLOT_GENERATION, 1), (SLOT_SITES, 1)] {
        a.mov(dword_ptr(rbx + field), value).unwrap();
    }
    say(&mut a, setup_bytes, setup.len());
    // The local APIC's timer: divided by one, periodic on vector 0x40, a millisecond.
    a.mov(r8, LAPIC).unwrap();
    a.mov(dword_ptr(r8 + 0x3e0), 0xb).unwrap();
    a.mov(dword_ptr(r8 + 0x320), 0x2_0040).unwrap();
    a.mov(dword_ptr(r8 + 0x380), 1_000_000).unwrap();
    a.mov(edx, PM_TIMER).unwrap();
    a.in_(eax, dx).unwrap();
    a.mov(r15d, eax).unwrap();
    a.xor(r14d, r14d).unwrap();
    a.sti().unwrap();
    a.set_label(&mut idle).unwrap();
    a.hlt().unwrap();
    a.jmp(idle).unwrap();

    a.set_label(&mut handler).unwrap();
    a.mov(edx, PM_TIMER).unwrap();
    a.in_(eax, dx).unwrap();
    a.mov(ecx, eax).unwrap();
    a.sub(ecx, r15d).unwrap();
    a.mov(r15d, eax).unwrap();
    a.cmp(ecx, LATE).unwrap();
    a.ja(late).unwrap();
    a.inc(qword_ptr(rbx + SLOT_COUNTERS)).unwrap();
    a.jmp(done).unwrap();
    a.set_label(&mut late).unwrap();
    a.inc(qword_ptr(rbx + SLOT_COUNTERS + 8)).unwrap();
    a.test(r14d, r14d).unwrap();
    a.jne(done).unwrap();
    a.inc(r14d).unwrap();
    say(&mut a, failure_bytes, failure.len());
    a.set_label(&mut done).unwrap();
    a.mov(dword_ptr(r8 + 0xb0), 0).unwrap();
    a.iretq().unwrap();
    a.set_label(&mut setup_bytes).unwrap();
    a.db(&setup).unwrap();
    a.set_label(&mut failure_bytes).unwrap();
    a.db(&failure).unwrap();
    elf(&a.assemble(ADDRESS + HEADER_BYTES).expect("the guest assembles"))
}

/// An ELF file that is loaded whole; its entry comes after the headers.
fn elf(code: &[u8]) -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 62, 0, 1, 0, 0, 0];
    for word in [ADDRESS + HEADER_BYTES, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend([0; 4]);
    for half in [64u16, 56, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    file.extend([1, 0, 0, 0, 7, 0, 0, 0]);
    let bytes = HEADER_BYTES + code.len() as u64;
    for word in [0, ADDRESS, ADDRESS, bytes, bytes, 4096] {
        file.extend(word.to_le_bytes());
    }
    file.extend(code);
    file
}

const SCHEDULE: &str = r#"{"schema": "chaoscontrol.schedule", "version": 1, "schedule": {"events": [
    {"time_ns": "2000000", "fault": "network_heal"},
    {"time_ns": "5000000", "fault": "vm_pause", "vm": 1, "duration_ns": "20000000"}
]}}"#;

/// Boots two of the guests with more arguments.
fn boot(bench: &Bench, arguments: &[&str]) -> Ran {
    let kernel = bench.path("tiny.elf");
    std::fs::write(&kernel, guest()).expect("a file can be written");
    let mut all = vec!["--kernel", kernel.to_str().expect("a path"), "--vms", "2", "--memory-mib", "8", "--seed", "7"];
    all.extend(arguments);
    bench.run("chaos-boot", &all, b"")
}

/// Explores what was booted, with a pause of VM 1 first, for 60 ms.
fn explore(bench: &Bench, booted: &[u8], arguments: &[&str]) -> Ran {
    let schedule = bench.path("schedule.json");
    std::fs::write(&schedule, SCHEDULE).expect("a file can be written");
    let mut all = vec!["--branches", "3", "--horizon-ns", "60000000", "--schedule", schedule.to_str().expect("a path")];
    all.extend(arguments);
    bench.run("chaos-explore-round", &all, booted)
}

/// The rest of the chain; gives the receipt.
fn finish(bench: &Bench, explored: Vec<u8>, allowed: &[&str]) -> Value {
    let mut descriptor = explored;
    for (tool, arguments) in
        [("chaos-minimize", allowed), ("chaos-reproduce", allowed), ("chaos-verdict", &[]), ("chaos-receipt", &[])]
    {
        descriptor = bench.run(tool, arguments, &descriptor).expect_code(0);
    }
    let checked = bench.run("chaos-receipt", &["--check"], &descriptor);
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    serde_json::from_slice(&descriptor).expect("JSON")
}

const ALLOW: &str = "--allow-unfaithful-kvm";

#[test]
fn the_pipeline_runs_on_kvm_and_its_receipt_names_the_engine_and_what_shows() {
    if !kvm_opens() {
        return;
    }
    for engine in ["kvm", "kvm-single-step"] {
        let runs: Vec<(Vec<String>, Value, Value)> = ["1", "2"]
            .into_iter()
            .map(|jobs| {
                let bench = bench();
                let booted = boot(&bench, &["--engine", engine, ALLOW]).expect_code(0);
                let explored = explore(&bench, &booted, &["--jobs", jobs, ALLOW]).expect_code(0);
                let receipt = finish(&bench, explored, &[ALLOW]);
                let mut objects = bench.objects();
                objects.retain(|path| path.starts_with("objects/"));
                (objects, receipt, capabilities(&bench))
            })
            .collect();
        assert_eq!(runs[0].0, runs[1].0, "{engine}: two runs, one job and two, write the same objects");
        let (_, receipt, host) = &runs[0];
        let kvm = &host["kvm"];
        assert_eq!(receipt["receipt"]["status"], "accepted", "{engine}");
        assert_eq!(receipt["receipt"]["class"], "snapshot_backed_reproduced", "{engine}");
        let claims: Vec<&str> =
            receipt["receipt"]["claims"].as_array().expect("claims").iter().filter_map(Value::as_str).collect();
        assert!(claims.contains(&format!("engine {engine}: guest code ran on the host's cpu").as_str()), "{claims:?}");
        let tsc = claims.iter().any(|claim| claim.contains("rdtsc"));
        assert_eq!(tsc, engine == "kvm" && kvm["rdtsc_reachable"] == true, "{claims:?}");
        for reason in kvm["reasons"].as_array().expect("reasons") {
            let said = format!("kvm was not faithful, and allowed: {}", reason.as_str().expect("text"));
            assert!(claims.contains(&said.as_str()), "{said} in {claims:?}");
        }
    }
}

#[test]
fn both_engines_find_the_same_bug_and_the_same_minimal_schedule() {
    if !kvm_opens() {
        return;
    }
    let found: Vec<(Value, Value)> = ["exact", "kvm", "kvm-single-step"]
        .into_iter()
        .map(|engine| {
            let bench = bench();
            let booted = boot(&bench, &["--engine", engine, ALLOW]).expect_code(0);
            let explored = explore(&bench, &booted, &[ALLOW]).expect_code(0);
            let minimal = bench.run("chaos-minimize", &[ALLOW], &explored);
            let descriptor = minimal.descriptor();
            let outputs = descriptor["outputs"].as_array().expect("outputs");
            let bug = outputs.iter().find(|link| link["role"] == "minimized-bug").expect("a bug is found");
            let digest = bug["object"]["digest"].as_str().expect("a digest");
            let raw = bench.run("chaos-show", &["--raw", digest], b"").expect_code(0);
            let bug: Value = serde_json::from_slice(&raw).expect("JSON");
            (bug["violation"]["identity"].clone(), bug["record"]["schedule"].clone())
        })
        .collect();
    assert_eq!(found[0].0["property"], "ticks are near each other");
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
}

#[test]
fn a_snapshot_goes_on_with_another_engine_where_the_cpu_models_allow() {
    if !kvm_opens() {
        return;
    }
    let bench = bench();
    let host = capabilities(&bench);
    let by_exits = boot(&bench, &["--engine", "kvm", ALLOW]).expect_code(0);
    let receipt = finish(&bench, explore(&bench, &by_exits, &["--engine", "exact"]).expect_code(0), &[]);
    assert_eq!(receipt["receipt"]["status"], "accepted");
    let exact = boot(&bench, &[]).expect_code(0);
    let steps = explore(&bench, &exact, &["--engine", "kvm-single-step", ALLOW]).expect_code(0);
    assert_eq!(finish(&bench, steps, &[ALLOW])["receipt"]["status"], "accepted");
    let refused = explore(&bench, &exact, &["--engine", "kvm", ALLOW]);
    if host["kvm"]["tsc_scaling"] == true {
        assert_eq!(refused.code, 0, "{}", refused.stderr);
    } else {
        assert_eq!(refused.code, 3, "{}", refused.stderr);
        assert!(
            refused.stderr.contains("its guest counts on a tsc, and engine kvm must hide it"),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn what_the_host_lacks_is_refused_with_the_reason_and_never_used_silently() {
    if !kvm_opens() {
        return;
    }
    let bench = bench();
    let host = capabilities(&bench);
    let kvm = &host["kvm"];
    assert_eq!(kvm["present"], true);
    assert_eq!(kvm["faithful"] == true, kvm["reasons"].as_array().expect("reasons").is_empty());
    let unfaithful = boot(&bench, &["--engine", "kvm"]);
    if kvm["faithful"] == true {
        assert_eq!(unfaithful.code, 0, "{}", unfaithful.stderr);
    } else {
        assert_eq!(unfaithful.code, 4, "{}", unfaithful.stderr);
        assert!(unfaithful.stderr.contains("this host's kvm is not faithful: "), "{}", unfaithful.stderr);
    }
    if kvm["pmu"] == false {
        let pmu = boot(&bench, &["--engine", "kvm-pmu", ALLOW]);
        assert_eq!(pmu.code, 4, "{}", pmu.stderr);
        assert!(pmu.stderr.contains("no counter of guest instructions"), "{}", pmu.stderr);
    }
    let unknown = boot(&bench, &["--engine", "qemu"]);
    assert_eq!(unknown.code, 2, "{}", unknown.stderr);
    let core = boot(&bench, &["--engine", "kvm", ALLOW, "--pin-core", "100000"]);
    assert_eq!(core.code, 4, "{}", core.stderr);
}

#[test]
fn the_environment_of_a_stage_says_what_kvm_is_like_also_where_it_is_absent() {
    let bench = bench();
    boot(&bench, &[]).expect_code(0);
    let folder = bench.store().join("environment");
    let file =
        std::fs::read_dir(folder).expect("the folder is there").next().expect("one stage ran").expect("an entry");
    let environment: Value = serde_json::from_slice(&std::fs::read(file.path()).expect("a file")).expect("JSON");
    assert_eq!(environment["kvm"], capabilities(&bench)["kvm"]);
    assert_eq!(environment["engine"], "exact");
    let table = String::from_utf8(bench.run("chaos-capabilities", &[], b"").expect_code(0)).expect("text");
    for line in ["/dev/kvm", "faithful", "engine exact", "engine kvm", "engine kvm-single-step", "engine kvm-pmu"] {
        assert!(table.lines().any(|text| text.starts_with(line)), "{line} in:\n{table}");
    }
}
