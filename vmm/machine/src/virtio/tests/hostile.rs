// SPDX-License-Identifier: AGPL-3.0-or-later
//! Rings that lie. Whatever the guest writes, a device never panics, never leaves guest memory and never hangs.

use super::block::{config, image};
use super::*;
use crate::entropy::{Purpose, Stream};
use crate::virtio::block::Block;
use crate::virtio::console::Console;
use crate::virtio::net::Net;
use crate::virtio::rng::Rng;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// One descriptor: address, bytes, flags, next.
type Descriptor = (u64, u32, u16, u16);

/// Offers the chain that starts at descriptor 0 and says whether the device stopped for it.
fn breaks(descriptors: &[Descriptor], table: &[Descriptor]) -> bool {
    let mut driver = Driver::start(Rng::new(&ROOT), 1 << 28);
    for (index, (address, bytes, flags, next)) in descriptors.iter().enumerate() {
        let at = driver.rings[0].descriptor(index as u16);
        write_descriptor(&driver.bench.memory, at, *address, *bytes, *flags, *next);
    }
    for (index, (address, bytes, flags, next)) in table.iter().enumerate() {
        write_descriptor(&driver.bench.memory, 0x20_0000 + 16 * index as u64, *address, *bytes, *flags, *next);
    }
    let area = driver.rings[0].driver_area();
    driver.bench.memory.write(area + 2, &1u16.to_le_bytes()).unwrap();
    driver.notify(0);
    let broken = driver.status() & status::NEEDS_RESET != 0;
    assert_eq!(driver.used(0).is_empty(), broken);
    assert_eq!(driver.bench.device.counters().broken_rings, u64::from(broken));
    broken
}

#[test]
fn good_chains_pass() {
    assert!(!breaks(&[(0x10_0000, 64, WRITE, 0)], &[]));
    assert!(!breaks(
        &[(0x10_0000, 64, NEXT, 5), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0x10_0000, 9, WRITE, 0)],
        &[]
    ));
    assert!(!breaks(&[(0x20_0000, 32, INDIRECT, 0)], &[(0x10_0000, 4, WRITE | NEXT, 1), (0x10_1000, 4, WRITE, 0)]));
    assert!(!breaks(&[(0x10_0000, 1, NEXT, 1), (0x20_0000, 16, INDIRECT, 0)], &[(0x10_1000, 4, WRITE, 0)]));
    assert!(!breaks(&[(u64::MAX, 0, WRITE, 0)], &[]), "an empty buffer points nowhere");
}

#[test]
fn bad_chains_stop_the_device() {
    let bad: &[(&str, &[Descriptor], &[Descriptor])] = &[
        ("next past the table", &[(0x10_0000, 64, WRITE | NEXT, 16)], &[]),
        ("next far past the table", &[(0x10_0000, 64, WRITE | NEXT, 0xffff)], &[]),
        ("a loop of one", &[(0x10_0000, 64, WRITE | NEXT, 0)], &[]),
        ("a loop of two", &[(0x10_0000, 64, WRITE | NEXT, 1), (0x10_0000, 64, WRITE | NEXT, 0)], &[]),
        ("readable after writable", &[(0x10_0000, 64, WRITE | NEXT, 1), (0x10_1000, 64, 0, 0)], &[]),
        ("past the end of memory", &[(0x3f_ffff, 2, WRITE, 0)], &[]),
        ("far outside", &[(1 << 50, 64, WRITE, 0)], &[]),
        ("the address wraps", &[(u64::MAX - 3, 64, WRITE, 0)], &[]),
        ("a huge buffer", &[(0x10_0000, u32::MAX, WRITE, 0)], &[]),
        ("the doorbell page", &[(0xd020_0000, 8, WRITE, 0)], &[]),
        ("a table of no whole entry", &[(0x20_0000, 8, INDIRECT, 0)], &[]),
        ("an odd table", &[(0x20_0000, 24, INDIRECT, 0)], &[]),
        ("an empty table", &[(0x20_0000, 0, INDIRECT, 0)], &[]),
        ("a table longer than the queue", &[(0x20_0000, 17 * 16, INDIRECT, 0)], &[]),
        ("a table outside memory", &[(0x3f_fff8, 16, INDIRECT, 0)], &[]),
        ("next after a table", &[(0x20_0000, 16, INDIRECT | NEXT, 1)], &[(0x10_0000, 8, WRITE, 0)]),
        ("a table in a table", &[(0x20_0000, 16, INDIRECT, 0)], &[(0x20_0000, 16, INDIRECT, 0)]),
        (
            "a good table in a table",
            &[(0x20_0000, 16, INDIRECT, 0)],
            &[(0x20_0010, 16, INDIRECT, 0), (0x10_0000, 8, WRITE, 0)],
        ),
        ("next past an indirect table", &[(0x20_0000, 16, INDIRECT, 0)], &[(0x10_0000, 8, WRITE | NEXT, 1)]),
        ("a loop in a table", &[(0x20_0000, 16, INDIRECT, 0)], &[(0x10_0000, 8, WRITE | NEXT, 0)]),
    ];
    for (name, descriptors, table) in bad {
        assert!(breaks(descriptors, table), "{name}");
    }
}

#[test]
fn an_index_too_far_ahead_stops_the_device() {
    for index in [17u16, 0x8000, 0xffff] {
        let mut driver = Driver::start(Rng::new(&ROOT), 0);
        let area = driver.rings[0].driver_area();
        driver.bench.memory.write(area + 2, &index.to_le_bytes()).unwrap();
        driver.notify(0);
        assert_ne!(driver.status() & status::NEEDS_RESET, 0, "{index}");
        driver.set_up(0);
        driver.submit(0, &[Buffer::In(8)]);
        driver.notify(0);
        assert_eq!(driver.used(0), [(0, 8)], "a reset makes it work again");
    }
}

#[test]
fn a_used_ring_over_the_driver_area_ends() {
    // Each completion changes what is available: the device must not go on for ever.
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    driver.bench.write32(register::QUEUE_READY, 0);
    let area = driver.rings[0].driver_area();
    for (at, address) in [(register::QUEUE_DRIVER, area), (register::QUEUE_DEVICE, area)] {
        driver.bench.write32(at, address as u32);
        driver.bench.write32(at + 4, 0);
    }
    driver.bench.write32(register::QUEUE_READY, 1);
    let descriptor = driver.rings[0].descriptor(0);
    write_descriptor(&driver.bench.memory, descriptor, 0x10_0000, 8, WRITE, 0);
    driver.bench.memory.write(area + 2, &9u16.to_le_bytes()).unwrap();
    for _ in 0..100 {
        driver.notify(0);
    }
    assert_ne!(driver.status(), 0);
}

#[test]
fn a_ring_that_breaks_while_requests_are_in_flight_loses_no_write() {
    let mut driver = super::block::start();
    super::block::write(&mut driver, 5, 0xaa, 1);
    super::block::write(&mut driver, 6, 0xbb, 1);
    let area = driver.rings[0].driver_area();
    driver.bench.memory.write(area + 2, &999u16.to_le_bytes()).unwrap();
    driver.notify(0);
    assert_ne!(driver.status() & status::NEEDS_RESET, 0);
    assert_eq!(driver.bench.device.next_event(), None, "the device stands still");
    driver.set_up(super::block::FLUSH);
    let (_, data) = super::block::read_now(&mut driver, 5, 2);
    assert_eq!((data[0], data[512]), (0xaa, 0xbb));
}

/// A number that is often interesting.
fn odd(stream: &mut Stream, inside: u64) -> u64 {
    match stream.below(8) {
        0 => stream.next_u64(),
        1 => 0x40_0000 - stream.below(64),
        2 => RINGS + stream.below(0x1_0000),
        _ => BUFFERS + stream.below(inside),
    }
}

fn scribble(driver: &mut Driver<impl VirtioDevice>, stream: &mut Stream) {
    let queues = driver.rings.len();
    let ring = driver.rings[stream.below(queues as u64) as usize].clone();
    let memory = &driver.bench.memory;
    for _ in 0..stream.below(6) {
        let index = stream.below(u64::from(ring.size).min(8)) as u16;
        let address = odd(stream, 0x1_0000);
        let bytes = if stream.below(6) == 0 { stream.next_u64() as u32 } else { stream.below(2048) as u32 };
        let flags = if stream.below(10) == 0 { stream.next_u64() as u16 } else { stream.below(4) as u16 };
        let flags = flags | if stream.below(8) == 0 { INDIRECT } else { 0 };
        let next = if stream.below(12) == 0 { stream.next_u64() as u16 } else { stream.below(8) as u16 };
        write_descriptor(memory, ring.descriptor(index), address, bytes, flags, next);
    }
    let slot = ring.driver_area() + 4 + 2 * stream.below(ring.size.into());
    memory.write(slot, &(stream.below(9) as u16).to_le_bytes()).unwrap();
    let mut index = [0; 2];
    memory.read(ring.driver_area() + 2, &mut index).unwrap();
    let step = if stream.below(20) == 0 { stream.next_u64() as u16 } else { stream.below(4) as u16 };
    memory.write(ring.driver_area() + 2, &u16::from_le_bytes(index).wrapping_add(step).to_le_bytes()).unwrap();
    // Buffers that could be a request's header: a type and a sector within bounds.
    let header = [&(stream.below(10) as u32).to_le_bytes()[..], &[0; 4], &stream.below(3000).to_le_bytes()].concat();
    memory.write(BUFFERS + stream.below(0x1_0000), &header).unwrap();
}

/// Random rings, registers and time against a device; then, that a restored copy does the very same.
fn torment<D: VirtioDevice>(make: impl Fn() -> D, features: u64, restore: impl Fn(&mut D, &D), seeds: u8) {
    for seed in 0..seeds {
        let mut stream = Stream::new(&[seed; 32], Purpose::SdkChoice);
        let mut driver = Driver::start(make(), features | 1 << 28 | 1 << 40);
        let mut copy: Option<Driver<D>> = None;
        let mut broken = 0;
        for step in 0..150 {
            if step == 75 {
                copy = Some(driver.restored(make(), |other| restore(other, driver.bench.device.device())));
            }
            for one in std::iter::once(&mut driver).chain(copy.as_mut()) {
                let mut stream = stream.clone();
                scribble(one, &mut stream);
                match stream.below(12) {
                    0 => one.bench.write32(4 * stream.below(64), stream.next_u64() as u32),
                    1 => one.bench.write(stream.below(0x200), 1 << stream.below(4), stream.next_u64()),
                    2 => drop(one.bench.read(stream.below(0x200), 1 << stream.below(4))),
                    3 => drop(one.bench.run_to(one.bench.now.0 + stream.below(200_000))),
                    queue => one.notify(queue as u32 % D::QUEUE_SIZES.len() as u32),
                }
                if one.status() & status::DRIVER_OK == 0 || one.status() & status::NEEDS_RESET != 0 {
                    one.set_up(features | 1 << 28 | 1 << 40);
                }
            }
            stream.next_u64();
            for _ in 0..40 {
                stream.next_u64();
            }
        }
        broken += driver.bench.device.counters().broken_rings;
        driver.assert_same(copy.as_ref().expect("made at step 75"));
        assert!(broken > 0 || seeds < 4, "seed {seed} broke nothing");
    }
}

#[test]
fn random_rings_do_not_hurt_the_entropy_device() {
    torment(|| Rng::new(&ROOT), 0, |_, _| {}, 40);
}

#[test]
fn random_rings_do_not_hurt_the_console() {
    torment(Console::new, 1, |_, _| {}, 40);
}

#[test]
fn random_rings_do_not_hurt_the_network_card() {
    torment(|| Net::new([2; 6]), 1 << 5, |_, _| {}, 40);
}

#[test]
fn random_rings_do_not_hurt_the_disk() {
    assert_eq!(image(), image());
    let restore = |other: &mut Block, from: &Block| other.restore_medium(from.disk().medium().clone());
    torment(|| Block::new(config(), &ROOT), 1 << 9, restore, 60);
}
