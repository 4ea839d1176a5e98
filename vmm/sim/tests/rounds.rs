// SPDX-License-Identifier: AGPL-3.0-or-later
//! Barriers, idle jumps, the order of frames, and the trace (semantics, points 5 and 7).

mod common;

use chaoscontrol_fault::{Applicability, Application, Fault, Planner, Schedule, Stream};
use chaoscontrol_sim::{Command, LinkConfig, Sim, SimState, Trace};
use common::{MS, SECOND, World, config, frame};

#[test]
fn rounds_are_never_longer_than_the_smallest_link_latency_also_under_faults_and_jitter() {
    let mut config = config(3);
    config.network.jitter_ns = 5 * MS;
    config.network.links.push(LinkConfig { from: 0, to: 2, latency_ns: 130_000, jitter_ns: 0 });
    let shape = config.shape(SECOND);
    for seed in 0..20 {
        let mut stream = Stream::named(seed, "rounds", 0);
        let schedule = Planner::new(shape.clone()).random(&mut stream);
        let events: Vec<_> = schedule.events().iter().map(|event| (event.time_ns, event.fault)).collect();
        let mut world = World::new(config.clone(), seed, &events);
        world.busy = true;
        for at in 0..500 {
            world.send(at * 2 * MS, (at % 3) as u16, frame((at % 3) as u16, ((at + 1) % 3) as u16, at));
        }
        world.run();
        for record in &world.records {
            let up = record.vms.iter().any(|vm| vm.power == 0);
            assert!(!up || record.end_ns - record.start_ns <= 130_000, "seed {seed} round {}", record.round);
            assert!(record.end_ns > record.start_ns, "seed {seed} round {}", record.round);
        }
        assert_eq!(world.sim.now_ns(), SECOND, "the last round ends at the horizon, seed {seed}");
    }
}

#[test]
fn a_fault_applies_at_the_barrier_of_exactly_its_time() {
    for time_ns in [0, 1, 999_999, 1_000_000, 123_456_789] {
        let fault = Fault::ClockJump { vm: 2, jump_ns: -7 };
        let mut world = World::new(config(3), 1, &[(time_ns, fault)]);
        world.busy = true;
        world.run();
        let command = Command::StepWallClock { vm: 2, jump_ns: -7 };
        assert_eq!(world.commands, [(time_ns, command)]);
        let entry = &world.sim.ledger().entries()[0];
        assert_eq!(entry.application, Application::Applied { at_ns: time_ns });
        let rounds: Vec<_> = world.records.iter().filter(|record| record.faults == [0]).collect();
        assert_eq!(rounds.len(), 1);
        assert_eq!(rounds[0].start_ns, time_ns);
    }
}

#[test]
fn when_every_vm_is_halted_and_nothing_is_in_flight_the_round_jumps_to_the_earliest_event() {
    let mut world = World::new(config(3), 1, &[]);
    world.send(300 * MS + 7, 1, frame(1, 2, 0));
    world.run();
    // The first round finds out that all are idle; the second one jumps to the send, which the third one makes.
    let starts: Vec<u64> = world.records.iter().map(|record| record.start_ns).collect();
    assert_eq!(starts[..3], [0, MS, 300 * MS + 7]);
    assert!(world.records.len() < 10, "{starts:?}");
    assert_eq!(world.numbers(2), [0]);
}

#[test]
fn a_jump_ends_at_a_frame_in_flight_and_at_a_fault() {
    let slow = Fault::NetworkLatency { from_vms: 1, to_vms: 2, latency_ns: 80 * MS, duration_ns: 0 };
    let jump = Fault::ClockJump { vm: 0, jump_ns: 1 };
    let mut world = World::new(config(2), 1, &[(0, slow), (50 * MS, jump)]);
    world.send(10 * MS, 0, frame(0, 1, 0));
    world.run();
    assert_eq!(world.received[0].0, 10 * MS + 80 * MS + MS);
    assert!(world.records.iter().any(|record| record.start_ns == 50 * MS));
    assert!(world.records.len() < 12, "{}", world.records.len());
}

#[test]
fn a_busy_vm_keeps_rounds_short() {
    let mut world = World::new(config(2), 1, &[]);
    world.busy = true;
    world.run();
    assert_eq!(world.records.len() as u64, SECOND / MS);
}

#[test]
fn frames_cross_at_the_barrier_in_the_order_of_time_vm_and_sequence() {
    let mut world = World::new(config(3), 1, &[]);
    // VM 2 sends first in time, VM 0 and 1 at one time, each two frames.
    world.send(2_000, 1, frame(1, 0, 12));
    world.send(2_000, 1, frame(1, 0, 13));
    world.send(1_000, 2, frame(2, 0, 20));
    world.send(2_000, 2, frame(2, 0, 21));
    world.send(999_999, 1, frame(1, 0, 14));
    world.run();
    assert_eq!(world.numbers(0), [20, 12, 13, 21, 14]);
    for (at_ns, _, _) in &world.received {
        assert!(*at_ns >= MS && world.records.iter().any(|record| record.start_ns == *at_ns));
    }
}

#[test]
fn a_stored_core_goes_on_as_if_it_had_never_been_stored() {
    let jitter = Fault::NetworkJitter { from_vms: 7, to_vms: 7, jitter_ns: 9 * MS, duration_ns: 0 };
    let loss = Fault::NetworkLoss { from_vms: 7, to_vms: 7, loss_ppm: 300_000, duration_ns: 0 };
    let kill = Fault::VmKill { vm: 1, survivors: 0, torn_write: 0, torn_bytes: 0, down_ns: 100 * MS };
    let make = || World::stream(3, 3 * MS, &[(0, jitter), (MS, loss), (200 * MS, kill)]);
    let mut straight = make();
    straight.run();
    let mut stored = make();
    while !stored.sim.finished() {
        stored.step();
        let state: SimState = serde_json::from_str(&serde_json::to_string(stored.sim.state()).unwrap()).unwrap();
        stored.sim = Sim::from_state(state).unwrap();
    }
    assert_eq!(stored.sim, straight.sim);
    assert_eq!(stored.records, straight.records);
    assert_eq!(stored.received, straight.received);
}

#[test]
fn a_stored_core_that_contradicts_itself_is_refused() {
    let full = Fault::DiskFull { vm: 1, disk: 0, duration_ns: 0 };
    let mut world = World::new(config(2), 1, &[(0, full)]);
    world.step();
    let stored = serde_json::to_value(world.sim.state()).unwrap();
    let refused = |path: &str, value: serde_json::Value| {
        let mut changed = stored.clone();
        *changed.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value;
        serde_json::from_value::<SimState>(changed).map_or(true, |state| Sim::from_state(state).is_err())
    };
    assert!(!refused("/now_ns", 5.into()), "an unchanged or harmless state is accepted");
    assert!(refused("/vms/0/clock/denominator", 0.into()));
    assert!(refused("/vms/1/clock/numerator", 0.into()));
    assert!(refused("/vms", serde_json::json!([])));
    assert!(refused("/vms/0/disks", serde_json::json!([])));
    assert!(refused("/config/disks", serde_json::json!([1, 1, 1])));
    assert!(refused("/config/network/latency_ns", 1.into()));
    assert!(refused("/effects/0/event/vm", 2.into()));
    assert!(refused("/effects/0/event/disk", 1.into()));
    assert!(refused("/switch/ports", serde_json::json!([])));
}

#[test]
fn a_fault_added_to_a_schedule_moves_no_other_faults_draws() {
    let loss = Fault::NetworkLoss { from_vms: 1, to_vms: 2, loss_ppm: 400_000, duration_ns: 0 };
    let jitter =
        Fault::NetworkDuplication { from_vms: 7, to_vms: 7, duplication_ppm: 500_000, delay_ns: 1, duration_ns: 0 };
    let lost = |events: &[(u64, Fault)]| {
        let mut world = World::stream(5, 2 * MS, events);
        let mut numbers = world.run().numbers(1);
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    let alone = lost(&[(0, loss)]);
    assert!(alone.len() > 100 && alone.len() < 200, "{}", alone.len());
    assert_eq!(lost(&[(0, loss), (0, jitter)]), alone);
}

#[test]
fn the_trace_changes_with_every_field_of_a_record() {
    let mut world = World::stream(1, 5 * MS, &[(0, Fault::VmPause { vm: 2, duration_ns: 50 * MS })]);
    world.run();
    let record = world.records.iter().find(|record| record.vms[0].frames_sent > 0).unwrap();
    let hash = |change: &dyn Fn(&mut chaoscontrol_sim::RoundRecord)| {
        let mut changed = record.clone();
        change(&mut changed);
        let mut trace = Trace::default();
        trace.push(&changed);
        trace.rolling
    };
    let same = hash(&|_| {});
    let changes: [&dyn Fn(&mut chaoscontrol_sim::RoundRecord); 12] = [
        &|record| record.round += 1,
        &|record| record.start_ns += 1,
        &|record| record.end_ns += 1,
        &|record| record.faults.push(9),
        &|record| record.vms[1].power ^= 1,
        &|record| record.vms[1].instructions += 1,
        &|record| record.vms[1].registers[5] ^= 1,
        &|record| record.vms[1].frames_sent += 1,
        &|record| record.vms[1].frames[31] ^= 1,
        &|record| record.vms[1].frames_delivered += 1,
        &|record| record.vms[1].sdk_records += 1,
        &|record| record.vms[1].sdk[0] ^= 1,
    ];
    for (field, change) in changes.into_iter().enumerate() {
        assert_ne!(hash(change), same, "field {field}");
    }
    // The order of records matters, and what stands at the end.
    let (mut forward, mut backward) = (Trace::default(), Trace::default());
    world.records.iter().for_each(|record| forward.push(record));
    world.records.iter().rev().for_each(|record| backward.push(record));
    assert_eq!(forward, *world.sim.trace());
    assert_ne!(forward.rolling, backward.rolling);
    assert_ne!(forward.finish(&[[0; 32]]), forward.finish(&[[1; 32]]));
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let jitter = Fault::NetworkJitter { from_vms: 7, to_vms: 7, jitter_ns: 9 * MS, duration_ns: 0 };
    let trace = |seed| *World::stream(seed, MS, &[(0, jitter)]).run().sim.trace();
    assert_eq!(trace(4), trace(4));
    assert_ne!(trace(4), trace(5));
}

#[test]
fn faults_past_the_end_of_a_branch_that_ended_early_are_not_reached() {
    let mut world = World::new(config(2), 1, &[(900 * MS, Fault::NetworkHeal {})]);
    world.step();
    let entry = &world.sim.ledger().entries()[0];
    assert_eq!((entry.applicability, &entry.application), (Applicability::NotReached, &Application::None));
}

#[test]
fn a_branch_counts_its_schedule_from_its_own_start() {
    let mut world = World::new(config(2), 1, &[]);
    world.run();
    let start = world.sim.now_ns();
    let events = vec![chaoscontrol_fault::FaultEvent { time_ns: 5, fault: Fault::VmRestart { vm: 1 } }];
    world.sim.begin_branch(Schedule::new(events).unwrap(), 10 * MS, 9).unwrap();
    world.run();
    assert_eq!(world.sim.ledger().entries()[0].application, Application::Applied { at_ns: start + 5 });
    assert_eq!(world.sim.now_ns(), start + 10 * MS);
}
