// SPDX-License-Identifier: AGPL-3.0-or-later
//! Bad input: each gives a clear message and the right exit code, and nothing stored is lost.

use std::path::{Path, PathBuf};
use std::process::Command;

use chaoscontrol_artifact::{Digest, MediaType, Store};
use chaoscontrol_e2e::{Bench, Ran, initrd, kernel, outputs};

fn boot(bench: &Bench, misbehave: &str, more: &[&str]) -> Ran {
    let (kernel, initrd) = (kernel(), initrd("misbehave"));
    let append = format!("misbehave={misbehave}");
    let mut arguments =
        vec!["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path")];
    arguments.extend(["--vms", "1", "--append", &append]);
    arguments.extend(more);
    bench.run("chaos-boot", &arguments, b"")
}

const SHORT: &[&str] = &["--branches", "2", "--horizon-ns", "300000000"];

/// The digest of the first output with this role.
fn output(descriptor: &[u8], role: &str) -> String {
    outputs(descriptor, role).into_iter().next().unwrap_or_else(|| panic!("no {role}"))
}

fn object(store: &Path, digest: &str) -> PathBuf {
    let plain = store.join("objects").join(&digest[..2]).join(digest);
    if plain.exists() { plain } else { plain.with_extension("zst") }
}

/// A failed tool says one line with these words, ends with the code, and hands both to the stages behind it.
fn refused(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.code, code, "{}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{word:?} is not in: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    let error = ran.descriptor();
    assert_eq!(
        (error["schema"].as_str(), error["exit_code"].as_i64()),
        (Some("chaoscontrol.error"), Some(code.into()))
    );
}

#[test]
fn kernels_and_initrds_that_are_none_are_named() {
    let bench = Bench::new();
    let text = bench.path("text");
    std::fs::write(&text, "not a kernel").expect("a file");
    let (text, kernel) = (text.to_str().expect("a path"), kernel());
    let kernel = kernel.to_str().expect("a path");
    let ran = bench.run("chaos-boot", &["--kernel", text, "--vms", "1"], b"");
    refused(&ran, 3, &["kernel", "expected"]);
    let ran = bench.run("chaos-boot", &["--kernel", "/nowhere/vmlinux", "--vms", "1"], b"");
    refused(&ran, 3, &["/nowhere/vmlinux"]);
    let ran = bench.run("chaos-boot", &["--vms", "1"], b"");
    refused(&ran, 2, &["--kernel is missing"]);
    let ran = bench.run("chaos-boot", &["--kernel", kernel, "--initrd", text, "--vms", "1"], b"");
    refused(&ran, 3, &["initrd", "expected a cpio archive"]);
    // An archive that holds nothing: only its trailer (newc: magic, thirteen fields of eight digits, the name).
    let empty = bench.path("empty.cpio");
    let fields: String = (0..13).map(|field| if field == 11 { "0000000b" } else { "00000000" }).collect();
    std::fs::write(&empty, format!("070701{fields}TRAILER!!!\0\0\0\0")).expect("a file");
    let ran =
        bench.run("chaos-boot", &["--kernel", kernel, "--initrd", empty.to_str().expect("a path"), "--vms", "1"], b"");
    refused(&ran, 5, &["vm 0", "init"]);
}

#[test]
fn guests_that_do_not_reach_setup_end_with_their_code_and_console() {
    let bench = Bench::new();
    for (misbehave, words) in [
        ("die", ["ended before setup_complete", "exit code 3"]),
        ("crash", ["ended before setup_complete", "signal"]),
        ("spin", ["no setup_complete from vm 0", "raise the limit (--setup-limit-ns)"]),
        ("mute", ["no setup_complete from vm 0", "raise the limit (--setup-limit-ns)"]),
    ] {
        let ran = boot(&bench, misbehave, &["--setup-limit-ns", "2000000000"]);
        refused(&ran, 5, &words);
        assert!(ran.stderr.contains("the console ends with"), "{}", ran.stderr);
    }
}

#[test]
fn guests_that_misbehave_after_setup_are_data() {
    for (misbehave, bug) in [
        ("panic", Some("guest_panic")),
        ("fail", Some("assertion")),
        ("spin-after", None),
        ("flood", None),
        ("garbage", None),
        ("end", None),
    ] {
        let bench = Bench::new();
        let booted = boot(&bench, misbehave, &[]).expect_code(0);
        let round = bench.run("chaos-explore-round", SHORT, &booted).expect_code(0);
        let shown = String::from_utf8(bench.run("chaos-show", &[], &round).expect_code(0)).expect("text");
        assert_eq!(bug.is_some_and(|bug| shown.contains(&format!("\n{bug}: "))), bug.is_some(), "{misbehave}: {shown}");
        assert_eq!(shown.contains("bug in branch"), bug.is_some(), "{misbehave}: {shown}");
        let control = |c: char| c.is_control() && c != '\n';
        assert!(!shown.contains(control), "{misbehave}: control characters reach the terminal");
    }
}

#[test]
fn damaged_truncated_and_missing_artifacts_are_refused_and_the_rest_is_kept() {
    let bench = Bench::new();
    let booted = boot(&bench, "fail", &[]).expect_code(0);
    let snapshot = object(&bench.store(), &output(&booted, "snapshot"));
    let packs = bench.store().join("packs");
    let pack = std::fs::read_dir(packs).expect("packs").next().expect("one pack").expect("an entry").path();
    let kernel = object(&bench.store(), &output(&booted, "kernel"));
    for path in [snapshot, pack, kernel] {
        let sound = std::fs::read(&path).expect("a file");
        let mut flipped = sound.clone();
        flipped[sound.len() / 2] ^= 4;
        for broken in [flipped, sound[..sound.len() / 2].to_vec(), Vec::new()] {
            std::fs::write(&path, broken).expect("damage");
            let ran = bench.run("chaos-explore-round", SHORT, &booted);
            refused(&ran, 3, &[]);
            bench.run("chaos-store", &["verify"], b"").expect_code(3);
        }
        std::fs::remove_file(&path).expect("removed");
        refused(&bench.run("chaos-explore-round", SHORT, &booted), 3, &["is in none of the stores"]);
        std::fs::write(&path, sound).expect("repair");
    }
    bench.run("chaos-store", &["verify"], b"").expect_code(0);
    bench.run("chaos-explore-round", SHORT, &booted).expect_code(0);
}

#[test]
fn a_flipped_byte_in_the_pages_of_a_snapshot_is_refused_with_what_to_do() {
    let bench = Bench::new();
    let booted = boot(&bench, "fail", &[]).expect_code(0);
    let round = bench.run("chaos-explore-round", SHORT, &booted).expect_code(0);
    let packs = std::fs::read_dir(bench.store().join("packs")).expect("packs");
    let pack = packs.map(|entry| entry.expect("an entry").path()).next().expect("one pack");
    let mut bytes = std::fs::read(&pack).expect("a pack");
    // Index and checksums come first; far behind them are pages.
    let at = bytes.len() - bytes.len() / 8;
    bytes[at] ^= 0x10;
    std::fs::write(&pack, bytes).expect("damage");
    for (tool, arguments, input) in [
        ("chaos-explore-round", SHORT, &booted),
        ("chaos-explore-round", SHORT, &round),
        ("chaos-explore", &["--rounds", "2", "--branches", "1"], &round),
        ("chaos-diverge", &["--horizon-ns", "1000000"], &booted),
    ] {
        let ran = bench.run(tool, arguments, input);
        assert_eq!(ran.code, 3, "{tool}: {}", ran.stderr);
        for word in ["damaged", "`chaos-store verify --remove-damaged`", "boot again"] {
            assert!(ran.stderr.contains(word), "{tool}: no {word:?} in: {}", ran.stderr);
        }
    }
    // The sentence is true.
    let verified = bench.run("chaos-store", &["verify"], b"");
    assert!(verified.code == 3 && verified.stderr.contains("--remove-damaged deletes them"), "{}", verified.stderr);
    let removed = bench.run("chaos-store", &["verify", "--remove-damaged"], b"");
    assert!(removed.code == 3 && removed.stderr.contains("boot again"), "{}", removed.stderr);
    bench.run("chaos-store", &["verify"], b"").expect_code(0);
    assert!(boot(&bench, "fail", &[]).expect_code(0) == booted, "the same boot");
    assert!(bench.run("chaos-explore-round", SHORT, &booted).expect_code(0) == round, "the same round");
}

#[test]
fn a_snapshot_that_names_another_guest_is_refused() {
    let bench = Bench::new();
    // Of one length, so that their run configurations differ in nothing but their contents.
    let (ours, theirs) = (boot(&bench, "panic", &[]).expect_code(0), boot(&bench, "steer", &[]).expect_code(0));
    let text = String::from_utf8(ours.clone()).expect("text");
    let refuse = |descriptor: &str, words: &[&str]| {
        refused(&bench.run("chaos-explore-round", SHORT, descriptor.as_bytes()), 3, words);
        let diverge = bench.run("chaos-diverge", &["--horizon-ns", "1000000"], descriptor.as_bytes());
        assert_eq!(diverge.code, 3, "{}", diverge.stderr);
    };
    // A descriptor whose snapshot is that of another boot, and one whose kernel or initrd is not the snapshot's.
    let other = text.replace(&output(&ours, "snapshot"), &output(&theirs, "snapshot"));
    let size = |descriptor: &[u8]| {
        let descriptor: serde_json::Value = serde_json::from_slice(descriptor).expect("a descriptor");
        let links = descriptor["outputs"].as_array().expect("outputs").clone();
        let link = links.into_iter().find(|link| link["role"] == "snapshot").expect("a snapshot");
        link["object"]["size_bytes"].as_str().expect("a size").to_owned()
    };
    let other = other.replace(&format!("\"{}\"", size(&ours)), &format!("\"{}\"", size(&theirs)));
    refuse(&other, &["names run", &output(&ours, "run"), &output(&theirs, "run"), "two boots"]);
    for role in ["kernel", "initrd"] {
        let other = if role == "kernel" { "initrd" } else { "kernel" };
        let swapped = text.replace(&output(&ours, role), &output(&ours, other));
        refuse(&swapped, &[&format!("names {role} "), "two boots"]);
    }
    // A snapshot that names a run other than the one it was taken of, made by hand so that its own digest is right.
    let snapshot = output(&ours, "snapshot");
    let mut raw = bench.run("chaos-show", &["--raw", &snapshot], b"").expect_code(0);
    let digest = |text: &str| text.parse::<Digest>().expect("a digest").0;
    let (from, to) = (digest(&output(&ours, "run")), digest(&output(&theirs, "run")));
    let places: Vec<usize> = (0..raw.len() - 32).filter(|at| raw[*at..*at + 32] == from).collect();
    assert!(!places.is_empty(), "the snapshot names its run");
    let states = places.len();
    assert_eq!(states, 2, "once beside its state and once in it");
    // Maps are sorted by the length of their keys, so `run` comes before `state`.
    raw[places[0]..places[0] + 32].copy_from_slice(&to);
    let store = Store::open(&bench.store(), &[]).expect("the store");
    let forged = store.put(MediaType::Snapshot, &raw).expect("an object").digest.to_string();
    drop(store);
    let swapped = text.replace(&snapshot, &forged);
    refuse(&swapped, &["it is of another guest", &output(&theirs, "run"), "boot again"]);
}

#[test]
fn swapped_artifacts_are_refused() {
    let bench = Bench::new();
    let booted = boot(&bench, "fail", &[]).expect_code(0);
    let text = String::from_utf8(booted.clone()).expect("text");
    // Another object's digest in the snapshot's place.
    let swapped = text.replace(&output(&booted, "snapshot"), &output(&booted, "initrd"));
    refused(&bench.run("chaos-explore-round", SHORT, swapped.as_bytes()), 3, &["bytes that are stated"]);
    // Another object's bytes under the snapshot's name.
    let (snapshot, initrd) = (output(&booted, "snapshot"), output(&booted, "initrd"));
    std::fs::copy(object(&bench.store(), &initrd), object(&bench.store(), &snapshot)).expect("copied");
    refused(&bench.run("chaos-explore-round", SHORT, &booted), 3, &["damaged"]);
    let wrong = text.replace("\"version\":1", "\"version\":9");
    refused(&bench.run("chaos-explore-round", SHORT, wrong.as_bytes()), 3, &["version must be 1; it is 9"]);
    refused(&bench.run("chaos-explore-round", SHORT, b"{\"schema\":3}"), 3, &["descriptor"]);
    refused(&bench.run("chaos-explore-round", SHORT, b""), 3, &["empty"]);
}

#[test]
fn a_snapshot_that_is_lost_before_replay_is_a_verdict_and_not_a_failure() {
    let bench = Bench::new();
    let booted = boot(&bench, "fail", &[]).expect_code(0);
    let round = bench.run("chaos-explore-round", SHORT, &booted).expect_code(0);
    let snapshot = object(&bench.store(), &output(&booted, "snapshot"));
    let sound = std::fs::read(&snapshot).expect("a file");
    let verdict = |class: &str| {
        let minimal = bench.run("chaos-minimize", &[], &round).expect_code(0);
        let reproduced = bench.run("chaos-reproduce", &[], &minimal).expect_code(0);
        let verdict = bench.run("chaos-verdict", &["--require", class], &reproduced).expect_code(0);
        bench.run("chaos-receipt", &[], &verdict).expect_code(0);
        bench.run("chaos-verdict", &["--require", "no_bug_found"], &reproduced).expect_code(10)
    };
    verdict("snapshot_backed_reproduced");
    std::fs::remove_file(&snapshot).expect("removed");
    verdict("missing_snapshot_artifact");
    std::fs::write(&snapshot, &sound[..sound.len() / 3]).expect("damage");
    verdict("invalid_snapshot_digest");
}

#[test]
fn a_failed_stage_is_heard_once_and_its_code_reaches_the_end() {
    let bench = Bench::new();
    let failed = boot(&bench, "die", &[]);
    refused(&failed, 5, &["exit code 3"]);
    let mut input = failed.stdout;
    for tool in ["chaos-explore-round", "chaos-minimize", "chaos-reproduce", "chaos-verdict", "chaos-receipt"] {
        let ran = bench.run(tool, &[], &input);
        assert_eq!((ran.code, ran.stderr.as_str()), (5, ""), "{tool}");
        assert_eq!(ran.stdout, input, "{tool}");
        input = ran.stdout;
    }
}

#[test]
fn a_full_disk_is_said_and_what_was_stored_stays() {
    let bench = Bench::new();
    let booted = boot(&bench, "fail", &[]).expect_code(0);
    let before = bench.objects();
    // 64 blocks of 512 bytes: descriptors fit, a trace does not.
    let script = "ulimit -f 8; exec \"$@\"";
    let tool = bench.command("chaos-explore-round", &[]);
    let file = bench.path("boot.json");
    std::fs::write(&file, &booted).expect("a file");
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(tool.get_program())
        .args(SHORT)
        .env("CHAOS_STORE", bench.store())
        .stdin(std::fs::File::open(&file).expect("a file"))
        .output()
        .expect("sh runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("free some space"), "{stderr}");
    bench.run("chaos-store", &["verify"], b"").expect_code(0);
    assert!(before.iter().all(|name| bench.objects().contains(name)), "something stored was lost");
    bench.run("chaos-explore-round", SHORT, &booted).expect_code(0);
}
