// SPDX-License-Identifier: AGPL-3.0-or-later
//! What kills, pauses, restarts, clock and disk faults make of VMs (semantics, points 4, 10 and 11, the core's part).

mod common;

use chaoscontrol_fault::{Applicability, Application, Fault, Rejection};
use chaoscontrol_sim::{Command, DiskCounts, DiskFaults, Power, PowerCut};
use common::{MS, SECOND, World, config, frame};

fn kill(down_ns: u64) -> Fault {
    Fault::VmKill { vm: 1, survivors: 5, torn_write: 2, torn_bytes: 700, down_ns }
}

/// Three VMs that are always busy.
fn busy(events: &[(u64, Fault)]) -> World {
    let mut world = World::new(config(3), 1, events);
    world.busy = true;
    world
}

#[test]
fn a_killed_vm_gets_no_run_time_and_no_frames_until_it_restarts() {
    let mut world = World::stream(1, 10 * MS, &[(100 * MS, kill(100 * MS))]);
    world.restart_guest_ns = 77 * MS;
    world.run();
    assert_eq!(world.numbers(1), (0..10).chain(20..50).collect::<Vec<_>>());
    let cut = PowerCut { survivors: 5, torn_write: 2, torn_bytes: 700 };
    assert_eq!(world.commands[0], (100 * MS, Command::Kill { vm: 1, cut }));
    let (at, Command::Restart { vm: 1, reset: false, down_ns, .. }) = world.commands[1] else {
        panic!("{:?}", world.commands)
    };
    assert_eq!((at, down_ns), (200 * MS, 100 * MS));
    assert_eq!(world.guest_ns[1], 77 * MS + 800 * MS, "guest time goes on from the restart point");
    assert_eq!(world.observed(0), 1);
    assert_eq!(world.sim.network_counts().to_down, 10);
}

#[test]
fn a_vm_without_a_restart_stays_down() {
    let mut world = busy(&[(100 * MS, kill(0))]);
    world.run();
    assert_eq!(world.sim.power(1), Power::Down { since_ns: 100 * MS, restart_ns: None });
    assert_eq!(world.guest_ns, [SECOND, 100 * MS, SECOND]);
}

#[test]
fn faults_on_a_vm_that_is_down_are_rejected_with_the_reason() {
    let events = [
        (100 * MS, kill(0)),
        (200 * MS, kill(0)),
        (300 * MS, Fault::VmPause { vm: 1, duration_ns: 5 }),
        (400 * MS, Fault::ClockSkew { vm: 1, numerator: 2, denominator: 1, duration_ns: 0 }),
        (500 * MS, Fault::ClockJump { vm: 1, jump_ns: 5 }),
        (600 * MS, Fault::VmRestart { vm: 1 }),
        (700 * MS, kill(0)),
    ];
    let mut world = busy(&events);
    world.run();
    for entry in &world.sim.ledger().entries()[1..5] {
        assert_eq!(entry.applicability, Applicability::Rejected(Rejection::VmDown), "{:?}", entry.event);
        assert_eq!((&entry.application, entry.observed), (&Application::None, 0));
    }
    for index in [0, 5, 6] {
        assert_eq!(world.observed(index), 1);
    }
}

#[test]
fn each_restart_has_entropy_and_a_generation_of_its_own() {
    let mut world = busy(&[
        (MS, Fault::VmRestart { vm: 0 }),
        (2 * MS, Fault::VmRestart { vm: 0 }),
        (3 * MS, Fault::VmRestart { vm: 1 }),
    ]);
    world.run();
    let fresh: Vec<([u8; 32], [u8; 16])> = world
        .commands
        .iter()
        .filter_map(|(_, command)| match command {
            Command::Restart { reset: true, entropy, generation, .. } => Some((*entropy, *generation)),
            _ => None,
        })
        .collect();
    assert_eq!(fresh.len(), 3);
    for (index, (entropy, generation)) in fresh.iter().enumerate() {
        for (other_entropy, other_generation) in &fresh[..index] {
            assert!(entropy != other_entropy && generation != other_generation);
        }
    }
}

#[test]
fn a_paused_vm_gets_no_run_time_while_its_clocks_go_on() {
    let mut world = busy(&[(100 * MS, Fault::VmPause { vm: 1, duration_ns: 200 * MS + 5 })]);
    world.run();
    assert_eq!(world.commands, [(300 * MS + 5, Command::SkipTo { vm: 1, guest_ns: 300 * MS + 5 })]);
    assert_eq!(world.guest_ns[1], SECOND);
    let paused = world.records.iter().filter(|record| record.vms[1].power == 1);
    let paused: Vec<(u64, u64)> = paused.map(|record| (record.start_ns, record.end_ns)).collect();
    assert_eq!((paused[0].0, paused[paused.len() - 1].1), (100 * MS, 300 * MS + 5));
    assert!(world.observed(0) >= 200);
}

#[test]
fn frames_for_a_paused_vm_queue_in_its_network_card() {
    let mut world = World::stream(1, 10 * MS, &[(100 * MS, Fault::VmPause { vm: 1, duration_ns: 200 * MS })]);
    world.run();
    assert_eq!(world.numbers(1), (0..50).collect::<Vec<_>>());
}

#[test]
fn a_pause_of_a_paused_vm_is_rejected_and_a_kill_ends_a_pause() {
    let pause = Fault::VmPause { vm: 1, duration_ns: 300 * MS };
    let mut world = busy(&[(100 * MS, pause), (200 * MS, pause), (300 * MS, kill(200 * MS))]);
    world.run();
    let ledger = world.sim.ledger().entries();
    assert_eq!(ledger[1].applicability, Applicability::Rejected(Rejection::VmPaused));
    assert_eq!(ledger[2].applicability, Applicability::Applicable);
    let kinds: Vec<bool> =
        world.commands.iter().map(|(_, command)| matches!(command, Command::SkipTo { .. })).collect();
    assert_eq!(kinds, [false, false], "{:?}", world.commands);
}

#[test]
fn a_skewed_vm_runs_at_exactly_its_ratio_and_keeps_the_offset_afterwards() {
    let skew = Fault::ClockSkew { vm: 1, numerator: 3, denominator: 2, duration_ns: 400 * MS };
    let mut world = busy(&[(100 * MS, skew)]);
    world.run();
    assert_eq!(world.guest_ns, [SECOND, 100 * MS + 600 * MS + 500 * MS, SECOND]);
    let clocks: Vec<u64> = world.commands.iter().map(|(at, _)| *at).collect();
    assert_eq!(clocks, [100 * MS, 500 * MS]);
    assert_eq!(world.observed(0), 400);
}

#[test]
fn guest_time_never_goes_back_under_any_skews() {
    let skew = |numerator, denominator| Fault::ClockSkew { vm: 0, numerator, denominator, duration_ns: 150 * MS };
    let mut world = busy(&[(10 * MS, skew(10, 1)), (100 * MS, skew(1, 10)), (200 * MS, skew(999_983, 1_000_000))]);
    let mut last = 0;
    while !world.sim.finished() {
        world.step();
        assert!(world.guest_ns[0] > last);
        last = world.guest_ns[0];
    }
}

#[test]
fn frames_of_a_skewed_vm_carry_cluster_time() {
    let skew = Fault::ClockSkew { vm: 0, numerator: 1, denominator: 4, duration_ns: 0 };
    let mut world = World::new(config(2), 1, &[(0, skew)]);
    world.send(400 * MS, 0, frame(0, 1, 0));
    world.run();
    // A guest ns is four cluster ns, and barriers lie a millisecond apart.
    assert!((400 * MS..=402 * MS).contains(&world.received[0].0), "{}", world.received[0].0);
}

#[test]
fn a_restarted_vm_keeps_the_skew_that_is_in_effect() {
    let skew = Fault::ClockSkew { vm: 1, numerator: 2, denominator: 1, duration_ns: 0 };
    let mut world = busy(&[(0, skew), (100 * MS, kill(100 * MS))]);
    world.restart_guest_ns = 5 * MS;
    world.run();
    assert_eq!(world.guest_ns[1], 5 * MS + 1_600 * MS);
}

#[test]
fn disk_faults_combine_end_and_survive_a_restart() {
    let write = Fault::DiskWriteError { vm: 1, disk: 0, error_ppm: 1_000, duration_ns: 300 * MS };
    let torn = Fault::DiskTornWrite { vm: 1, disk: 0, torn_ppm: 2_000, torn_bytes: 5, duration_ns: 0 };
    let full = Fault::DiskFull { vm: 1, disk: 0, duration_ns: 100 * MS };
    let mut world = busy(&[(0, write), (100 * MS, torn), (150 * MS, full), (200 * MS, kill(10 * MS))]);
    world.run();
    let sets: Vec<(u64, DiskFaults)> = world
        .commands
        .iter()
        .filter_map(|(at, command)| match command {
            Command::SetDiskFaults { vm: 1, disk: 0, faults } => Some((*at / MS, *faults)),
            _ => None,
        })
        .collect();
    let one = DiskFaults { write_error_ppm: 1_000, ..DiskFaults::default() };
    let two = DiskFaults { torn_ppm: 2_000, torn_bytes: 5, ..one };
    let three = DiskFaults { full: true, ..two };
    let rest = DiskFaults { write_error_ppm: 0, ..two };
    assert_eq!(sets, [(0, one), (100, two), (150, three), (210, three), (250, two), (300, rest)]);
}

#[test]
fn disk_effects_are_observed_by_the_fault_of_their_kind() {
    let write = Fault::DiskWriteError { vm: 1, disk: 0, error_ppm: 1_000, duration_ns: 0 };
    let read = Fault::DiskReadError { vm: 1, disk: 0, error_ppm: 1_000, duration_ns: 0 };
    let flip = Fault::DiskCorruption { vm: 1, disk: 0, corruption_ppm: 1_000, duration_ns: 0 };
    let torn = Fault::DiskTornWrite { vm: 1, disk: 0, torn_ppm: 1_000, torn_bytes: 1, duration_ns: 0 };
    let full = Fault::DiskFull { vm: 1, disk: 0, duration_ns: 0 };
    let other = Fault::DiskFull { vm: 2, disk: 0, duration_ns: 0 };
    let mut world = busy(&[(0, read), (1, write), (2, torn), (3, flip), (4, full), (900 * MS, other)]);
    while world.sim.now_ns() < 500 * MS {
        world.step();
    }
    world.disks = DiskCounts { read_errors: 1, write_errors: 2, torn: 3, corrupted: 4, refused: 5, delayed: 6 };
    world.run();
    let observed: Vec<u64> = (0..6).map(|event| world.observed(event)).collect();
    assert_eq!(observed, [1, 2, 3, 4, 5, 0]);
}

#[test]
fn a_refused_command_is_a_failed_fault() {
    let mut world = busy(&[(0, Fault::DiskFull { vm: 1, disk: 0, duration_ns: 0 })]);
    world.step();
    world.sim.fail_event(0, "too many faults".into());
    assert_eq!(world.sim.ledger().entries()[0].application, Application::Failed { reason: "too many faults".into() });
}
