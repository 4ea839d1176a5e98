// SPDX-License-Identifier: AGPL-3.0-or-later
//! Contracts at the handoffs, with the real tools: what is missing, what breaks a contract, and how many calls a stage makes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use chaoscontrol_artifact::schema::{Descriptor, Link};
use chaoscontrol_artifact::{MediaType, Store, document};
use chaoscontrol_e2e::{Bench, Ran, TempDir, root, tools};

fn sample(name: &str) -> Vec<u8> {
    fs::read(root().join("contracts/tests").join(name)).expect("a sample")
}

/// A folder with a copy of one stage, and what stands beside it in the place of `chaos-contract`.
fn alone(stage: &str, contract: Option<&str>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::copy(tools("release").join(stage), folder.path().join(stage)).expect("a copy");
    if let Some(script) = contract {
        let path = folder.path().join("chaos-contract");
        fs::write(&path, script).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let path = folder.path().to_owned();
    (folder, path)
}

#[test]
fn a_stage_without_chaos_contract_ends_with_code_4_and_says_so() {
    let (_folder, path) = alone("chaos-verdict", None);
    let bench = Bench::with_tools(path);
    let mut command = bench.command("chaos-verdict", &["--in", "-"]);
    command.env("PATH", "/nonexistent");
    let ran = Ran::from_command(command, &sample("good/descriptor/stage.json"));
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("the host lacks chaos-contract"), "{}", ran.stderr);
    assert_eq!(ran.descriptor()["exit_code"], 4);
}

#[test]
fn a_descriptor_that_breaks_its_contract_is_refused_with_the_field_and_the_rule() {
    let bench = Bench::new();
    for (name, says) in [
        ("bad/descriptor/no-outputs.json", "the document must have the field outputs"),
        (
            "bad/descriptor/wrong-media-of-role.json",
            "inputs[0].object.media_type must be the media type of its role previous",
        ),
    ] {
        let ran = bench.run("chaos-verdict", &[], &sample(name));
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        for part in ["stdin: breaks the contract of kind descriptor", says, "^", "written by receipt"] {
            assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
        }
    }
}

/// A store with a bug as it is in this sample, and the descriptor of a round that wrote it.
fn round_with_bug(store: &Path, bug: &[u8]) -> Vec<u8> {
    let store = Store::open(store, &[]).expect("a store");
    let bug = store.put(MediaType::Bug, bug).expect("a bug");
    let bytes = sample("good/descriptor/stage.json");
    let descriptor: Descriptor = document::decode(&bytes).expect("a descriptor");
    let descriptor = Descriptor { stage: "explore-round".into(), outputs: vec![Link::new("bug", bug)], ..descriptor };
    document::encode(&descriptor).expect("a descriptor")
}

#[test]
fn a_document_behind_the_descriptor_is_refused_with_the_stage_that_wrote_it() {
    let bench = Bench::new();
    let descriptor = round_with_bug(&bench.store(), &sample("bad/bug/past-the-horizon.json"));
    let ran = bench.run("chaos-verdict", &[], &descriptor);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    for part in ["record.schedule.events[1].time_ns must lie before the horizon", "written by explore-round"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
}

#[test]
fn a_stage_makes_at_most_two_calls() {
    let real = tools("release").join("chaos-contract");
    let log = tempfile::NamedTempFile::new().expect("a log");
    let script = format!("#!/bin/sh\necho call >> {}\nexec {} \"$@\"\n", log.path().display(), real.display());
    let (_folder, path) = alone("chaos-verdict", Some(&script));
    let bench = Bench::with_tools(path);
    let descriptor = round_with_bug(&bench.store(), &sample("good/bug/whole.json"));
    let ran = bench.run("chaos-verdict", &[], &descriptor);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let calls = fs::read_to_string(log.path()).expect("the log").lines().count();
    assert_eq!(calls, 2, "one for what it was given, one for what it writes");
}

#[test]
fn a_stage_publishes_nothing_when_the_check_of_what_it_wrote_fails() {
    let real = tools("release").join("chaos-contract");
    let called = tempfile::tempdir().expect("a folder");
    let flag = called.path().join("called");
    let (flag, real) = (flag.display(), real.display());
    // The first call is answered, the second one is not.
    let script = format!("#!/bin/sh\n[ ! -e {flag} ] || exit 4\n: > {flag}\nexec {real} \"$@\"\n");
    let (_folder, path) = alone("chaos-verdict", Some(&script));
    let bench = Bench::with_tools(path);
    let descriptor = round_with_bug(&bench.store(), &sample("good/bug/whole.json"));
    let before = bench.objects();
    let ran = bench.run("chaos-verdict", &[], &descriptor);
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert_eq!(bench.objects(), before);
}
