// SPDX-License-Identifier: AGPL-3.0-or-later
//! What the tools say about each other.

use chaoscontrol_e2e::{Bench, initrd, kernel, outputs};

#[test]
fn the_driver_writes_what_so_many_rounds_in_a_pipeline_would() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("sdk-demo"));
    let arguments =
        ["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path"), "--vms", "1"];
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    let round = ["--branches", "3", "--horizon-ns", "100000000", "--window", "2"];
    let first = bench.run("chaos-explore-round", &round, &booted).expect_code(0);
    let second = bench.run("chaos-explore-round", &round, &first);
    let driver = bench.run("chaos-explore", &[&["--rounds", "2"], &round[..]].concat(), &booted);
    let corpus = |ran: &chaoscontrol_e2e::Ran| ran.descriptor()["outputs"][0].clone();
    assert_eq!(corpus(&second)["role"], "corpus");
    assert_eq!(corpus(&second), corpus(&driver));
}

#[test]
fn two_runs_of_one_thing_are_the_same_from_snapshot_and_from_boot() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("sdk-demo"));
    let arguments =
        ["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path"), "--vms", "1"];
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    let says = |more: &[&str]| {
        let arguments = [&["--horizon-ns", "100000000"], more].concat();
        String::from_utf8(bench.run("chaos-diverge", &arguments, &booted).expect_code(0)).expect("text")
    };
    let line = says(&[]);
    assert!(line.starts_with("the same: "), "{line}");
    assert_eq!(line, says(&["--from-boot"]), "a snapshot and a boot go on alike");
}

#[test]
fn logs_of_one_thing_are_the_same_and_of_two_are_not_compared() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("sdk-demo"));
    let arguments =
        ["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path"), "--vms", "1"];
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    let log = |name: &str, more: &[&str]| {
        let path = bench.path(name).to_str().expect("a path").to_owned();
        let record = ["record", "--out", &path, "--interval", "100000", "--registers", "--horizon-ns", "100000000"];
        let _ = bench.run("chaos-dlog", &[&record, more].concat(), &booted).expect_code(0);
        path
    };
    let (one, two, other) = (log("one", &[]), log("two", &["--tier", "reference"]), log("other", &["--seed", "99"]));
    assert_eq!(bench.run("chaos-dlog", &["diff", &one, &two], b"").expect_code(0), b"the same\n");
    let _ = bench.run("chaos-dlog", &["diff", &one, &other], b"").expect_code(3);
    let stats = String::from_utf8(bench.run("chaos-dlog", &["stats", &one], b"").expect_code(0)).expect("text");
    assert!(stats.contains("vm 0: ") && stats.contains("mark") && stats.contains("interrupt"), "{stats}");
    let dump = String::from_utf8(bench.run("chaos-dlog", &["dump", &one], b"").expect_code(0)).expect("text");
    assert!(dump.lines().any(|line| line.contains(" mark registers ")), "{dump}");
}

#[test]
fn runs_in_processes_of_their_own_agree_and_are_counted() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("sdk-demo"));
    let arguments =
        ["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path"), "--vms", "1"];
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    let drift = |more: &[&str]| {
        let arguments = [&["--horizon-ns", "50000000", "--quiet"], more].concat();
        bench.run("chaos-drift", &arguments, &booted)
    };
    let ran = drift(&["--runs", "4", "--profile", "single"]).descriptor();
    let parameters = &ran["parameters"];
    for (name, count) in [("runs", "4"), ("runs_beside_a_hog", "2"), ("runs_with_two_jobs", "2")] {
        assert_eq!(parameters[name], count, "{ran}");
    }
    let from_boot = drift(&["--runs", "2", "--profile", "single", "--from-boot"]).descriptor();
    assert_eq!(ran["outputs"], from_boot["outputs"], "a snapshot and a boot go on alike");
    let refused = drift(&["--profile", "smp"]);
    assert!(refused.code == 3 && refused.stderr.contains("several CPUs"), "{}", refused.stderr);
}

#[test]
fn shards_merge_in_any_order_and_a_whole_round_is_passed_on() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("sdk-demo"));
    let arguments =
        ["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path"), "--vms", "1"];
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    let round = ["--branches", "5", "--horizon-ns", "100000000", "--window", "2"];
    let explored = |name: &str, more: &[&str]| {
        let descriptor = bench.run("chaos-explore-round", &[&round[..], more].concat(), &booted).expect_code(0);
        let path = bench.path(name);
        std::fs::write(&path, descriptor).expect("a file is written");
        path.to_str().expect("a path").to_owned()
    };
    let (one, two) = (explored("one", &["--shard", "1/2"]), explored("two", &["--shard", "2/2"]));
    let whole = explored("whole", &[]);
    assert_eq!(std::fs::read(&whole).ok(), std::fs::read(explored("same", &["--shard", "1/1"])).ok());
    let merged = bench.run("chaos-merge", &[&one, &two], b"").expect_code(0);
    assert_eq!(merged, bench.run("chaos-merge", &[&two, &one], b"").expect_code(0));
    let corpus = |ran: &chaoscontrol_e2e::Ran| ran.descriptor()["outputs"][0].clone();
    let passed_on = bench.run("chaos-merge", &[&whole], b"");
    assert_eq!(corpus(&passed_on), corpus(&bench.run("chaos-explore-round", &round, &booted)));
    let next = bench.run("chaos-explore-round", &round, &merged).expect_code(0);
    let shown = String::from_utf8(bench.run("chaos-show", &[], &next).expect_code(0)).expect("text");
    assert!(shown.contains("10 branches of 0.1 s"), "{shown}");
    let missing = bench.run("chaos-merge", &[&one], b"");
    assert_eq!((missing.code, missing.stderr.contains("shard 2/2 is missing")), (3, true), "{}", missing.stderr);
}

#[test]
fn a_given_schedule_is_in_every_branch_and_later_rounds_keep_it() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("sdk-demo"));
    let arguments =
        ["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path"), "--vms", "1"];
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    let event = r#"{"duration_ns":"7000000","fault":"vm_pause","time_ns":"30000000","vm":0}"#;
    let schedule = format!(r#"{{"schema":"chaoscontrol.schedule","version":1,"schedule":{{"events":[{event}]}}}}"#);
    std::fs::write(bench.path("given.json"), schedule).expect("a schedule");
    let given = ["--schedule", "given.json"];
    // The demo counts from 0 again where it starts again, and so disagrees with itself.
    let again = ["vm_kill", "vm_restart", "process_*"].map(|kinds| ["--without-faults", kinds]).concat();
    let round = [&["--branches", "3", "--horizon-ns", "100000000", "--window", "2"], &again[..]].concat();
    let first = bench.run("chaos-explore-round", &[&round[..], &given].concat(), &booted);
    assert!(first.stderr.contains("3 branches, "), "{}", first.stderr);
    assert!(first.stderr.contains("no bug found; more branches go on from this descriptor"), "{}", first.stderr);
    let first = first.expect_code(0);
    let second = bench.run("chaos-explore-round", &round, &first).expect_code(0);
    let expected: serde_json::Value = serde_json::from_str(event).expect("an event");
    for descriptor in [&first, &second] {
        let raw = bench.run("chaos-show", &["--raw", &outputs(descriptor, "corpus")[0]], b"").expect_code(0);
        let corpus: serde_json::Value = serde_json::from_slice(&raw).expect("a corpus");
        let list = |name: &str| corpus[name].as_array().expect("a list").clone();
        let branches = [list("entries"), list("planned")].concat();
        assert!(branches.len() >= 3, "{corpus}");
        for branch in &branches {
            let events = branch["schedule"]["events"].as_array().expect("events");
            assert!(events.contains(&expected), "without the given fault: {branch}");
            assert_eq!(branch["origin"] == "given", events.len() == 1 && branch["branch"] == "0", "{branch}");
        }
    }
    let driver = bench.run("chaos-explore", &[&["--rounds", "2"], &round[..], &given].concat(), &booted);
    assert_eq!(outputs(&driver.expect_code(0), "corpus"), outputs(&second, "corpus"));
    // Shards of a round have it too, and their merge hands it on.
    let shard = |part: &str| {
        let arguments = [&round[..], &given, &["--shard", part]].concat();
        let output = bench.run("chaos-explore-round", &arguments, &booted).expect_code(0);
        let name = format!("shard-{}.json", &part[..1]);
        std::fs::write(bench.path(&name), output).expect("a descriptor");
        name
    };
    let shards = [shard("1/3"), shard("2/3"), shard("3/3")];
    let merged = bench.run("chaos-merge", &shards.each_ref().map(String::as_str), b"").expect_code(0);
    let raw = bench.run("chaos-show", &["--raw", &outputs(&merged, "corpus")[0]], b"").expect_code(0);
    let corpus: serde_json::Value = serde_json::from_slice(&raw).expect("a corpus");
    for branch in corpus["planned"].as_array().expect("planned branches") {
        assert!(branch["schedule"]["events"].as_array().expect("events").contains(&expected), "{branch}");
    }
    let text = String::from_utf8(merged).expect("text");
    assert!(text.contains(r#""role":"schedule""#), "the next round cannot know the schedule: {text}");
}

#[test]
fn an_exploration_that_was_killed_goes_on_to_the_same_corpus_and_its_bugs_can_be_taken_out() {
    let bench = Bench::new();
    let (kernel, initrd) = (kernel(), initrd("sdk-demo"));
    let arguments =
        ["--kernel", kernel.to_str().expect("a path"), "--initrd", initrd.to_str().expect("a path"), "--vms", "1"];
    let booted = bench.run("chaos-boot", &arguments, b"").expect_code(0);
    std::fs::write(bench.path("boot.json"), &booted).expect("a file is written");
    let round = ["--rounds", "3", "--branches", "4", "--horizon-ns", "100000000", "--window", "2", "--jobs", "1"];
    let straight = bench.run("chaos-explore", &round, &booted).expect_code(0);
    let checkpoint = bench.path("checkpoint.json");
    let with = ["--checkpoint", checkpoint.to_str().expect("a path"), "--log-json", "--in", "boot.json"];
    let arguments = [&round[..], &with].concat();
    let mut running = bench.command("chaos-explore", &arguments).spawn().expect("it starts");
    while !checkpoint.exists() {
        assert!(running.try_wait().expect("it can be asked").is_none(), "it ended without a checkpoint");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    running.kill().expect("it is killed");
    running.wait().expect("it is gone");
    let exported = bench.run("chaos-export-bugs", &["--in", "checkpoint.json"], b"").expect_code(0);
    assert_eq!(outputs(&exported, "bug"), outputs(&std::fs::read(&checkpoint).expect("there"), "bug"));
    let went_on = bench.run("chaos-explore", &arguments, b"");
    let line = went_on.stderr.lines().find(|line| line.starts_with('{')).map(str::to_owned);
    assert_eq!(went_on.expect_code(0), straight);
    if let Some(line) = line {
        let line: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON");
        assert!(line["branches"].as_u64().is_some_and(|branches| branches > 4), "{line}");
    }
    let other = bench.run("chaos-explore", &[&["--seed", "9"], &arguments[..]].concat(), b"");
    assert_eq!(
        (other.code, other.stderr.contains("of a campaign with other parameters")),
        (3, true),
        "{}",
        other.stderr
    );
    let none = bench.run("chaos-export-bugs", &["--property", "no such property"], &straight);
    assert_eq!((none.code, none.stderr.contains("none of the campaign's")), (3, true), "{}", none.stderr);
    let wrong = bench.run("chaos-export-bugs", &[], &booted);
    assert_eq!((wrong.code, wrong.stderr.contains("wrote no corpus")), (3, true), "{}", wrong.stderr);
}

/// A sample of what `chaos-bench explore` measures: one variant, one seed, both ways of planning.
#[test]
fn branches_to_a_planted_bug_are_the_same_for_any_number_of_jobs_and_measured_once() {
    let bench = Bench::new();
    let (kernel, raft) = (kernel(), initrd("raft"));
    let measured = |jobs: &str, state: &str| {
        let (kernel, raft) = (kernel.to_str().expect("a path"), raft.to_str().expect("a path"));
        let mut arguments = vec!["explore", "--kernel", kernel, "--raft", raft, "--seeds", "1", "--branches", "48"];
        arguments.extend(["--variant", "raft_bug=premature_commit", "--jobs", jobs, "--state", state, "--json"]);
        let table = bench.run("chaos-bench", &arguments, b"").expect_code(0);
        (serde_json::from_slice::<serde_json::Value>(&table).expect("JSON"), std::fs::read(bench.path(state)).ok())
    };
    let (table, lines) = measured("1", "one");
    assert_eq!(table["explore"]["premature_commit"]["faults_missed"], 0.0, "{table}");
    assert_eq!((table.clone(), lines.clone()), measured("2", "two"));
    assert_eq!((table, lines), measured("2", "one"), "what the file has is not run again");
}
