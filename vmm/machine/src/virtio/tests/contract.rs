// SPDX-License-Identifier: AGPL-3.0-or-later
//! The contract of every device, kept by each virtio device in the middle of its work: requests in flight or waiting in the
//! ring, an interrupt pending, selectors moved.

use super::block::{FLUSH_REQUEST, IN, request, write, write_now};
use super::*;
use crate::testing::device_contract;
use crate::virtio::block::Block;
use crate::virtio::console::Console;
use crate::virtio::net::Net;
use crate::virtio::rng::Rng;

/// Leaves an interrupt pending, one more chain in the ring, and the selectors elsewhere.
fn amid<D: VirtioDevice>(mut driver: Driver<D>, queue: usize, buffers: &[Buffer<'_>]) -> Bench<VirtioMmio<D>> {
    driver.submit(queue, buffers);
    driver.notify(queue as u32);
    driver.submit(queue, buffers);
    driver.bench.write32(register::QUEUE_SEL, 3);
    driver.bench.write32(register::DRIVER_FEATURES_SEL, 1);
    driver.bench
}

/// What the guest does next: looks at every register, notifies each queue, lets time pass, acknowledges.
fn go_on<D: VirtioDevice>(bench: &mut Bench<VirtioMmio<D>>) {
    for offset in (0..0x130).step_by(4) {
        bench.read32(offset);
    }
    for queue in 0..D::QUEUE_SIZES.len() as u32 {
        bench.write32(register::QUEUE_NOTIFY, queue);
    }
    bench.run_to(bench.now.0 + 1_000_000);
    let pending = bench.read32(register::INTERRUPT_STATUS);
    bench.write32(register::INTERRUPT_ACK, pending);
    bench.read32(register::INTERRUPT_STATUS);
    bench.write32(register::QUEUE_READY, 0);
    bench.read32(register::QUEUE_SIZE_MAX);
}

fn rng() -> Bench<VirtioMmio<Rng>> {
    amid(Driver::start(Rng::new(&ROOT), 0), 0, &[Buffer::In(24)])
}

fn console() -> Bench<VirtioMmio<Console>> {
    amid(Driver::start(Console::new(), 1), 1, &[Buffer::Out(b"half a line")])
}

fn net() -> Bench<VirtioMmio<Net>> {
    amid(Driver::start(Net::new([2; 6]), 1 << 5), 1, &[Buffer::Out(&[0; 12]), Buffer::Out(&[7; 60])])
}

fn disk() -> Bench<VirtioMmio<Block>> {
    let mut driver = super::block::start();
    write_now(&mut driver, 3, 0x33, 9);
    write(&mut driver, 4, 0x44, 1);
    request(&mut driver, FLUSH_REQUEST, 0, Buffer::Out(&[]));
    request(&mut driver, IN, 0, Buffer::In(4096));
    driver.bench.run_to(now(&driver).0 + 30_000);
    driver.bench
}

device_contract!(the_entropy_device_keeps_the_contract, rng, go_on);
device_contract!(the_console_keeps_the_contract, console, go_on);
device_contract!(the_network_card_keeps_the_contract, net, go_on);
device_contract!(the_disk_keeps_the_contract, disk, go_on);
