// SPDX-License-Identifier: AGPL-3.0-or-later
//! Faults that stop clocks, take CPU time, or strike again and again: what the core makes of them.

mod common;

use chaoscontrol_fault::{Applicability, Fault, Rejection};
use chaoscontrol_sim::{Command, Sim};
use common::{MS, SECOND, World, config, frame};

/// Three VMs that are always busy.
fn busy(events: &[(u64, Fault)]) -> World {
    let mut world = World::new(config(3), 1, events);
    world.busy = true;
    world
}

#[test]
fn a_frozen_vm_loses_the_time_and_keeps_its_frames() {
    let freeze = Fault::ClockFreeze { vm: 1, duration_ns: 200 * MS + 5 };
    let mut world = busy(&[(100 * MS, freeze)]);
    world.send(150 * MS, 0, frame(0, 1, 7));
    world.run();
    assert_eq!(world.guest_ns, [SECOND, 800 * MS - 5, SECOND]);
    let (at, Command::SetClock { vm: 1, clock }) = world.commands[0] else { panic!("{:?}", world.commands) };
    assert_eq!((at, clock.to_guest_ns(at)), (300 * MS + 5, 100 * MS));
    assert_eq!(world.numbers(1), [7]);
    assert_eq!(world.observed(0), 1);
}

#[test]
fn a_skew_that_begins_in_a_freeze_counts_from_where_the_clock_stands() {
    let freeze = Fault::ClockFreeze { vm: 1, duration_ns: 200 * MS };
    let skew = Fault::ClockSkew { vm: 1, numerator: 2, denominator: 1, duration_ns: 0 };
    let mut world = busy(&[(100 * MS, freeze), (150 * MS, skew), (200 * MS, freeze)]);
    world.run();
    assert_eq!(world.guest_ns[1], 100 * MS + 2 * 700 * MS);
    assert_eq!(world.sim.ledger().entries()[2].applicability, Applicability::Rejected(Rejection::VmPaused));
}

#[test]
fn a_throttled_vm_runs_its_part_of_each_round_and_its_clocks_go_on() {
    let throttle = Fault::CpuThrottle { vm: 1, speed_ppm: 250_000, duration_ns: 400 * MS };
    let mut world = busy(&[(100 * MS, throttle)]);
    while world.sim.now_ns() < 200 * MS {
        world.step();
    }
    let round = world.sim.clone().plan_round();
    let start = world.sim.now_ns();
    assert_eq!(world.sim.deadline(&round, 1), Some(start + MS / 4));
    assert_eq!(world.sim.throttled_until(&round, 1), Some(start + MS));
    assert_eq!((world.sim.deadline(&round, 0), world.sim.throttled_until(&round, 0)), (Some(start + MS), None));
    world.run();
    assert_eq!(world.observed(0), 400);
    assert_eq!(world.guest_ns[1], SECOND);
}

#[test]
fn a_jittering_wall_clock_steps_within_its_bound_and_comes_back() {
    let jitter = Fault::ClockJitter { vm: 1, jitter_ns: 3 * SECOND, every_ns: 100 * MS, duration_ns: 450 * MS };
    let mut world = busy(&[(100 * MS, jitter)]);
    world.run();
    let (mut moved, mut times) = (0i64, Vec::new());
    for (at, command) in &world.commands {
        let Command::StepWallClock { vm: 1, jump_ns } = command else { panic!("{command:?}") };
        moved += jump_ns;
        assert!(moved.unsigned_abs() <= 3 * SECOND);
        times.push(*at);
    }
    assert_eq!(times, [100 * MS, 200 * MS, 300 * MS, 400 * MS, 500 * MS, 550 * MS]);
    assert_eq!((moved, world.observed(0)), (0, 5));
    let mut again = busy(&[(100 * MS, jitter)]);
    assert_eq!(again.run().commands, world.commands);
}

#[test]
fn a_stalling_cpu_stands_still_at_every_stroke() {
    let stall = Fault::CpuStall { vm: 1, stall_ns: 10 * MS, every_ns: 50 * MS, duration_ns: 100 * MS };
    let mut world = busy(&[(100 * MS, stall)]);
    world.run();
    let resumed: Vec<u64> = world.commands.iter().map(|(at, _)| *at).collect();
    assert_eq!(resumed, [110 * MS, 160 * MS]);
    assert!(world.commands.iter().all(|(_, command)| matches!(command, Command::SkipTo { vm: 1, .. })));
    assert_eq!(world.observed(0), 20);
}

#[test]
fn interrupts_come_at_their_times_and_wake_an_idle_vm() {
    let irq = Fault::InterruptIrq { vm: 1, irq: 5, every_ns: 100 * MS, duration_ns: 250 * MS };
    let nmi = Fault::InterruptNmi { vm: 0 };
    let mut world = World::new(config(2), 1, &[(100 * MS, irq), (200 * MS + 1, nmi)]);
    world.run();
    let pulse = |at| (at, Command::PulseIrq { vm: 1, irq: 5 });
    let expected = [pulse(100 * MS), pulse(200 * MS), (200 * MS + 1, Command::Nmi { vm: 0 }), pulse(300 * MS)];
    assert_eq!(world.commands, expected);
    assert_eq!((world.observed(0), world.observed(1)), (3, 1));
    let woken = world.records.iter().filter(|record| record.start_ns == 100 * MS && record.end_ns == 101 * MS);
    assert_eq!(woken.count(), 1, "the round after an interrupt is no jump");
}

#[test]
fn strokes_miss_a_vm_that_is_down_and_go_on_after_its_restart() {
    let irq = Fault::InterruptIrq { vm: 1, irq: 5, every_ns: 100 * MS, duration_ns: 0 };
    let kill = Fault::VmKill { vm: 1, survivors: 0, torn_write: 0, torn_bytes: 0, down_ns: 500 * MS };
    let mut world = busy(&[(0, irq), (250 * MS, kill)]);
    world.run();
    let pulses = world.commands.iter().filter(|(_, command)| matches!(command, Command::PulseIrq { .. }));
    let times: Vec<u64> = pulses.map(|(at, _)| at / MS).collect();
    assert_eq!(times, [0, 100, 200, 800, 900]);
}

#[test]
fn a_stored_state_goes_on_with_strokes_holds_and_freezes() {
    let events = [
        (50 * MS, Fault::NetworkClog { from_vms: 1, to_vms: 2, duration_ns: 300 * MS }),
        (60 * MS, Fault::ClockFreeze { vm: 2, duration_ns: 300 * MS }),
        (70 * MS, Fault::ClockJitter { vm: 0, jitter_ns: SECOND, every_ns: 30 * MS, duration_ns: 0 }),
    ];
    let mut straight = World::stream(1, 10 * MS, &events);
    let mut stored = World::stream(1, 10 * MS, &events);
    while stored.sim.now_ns() < 200 * MS {
        stored.step();
    }
    let json = serde_json::to_vec(stored.sim.state()).unwrap();
    stored.sim = Sim::from_state(serde_json::from_slice(&json).unwrap()).unwrap();
    assert_eq!(stored.run().records, straight.run().records);
    assert_eq!((stored.received.len(), &stored.commands), (straight.received.len(), &straight.commands));
}
