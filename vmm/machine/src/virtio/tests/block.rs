// SPDX-License-Identifier: AGPL-3.0-or-later
//! The block device's requests, their timing, and its saved state.

use super::*;
use crate::pages::PageMap;
use crate::virtio::block::{Block, BlockConfig, Latency, REQUEST_BYTES_MAX, SECTOR_BYTES};

pub const DISK_BYTES: u64 = 1 << 20;
pub const FLUSH: u64 = 1 << 9;
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH_REQUEST: u32 = 4;
pub const OK: u8 = 0;
pub const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// Each sector's bytes are the low byte of its number.
pub fn image() -> PageMap {
    let bytes: Vec<u8> = (0..DISK_BYTES).map(|at| (at / SECTOR_BYTES) as u8).collect();
    PageMap::from_bytes(&bytes)
}

pub fn config() -> BlockConfig {
    BlockConfig::new(image(), DISK_BYTES, 0)
}

pub fn start() -> Driver<Block> {
    Driver::start(Block::new(config(), &ROOT), FLUSH)
}

/// A request that was submitted: its status byte's address and its data buffer's.
#[derive(Clone, Copy)]
pub struct Request {
    pub head: u16,
    pub data: u64,
    pub status: u64,
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

/// Submits and notifies.
pub fn request(driver: &mut Driver<Block>, kind: u32, sector: u64, data: Buffer<'_>) -> Request {
    let header = header(kind, sector);
    let empty = matches!(data, Buffer::Out([]) | Buffer::In(0));
    let buffers =
        if empty { vec![Buffer::Out(&header), Buffer::In(1)] } else { vec![Buffer::Out(&header), data, Buffer::In(1)] };
    let (head, at) = driver.submit(0, &buffers);
    let status = at[at.len() - 1];
    driver.bench.memory.write(status, &[0xff]).unwrap();
    driver.notify(0);
    Request { head, data: at[1], status }
}

pub fn write(driver: &mut Driver<Block>, sector: u64, fill: u8, sectors: usize) -> Request {
    request(driver, OUT, sector, Buffer::Out(&vec![fill; sectors * 512]))
}

pub fn status_of(driver: &Driver<Block>, request: Request) -> u8 {
    driver.bytes(request.status, 1)[0]
}

/// Lets everything in flight complete.
pub fn settle(driver: &mut Driver<Block>) {
    let to = now(driver).0 + 10_000_000;
    driver.bench.run_to(to);
    assert_eq!(driver.bench.device.next_event(), None);
}

pub fn write_now(driver: &mut Driver<Block>, sector: u64, fill: u8, sectors: usize) -> u8 {
    let request = write(driver, sector, fill, sectors);
    settle(driver);
    status_of(driver, request)
}

pub fn read_now(driver: &mut Driver<Block>, sector: u64, sectors: u32) -> (u8, Vec<u8>) {
    let request = request(driver, IN, sector, Buffer::In(sectors * 512));
    settle(driver);
    (status_of(driver, request), driver.bytes(request.data, sectors as usize * 512))
}

pub fn flush_now(driver: &mut Driver<Block>) {
    let request = request(driver, FLUSH_REQUEST, 0, Buffer::Out(&[]));
    settle(driver);
    assert_eq!(status_of(driver, request), OK);
}

/// First byte of a sector on the durable medium.
pub fn durable(driver: &mut Driver<Block>, sector: u64) -> u8 {
    let address = sector * 512;
    driver.device().disk().medium().get(address / 4096).map_or(0, |page| page.bytes()[(address % 4096) as usize])
}

#[test]
fn a_read_returns_the_image_after_its_latency() {
    let mut driver = start();
    let latency = Latency::default();
    let request = request(&mut driver, IN, 3, Buffer::In(1024));
    let due = latency.read_ns + latency.page_ns;
    assert_eq!(driver.bench.device.next_event(), Some(GuestNs(due)));
    assert_eq!(driver.bench.run_to(due - 1), 0);
    assert_eq!(driver.used(0), []);
    assert_eq!(driver.bench.run_to(due), 1, "one interrupt");
    assert_eq!(driver.used(0), [(request.head, 1025)]);
    assert_eq!(status_of(&driver, request), OK);
    assert_eq!(driver.bytes(request.data, 1024), [vec![3; 512], vec![4; 512]].concat());
}

#[test]
fn what_was_written_is_read_back() {
    let mut driver = start();
    assert_eq!(write_now(&mut driver, 7, 0xaa, 3), OK);
    let (status, data) = read_now(&mut driver, 6, 5);
    assert_eq!(status, OK);
    let firsts: Vec<u8> = data.chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(firsts, [6, 0xaa, 0xaa, 0xaa, 10]);
    let counters = driver.device().counters();
    assert_eq!((counters.reads, counters.writes, counters.errors), (1, 1, 0));
}

#[test]
fn what_a_write_writes_is_captured_when_it_is_submitted() {
    let mut driver = start();
    let request = write(&mut driver, 0, 0x11, 1);
    driver.bench.memory.write(request.data, &[0x22; 512]).unwrap();
    settle(&mut driver);
    assert_eq!(read_now(&mut driver, 0, 1).1, [0x11; 512]);
}

#[test]
fn a_short_request_overtakes_a_long_one() {
    let mut driver = start();
    let long = write(&mut driver, 0, 1, 256);
    let short = write(&mut driver, 512, 2, 1);
    settle(&mut driver);
    assert_eq!(driver.used(0), [(short.head, 1), (long.head, 1)]);
}

#[test]
fn requests_that_cannot_be_are_answered_with_an_error() {
    let mut driver = start();
    let last = DISK_BYTES / 512;
    for (kind, sector, bytes) in [
        (IN, last, 512),
        (IN, last - 1, 1024),
        (IN, u64::MAX, 512),
        (IN, u64::MAX / 512, 512),
        (IN, 0, 100),
        (IN, 0, 0),
    ] {
        let request = request(&mut driver, kind, sector, Buffer::In(bytes));
        settle(&mut driver);
        assert_eq!(status_of(&driver, request), IO_ERROR, "{sector} {bytes}");
    }
    for (sector, bytes) in [(last, 512), (0, 511), (0, 0)] {
        let request = request(&mut driver, OUT, sector, Buffer::Out(&vec![1; bytes]));
        settle(&mut driver);
        assert_eq!(status_of(&driver, request), IO_ERROR, "{sector} {bytes}");
    }
    let unknown = request(&mut driver, 99, 0, Buffer::In(512));
    settle(&mut driver);
    assert_eq!(status_of(&driver, unknown), UNSUPPORTED);
    assert_eq!(driver.device().counters().errors, 10);
    assert_eq!(driver.device().disk().cache().len(), 0);
}

#[test]
fn a_request_longer_than_announced_is_refused() {
    let mut config = config();
    config.size_bytes = 2 * REQUEST_BYTES_MAX;
    let mut driver = Driver::start(Block::new(config, &ROOT), FLUSH);
    let (_, at) =
        driver.submit(0, &[Buffer::Out(&header(IN, 0)), Buffer::In(REQUEST_BYTES_MAX as u32 + 512), Buffer::In(1)]);
    driver.bench.memory.write(at[2], &[0xff]).unwrap();
    driver.notify(0);
    settle(&mut driver);
    assert_eq!(driver.bytes(at[2], 1), [IO_ERROR]);
}

#[test]
fn chains_without_a_status_or_a_header_are_counted() {
    let mut driver = start();
    driver.submit(0, &[Buffer::Out(&header(IN, 0))]);
    let (_, at) = driver.submit(0, &[Buffer::Out(&[0; 15]), Buffer::In(1)]);
    driver.notify(0);
    settle(&mut driver);
    assert_eq!(driver.bytes(at[1], 1), [IO_ERROR]);
    assert_eq!(driver.device().counters().malformed, 2);
    assert_eq!(driver.used(0).len(), 2);
}

#[test]
fn header_and_status_may_share_buffers_with_data() {
    let mut driver = start();
    let out = [header(OUT, 9), vec![0x77; 512]].concat();
    driver.submit(0, &[Buffer::Out(&out[..20]), Buffer::Out(&out[20..]), Buffer::In(1)]);
    driver.notify(0);
    settle(&mut driver);
    let (_, at) = driver.submit(0, &[Buffer::Out(&header(IN, 9)), Buffer::In(513)]);
    driver.notify(0);
    settle(&mut driver);
    assert_eq!(driver.bytes(at[1], 513), [vec![0x77; 512], vec![OK]].concat());
}

#[test]
fn the_disk_has_a_name() {
    let mut driver = start();
    let request = request(&mut driver, 8, 0, Buffer::In(20));
    settle(&mut driver);
    assert_eq!(driver.bytes(request.data, 20), *b"chaos-disk-0\0\0\0\0\0\0\0\0");
}

#[test]
fn the_configuration_space_has_the_size() {
    let mut driver = start();
    assert_eq!(driver.bench.read(0x100, 8), DISK_BYTES / 512);
    assert_eq!(driver.bench.read(0x108, 4) * driver.bench.read(0x10c, 4), REQUEST_BYTES_MAX);
    assert_eq!(driver.bench.read(0x114, 4), 512);
}

#[test]
fn a_read_only_disk_refuses_writes_and_says_so() {
    let mut config = config();
    config.read_only = true;
    let mut driver = Driver::start(Block::new(config, &ROOT), FLUSH | 1 << 5);
    assert_eq!(write_now(&mut driver, 0, 9, 1), IO_ERROR);
    assert_eq!(read_now(&mut driver, 1, 1), (OK, vec![1; 512]));
}

#[test]
fn without_flush_offered_a_flush_is_unsupported() {
    let mut config = config();
    config.flush = false;
    let mut driver = Driver::start(Block::new(config, &ROOT), 0);
    let request = request(&mut driver, FLUSH_REQUEST, 0, Buffer::Out(&[]));
    settle(&mut driver);
    assert_eq!(status_of(&driver, request), UNSUPPORTED);
}

#[test]
fn more_data_than_may_be_in_flight_waits_in_the_queue() {
    let mut config = config();
    config.size_bytes = 64 << 20;
    let mut driver = Driver::start(Block::new(config, &ROOT), FLUSH);
    // Buffers of 64 KiB at one place: 32 of them are one request of the largest size.
    let data = vec![3; 0x1_0000];
    for index in 0..6u64 {
        let head = header(OUT, index * REQUEST_BYTES_MAX / 512);
        let (_, at) = driver.submit(0, &[Buffer::Out(&head), Buffer::Out(&data), Buffer::In(1)]);
        // Stretch the data descriptor over the whole request, as far as memory goes.
        let descriptor = driver.rings[0].descriptor((index as u16 * 3 + 1) % 128);
        write_descriptor(
            &driver.bench.memory,
            descriptor,
            0x10_0000,
            REQUEST_BYTES_MAX as u32,
            1,
            index as u16 * 3 + 2,
        );
        assert_eq!(at.len(), 3);
    }
    driver.notify(0);
    assert_eq!(driver.device().pending_writes().len(), 4);
    settle(&mut driver);
    assert_eq!(driver.used(0).len(), 6);
}

#[test]
fn a_device_reset_finishes_writes_without_touching_memory() {
    let mut driver = start();
    let pending = write(&mut driver, 5, 0xab, 1);
    let read = request(&mut driver, IN, 6, Buffer::In(512));
    driver.bench.write32(register::STATUS, 0);
    assert_eq!(driver.bench.device.next_event(), None);
    assert_eq!(status_of(&driver, pending), 0xff);
    assert_eq!(status_of(&driver, read), 0xff);
    driver.set_up(FLUSH);
    assert_eq!(read_now(&mut driver, 5, 1).1, [0xab; 512]);
}

#[test]
fn a_restored_device_goes_on_with_requests_in_flight() {
    let mut driver = start();
    write_now(&mut driver, 1, 0x10, 2);
    flush_now(&mut driver);
    write_now(&mut driver, 8, 0x20, 20);
    write(&mut driver, 2, 0x30, 1);
    request(&mut driver, FLUSH_REQUEST, 0, Buffer::Out(&[]));
    request(&mut driver, IN, 0, Buffer::In(4096));
    let at = now(&driver).0;
    // Two requests have completed and one interrupt waits.
    driver.bench.run_to(at + 25_000);
    let medium = driver.bench.device.medium().clone();
    let mut other = driver.restored(Block::new(config(), &[9; 32]), |block| block.restore_medium(medium));
    for one in [&mut driver, &mut other] {
        write(one, 30, 0x40, 3);
        one.bench.run_to(at + 300_000);
        assert_eq!(read_now(one, 2, 1).1, [0x30; 512]);
        settle(one);
    }
    driver.assert_same(&other);
    assert_eq!(driver.bench.device.medium(), other.bench.device.medium());
    assert_eq!(driver.device().disk().visible(), other.device().disk().visible());
}

#[test]
fn malformed_saved_states_are_refused() {
    let mut driver = start();
    write_now(&mut driver, 1, 0x10, 2);
    write(&mut driver, 2, 0x30, 1);
    request(&mut driver, IN, 0, Buffer::In(512));
    let good = serde_json::to_value(driver.bench.device.save()).unwrap();
    let spoils: [fn(&mut serde_json::Value); 6] = [
        |state| state["device"]["size_bytes"] = 512.into(),
        |state| state["device"]["disk"]["cache"][0]["sector"] = (DISK_BYTES / 512).into(),
        |state| state["device"]["disk"]["cache"][0]["order"] = 1_000.into(),
        |state| state["device"]["in_flight"][0]["operation"]["Write"]["sector"] = u64::MAX.into(),
        |state| state["device"]["in_flight"][1]["operation"]["Read"]["bytes"] = 4096.into(),
        |state| state["device"]["in_flight"][0]["chain"]["writable"] = serde_json::json!([]),
    ];
    for (index, spoil) in spoils.iter().enumerate() {
        let mut state = good.clone();
        spoil(&mut state);
        assert_ne!(state, good, "spoil {index} does something");
        let state = serde_json::from_value(state).unwrap();
        assert!(driver.bench.device.restore(&state).is_err(), "spoil {index}");
    }
    assert!(driver.bench.device.restore(&serde_json::from_value(good).unwrap()).is_ok());
}
