// SPDX-License-Identifier: Apache-2.0
//! Outside a VM the same program writes JSON lines, from several processes and threads, or nothing.

use chaoscontrol_sdk::{
    assert_agree, assert_always, assert_always_greater_than, assert_reachable, assert_sometimes, details,
};
use serde_json::{Value, json};
use std::process::Command;

const ROLE: &str = "SDK_TEST_ROLE";

/// What the child of these tests does: reports from threads and from a forked process.
fn program() {
    let threads: Vec<_> = (0..4)
        .map(|n| {
            std::thread::spawn(move || {
                for i in 0..1000u32 {
                    assert_always!(i < 1000, "threads count", details! { n: n });
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_always_greater_than!(5u32, 3, "five is more");
    assert_sometimes!(false, "never true");
    chaoscontrol_sdk::setup_complete(details! { nodes: 3 }).unwrap();
    assert_agree!("leader", 1u64, 2u64).unwrap();
    // SAFETY: the child of the fork only reports and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        assert_reachable!("in the fork");
        chaoscontrol_sdk::send_event("forked", "{}").unwrap();
        // SAFETY: ends the child without running the test harness in it.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    println!("random {}", chaoscontrol_sdk::get_random());
}

/// Runs this very test again as the program and gives its output.
fn run(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "one_binary_writes_lines_or_nothing", "--nocapture"]).env(ROLE, "program");
    command.env_remove("CHAOS_SDK_LOCAL_OUTPUT").env_remove("ANTITHESIS_SDK_LOCAL_OUTPUT");
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn lines_of(variable: &str) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sdk.jsonl");
    run(&[(variable, path.to_str().unwrap())]);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect()
}

#[test]
fn one_binary_writes_lines_or_nothing() {
    if std::env::var_os(ROLE).is_some() {
        return program();
    }
    run(&[]);
    for variable in ["CHAOS_SDK_LOCAL_OUTPUT", "ANTITHESIS_SDK_LOCAL_OUTPUT"] {
        let lines = lines_of(variable);
        let count = |wanted: &dyn Fn(&Value) -> bool| lines.iter().filter(|line| wanted(line)).count();
        assert_eq!(lines[0]["antithesis_sdk"]["protocol_version"], "1.1.0");
        // Both processes introduce themselves with the whole catalog.
        assert_eq!(count(&|line| !line["antithesis_sdk"].is_null()), 2);
        assert_eq!(count(&|line| line["antithesis_assert"]["hit"] == false), 10);
        let first = &lines.iter().find(|line| line["antithesis_assert"]["hit"] == true).unwrap()["antithesis_assert"];
        assert_eq!(first["id"], "threads count");
        assert_eq!(first["location"]["file"], "tests/lines.rs");
        assert_eq!(first["display_type"], "Always");
        assert_eq!(
            count(&|line| line["antithesis_assert"]["id"] == "threads count"),
            3,
            "two catalogs, one first pass"
        );
        let guidance = lines.iter().find(|line| !line["antithesis_guidance"].is_null()).unwrap();
        assert_eq!(guidance["antithesis_guidance"]["guidance_data"], json!({"left": 5, "right": 3}));
        assert_eq!(
            count(&|line| line["antithesis_setup"] == json!({"status": "complete", "details": {"nodes": 3}})),
            1
        );
        assert_eq!(count(&|line| line["chaos_agree"]["key"] == "1" && line["chaos_agree"]["value"] == "2"), 1);
        assert_eq!(count(&|line| line["forked"] == json!({})), 1);
        assert_eq!(
            count(&|line| line["antithesis_assert"]["id"] == "in the fork" && line["antithesis_assert"]["hit"] == true),
            1
        );
    }
}

#[test]
fn a_local_seed_repeats_the_random_numbers() {
    let random = |seed: &str| {
        let output = run(&[("CHAOS_SDK_SEED", seed)]);
        output.lines().find_map(|line| line.split("random ").nth(1)).unwrap().to_string()
    };
    assert_eq!(random("7"), random("7"));
    assert_ne!(random("7"), random("8"));
}
