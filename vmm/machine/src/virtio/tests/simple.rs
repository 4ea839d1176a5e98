// SPDX-License-Identifier: AGPL-3.0-or-later
//! Network, entropy and console devices.

use super::*;
use crate::entropy::{Purpose, Stream};
use crate::virtio::console::{Console, INPUT_BYTES_MAX, OUTPUT_BYTES_MAX};
use crate::virtio::net::{FRAME_BYTES_MAX, Net, TRANSMITTED_FRAMES_MAX};
use crate::virtio::rng::Rng;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const HEADER: [u8; 12] = [0; 12];

fn frame(fill: u8, bytes: usize) -> Vec<u8> {
    vec![fill; bytes]
}

#[test]
fn the_guest_reads_its_own_seeded_stream() {
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    let (_, first) = driver.submit(0, &[Buffer::In(32)]);
    let (_, second) = driver.submit(0, &[Buffer::In(3), Buffer::In(5)]);
    driver.notify(0);
    let mut stream = Stream::new(&ROOT, Purpose::VirtioRng);
    let mut expected = [0; 40];
    stream.fill(&mut expected[..32]);
    stream.fill(&mut expected[32..]);
    let got = [driver.bytes(first[0], 32), driver.bytes(second[0], 3), driver.bytes(second[1], 5)].concat();
    assert_eq!(got, expected);
    assert_eq!(driver.device().bytes(), 40);
    driver.device().reseed(&[6; 32]);
    let (_, third) = driver.submit(0, &[Buffer::In(8)]);
    driver.notify(0);
    let fresh = Stream::new(&[6; 32], Purpose::VirtioRng).next_u64();
    assert_eq!(driver.bytes(third[0], 8), fresh.to_le_bytes());
}

#[test]
fn a_huge_entropy_request_gets_a_short_answer() {
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    driver.submit(0, &[Buffer::In(100_000)]);
    driver.submit(0, &[Buffer::Out(&[1])]);
    driver.notify(0);
    assert_eq!(driver.used(0), [(0, 4096), (1, 0)]);
}

#[test]
fn entropy_goes_on_after_a_restore() {
    let mut driver = Driver::start(Rng::new(&ROOT), 0);
    driver.submit(0, &[Buffer::In(5)]);
    driver.notify(0);
    driver.submit(0, &[Buffer::In(50)]);
    let mut other = driver.restored(Rng::new(&[9; 32]), |_| {});
    driver.notify(0);
    other.notify(0);
    driver.assert_same(&other);
}

#[test]
fn frames_out_carry_time_and_sequence() {
    let mut driver = Driver::start(Net::new(MAC), 0);
    driver.bench.now = GuestNs(777);
    driver.submit(1, &[Buffer::Out(&HEADER), Buffer::Out(&frame(1, 60))]);
    driver.submit(1, &[Buffer::Out(&[HEADER.to_vec(), frame(2, 14)].concat())]);
    driver.notify(1);
    driver.bench.now = GuestNs(888);
    driver.submit(1, &[Buffer::Out(&[HEADER.to_vec(), frame(3, FRAME_BYTES_MAX)].concat())]);
    driver.notify(1);
    let frames = driver.device().take_transmitted();
    let seen: Vec<_> = frames.iter().map(|frame| (frame.sent.0, frame.sequence, frame.bytes.len())).collect();
    assert_eq!(seen, [(777, 0, 60), (777, 1, 14), (888, 2, FRAME_BYTES_MAX)]);
    assert_eq!(frames[1].bytes, frame(2, 14));
    assert_eq!(driver.device().take_transmitted(), []);
    assert_eq!(driver.used(1).len(), 3);
}

#[test]
fn impossible_frames_out_are_counted_and_given_back() {
    let mut driver = Driver::start(Net::new(MAC), 0);
    driver.submit(1, &[Buffer::Out(&[0; 5])]);
    driver.submit(1, &[Buffer::Out(&HEADER), Buffer::Out(&frame(1, 13))]);
    driver.submit(1, &[Buffer::Out(&HEADER), Buffer::Out(&frame(1, FRAME_BYTES_MAX + 1))]);
    driver.submit(1, &[Buffer::In(100)]);
    driver.notify(1);
    assert_eq!(driver.used(1).len(), 4);
    assert_eq!(driver.device().counters().transmit_malformed, 4);
    assert_eq!(driver.device().take_transmitted(), []);
}

#[test]
fn frames_waiting_for_the_barrier_are_bounded() {
    let mut driver = Driver::start(Net::new(MAC), 0);
    for _ in 0..TRANSMITTED_FRAMES_MAX + 10 {
        driver.submit(1, &[Buffer::Out(&[HEADER.to_vec(), frame(1, 14)].concat())]);
        driver.notify(1);
    }
    assert_eq!(driver.device().counters().transmit_overflow, 10);
    assert_eq!(driver.device().take_transmitted().len(), TRANSMITTED_FRAMES_MAX);
}

#[test]
fn a_frame_in_fills_the_next_buffer() {
    let mut driver = Driver::start(Net::new(MAC), 0);
    let (head, at) = driver.submit(0, &[Buffer::In(12), Buffer::In(1600)]);
    driver.notify(0);
    assert_eq!(driver.used(0), []);
    assert!(driver.host(|net, context| net.deliver(&frame(7, 99), context)));
    assert_eq!(driver.used(0), [(head, 111)]);
    assert_eq!(driver.bytes(at[0], 12), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(driver.bytes(at[1], 99), frame(7, 99));
    assert_eq!(driver.acknowledge(), 1);
}

#[test]
fn frames_in_without_room_are_dropped_and_counted() {
    let mut stopped = Driver::without_setup(Net::new(MAC));
    assert!(!stopped.host(|net, context| net.deliver(&frame(7, 99), context)));
    let mut driver = Driver::start(Net::new(MAC), 0);
    assert!(!driver.host(|net, context| net.deliver(&frame(7, 99), context)), "no buffer");
    let (head, _) = driver.submit(0, &[Buffer::In(110)]);
    assert!(!driver.host(|net, context| net.deliver(&frame(7, 99), context)), "one byte too small");
    assert_eq!(driver.used(0), [(head, 0)]);
    driver.submit(0, &[Buffer::In(1600)]);
    for bytes in [0, 13, FRAME_BYTES_MAX + 1] {
        assert!(!driver.host(|net, context| net.deliver(&frame(7, bytes), context)));
    }
    driver.host(|net, context| net.set_link(false, context));
    assert!(!driver.host(|net, context| net.deliver(&frame(7, 99), context)));
    assert_eq!(driver.used(0), []);
    assert_eq!(driver.device().counters().receive_dropped, 6);
    assert_eq!(stopped.device().counters().receive_dropped, 1);
}

#[test]
fn the_configuration_space_has_the_address() {
    let mut driver = Driver::without_setup(Net::new(MAC));
    let read: Vec<u64> = (0..6).map(|index| driver.bench.read(0x100 + index, 1)).collect();
    assert_eq!(read, MAC.map(u64::from));
    assert_eq!(driver.bench.read(0x10a, 2), 1500);
    assert_eq!(driver.bench.read(0x10c, 4), 0, "past the end");
    assert_eq!(driver.bench.read(0xffc, 4), 0);
}

#[test]
fn a_restored_network_card_goes_on() {
    let mut driver = Driver::start(Net::new(MAC), 0);
    driver.submit(0, &[Buffer::In(1600)]);
    driver.submit(1, &[Buffer::Out(&HEADER), Buffer::Out(&frame(1, 60))]);
    driver.notify(1);
    driver.submit(1, &[Buffer::Out(&HEADER), Buffer::Out(&frame(2, 61))]);
    let mut other = driver.restored(Net::new([0; 6]), |_| {});
    for one in [&mut driver, &mut other] {
        one.notify(1);
        assert!(one.host(|net, context| net.deliver(&frame(7, 99), context)));
        assert!(!one.host(|net, context| net.deliver(&frame(7, 99), context)));
    }
    driver.assert_same(&other);
    assert_eq!(driver.device().take_transmitted(), other.device().take_transmitted());
}

#[test]
fn console_output_is_captured_up_to_its_bound() {
    let mut driver = Driver::start(Console::new(), 0);
    driver.submit(1, &[Buffer::Out(b"hello "), Buffer::Out(b"world\n")]);
    driver.notify(1);
    assert_eq!(driver.device().take_output(), b"hello world\n");
    let chunk = vec![b'x'; 100_000];
    for _ in 0..11 {
        driver.submit(1, &[Buffer::Out(&chunk)]);
        driver.notify(1);
    }
    assert_eq!(driver.device().take_output().len(), OUTPUT_BYTES_MAX);
    assert_eq!(driver.device().output_dropped(), 1_100_000 - OUTPUT_BYTES_MAX as u64);
    assert_eq!(driver.used(1).len(), 12);
}

#[test]
fn console_input_waits_for_buffers() {
    let mut driver = Driver::start(Console::new(), 0);
    driver.host(|console, context| console.run(context, |console, io| console.input(b"abcdef", io))).unwrap();
    assert_eq!(driver.used(0), []);
    let (first, at) = driver.submit(0, &[Buffer::In(4)]);
    driver.notify(0);
    assert_eq!(driver.used(0), [(first, 4)]);
    assert_eq!(driver.bytes(at[0], 4), b"abcd");
    let (second, at) = driver.submit(0, &[Buffer::In(4)]);
    driver.notify(0);
    assert_eq!(driver.used(0), [(second, 2)]);
    assert_eq!(driver.bytes(at[0], 2), b"ef");
    let flood = vec![1; INPUT_BYTES_MAX + 5];
    driver.host(|console, context| console.run(context, |console, io| console.input(&flood, io))).unwrap();
    assert_eq!(driver.bench.device.save().device.input_dropped, 5);
}

#[test]
fn a_restored_console_goes_on() {
    let mut driver = Driver::start(Console::new(), 0);
    driver.submit(1, &[Buffer::Out(b"one")]);
    driver.notify(1);
    driver.host(|console, context| console.run(context, |console, io| console.input(b"abcdef", io))).unwrap();
    driver.submit(0, &[Buffer::In(4)]);
    let mut other = driver.restored(Console::new(), |_| {});
    for one in [&mut driver, &mut other] {
        one.notify(0);
        one.submit(1, &[Buffer::Out(b"two")]);
        one.notify(1);
    }
    driver.assert_same(&other);
    assert_eq!(other.device().take_output(), b"onetwo");
}
