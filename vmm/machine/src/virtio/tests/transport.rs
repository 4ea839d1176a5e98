// SPDX-License-Identifier: AGPL-3.0-or-later
//! The transport's registers, status and queue life cycle.

use super::*;
use crate::virtio::net::Net;
use crate::virtio::rng::Rng;

#[test]
fn the_device_says_what_it_is() {
    let mut driver = Driver::without_setup(Rng::new(&ROOT));
    assert_eq!(driver.bench.read32(register::MAGIC_VALUE), u32::from_le_bytes(*b"virt"));
    assert_eq!(driver.bench.read32(register::VERSION), 2);
    assert_eq!(driver.bench.read32(register::DEVICE_ID), 4);
    assert_eq!(driver.bench.read32(register::QUEUE_SIZE_MAX), 16);
    assert_eq!(driver.bench.read32(register::SHM_LEN), u32::MAX);
    assert_eq!(driver.bench.read32(register::SHM_BASE + 4), u32::MAX);
    driver.bench.write32(register::QUEUE_SEL, 1);
    assert_eq!(driver.bench.read32(register::QUEUE_SIZE_MAX), 0, "a queue that does not exist");
    driver.bench.write32(register::DEVICE_FEATURES_SEL, 1);
    assert_eq!(driver.bench.read32(register::DEVICE_FEATURES) & 1, 1, "VERSION_1");
    driver.bench.write32(register::DEVICE_FEATURES_SEL, 2);
    assert_eq!(driver.bench.read32(register::DEVICE_FEATURES), 0);
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let mut driver = Driver::without_setup(Rng::new(&ROOT));
    driver.set_up(1 << 3);
    assert_eq!(driver.status() & (status::FEATURES_OK | status::DRIVER_OK), 0);
    driver.set_up(0);
    assert_eq!(driver.status() & status::DRIVER_OK, status::DRIVER_OK);
}

#[test]
fn a_legacy_driver_is_refused() {
    let mut driver = Driver::without_setup(Rng::new(&ROOT));
    driver.bench.write32(register::STATUS, 3);
    driver.bench.write32(register::STATUS, 3 | status::FEATURES_OK);
    assert_eq!(driver.status(), 3);
}

#[test]
fn features_are_fixed_once_agreed() {
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    let refused = driver.bench.device.counters().refused_accesses;
    driver.bench.write32(register::DRIVER_FEATURES_SEL, 1);
    driver.bench.write32(register::DRIVER_FEATURES, 0);
    assert_eq!(driver.bench.device.counters().refused_accesses, refused + 1);
}

#[test]
fn no_offload_is_offered_by_the_network_card() {
    let mut driver = Driver::without_setup(Net::new([2; 6]));
    driver.bench.write32(register::DEVICE_FEATURES_SEL, 0);
    let offered = driver.bench.read32(register::DEVICE_FEATURES);
    // CSUM, GUEST_CSUM, GSO, GUEST_TSO4..UFO, HOST_TSO4..UFO: virtio 1.2, section 5.1.3.
    let offloads = 1 << 0 | 1 << 1 | 0x7f << 7 | 1 << 14;
    assert_eq!(offered & offloads, 0);
}

#[test]
fn odd_accesses_read_zero_change_nothing_and_are_counted() {
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    let before = driver.bench.device.save();
    for (offset, bytes) in [(0, 1), (0, 2), (0, 8), (2, 4), (0x70, 1)] {
        assert_eq!(driver.bench.read(offset, bytes), 0);
        driver.bench.write(offset, bytes, 0);
    }
    assert_eq!(driver.bench.read32(0x024), 0, "write-only");
    driver.bench.write32(0x000, 7);
    let after = driver.bench.device.save();
    assert_eq!(after.transport.counters.refused_accesses, before.transport.counters.refused_accesses + 12);
    assert_eq!(after.device, before.device);
    assert_eq!(driver.status() & status::DRIVER_OK, status::DRIVER_OK);
}

#[test]
fn a_device_reset_forgets_everything_but_counters() {
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    driver.submit(0, &[Buffer::In(8)]);
    driver.notify(0);
    assert!(driver.bench.line.level());
    driver.bench.write32(register::STATUS, 0);
    assert!(!driver.bench.line.level());
    assert_eq!(driver.status(), 0);
    assert_eq!(driver.bench.read32(register::QUEUE_READY), 0);
    assert_eq!(driver.bench.read32(register::INTERRUPT_STATUS), 0);
    assert_eq!(driver.bench.device.counters().notifications, 1);
    driver.set_up(0);
    driver.submit(0, &[Buffer::In(8)]);
    driver.notify(0);
    assert_eq!(driver.used(0), [(0, 8)]);
}

#[test]
fn the_line_follows_the_interrupt_status() {
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    driver.submit(0, &[Buffer::In(8)]);
    driver.notify(0);
    driver.bench.write32(register::INTERRUPT_ACK, 2);
    assert!(driver.bench.line.level(), "another bit was acknowledged");
    assert_eq!(driver.acknowledge(), 1);
    assert!(!driver.bench.line.level());
}

#[test]
fn a_driver_that_wants_no_interrupt_gets_none() {
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    let flags = driver.rings[0].driver_area();
    driver.bench.memory.write(flags, &1u16.to_le_bytes()).unwrap();
    driver.submit(0, &[Buffer::In(8)]);
    driver.notify(0);
    assert_eq!(driver.used(0).len(), 1);
    assert!(!driver.bench.line.level());
}

#[test]
fn notifications_before_driver_ok_do_nothing() {
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    driver.bench.write32(register::STATUS, 0);
    driver.submit(0, &[Buffer::In(8)]);
    driver.notify(0);
    assert_eq!(driver.used(0), []);
}

#[test]
fn a_stopped_queue_starts_over_from_index_zero() {
    let ring_reset = 1 << 40;
    let mut driver = Driver::start(Rng::new(&ROOT), ring_reset);
    driver.submit(0, &[Buffer::In(8)]);
    driver.notify(0);
    assert_eq!(driver.used(0).len(), 1);
    driver.bench.write32(register::QUEUE_SEL, 0);
    driver.bench.write32(register::QUEUE_RESET, 1);
    assert_eq!(driver.bench.read32(register::QUEUE_RESET), 0);
    assert_eq!(driver.bench.read32(register::QUEUE_READY), 0);
    let ring = Ring { size: 8, base: RINGS + 0x4_0000, next_descriptor: 0, available: 0, used: 0 };
    driver.enable_queue(0, &ring);
    assert_eq!(driver.bench.read32(register::QUEUE_READY), 1);
    driver.rings[0] = ring;
    driver.submit(0, &[Buffer::In(4)]);
    driver.notify(0);
    assert_eq!(driver.used(0), [(0, 4)]);
}

#[test]
fn a_bad_layout_never_becomes_ready() {
    // (size, descriptors, driver area, device area)
    let layouts = [
        (3, RINGS, RINGS + 0x8000, RINGS + 0xa000),
        (0, RINGS, RINGS + 0x8000, RINGS + 0xa000),
        (32, RINGS, RINGS + 0x8000, RINGS + 0xa000),
        (16, RINGS + 8, RINGS + 0x8000, RINGS + 0xa000),
        (16, RINGS, RINGS + 0x8001, RINGS + 0xa000),
        (16, RINGS, RINGS + 0x8000, RINGS + 0xa002),
        (16, 0x3f_fff0, RINGS + 0x8000, RINGS + 0xa000),
        (16, RINGS, u64::MAX - 1, RINGS + 0xa000),
        (16, RINGS, RINGS + 0x8000, 1 << 63),
    ];
    for (size, descriptors, driver_area, device_area) in layouts {
        let mut driver = Driver::start(Rng::new(&ROOT), 0);
        let bench = &mut driver.bench;
        bench.write32(register::QUEUE_READY, 0);
        bench.write32(register::QUEUE_SIZE, size);
        for (at, address) in [
            (register::QUEUE_DESC, descriptors),
            (register::QUEUE_DRIVER, driver_area),
            (register::QUEUE_DEVICE, device_area),
        ] {
            bench.write32(at, address as u32);
            bench.write32(at + 4, (address >> 32) as u32);
        }
        bench.write32(register::QUEUE_READY, 1);
        assert_eq!(bench.read32(register::QUEUE_READY), 0, "{size} {descriptors:#x} {driver_area:#x} {device_area:#x}");
        assert_ne!(driver.status() & status::NEEDS_RESET, 0);
        assert_eq!(driver.acknowledge(), 2, "a configuration interrupt tells the driver");
        driver.set_up(0);
        assert_eq!(driver.status() & status::NEEDS_RESET, 0, "a reset clears it");
    }
}

#[test]
fn a_changed_configuration_changes_its_generation_and_interrupts() {
    let mut driver = Driver::start(Net::new([2; 6]), 1 << 16);
    let before = driver.bench.read32(register::CONFIG_GENERATION);
    assert_eq!(driver.bench.read(0x106, 2), 1);
    driver.host(|net, context| net.set_link(false, context));
    assert_eq!(driver.bench.read32(register::CONFIG_GENERATION), before + 1);
    assert_eq!(driver.bench.read(0x106, 2), 0);
    assert_eq!(driver.acknowledge(), 2);
    driver.host(|net, context| net.set_link(false, context));
    assert_eq!(driver.acknowledge(), 0, "nothing changed");
}

#[test]
fn a_state_of_another_device_is_refused() {
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    let mut state = driver.bench.device.save();
    let mut json = serde_json::to_value(&state).unwrap();
    json["transport"]["queues"][0]["max_size"] = 64.into();
    state = serde_json::from_value(json).unwrap();
    assert!(driver.bench.device.restore(&state).is_err());
}
