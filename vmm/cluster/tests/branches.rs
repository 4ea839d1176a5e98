// SPDX-License-Identifier: AGPL-3.0-or-later
//! Branches: determinism, the oracle's judgement, restarts, surviving writes (semantics, points 4, 6, 7, 8, 10, 11).

mod common;

use std::collections::BTreeSet;

use chaoscontrol_cluster::{
    BranchOutcome, BranchPlan, Cluster, EndReason, GUEST_SLOTS_FROM, OracleLimit, SEND, SERIAL_TAIL_BYTES,
    ViolationKind,
};
use chaoscontrol_fault::{
    Applicability, Application, Choice, Fault, FaultEvent, LedgerEntry, Planner, RANDOMS_FROM, Reaction, Rejection,
    Schedule, Stream, Tactic,
};
use chaoscontrol_protocol::Record;
use common::{Fake, MS, SECOND, Step, booted, encoded, failure, hello, hello_of_agreement, looping, schedule, text};

fn kill(vm: u16, survivors: u64) -> Fault {
    Fault::VmKill { vm, survivors, torn_write: 0, torn_bytes: 0, down_ns: 100 * MS }
}

/// Three VMs that work, sleep and send to each other.
fn talkers() -> Cluster<Fake> {
    let program = |to| looping(vec![Step::Work(500), Step::Write(3, 1), Step::Send(to), Step::Sleep(7 * MS)]);
    booted(vec![program(1), program(2), program(0)])
}

fn run(cluster: &mut Cluster<Fake>, events: &[(u64, Fault)]) -> BranchOutcome {
    let mut plan = BranchPlan::new(schedule(events), SECOND, 1);
    plan.full_trace = true;
    cluster.run(&plan).unwrap()
}

#[test]
fn the_same_plan_from_the_same_snapshot_gives_the_same_branch() {
    let mut cluster = talkers();
    let snapshot = cluster.snapshot().expect("sound");
    let mut stream = Stream::named(1, "branches", 0);
    let planner = Planner::new(cluster.sim().config().shape(SECOND));
    let plans: Vec<BranchPlan> =
        (0..12).map(|seed| BranchPlan::new(planner.random(&mut stream), SECOND, seed)).collect();
    let first: Vec<BranchOutcome> = plans.iter().map(|plan| cluster.run_branch(&snapshot, plan).unwrap()).collect();
    // In another order, and in another cluster that ran something else before.
    let mut other = talkers();
    for index in (0..plans.len()).rev() {
        assert_eq!(other.run_branch(&snapshot, &plans[index]).unwrap(), first[index], "branch {index}");
    }
    let digests: BTreeSet<_> = first.iter().map(|outcome| outcome.digest).collect();
    assert_eq!(digests.len(), plans.len(), "every branch is another one");
}

#[test]
fn restoring_is_invisible() {
    let mut straight = talkers();
    let mut restored = talkers();
    let snapshot = straight.snapshot().expect("sound");
    run(&mut restored, &[(MS, kill(0, 0)), (300 * MS, Fault::VmPause { vm: 2, duration_ns: 5 * SECOND })]);
    restored.restore(&snapshot).unwrap();
    assert_eq!(run(&mut restored, &[]), run(&mut straight, &[]));
}

#[test]
fn a_snapshot_taken_in_the_middle_of_a_branch_goes_on_with_its_faults() {
    let loss = Fault::NetworkLoss { from_vms: 7, to_vms: 7, loss_ppm: 1_000_000, duration_ns: 0 };
    let mut cluster = talkers();
    run(&mut cluster, &[(0, loss), (900 * MS, kill(1, 0))]);
    let snapshot = cluster.snapshot().expect("sound");
    let before = cluster.sim().network_counts();
    let outcome = cluster.run_branch(&snapshot, &BranchPlan::new(Schedule::default(), SECOND, 5)).unwrap();
    assert_eq!(outcome.network.delivered, before.delivered, "frames are still lost");
    assert!(outcome.network.sent > before.sent);
    let mut again = talkers();
    let plan = BranchPlan::new(Schedule::default(), SECOND, 5);
    assert_eq!(again.run_branch(&snapshot, &plan).unwrap(), outcome);
}

#[test]
fn a_schedule_answers_the_nth_random_number_of_a_vm_until_it_is_restarted() {
    let mut cluster = booted(vec![looping(vec![Step::Sleep(10 * MS), Step::Draw])]);
    let snapshot = cluster.snapshot().expect("sound");
    let answer = |nth, value| Choice { vm: 0, nth: RANDOMS_FROM + nth, value };
    let mut drawn = |events: &[(u64, Fault)]| {
        let schedule = schedule(events).with_choices(vec![answer(1, 7), answer(20, 9)]).expect("one answer each");
        let outcome = cluster.run_branch(&snapshot, &BranchPlan::new(schedule, SECOND, 1)).unwrap();
        let drew: Vec<u64> =
            text(&outcome.serial[0]).lines().filter_map(|line| line.strip_prefix("drew ")?.parse().ok()).collect();
        (drew, outcome.randoms)
    };
    let (free, counted) = drawn(&[]);
    assert_eq!((free[1], free[20], free.len() as u64), (7, 9, counted));
    let (restarted, counted) = drawn(&[(100 * MS, Fault::VmRestart { vm: 0 })]);
    assert!(restarted[1] == 7 && !restarted.contains(&9) && counted < 20, "{counted}");
}

#[test]
fn another_entropy_seed_gives_another_branch() {
    let mut cluster = talkers();
    let snapshot = cluster.snapshot().expect("sound");
    let digest = |cluster: &mut Cluster<Fake>, seed| {
        let plan = BranchPlan::new(Schedule::default(), SECOND, seed);
        cluster.run_branch(&snapshot, &plan).unwrap().digest
    };
    assert_ne!(digest(&mut cluster, 1), digest(&mut cluster, 2));
}

#[test]
fn a_snapshot_of_another_cluster_is_refused() {
    let snapshot = talkers().snapshot().expect("sound");
    let mut two = booted(vec![looping(vec![Step::Sleep(MS)]), looping(vec![Step::Sleep(MS)])]);
    assert!(two.restore(&snapshot).is_err());
}

#[test]
fn a_failing_assertion_reaches_the_host_at_once_and_ends_the_branch_at_the_end_of_its_round() {
    let quiet = looping(vec![Step::Work(100_000)]);
    let mut cluster =
        booted(vec![quiet.clone(), looping(vec![Step::Sleep(50 * MS), failure(), Step::Work(9_000_000)]), quiet]);
    let outcome = run(&mut cluster, &[]);
    assert_eq!(outcome.end, EndReason::Violation);
    let [violation] = &outcome.violations[..] else { panic!("{:?}", outcome.violations) };
    assert_eq!((violation.vm, violation.kind.signature().as_str()), (1, "assertion: holds"));
    // The sleep, and the three steps before it and the report itself.
    assert_eq!(violation.guest_ns % MS, 40);
    let records = outcome.records.unwrap();
    let last = records.last().unwrap();
    assert!((last.start_ns..last.end_ns).contains(&violation.cluster_ns), "{violation:?} {last:?}");
    assert_eq!(last.vms[1].sdk_records, 1);
    assert_eq!(last.vms[0].instructions, last.vms[2].instructions, "the others reach the barrier");
}

#[test]
fn a_panic_an_exit_and_a_shutdown_are_violations_and_success_is_not() {
    let end = |step: Step| {
        let mut cluster = booted(vec![looping(vec![Step::Sleep(10 * MS), step])]);
        run(&mut cluster, &[])
    };
    let kinds = |step| end(step).violations.into_iter().map(|violation| violation.kind).collect::<Vec<_>>();
    assert_eq!(kinds(Step::Panic("Oops")), [ViolationKind::GuestPanic { hint: "Oops".into() }]);
    assert_eq!(kinds(Step::Exit(3)), [ViolationKind::WorkloadExited { code: 3, signalled: false }]);
    assert_eq!(kinds(Step::PowerOff), [ViolationKind::GuestShutdown { how: "power-off".into() }]);
    let done = end(Step::Exit(0));
    assert_eq!((done.end, done.violations), (EndReason::AllExited, vec![]));
}

#[test]
fn exceeding_a_bound_of_the_oracle_ends_the_branch() {
    let agree = |key: u32| {
        let key = key.to_le_bytes().repeat(64);
        encoded(&Record::Agree { site: 1, namespace: "n", key: &key, digest: [0; 32], value: &[0; 256] })
    };
    let flood = (0..40).map(|batch| Step::Report((0..1_000).map(|key| agree(batch * 1_000 + key)).collect(), true));
    let calm = [Step::Sleep(10 * MS)].into_iter();
    let mut program = looping(calm.chain(flood).chain([Step::Sleep(SECOND)]).collect());
    program[1] = hello_of_agreement();
    let mut cluster = booted(vec![program]);
    let outcome = run(&mut cluster, &[]);
    assert!(matches!(outcome.end, EndReason::OracleLimit(OracleLimit::AgreeBytes(_))), "{:?}", outcome.end);
}

#[test]
fn counts_of_all_vms_add_up_also_over_restarts() {
    let program = looping(vec![Step::Count(1), Step::Sleep(10 * MS)]);
    let mut cluster = booted(vec![program.clone(), program]);
    let snapshot = cluster.snapshot().expect("sound");
    let passes = |outcome: &BranchOutcome| outcome.assertions[0].passes;
    let alone = passes(&run(&mut cluster, &[]));
    assert!((198..=204).contains(&alone), "{alone}");
    cluster.restore(&snapshot).unwrap();
    let killed = passes(&run(&mut cluster, &[(500 * MS, kill(1, 0))]));
    assert!((alone - 13..=alone - 7).contains(&killed), "{killed}, one VM was down for 100 of {alone} * 10 ms / 2");
}

#[test]
fn a_restart_resumes_just_before_the_workload_with_fresh_entropy_and_the_current_wall_clock() {
    let mut program = looping(vec![Step::Sleep(SECOND)]);
    program.insert(0, Step::Sleep(40 * MS));
    program.insert(2, Step::PrintClocks);
    let last = program.len() - 1;
    program[last] = Step::Loop(4);
    let mut cluster = booted(vec![program]);
    let start_ms = cluster.sim().now_ns() / MS;
    let outcome = run(&mut cluster, &[(500 * MS, kill(0, 0))]);
    let lines: Vec<String> = text(&outcome.serial[0]).lines().map(str::to_owned).collect();
    let [first, second] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(first, "wall 1000040 guest 40 generation 0 entropy 0");
    let numbers: Vec<u64> = second.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers[0], 1_000_000 + start_ms + 600, "the wall clock went on while it was down");
    assert_eq!(numbers[1], 40, "guest time resumes at the restart point");
    assert!(numbers[2] != 0 || numbers[3] != 0, "{second}");
}

/// Flushes a 9 to sector 8, then leaves three writes to sectors 0, 8 and 16 in the cache, and after a restart prints them.
fn three_writes() -> Cluster<Fake> {
    let mut program = vec![Step::RestartPoint, Step::Print(0), Step::Print(8), Step::Print(16), common::hello()];
    program.extend([Step::Write(8, 9), Step::Flush, Step::Write(0, 1), Step::Write(8, 2), Step::Write(16, 3)]);
    program.push(Step::Sleep(300 * SECOND));
    booted(vec![program])
}

fn after_power_cut(cluster: &mut Cluster<Fake>, fault: Fault) -> String {
    let plan = BranchPlan::new(schedule(&[(100 * MS, fault)]), SECOND, 1);
    let snapshot = cluster.snapshot().expect("sound");
    let outcome = cluster.run_branch(&snapshot, &plan).unwrap();
    cluster.restore(&snapshot).unwrap();
    let lines: Vec<String> = text(&outcome.serial[0]).lines().map(str::to_owned).collect();
    assert_eq!(lines[..3], ["sector 0: 0", "sector 8: 0", "sector 16: 0"]);
    lines[3..].join(", ")
}

#[test]
fn with_three_unflushed_writes_all_eight_surviving_subsets_and_a_torn_one_occur() {
    let mut cluster = three_writes();
    let mut seen = BTreeSet::new();
    for survivors in 0..8 {
        let found = after_power_cut(&mut cluster, kill(0, survivors));
        let value = |bit: u64, new: u8, old: u8| if survivors >> bit & 1 == 1 { new } else { old };
        let (a, b, c) = (value(0, 1, 0), value(1, 2, 9), value(2, 3, 0));
        assert_eq!(found, format!("sector 0: {a}, sector 8: {b}, sector 16: {c}"));
        seen.insert(found);
    }
    assert_eq!(seen.len(), 8);
    let torn = Fault::VmKill { vm: 0, survivors: 0, torn_write: 1, torn_bytes: 100, down_ns: 100 * MS };
    assert_eq!(after_power_cut(&mut cluster, torn), "sector 0: 0, sector 8: 2 torn, sector 16: 0");
}

#[test]
fn a_planner_draws_all_eight_subsets_and_torn_writes() {
    let mut cluster = three_writes();
    let planner =
        Planner::with_kinds(cluster.sim().config().shape(SECOND), |kind| kind.name() == "vm_kill").max_events(1);
    let mut stream = Stream::named(1, "subsets", 0);
    let mut seen = BTreeSet::new();
    for _ in 0..200 {
        let plan = planner.random(&mut stream);
        let Fault::VmKill { survivors, torn_write, torn_bytes, .. } = plan.events()[0].fault else { panic!() };
        let fault = Fault::VmKill { vm: 0, survivors, torn_write, torn_bytes, down_ns: 100 * MS };
        seen.insert(after_power_cut(&mut cluster, fault));
    }
    let whole = seen.iter().filter(|found| !found.contains("torn")).count();
    assert_eq!(whole, 8, "{seen:?}");
    assert!(seen.len() > whole, "{seen:?}");
}

#[test]
fn a_reset_keeps_all_writes() {
    let mut cluster = three_writes();
    let found = after_power_cut(&mut cluster, Fault::VmRestart { vm: 0 });
    assert_eq!(found, "sector 0: 1, sector 8: 2, sector 16: 3");
}

#[test]
fn a_disk_that_had_been_read_and_changed_forces_a_cold_boot() {
    let program = |sector| {
        let mut program = vec![Step::Say("boot"), Step::Print(sector), Step::RestartPoint];
        program.extend([common::hello(), Step::Write(0, 1), Step::Flush, Step::Sleep(300 * SECOND)]);
        booted(vec![program])
    };
    let boots = |sector| {
        let outcome = run(&mut program(sector), &[(100 * MS, kill(0, 0))]);
        text(&outcome.serial[0])
    };
    assert_eq!(boots(0), "boot\nsector 0: 0\nboot\nsector 0: 1\n");
    assert_eq!(boots(64), "boot\nsector 64: 0\n", "what had been read still stands: the restart point is good");
}

#[test]
fn a_pause_costs_run_time_and_no_clock() {
    let mut cluster = booted(vec![looping(vec![Step::Work(100)]), looping(vec![Step::Work(100)])]);
    let pause = Fault::VmPause { vm: 1, duration_ns: 400 * MS };
    let outcome = run(&mut cluster, &[(100 * MS, pause)]);
    let records = outcome.records.unwrap();
    let ran = |vm: usize| records.last().unwrap().vms[vm].instructions - records[0].vms[vm].instructions;
    assert_eq!(ran(0) - ran(1), 400 * MS / 10);
    assert_eq!(
        cluster.node_mut(0).map(|node| chaoscontrol_cluster::Node::now_guest_ns(node)),
        cluster.node_mut(1).map(|node| chaoscontrol_cluster::Node::now_guest_ns(node))
    );
}

#[test]
fn a_wall_clock_jump_is_a_step_of_the_wall_clock_alone() {
    let mut cluster = booted(vec![looping(vec![Step::PrintClocks, Step::Sleep(400 * MS)])]);
    let outcome = run(&mut cluster, &[(200 * MS, Fault::ClockJump { vm: 0, jump_ns: -(300 * SECOND as i64) })]);
    let clocks: Vec<(i64, i64)> = text(&outcome.serial[0])
        .lines()
        .map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<i64>>())
        .map(|numbers| (numbers[0], numbers[1]))
        .collect();
    assert!(clocks.len() >= 3, "{clocks:?}");
    assert_eq!(clocks[1].0 - clocks[0].0, 400 - 300_000);
    assert!(clocks.is_sorted_by(|a, b| a.1 < b.1), "{clocks:?}");
    assert_eq!(outcome.ledger.entries()[0].observed, 1);
}

#[test]
fn a_full_disk_is_observed() {
    let mut cluster = booted(vec![looping(vec![Step::Write(0, 1), Step::Sleep(100 * MS)])]);
    let outcome = run(&mut cluster, &[(0, Fault::DiskFull { vm: 0, disk: 0, duration_ns: 450 * MS })]);
    let failed = text(&outcome.serial[0]).matches("write failed").count() as u64;
    assert!((4..=5).contains(&failed), "{failed}");
    assert_eq!(outcome.ledger.entries()[0].observed, failed);
}

#[test]
fn edges_of_a_branch_are_counted_over_restarts_and_from_zero_in_each_branch() {
    let program = || looping(vec![Step::Work(500), Step::Sleep(10 * MS)]);
    let mut cluster = booted(vec![program(), program()]);
    let snapshot = cluster.snapshot().expect("sound");
    let edges = |cluster: &mut Cluster<Fake>, events: &[(u64, Fault)]| {
        cluster.restore(&snapshot).unwrap();
        run(cluster, events).coverage.unwrap()
    };
    let alone = edges(&mut cluster, &[]);
    let killed = edges(&mut cluster, &[(300 * MS, kill(1, 0))]);
    assert_eq!(edges(&mut cluster, &[]), alone);
    // Steps 0 and 1 run only after a restart; the loop's steps ran before and after it.
    assert_eq!((alone[1][1], killed[1][1]), (0, 1));
    assert!(killed[1][2] > 50 && killed[1][2] < alone[1][2], "{} {}", killed[1][2], alone[1][2]);
}

#[test]
fn what_guests_count_themselves_is_counted_over_restarts_from_zero_and_costs_no_difference() {
    let program = || looping(vec![Step::Hit(3), Step::Sleep(10 * MS)]);
    let mut cluster = booted(vec![program(), looping(vec![Step::Sleep(10 * MS)])]);
    let snapshot = cluster.snapshot().expect("sound");
    let mut outcome = |coverage, events: &[(u64, Fault)]| {
        let plan = BranchPlan { coverage, ..BranchPlan::new(schedule(events), SECOND, 1) };
        cluster.run_branch(&snapshot, &plan).expect("it runs")
    };
    let hits = |outcome: &BranchOutcome| outcome.coverage.as_ref().expect("asked for")[0][GUEST_SLOTS_FROM + 3];
    let alone = outcome(true, &[]);
    let killed = outcome(true, &[(300 * MS, kill(0, 0))]);
    assert!((98..=101).contains(&hits(&alone)), "{}", hits(&alone));
    assert!((87..=92).contains(&hits(&killed)), "{}", hits(&killed));
    assert_eq!(hits(&outcome(true, &[])), hits(&alone), "a branch knows nothing of the one before");
    assert_eq!(outcome(false, &[(300 * MS, kill(0, 0))]).digest, killed.digest, "a replay asks for no coverage");
    // A VM that counts nothing has no slots of its own.
    assert_eq!(alone.coverage.expect("asked for")[1].len(), 64);
}

#[test]
fn console_output_is_kept_up_to_its_bound() {
    let line = "a line of a console that is flooded, again and again and again";
    let mut cluster = booted(vec![looping(vec![Step::Say(line)])]);
    let outcome = cluster.run(&BranchPlan::new(Schedule::default(), 100 * MS, 1)).unwrap();
    assert_eq!(outcome.serial[0].len(), SERIAL_TAIL_BYTES);
    assert!(text(&outcome.serial[0]).ends_with(&format!("{line}\n")));
}

#[test]
fn instructions_are_those_of_the_branch_also_over_restarts() {
    let mut cluster = booted(vec![looping(vec![Step::Work(100)])]);
    let outcome = run(&mut cluster, &[(500 * MS, kill(0, 0))]);
    assert_eq!(outcome.instructions, (SECOND - 100 * MS) / 10);
    assert_eq!(outcome.cluster_ns, SECOND);
}

#[test]
fn what_an_agent_answers_decides_what_became_of_its_faults() {
    let mut cluster = booted(vec![looping(vec![Step::Work(50_000)]); 2]);
    let events = [
        (10 * MS, Fault::ProcessRestart { vm: 0 }),
        (20 * MS, Fault::ProcessPause { vm: 0, process: 0, duration_ns: 5 }),
        (30 * MS, Fault::MemoryPressure { vm: 0, part_ppm: 1_000, duration_ns: 0 }),
        (30 * MS, Fault::MemoryPressure { vm: 1, part_ppm: 1_000, duration_ns: 0 }),
        (40 * MS, kill(1, 0)),
        (50 * MS, Fault::ProcessRestart { vm: 1 }),
    ];
    let start_ns = cluster.sim().now_ns();
    let outcome = cluster.run(&BranchPlan::new(schedule(&events), 100 * MS, 1)).unwrap();
    let entries = outcome.ledger.entries();
    outcome.ledger.check(&schedule(&events), outcome.cluster_ns).unwrap();
    let Application::Applied { at_ns } = entries[0].application else { panic!("{:?}", entries[0]) };
    assert!((10 * MS..12 * MS).contains(&(at_ns - start_ns)) && entries[0].observed == 1, "{:?}", entries[0]);
    let failed = |entry: &LedgerEntry| match &entry.application {
        Application::Failed { reason } => reason.clone(),
        other => format!("{other:?}"),
    };
    assert_eq!(failed(&entries[1]), "the guest's agent could not: error number 3");
    assert_eq!(entries[2].application, Application::Requested { at_ns: start_ns + 30 * MS });
    assert_eq!(failed(&entries[3]), "the VM went down before the guest's agent answered");
    assert_eq!(entries[5].applicability, Applicability::Rejected(Rejection::VmDown));
    assert!(text(&outcome.serial[0]).contains("agent PauseProcess { process: 0, lasts_ns: 5 }"));
}

#[test]
fn a_quiet_period_ends_what_is_in_effect_and_rejects_what_comes() {
    let quiet = Step::Report(vec![encoded(&Record::Quiet { lasts_ns: 100 * MS })], true);
    let mut cluster = booted(vec![vec![Step::RestartPoint, hello(), Step::Sleep(50 * MS), quiet, Step::Work(1 << 40)]]);
    let events = [
        (10 * MS, Fault::DiskFull { vm: 0, disk: 0, duration_ns: 0 }),
        (60 * MS, Fault::VmRestart { vm: 0 }),
        (170 * MS, Fault::ClockJump { vm: 0, jump_ns: 5 }),
    ];
    let outcome = cluster.run(&BranchPlan::new(schedule(&events), 200 * MS, 1)).unwrap();
    let entries = outcome.ledger.entries();
    assert_eq!(entries[1].applicability, Applicability::Rejected(Rejection::QuietPeriod), "{entries:?}");
    assert_eq!(entries[2].applicability, Applicability::Applicable, "it is over in time");
    assert!(text(&outcome.serial[0]).contains("agent EndAll"));
}

#[test]
fn a_branch_under_a_tactic_is_that_of_the_schedule_that_came_of_it() {
    // Silent for longer than what makes a frame a mark.
    let program = |to| looping(vec![Step::Write(3, 1), Step::Send(to), Step::Sleep(12 * MS)]);
    let cluster = || booted(vec![program(1), program(2), program(0)]);
    let snapshot = cluster().snapshot().expect("sound");
    let reaction = |label: &str, skip, time_ns, fault| {
        let faults = Schedule::new(vec![FaultEvent { time_ns, fault }]).unwrap();
        Reaction { label: label.to_owned(), skip, faults }
    };
    let cut = Fault::NetworkPartition { vms: 1, duration_ns: 30 * MS };
    // Whoever misses a frame is silent for as long as it sleeps.
    let reactions = vec![reaction(SEND, 1, 500, cut), reaction(SEND, 0, 2 * MS, cut)];
    let mut plan = BranchPlan::new(schedule(&[(40 * MS, kill(2, 0))]), SECOND, 7);
    plan.full_trace = true;
    plan.tactic = Some(Tactic { reactions, repeats: true, settle_ns: 0 });
    let followed = cluster().run_branch(&snapshot, &plan).unwrap();
    assert!(followed.schedule.len() > 4, "{:?}", followed.schedule);
    assert!(followed.marks.iter().any(|mark| mark.label == SEND && mark.vm == 1), "{:?}", followed.marks);
    plan.schedule = followed.schedule.clone();
    plan.tactic = None;
    assert_eq!(cluster().run_branch(&snapshot, &plan).unwrap(), followed);
}
