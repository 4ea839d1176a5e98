// SPDX-License-Identifier: AGPL-3.0-or-later
//! Each disk fault does what it says, once it is there and no longer, and counts what it did.

use super::block::*;
use super::*;
use crate::virtio::block::{Block, DiskFault, Effect, EffectKind, FAULTS_MAX, FaultCount, Survivors};

fn add(driver: &mut Driver<Block>, effect: Effect) -> u64 {
    driver.device().faults_mut().add(DiskFault::certain(effect)).unwrap()
}

fn count(driver: &mut Driver<Block>, kind: EffectKind) -> FaultCount {
    driver.device().faults().counts().get(&kind).copied().unwrap_or_default()
}

#[test]
fn a_read_error_fails_reads_only() {
    let mut driver = start();
    let id = add(&mut driver, Effect::ReadError);
    let failed = request(&mut driver, IN, 3, Buffer::In(512));
    driver.bench.memory.write(failed.data, &[0xee; 512]).unwrap();
    settle(&mut driver);
    assert_eq!(status_of(&driver, failed), IO_ERROR);
    assert_eq!(driver.bytes(failed.data, 512), [0xee; 512], "no data reaches the guest");
    assert_eq!(write_now(&mut driver, 3, 1, 1), OK);
    flush_now(&mut driver);
    assert_eq!(driver.device().faults_mut().remove(id).unwrap().observed, 1);
    assert_eq!(read_now(&mut driver, 3, 1), (OK, vec![1; 512]));
    assert_eq!(count(&mut driver, EffectKind::ReadError), FaultCount { applied: 1, observed: 1 });
}

#[test]
fn a_write_error_changes_nothing() {
    let mut driver = start();
    let id = add(&mut driver, Effect::WriteError);
    assert_eq!(write_now(&mut driver, 3, 0x55, 1), IO_ERROR);
    assert_eq!(read_now(&mut driver, 3, 1), (OK, vec![3; 512]));
    assert_eq!(driver.device().pending_writes(), []);
    driver.device().faults_mut().remove(id);
    assert_eq!(write_now(&mut driver, 3, 0x55, 1), OK);
    assert_eq!(count(&mut driver, EffectKind::WriteError), FaultCount { applied: 1, observed: 1 });
}

#[test]
fn a_full_disk_refuses_writes_and_reads_on() {
    let mut driver = start();
    add(&mut driver, Effect::Full);
    assert_eq!(write_now(&mut driver, 3, 0x55, 1), IO_ERROR);
    assert_eq!(read_now(&mut driver, 3, 1), (OK, vec![3; 512]));
    flush_now(&mut driver);
    assert_eq!(count(&mut driver, EffectKind::Full).observed, 1);
}

#[test]
fn a_torn_write_fails_after_its_first_bytes() {
    for (kept, expected_len) in [(0u32, 0usize), (512, 512), (700, 700), (1 << 30, 1023)] {
        let mut driver = start();
        add(&mut driver, Effect::TornWrite { bytes: kept });
        assert_eq!(write_now(&mut driver, 100, 0x55, 2), IO_ERROR);
        let (_, data) = read_now(&mut driver, 100, 2);
        let original = [[100; 512], [101; 512]].concat();
        assert_eq!(data[..expected_len], vec![0x55; expected_len]);
        assert_eq!(data[expected_len..], original[expected_len..]);
        assert_eq!(count(&mut driver, EffectKind::TornWrite).observed, 1);
    }
}

#[test]
fn a_torn_write_is_cached_like_any_other() {
    let mut driver = start();
    add(&mut driver, Effect::TornWrite { bytes: 100 });
    write_now(&mut driver, 100, 0x55, 1);
    assert_eq!(driver.device().pending_writes()[0].bytes, 100);
    driver.device().power_cut(&Survivors::none());
    assert_eq!(durable(&mut driver, 100), 100);
}

#[test]
fn a_corrupt_read_flips_one_bit_and_leaves_the_disk_alone() {
    let mut driver = start();
    let id = add(&mut driver, Effect::CorruptRead { bit: Some(12) });
    let mut expected = vec![3; 512];
    expected[1] ^= 1 << 4;
    assert_eq!(read_now(&mut driver, 3, 1), (OK, expected));
    driver.device().faults_mut().remove(id);
    assert_eq!(read_now(&mut driver, 3, 1), (OK, vec![3; 512]));
}

#[test]
fn a_corrupt_write_stores_one_flipped_bit() {
    let mut driver = start();
    let id = add(&mut driver, Effect::CorruptWrite { bit: None });
    assert_eq!(write_now(&mut driver, 3, 0, 1), OK);
    driver.device().faults_mut().remove(id);
    let (_, data) = read_now(&mut driver, 3, 1);
    assert_eq!(data.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    assert_eq!(count(&mut driver, EffectKind::CorruptWrite), FaultCount { applied: 1, observed: 1 });
}

#[test]
fn a_fault_of_some_sectors_spares_the_others() {
    let mut driver = start();
    let fault = DiskFault { effect: Effect::ReadError, chance_ppm: 1_000_000, sectors: Some((10, 12)) };
    driver.device().faults_mut().add(fault).unwrap();
    for (sector, sectors, expected) in [(9, 1, OK), (9, 2, IO_ERROR), (12, 1, IO_ERROR), (13, 1, OK), (5, 20, IO_ERROR)]
    {
        assert_eq!(read_now(&mut driver, sector, sectors).0, expected, "{sector} {sectors}");
    }
}

#[test]
fn a_chance_is_kept_and_reproducible() {
    let run = |root: [u8; 32]| -> Vec<u8> {
        let mut driver = Driver::start(Block::new(config(), &root), FLUSH);
        let fault = DiskFault { effect: Effect::WriteError, chance_ppm: 250_000, sectors: None };
        driver.device().faults_mut().add(fault).unwrap();
        let statuses: Vec<u8> = (0..400).map(|index| write_now(&mut driver, index, 1, 1)).collect();
        let failed = statuses.iter().filter(|status| **status == IO_ERROR).count() as u64;
        assert_eq!(count(&mut driver, EffectKind::WriteError).observed, failed);
        assert!((60..140).contains(&failed), "{failed} of 400 failed");
        statuses
    };
    assert_eq!(run(ROOT), run(ROOT));
    assert_ne!(run(ROOT), run([6; 32]));
}

#[test]
fn faults_are_bounded_and_part_of_the_saved_state() {
    let mut driver = start();
    add(&mut driver, Effect::ReadError);
    let mut other = driver.restored(Block::new(config(), &ROOT), |_| {});
    assert_eq!(read_now(&mut other, 0, 1).0, IO_ERROR);
    for _ in 1..FAULTS_MAX {
        add(&mut driver, Effect::Full);
    }
    assert_eq!(driver.device().faults_mut().add(DiskFault::certain(Effect::Full)), None);
}

#[test]
fn replacing_faults_keeps_those_that_go_on() {
    let mut driver = start();
    let (read, write) = (DiskFault::certain(Effect::ReadError), DiskFault::certain(Effect::WriteError));
    driver.device().faults_mut().replace(&[read]);
    driver.device().faults_mut().replace(&[write, read]);
    assert_eq!(count(&mut driver, EffectKind::ReadError).applied, 1);
    assert_eq!(read_now(&mut driver, 0, 1).0, IO_ERROR);
    assert_eq!(write_now(&mut driver, 0, 1, 1), IO_ERROR);
    driver.device().faults_mut().replace(&[]);
    assert_eq!(write_now(&mut driver, 0, 1, 1), OK);
    assert_eq!(driver.device().faults().active().len(), 0);
}
