// SPDX-License-Identifier: AGPL-3.0-or-later
//! What each network fault does to frames, and that its effect is counted.

mod common;

use chaoscontrol_fault::{Applicability, Fault, Rejection};
use chaoscontrol_sim::LinkConfig;
use common::{MS, SECOND, World, config, frame, number};

const ALL: u32 = 7;

/// Delay of each frame of a stream that was sent every `every_ns`, by number.
fn delays(world: &World, every_ns: u64) -> Vec<(u64, u64)> {
    let delay = |(at, _, frame): &(u64, u16, Vec<u8>)| (number(frame), at - number(frame) * every_ns);
    world.received.iter().map(delay).collect()
}

#[test]
fn a_frame_takes_its_links_latency_and_arrives_at_a_barrier() {
    let mut world = World::new(config(3), 1, &[]);
    world.busy = true;
    world.send(100, 0, frame(0, 1, 0));
    world.run();
    assert_eq!(world.received, [(2 * MS, 1, frame(0, 1, 0))]);
}

#[test]
fn a_frame_to_a_known_address_reaches_one_vm_and_any_other_reaches_all_but_the_sender() {
    let mut world = World::new(config(3), 1, &[]);
    let mut broadcast = frame(0, 1, 8);
    broadcast[..6].fill(0xff);
    let mut unknown = frame(0, 1, 9);
    unknown[5] = 77;
    world.send(0, 1, frame(1, 2, 7));
    world.send(MS, 1, broadcast);
    world.send(2 * MS, 1, unknown);
    world.send(3 * MS, 1, frame(1, 1, 6));
    world.run();
    assert_eq!((world.numbers(0), world.numbers(1), world.numbers(2)), (vec![8, 9], vec![], vec![7, 8, 9]));
}

#[test]
fn a_link_of_its_own_has_its_own_latency() {
    let mut config = config(3);
    config.network.links.push(LinkConfig { from: 0, to: 2, latency_ns: 20 * MS, jitter_ns: 0 });
    let mut world = World::new(config, 1, &[]);
    let mut broadcast = frame(0, 1, 0);
    broadcast[..6].fill(0xff);
    world.send(0, 0, broadcast);
    world.run();
    let arrivals: Vec<(u64, u16)> = world.received.iter().map(|(at, vm, _)| (*at, *vm)).collect();
    assert_eq!(arrivals, [(MS, 1), (20 * MS, 2)]);
}

#[test]
fn latency_delays_frames_while_it_lasts() {
    let latency = Fault::NetworkLatency { from_vms: 1, to_vms: 2, latency_ns: 30 * MS, duration_ns: 100 * MS };
    let mut world = World::stream(1, 10 * MS, &[(100 * MS, latency)]);
    world.run();
    for (number, delay) in delays(&world, 10 * MS) {
        let expected = if (10..20).contains(&number) { 31 * MS } else { MS };
        assert_eq!(delay, expected, "frame {number}");
    }
    assert_eq!(world.observed(0), 10);
}

#[test]
fn the_other_direction_is_not_touched() {
    let latency = Fault::NetworkLatency { from_vms: 1, to_vms: 2, latency_ns: 30 * MS, duration_ns: 0 };
    let mut world = World::new(config(2), 1, &[(0, latency)]);
    world.send(MS, 1, frame(1, 0, 0));
    world.run();
    assert_eq!(world.received[0].0, 2 * MS);
    assert_eq!(world.observed(0), 0);
}

#[test]
fn jitter_delays_each_frame_by_its_own_draw_and_lets_frames_overtake() {
    let jitter = Fault::NetworkJitter { from_vms: ALL, to_vms: ALL, jitter_ns: 40 * MS, duration_ns: 0 };
    let mut world = World::stream(1, 5 * MS, &[(0, jitter)]);
    world.run();
    let delays: Vec<u64> = delays(&world, 5 * MS).into_iter().map(|(_, delay)| delay).collect();
    assert_eq!(delays.len(), 100);
    assert!(delays.iter().all(|delay| (MS..=42 * MS).contains(delay)), "{delays:?}");
    assert!(delays.iter().any(|delay| *delay > 30 * MS) && delays.iter().any(|delay| *delay < 10 * MS));
    assert!(!world.numbers(1).is_sorted());
    assert!(world.observed(0) > 90);
}

#[test]
fn loss_loses_about_its_share() {
    let loss = Fault::NetworkLoss { from_vms: ALL, to_vms: ALL, loss_ppm: 250_000, duration_ns: 0 };
    let mut world = World::stream(1, MS, &[(0, loss)]);
    let received = world.run().numbers(1).len() as u64;
    assert!((300..450).contains(&received), "{received} of 500");
    assert_eq!(world.observed(0), 500 - received);
    assert_eq!(world.sim.network_counts().lost, 500 - received);
}

#[test]
fn duplication_delivers_a_second_copy_behind_the_first() {
    let twice = Fault::NetworkDuplication {
        from_vms: ALL,
        to_vms: ALL,
        duplication_ppm: 1_000_000,
        delay_ns: 3 * MS,
        duration_ns: 0,
    };
    let mut world = World::stream(1, 50 * MS, &[(0, twice)]);
    world.run();
    assert_eq!(world.numbers(1), (0..10).flat_map(|number| [number, number]).collect::<Vec<_>>());
    assert_eq!(world.received[1].0 - world.received[0].0, 3 * MS);
    assert_eq!(world.observed(0), 10);
}

#[test]
fn reordering_holds_chosen_frames_back_so_that_later_ones_overtake() {
    let reorder =
        Fault::NetworkReorder { from_vms: ALL, to_vms: ALL, reorder_ppm: 200_000, delay_ns: 12 * MS, duration_ns: 0 };
    let mut world = World::stream(1, 5 * MS, &[(0, reorder)]);
    world.run();
    let held = delays(&world, 5 * MS).iter().filter(|(_, delay)| *delay == 13 * MS).count() as u64;
    assert!(held > 5 && held < 50, "{held}");
    assert_eq!(world.observed(0), held);
    assert!(!world.numbers(1).is_sorted());
}

#[test]
fn corruption_flips_one_bit_behind_the_header() {
    let flip = Fault::NetworkCorruption { from_vms: ALL, to_vms: ALL, corruption_ppm: 1_000_000, duration_ns: 0 };
    let mut world = World::new(config(3), 1, &[(0, flip)]);
    for at in 0..200 {
        world.send(at * MS, 0, frame(0, 1, 0));
    }
    world.run();
    let mut bits = std::collections::BTreeSet::new();
    for (_, _, received) in &world.received {
        let sent = frame(0, 1, 0);
        let changed: Vec<(usize, u8)> =
            (0..sent.len()).map(|at| (at, sent[at] ^ received[at])).filter(|(_, bits)| *bits != 0).collect();
        let [(at, flipped)] = changed[..] else { panic!("{changed:?}") };
        assert!(at >= 14 && flipped.is_power_of_two(), "{changed:?}");
        bits.insert((at, flipped));
    }
    assert!(bits.len() > 100, "{}", bits.len());
    assert_eq!(world.observed(0), 200);
}

#[test]
fn bandwidth_makes_frames_wait_and_loses_what_a_full_queue_cannot_hold() {
    // A frame of 114 bytes takes 11.4 ms at 10,000 bytes a second and comes every 10 ms.
    let narrow = Fault::NetworkBandwidth { from_vms: 1, to_vms: 2, bytes_per_second: 10_000, duration_ns: 0 };
    let mut world = World::stream(1, 10 * MS, &[(0, narrow)]);
    world.run();
    let delays = delays(&world, 10 * MS);
    assert_eq!(delays.len(), 50);
    assert!(delays[0].1 >= 12_400_000 && delays[0].1 < 14 * MS, "{delays:?}");
    assert!(delays[49].1 > 80 * MS, "{delays:?}");
    assert!(delays.is_sorted_by(|a, b| a.0 < b.0));
    assert_eq!(world.observed(0), 50);

    let trickle = Fault::NetworkBandwidth { from_vms: 1, to_vms: 2, bytes_per_second: 1_000, duration_ns: 0 };
    let mut world = World::stream(1, MS, &[(0, trickle)]);
    world.run();
    assert!(world.received.len() < 10, "{}", world.received.len());
    assert!(world.sim.network_counts().overflowed > 450);
}

#[test]
fn a_partition_drops_both_directions_and_frames_on_their_way() {
    let cut = Fault::NetworkPartition { vms: 0b001, duration_ns: 100 * MS };
    let mut world = World::stream(1, 10 * MS, &[(100 * MS + MS / 2, cut)]);
    for number in 0..50 {
        world.send(number * 10 * MS, 1, frame(1, 0, number));
        world.send(number * 10 * MS, 2, frame(2, 1, 1_000 + number));
    }
    world.run();
    // Frame 10 was on its way when the partition began.
    let kept: Vec<u64> = (0..10).chain(21..50).collect();
    let from_zero: Vec<u64> = world.numbers(1).into_iter().filter(|number| *number < 1_000).collect();
    assert_eq!(from_zero, kept);
    assert_eq!(world.numbers(0), kept);
    assert_eq!(world.numbers(1).len() - from_zero.len(), 50, "the others still talk");
    assert_eq!(world.observed(0), 22);
}

#[test]
fn a_one_way_partition_leaves_the_other_direction_open() {
    let cut = Fault::NetworkPartitionOneWay { from_vms: 0b001, to_vms: 0b010, duration_ns: 0 };
    let mut world = World::stream(1, 10 * MS, &[(0, cut)]);
    world.send(5 * MS, 1, frame(1, 0, 99));
    world.send(6 * MS, 0, frame(0, 2, 98));
    world.run();
    assert_eq!((world.numbers(0), world.numbers(1), world.numbers(2)), (vec![99], vec![], vec![98]));
    assert_eq!(world.observed(0), 50);
}

#[test]
fn heal_ends_every_network_fault_and_only_those() {
    let cut = Fault::NetworkPartition { vms: 1, duration_ns: 0 };
    let loss = Fault::NetworkLoss { from_vms: ALL, to_vms: ALL, loss_ppm: 1_000_000, duration_ns: 0 };
    let skew = Fault::ClockSkew { vm: 2, numerator: 2, denominator: 1, duration_ns: 0 };
    let heal = Fault::NetworkHeal {};
    let events = [(0, cut), (0, loss), (0, skew), (100 * MS, heal), (200 * MS, heal)];
    let mut world = World::stream(1, 10 * MS, &events);
    world.run();
    assert_eq!(world.numbers(1), (10..50).collect::<Vec<_>>());
    let ledger = world.sim.ledger().entries();
    assert_eq!(ledger[3].observed, 2);
    assert_eq!(ledger[4].applicability, Applicability::Rejected(Rejection::NothingToHeal));
    assert_eq!(world.guest_ns[2], 2 * SECOND, "the skew goes on");
}

#[test]
fn malformed_frames_are_counted_and_dropped() {
    let mut world = World::new(config(2), 1, &[]);
    world.send(0, 0, vec![0xff; 13]);
    world.send(MS, 0, vec![0xff; 10_000]);
    world.send(2 * MS, 0, Vec::new());
    world.run();
    assert_eq!(world.received, []);
    assert_eq!(world.sim.network_counts().malformed, 3);
}

#[test]
fn a_flood_is_bounded() {
    let slow = Fault::NetworkLatency { from_vms: 1, to_vms: 2, latency_ns: 60 * SECOND, duration_ns: 0 };
    let mut world = World::new(config(2), 1, &[(0, slow)]);
    for number in 0..20_000 {
        world.send(number * 1_000, 0, frame(0, 1, number));
    }
    world.run();
    let counts = world.sim.network_counts();
    assert_eq!(counts.overflowed, 20_000 - chaoscontrol_sim::IN_FLIGHT_MAX as u64);
}

#[test]
fn a_clog_holds_frames_in_order_and_loses_none() {
    let clog = Fault::NetworkClog { from_vms: 0b001, to_vms: 0b010, duration_ns: 200 * MS };
    let mut world = World::stream(1, 10 * MS, &[(100 * MS, clog)]);
    world.send(150 * MS, 0, frame(0, 2, 98));
    world.run();
    assert_eq!(world.numbers(1), (0..50).collect::<Vec<_>>());
    assert_eq!(world.numbers(2), [98], "other links stay open");
    let during = world.received.iter().filter(|(at, to, _)| *to == 1 && (100 * MS..300 * MS).contains(at));
    assert_eq!(during.count(), 0);
    let together = world.received.iter().filter(|(at, to, _)| *to == 1 && *at == 300 * MS);
    assert_eq!(together.count(), 20);
    assert_eq!(world.observed(0), 20);
}

#[test]
fn a_healed_clog_lets_its_frames_go_and_a_partition_drops_them_on_arrival() {
    let clog = Fault::NetworkClog { from_vms: 1, to_vms: 2, duration_ns: 0 };
    let mut world = World::stream(1, 10 * MS, &[(100 * MS, clog), (250 * MS, Fault::NetworkHeal {})]);
    world.run();
    assert_eq!(world.numbers(1), (0..50).collect::<Vec<_>>());
    let cut = Fault::NetworkPartition { vms: 1, duration_ns: 0 };
    let mut world = World::stream(1, 10 * MS, &[(100 * MS, clog), (200 * MS + MS / 2, cut)]);
    world.run();
    assert_eq!(world.numbers(1), (0..10).collect::<Vec<_>>(), "what is held stays held");
    assert_eq!((world.observed(0), world.observed(1)), (10, 30));
}

#[test]
fn packets_longer_than_the_mtu_are_lost_and_others_pass() {
    let mtu = |mtu_bytes| Fault::NetworkMtu { from_vms: 1, to_vms: 2, mtu_bytes, duration_ns: 0 };
    // A frame here has 114 bytes, 14 of them the Ethernet header.
    let mut world = World::stream(1, 10 * MS, &[(0, mtu(100))]);
    world.run();
    assert_eq!((world.numbers(1).len(), world.observed(0)), (50, 0));
    let mut world = World::stream(1, 10 * MS, &[(0, mtu(99))]);
    world.run();
    assert_eq!((world.numbers(1).len(), world.observed(0), world.sim.network_counts().over_mtu), (0, 50, 50));
}
