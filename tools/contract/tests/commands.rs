// SPDX-License-Identifier: AGPL-3.0-or-later
//! The binary as people and stages use it: check, filter, project, another contract set, confinement.

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use chaoscontrol_artifact::contract::{Checker, ContractError, wire};
use chaoscontrol_artifact::{CodedError, Digest, ExitCode};
use support::{checker, contracts, item, samples};

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos-contract"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn good(name: &str) -> Vec<u8> {
    fs::read(contracts().join("tests/good").join(name)).unwrap()
}

#[test]
fn a_filter_passes_good_documents_unchanged() {
    let bytes = [&good("descriptor/stage.json")[..], b"\n"].concat();
    for arguments in [&["filter"][..], &["filter", "descriptor"]] {
        let output = run(arguments, &bytes);
        assert_eq!((code(&output), &output.stdout), (0, &bytes), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn a_filter_turns_a_breach_into_an_error_descriptor_for_those_behind_it() {
    let text =
        String::from_utf8(good("descriptor/stage.json")).unwrap().replace("\"stage\":\"boot\"", "\"stage\":\"Boot\"");
    let output = run(&["filter"], text.as_bytes());
    assert_eq!(code(&output), 3);
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&error["schema"], &error["exit_code"]), (&"chaoscontrol.error".into(), &3.into()));
    assert!(error["message"].as_str().unwrap().contains("stage must be a name"), "{error}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("written by Boot"), "{said}");
}

#[test]
fn a_filter_passes_an_earlier_failure_on_with_its_code() {
    let bytes = good("error/whole.json");
    let output = run(&["filter", "descriptor"], &bytes);
    assert_eq!((code(&output), output.stdout), (5, bytes));
    assert!(output.stderr.is_empty());
}

#[test]
fn check_names_every_file_that_breaks_its_contract() {
    let folder = contracts().join("tests");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (fine, bad) = (path("good/run/whole.json"), path("bad/run/too-many-vms.json"));
    assert_eq!(code(&run(&["check", "run", &fine], b"")), 0);
    let output = run(&["check", "any", &fine, &bad], b"");
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(code(&output) == 3 && said.contains("too-many-vms.json") && !said.contains("good/run"), "{said}");
    assert_eq!(code(&run(&["check", "run", "/no/such/file"], b"")), 3);
    assert_eq!(code(&run(&["check", "no-such-kind", &fine], b"")), 2);
    assert_eq!(code(&run(&["check", "run"], b"")), 2);
}

#[test]
fn rules_across_the_documents_of_a_call_hold() {
    let bug = good("bug/whole.json");
    let text = |name: &str| String::from_utf8(good(name)).unwrap();
    let named = |text: String, from: &str| {
        text.replace(&Digest::of(from.as_bytes()).to_string(), &Digest::of(&bug).to_string())
    };
    // In the good documents a reference's digest is that of its kind's name.
    let minimized =
        named(text("minimized-bug/whole.json"), "bug").replace("\"original_faults\":7", "\"original_faults\":2");
    let both = |minimized: &str| {
        let kinds = [
            (chaoscontrol_artifact::MediaType::Bug, &bug[..]),
            (chaoscontrol_artifact::MediaType::MinimizedBug, minimized.as_bytes()),
        ];
        let items: Vec<wire::Item> = kinds.iter().map(|(kind, bytes)| item(*kind, kind.schema(), bytes)).collect();
        checker().check(&items).unwrap().into_iter().map(|breach| breach.text).collect::<Vec<String>>()
    };
    assert_eq!(both(&minimized), Vec::<String>::new());
    let other = both(&minimized.replace("\"property\":\"one leader", "\"property\":\"two leaders"));
    assert!(other.len() == 1 && other[0].contains("must be the identity of the bug that was minimized"), "{other:?}");
    let faults = both(&minimized.replace("\"original_faults\":2", "\"original_faults\":3"));
    assert!(faults.len() == 1 && faults[0].contains("must be the number of faults"), "{faults:?}");
}

#[test]
fn another_contract_set_is_said_and_ends_with_code_4() {
    let other = wire::request(Digest::of(b"other contracts"), &[]);
    let output = run(&["serve"], &other);
    assert_eq!(code(&output), 4);
    let (set, breaches) = wire::read_response(&mut &output.stdout[..], 0).unwrap();
    assert_eq!((set, breaches.len()), (chaoscontrol_artifact::contract::set_digest(), 0));
}

#[test]
fn a_checker_of_another_set_or_none_at_all_is_an_error_with_code_4() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("chaos-contract");
    let answer = folder.path().join("answer");
    fs::write(&answer, wire::response(Digest::of(b"other contracts"), &[])).unwrap();
    fs::write(&script, format!("#!/bin/sh\n/bin/cat > /dev/null\n/bin/cat {}\nexit 4\n", answer.display())).unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let sample = samples("good").remove(0);
    let items = [item(sample.kind, "a", &sample.bytes)];
    let error = Checker::at(script).check(&items).unwrap_err();
    assert!(matches!(error, ContractError::OtherSet { .. }), "{error}");
    assert_eq!(error.exit_code(), ExitCode::HostLacks);
    assert!(error.to_string().contains("build both from one source"), "{error}");
    let error = Checker::find(Some(folder.path().join("empty").as_os_str())).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::HostLacks);
    assert!(error.to_string().contains("the host lacks chaos-contract"), "{error}");
}

fn project(folder: &Path, name: &str) -> Output {
    run(&["project", folder.join(name).to_str().unwrap()], b"")
}

#[test]
fn the_committed_projections_are_what_their_profiles_give() {
    let folder = contracts().join("profiles");
    let mut seen = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".ncl") {
            let output = project(&folder, name);
            let said = String::from_utf8_lossy(&output.stderr);
            let committed = fs::read(path.with_extension("json")).unwrap_or_default();
            assert!(output.stdout == committed, "{name}: stale: run chaos-profiles --write contracts/profiles\n{said}");
            seen += 1;
        }
    }
    assert!(seen >= 4);
}

#[test]
fn a_profile_sees_its_own_folder_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(folder.path().join("outside.ncl"), "{ vms = 3 }").unwrap();
    fs::write(inner.join("inside.ncl"), "{ vms = 5 }").unwrap();
    std::os::unix::fs::symlink(folder.path().join("outside.ncl"), inner.join("link.ncl")).unwrap();
    let outside = folder.path().join("outside.ncl");
    let write = |import: &str| {
        fs::write(inner.join("profile.ncl"), format!("(import {import:?}) | (import \"chaos/vm-run.ncl\")")).unwrap();
        project(&inner, "profile.ncl")
    };
    let output = write("inside.ncl");
    let projected: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&projected["values"]["vms"], &projected["imports"][0]["name"]), (&5.into(), &"inside.ncl".into()));
    for import in ["../outside.ncl", "link.ncl", outside.to_str().unwrap(), "/etc/hostname", "/proc/self/environ"] {
        let output = write(import);
        let said = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(code(&output) == 3 && said.contains("could not find import"), "{import}: {said}");
    }
}

#[test]
fn a_profile_that_breaks_its_contract_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |text: &str| {
        fs::write(folder.path().join("profile.ncl"), text).unwrap();
        let output = project(folder.path(), "profile.ncl");
        (code(&output), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = write("{ vms = 99 } | (import \"chaos/vm-run.ncl\")");
    assert!(code == 3 && said.contains("must be an integer from 1 to 32") && said.contains("profile.ncl"), "{said}");
    let (code, said) = write("{ cpus = 2 } | (import \"chaos/vm-run.ncl\")");
    assert!(code == 3 && said.contains("cpus"), "{said}");
    let (code, said) = write("{ vms = 3 }");
    assert!(code == 3 && said.contains("kind"), "{said}");
    let (code, said) = write("{ vms = missing }");
    assert!(code == 3 && said.contains("missing"), "{said}");
}

#[test]
fn a_profile_that_never_ends_runs_into_a_limit_and_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile.ncl");
    fs::write(&profile, "let rec f = fun n => f (n + 1) in { vms = f 0 } | (import \"chaos/vm-run.ncl\")").unwrap();
    // A narrower limit than its own, which it must keep, so that the test is short.
    let script = folder.path().join("chaos-contract");
    fs::write(&script, format!("#!/bin/sh\nulimit -S -t 1\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_chaos-contract")))
        .unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let error = Checker::at(script).ask(&["project".as_ref(), profile.as_os_str()], Vec::new()).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::BadInput, "{error}");
    assert!(error.to_string().contains("is there a recursion without an end?"), "{error}");
}

#[test]
fn a_profile_that_takes_all_memory_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile.ncl");
    fs::write(&profile, "let rec f = fun n => 1 + f n in { vms = f 0 } | (import \"chaos/vm-run.ncl\")").unwrap();
    let output = run(&["project", profile.to_str().unwrap()], b"");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(code(&output) == 3 && said.contains("is there a recursion without an end?"), "{said}");
}

#[test]
fn a_misspelt_kind_is_answered_with_the_nearest() {
    let output = run(&["check", "shedule", "/dev/null"], b"");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(code(&output) == 2 && said.trim_end().ends_with("did you mean schedule?"), "{said}");
}
