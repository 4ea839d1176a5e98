// SPDX-License-Identifier: AGPL-3.0-or-later
//! What minimizing promises, with a subject that needs no machines.

use crate::fake::{Fake, HORIZON_NS, Shows, partition_then_kill};
use chaoscontrol_artifact::schema::BugIdentity;
use chaoscontrol_explore::minimize::{Minimal, minimize, smallest};
use chaoscontrol_explore::pool::Pool;
use chaoscontrol_explore::{Factory, Plan};
use chaoscontrol_fault::{Fault, FaultEvent, Planner, Schedule, Stream};

/// A schedule of many faults that shows the bug.
fn large(shows: Shows, seed: u64) -> Schedule {
    let fake = Fake::new(shows);
    let planner = Planner::new(fake.shape(HORIZON_NS)).max_events(24);
    let mut stream = Stream::named(seed, "test", 0);
    loop {
        let schedule = planner.random(&mut stream);
        if schedule.len() > 10 && shows(&schedule) {
            return schedule;
        }
    }
}

fn run(fake: &Fake, jobs: u32, schedule: &Schedule, budget: u32) -> Option<Minimal> {
    let identity = BugIdentity { kind: "assertion".into(), property: "one leader".into() };
    let plan = Plan { schedule: schedule.clone(), seed: 1, horizon_ns: HORIZON_NS, ..Plan::default() };
    minimize(&Pool::new(fake, jobs), &plan, &identity, budget, &mut |_, _| ()).unwrap()
}

#[test]
fn every_fault_that_is_left_is_needed() {
    let three = |schedule: &Schedule| {
        let kinds: Vec<u8> = schedule.events().iter().map(|event| event.fault.kind() as u8).collect();
        let count = |kind: u8| kinds.iter().filter(|k| **k == kind).count();
        partition_then_kill(schedule) && count(chaoscontrol_fault::FaultKind::VmPause as u8) >= 1
    };
    for (shows, size) in [(partition_then_kill as Shows, 2), (three as Shows, 3)] {
        for seed in 0..8 {
            let fake = Fake::new(shows);
            let minimal = run(&fake, 2, &large(shows, seed), 1000).unwrap();
            assert_eq!(minimal.schedule.len(), size, "seed {seed}: {:?}", minimal.schedule);
            assert!(minimal.one_minimal && shows(&minimal.schedule));
            for leave in 0..size {
                let mut events = minimal.schedule.events().to_vec();
                events.remove(leave);
                assert!(!shows(&Schedule::new(events).unwrap()), "seed {seed}: fault {leave} is not needed");
            }
        }
    }
}

#[test]
fn parameters_become_small_and_times_round_as_far_as_the_bug_allows() {
    let minimal = run(&Fake::new(partition_then_kill), 1, &large(partition_then_kill, 5), 1000).unwrap();
    let [cut, kill] = minimal.schedule.events() else { panic!("{:?}", minimal.schedule) };
    assert!(matches!(cut.fault, Fault::NetworkPartition { vms: 1, .. }), "{cut:?}");
    let Fault::VmKill { vm: 1, survivors: 0, torn_write: 0, torn_bytes: 0, down_ns } = kill.fault else {
        panic!("{kill:?}")
    };
    assert!((50_000_000..500_000_000).contains(&down_ns), "{down_ns}");
    assert!(cut.time_ns % 1_000_000 == 0 && kill.time_ns % 1_000_000 == 0);
}

#[test]
fn the_number_of_threads_changes_neither_result_nor_attempts() {
    for seed in 0..4 {
        let schedule = large(partition_then_kill, seed);
        let runs: Vec<_> = [1, 2, 6]
            .map(|jobs| {
                let fake = Fake { jitter: jobs > 1, ..Fake::new(partition_then_kill) };
                let minimal = run(&fake, jobs, &schedule, 1000).unwrap();
                (minimal.schedule, minimal.attempts, minimal.ran.trace)
            })
            .into();
        assert!(runs.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}");
    }
}

#[test]
fn a_bug_that_needs_no_fault_ends_with_none_and_one_that_is_gone_is_said_so() {
    let schedule = large(partition_then_kill, 1);
    let minimal = run(&Fake::new(|_| true), 2, &schedule, 1000).unwrap();
    assert!(minimal.schedule.is_empty() && minimal.one_minimal);
    assert!(run(&Fake::new(|_| false), 2, &schedule, 1000).is_none());
}

#[test]
fn a_budget_is_kept_and_the_result_says_that_it_ran_out() {
    let schedule = large(partition_then_kill, 2);
    for budget in [1, 2, 3, 5, 9] {
        let fake = Fake::new(partition_then_kill);
        let minimal = run(&fake, 1, &schedule, budget).unwrap();
        assert!(minimal.attempts <= budget && !minimal.one_minimal);
        assert!(partition_then_kill(&minimal.schedule));
        assert_eq!(u64::from(minimal.attempts), fake.runs.load(std::sync::atomic::Ordering::Relaxed));
    }
}

#[test]
fn other_bugs_do_not_count_as_this_one() {
    let fake = Fake::new(|_| true);
    let event = FaultEvent { time_ns: 5, fault: Fault::VmRestart { vm: 0 } };
    let plan =
        Plan { schedule: Schedule::new(vec![event]).unwrap(), seed: 1, horizon_ns: HORIZON_NS, ..Plan::default() };
    let identity = BugIdentity { kind: "assertion".into(), property: "another".into() };
    assert!(minimize(&Pool::new(&fake, 1), &plan, &identity, 100, &mut |_, _| ()).unwrap().is_none());
}

/// Three pauses, or a restart where nothing pauses: what shows the bug alone does not show it among others.
fn two_ways(schedule: &Schedule) -> bool {
    let count = |name: &str| schedule.events().iter().filter(|event| event.fault.kind().name() == name).count();
    count("vm_pause") >= 3 || (count("vm_restart") >= 1 && count("vm_pause") == 0)
}

#[test]
fn a_minimal_schedule_has_no_more_faults_than_the_smallest_subset_of_up_to_three() {
    let mut shorter = 0;
    for (shows, seeds) in [(two_ways as Shows, 0..12), (partition_then_kill as Shows, 0..4)] {
        for seed in seeds {
            let fake = Fake::new(shows);
            let found = large(shows, seed);
            let minimal = run(&fake, 2, &found, 4000).unwrap();
            let identity = BugIdentity { kind: "assertion".into(), property: "one leader".into() };
            let plan = Plan { schedule: found, seed: 1, horizon_ns: HORIZON_NS, ..Plan::default() };
            let smallest = smallest(&Pool::new(&fake, 2), &plan, &identity).unwrap().expect("up to three show it");
            assert_eq!(minimal.schedule.len(), smallest, "seed {seed}: {:?}", minimal.schedule);
            shorter += u32::from(smallest == 1);
        }
    }
    assert!(shorter > 2, "{shorter}");
}
