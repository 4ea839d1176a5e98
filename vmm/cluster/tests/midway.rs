// SPDX-License-Identifier: AGPL-3.0-or-later
//! Branches that start in the middle of others (semantics, point 8).

mod common;

use chaoscontrol_cluster::{BranchOutcome, BranchPlan, Cluster, ClusterSnapshot, Midway};
use chaoscontrol_fault::{Choice, Fault, FaultEvent, Planner, RANDOMS_FROM, Reaction, Schedule, Stream, Tactic};
use common::{Fake, FakeSnapshot, MS, SECOND, Step, booted, failure, looping};

/// Where a branch is kept.
const STOPS_NS: [u64; 7] = [0, 100 * MS, 250 * MS, 333 * MS, 500 * MS, 750 * MS, 900 * MS];

/// Three VMs that work, choose, count, sleep, write and send to each other.
fn talkers() -> Cluster<Fake> {
    let program = |to| {
        let steps = [
            Step::Work(500),
            Step::Choose(9),
            Step::Draw,
            Step::Count(1),
            Step::Hit(1),
            Step::Write(3, 1),
            Step::Send(to),
            Step::Flush,
            Step::PrintClocks,
        ];
        looping([&steps[..], &[Step::Sleep(7 * MS)]].concat())
    };
    booted(vec![program(1), program(2), program(0)])
}

fn plan(schedule: Schedule) -> BranchPlan {
    BranchPlan { full_trace: true, ..BranchPlan::new(schedule, SECOND, 5) }
}

type Kept = (BranchOutcome, Vec<Midway<FakeSnapshot>>);

fn keeping(cluster: &mut Cluster<Fake>, from: &ClusterSnapshot<FakeSnapshot>, plan: &BranchPlan) -> Kept {
    cluster.run_branch_keeping(from, None, plan, &STOPS_NS).expect("it runs")
}

/// The parent's plan with its end changed in some way: other faults, other answers, a tactic.
fn child(parent: &BranchOutcome, planner: &Planner, stream: &mut Stream) -> BranchPlan {
    let mut schedule = planner.mutate(&parent.schedule, stream);
    let mut choices = parent.schedule.choices().to_vec();
    if stream.below(2) == 0 {
        choices = planner.choices(&choices, (100, 100), stream);
    }
    let mut tactic = None;
    if stream.below(3) == 0 {
        let cut = stream.below(SECOND);
        let early = parent.schedule.events().iter().filter(|event| event.time_ns < cut).copied().collect();
        schedule = Schedule::new(early).expect("no more than before");
        let skip = stream.below(200) as u32;
        let faults = planner.random(stream);
        tactic = Some(Tactic {
            reactions: vec![Reaction { label: "send".into(), skip, faults }],
            repeats: true,
            settle_ns: 0,
        });
    }
    BranchPlan { tactic, ..plan(schedule.with_choices(choices).expect("one answer each")) }
}

#[test]
fn a_branch_from_the_middle_of_another_is_the_same_to_the_last_bit() {
    let mut cluster = talkers();
    let mut elsewhere = talkers();
    let snapshot = cluster.snapshot().expect("sound");
    let planner = Planner::new(cluster.sim().config().shape(SECOND));
    let (mut shared, mut tactics, mut answers) = (0, 0, 0);
    for index in 0..60 {
        let mut stream = Stream::named(9, "midway", index);
        let first = plan(planner.random(&mut stream));
        let (parent, middles) = keeping(&mut cluster, &snapshot, &first);
        assert_eq!(parent, elsewhere.run_branch(&snapshot, &first).expect("it runs"), "keeping changes nothing");
        for _ in 0..6 {
            let plan = child(&parent, &planner, &mut stream);
            let straight = cluster.run_branch(&snapshot, &plan).expect("it runs");
            for midway in middles.iter().filter(|midway| midway.leads_to(&plan)) {
                // In a cluster that ran something else before, and kept again from there on.
                let (outcome, more) =
                    elsewhere.run_branch_keeping(&snapshot, Some(midway), &plan, &STOPS_NS).expect("it runs");
                assert_eq!(outcome, straight, "branch {index} from {} ns", midway.time_ns());
                assert!(more.iter().all(|more| more.time_ns() > midway.time_ns()));
                if midway.time_ns() > 0 {
                    shared += 1;
                    tactics += u32::from(plan.tactic.is_some());
                    answers += u32::from(plan.schedule.choices() != parent.schedule.choices());
                }
            }
        }
    }
    assert!(shared > 300 && tactics > 30 && answers > 30, "{shared} {tactics} {answers}");
}

#[test]
fn what_differs_before_its_barrier_does_not_lead_on_from_it() {
    let mut cluster = talkers();
    let snapshot = cluster.snapshot().expect("sound");
    let pause = |time_ns| FaultEvent { time_ns, fault: Fault::VmPause { vm: 1, duration_ns: MS } };
    let with = |events: &[FaultEvent]| plan(Schedule::new(events.to_vec()).expect("few"));
    let own = with(&[pause(10 * MS), pause(600 * MS)]);
    let (_, middles) = keeping(&mut cluster, &snapshot, &own);
    let leads = |plan: &BranchPlan| -> Vec<u64> {
        middles.iter().filter(|midway| midway.leads_to(plan)).map(|midway| midway.time_ns() / (100 * MS)).collect()
    };
    assert_eq!(leads(&own), [0, 1, 2, 3, 5, 7, 9]);
    assert_eq!(leads(&with(&[pause(10 * MS)])), [0, 1, 2, 3, 5]);
    assert_eq!(leads(&with(&[pause(10 * MS), pause(400 * MS), pause(600 * MS)])), [0, 1, 2, 3]);
    assert_eq!(leads(&with(&[pause(11 * MS), pause(600 * MS)])), [0]);
    assert_eq!(leads(&BranchPlan { entropy_seed: 6, ..own.clone() }), [0; 0]);
    assert_eq!(leads(&BranchPlan { horizon_ns: SECOND + 1, ..own.clone() }), [0; 0]);
    assert_eq!(leads(&BranchPlan { coverage: false, ..own.clone() }), [0; 0]);
    assert_eq!(leads(&BranchPlan { full_trace: false, ..own.clone() }), [0; 0]);
    let answer = |nth| {
        let schedule = own.schedule.clone().with_choices(vec![Choice { vm: 2, nth, value: 0 }]);
        BranchPlan { schedule: schedule.expect("one answer"), ..own.clone() }
    };
    assert_eq!(leads(&answer(0)), [0]);
    assert_eq!(leads(&answer(1 << 20)), [0, 1, 2, 3, 5, 7, 9]);
    assert_eq!(leads(&answer(RANDOMS_FROM)), [0]);
    for nth in [200, RANDOMS_FROM + 200] {
        let some = leads(&answer(nth));
        assert!((2..7).contains(&some.len()), "{some:?}");
    }
}

#[test]
fn a_branch_that_ended_is_kept_no_further() {
    let steps = [&[const { Step::Sleep(50 * MS) }; 6][..], &[failure()]].concat();
    let mut cluster = booted(vec![looping(steps)]);
    let snapshot = cluster.snapshot().expect("sound");
    let (outcome, middles) = keeping(&mut cluster, &snapshot, &plan(Schedule::default()));
    assert_eq!(outcome.violations.len(), 1);
    assert!(middles.iter().all(|midway| midway.time_ns() <= outcome.cluster_ns), "{middles:?}");
    assert_eq!(middles.len(), 3);
}
