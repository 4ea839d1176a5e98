// SPDX-License-Identifier: AGPL-3.0-or-later
//! What is durable when, and what a power cut leaves (semantics, point 11).

use std::collections::BTreeSet;

use super::block::*;
use super::*;
use crate::entropy::{Purpose, Stream};
use crate::pages::PageMap;
use crate::virtio::block::{Block, Kept, PendingWrite, PowerCut, Survivors};

/// Three completed writes to sectors 10, 20 and 30 (two sectors each), none of them flushed.
fn three_writes() -> Driver<Block> {
    let mut driver = start();
    for (sector, fill) in [(10, 0xa1), (20, 0xa2), (30, 0xa3)] {
        assert_eq!(write_now(&mut driver, sector, fill, 2), OK);
    }
    driver
}

fn cut(driver: &mut Driver<Block>, survivors: &Survivors) -> PowerCut {
    driver.device().power_cut(survivors)
}

#[test]
fn only_a_completed_flush_makes_a_completed_write_durable() {
    let mut driver = start();
    assert_eq!(write_now(&mut driver, 10, 0xa1, 1), OK);
    assert_eq!(durable(&mut driver, 10), 10);
    let flush = request(&mut driver, FLUSH_REQUEST, 0, Buffer::Out(&[]));
    assert_eq!(durable(&mut driver, 10), 10, "submitted is not enough");
    settle(&mut driver);
    assert_eq!(status_of(&driver, flush), OK);
    assert_eq!(durable(&mut driver, 10), 0xa1);
    assert_eq!(driver.device().pending_writes(), []);
}

#[test]
fn a_flush_covers_what_completed_before_it_was_submitted_and_nothing_else() {
    let mut driver = start();
    write_now(&mut driver, 10, 0xa1, 1);
    // In flight when the flush is submitted; completes long before the flush does.
    write(&mut driver, 20, 0xa2, 1);
    request(&mut driver, FLUSH_REQUEST, 0, Buffer::Out(&[]));
    settle(&mut driver);
    assert_eq!(durable(&mut driver, 10), 0xa1);
    assert_eq!(durable(&mut driver, 20), 20);
    assert_eq!(driver.device().pending_writes(), [PendingWrite { sector: 20, bytes: 512, in_flight: false }]);
}

#[test]
fn a_write_after_a_flush_was_submitted_is_not_covered_where_both_touch_one_page() {
    let mut driver = start();
    write_now(&mut driver, 8, 0xa1, 1);
    request(&mut driver, FLUSH_REQUEST, 0, Buffer::Out(&[]));
    write(&mut driver, 8, 0xa2, 1);
    write(&mut driver, 9, 0xa3, 1);
    settle(&mut driver);
    assert_eq!((durable(&mut driver, 8), durable(&mut driver, 9)), (0xa1, 9));
    assert_eq!(read_now(&mut driver, 8, 1).1[0], 0xa2);
    flush_now(&mut driver);
    assert_eq!((durable(&mut driver, 8), durable(&mut driver, 9)), (0xa2, 0xa3));
}

#[test]
fn without_flush_negotiated_completion_means_durable() {
    let mut driver = Driver::start(Block::new(config(), &ROOT), 0);
    write(&mut driver, 10, 0xa1, 1);
    assert_eq!(durable(&mut driver, 10), 10);
    assert_eq!(driver.device().pending_writes().len(), 1);
    settle(&mut driver);
    assert_eq!(durable(&mut driver, 10), 0xa1);
    assert_eq!(driver.device().pending_writes(), []);
}

#[test]
fn a_driver_that_comes_back_without_flush_finds_everything_durable() {
    let mut driver = three_writes();
    driver.set_up(0);
    assert_eq!(driver.device().pending_writes(), []);
    assert_eq!(durable(&mut driver, 20), 0xa2);
}

#[test]
fn three_unflushed_writes_leave_each_of_eight_subsets() {
    let mut outcomes = BTreeSet::new();
    for bits in 0..8u64 {
        let mut driver = three_writes();
        let survivors = Survivors::from_bits(3, bits, 0, 0);
        let result = cut(&mut driver, &survivors);
        assert_eq!((result.whole, result.lost), (bits.count_ones(), 3 - bits.count_ones()));
        let left: Vec<u8> = [10, 11, 20, 21, 30, 31].map(|sector| durable(&mut driver, sector)).to_vec();
        let expected =
            |bit: u32, sector: u8, fill: u8| if bits >> bit & 1 == 1 { [fill; 2] } else { [sector, sector + 1] };
        assert_eq!(left, [expected(0, 10, 0xa1), expected(1, 20, 0xa2), expected(2, 30, 0xa3)].concat());
        outcomes.insert(left);
    }
    assert_eq!(outcomes.len(), 8);
}

#[test]
fn a_torn_write_keeps_its_first_bytes_even_within_a_sector() {
    let mut driver = three_writes();
    let result = cut(&mut driver, &Survivors::from_bits(3, 0b100, 1, 700));
    assert_eq!(result, PowerCut { whole: 1, torn: 1, lost: 1, unknown: 0 });
    let medium = driver.device().disk().medium();
    let page = |address: usize| medium.get((address / 4096) as u64).unwrap().bytes()[address % 4096];
    assert_eq!(page(20 * 512 + 699), 0xa2);
    assert_eq!(page(20 * 512 + 700), 21);
    assert_eq!(durable(&mut driver, 10), 10);
    assert_eq!(durable(&mut driver, 30), 0xa3);
}

#[test]
fn single_sectors_of_a_write_can_survive() {
    let mut driver = start();
    write_now(&mut driver, 40, 0xbb, 4);
    let survivors = Survivors([(0, Kept::Sectors(vec![3, 1, 3, 99]))].into());
    assert_eq!(cut(&mut driver, &survivors).torn, 1);
    assert_eq!([40, 41, 42, 43].map(|sector| durable(&mut driver, sector)), [40, 0xbb, 42, 0xbb]);
}

#[test]
fn requests_in_flight_are_pending_too() {
    let mut driver = start();
    write_now(&mut driver, 10, 0xa1, 1);
    write(&mut driver, 20, 0xa2, 1);
    request(&mut driver, IN, 0, Buffer::In(512));
    write(&mut driver, 30, 0xa3, 1);
    let pending = driver.device().pending_writes();
    let seen: Vec<_> = pending.iter().map(|write| (write.sector, write.in_flight)).collect();
    assert_eq!(seen, [(10, false), (20, true), (30, true)]);
    let result = cut(&mut driver, &Survivors([(2, Kept::Whole), (7, Kept::Whole)].into()));
    assert_eq!(result, PowerCut { whole: 1, torn: 0, lost: 2, unknown: 1 });
    assert_eq!([10, 20, 30].map(|sector| durable(&mut driver, sector)), [10, 20, 0xa3]);
    assert_eq!(driver.bench.device.next_event(), None);
    assert_eq!(driver.device().pending_writes(), []);
}

#[test]
fn survivors_of_one_sector_land_in_the_order_of_completion() {
    for (bits, expected) in [(0b11, 0xa2), (0b01, 0xa1), (0b10, 0xa2), (0b00, 10)] {
        let mut driver = start();
        write_now(&mut driver, 10, 0xa1, 1);
        write_now(&mut driver, 10, 0xa2, 1);
        cut(&mut driver, &Survivors::from_bits(2, bits, 0, 0));
        assert_eq!(durable(&mut driver, 10), expected, "{bits:b}");
    }
}

#[test]
fn survivor_bits_repeat_after_sixty_four_writes() {
    let survivors = Survivors::from_bits(70, 1 << 2, 0, 0);
    assert_eq!(survivors.0.keys().copied().collect::<Vec<_>>(), [2, 66]);
    assert_eq!(Survivors::from_bits(2, 0, 5, 9), Survivors::none(), "no such write to tear");
    assert_eq!(Survivors::all(3).0.len(), 3);
}

#[test]
fn survivor_bits_name_any_subset_of_the_writes_of_two_disks() {
    let mut seen = std::collections::BTreeSet::new();
    for bits in 0..8 {
        let first = Survivors::from_bits_behind(0, 1, bits, 2, 0);
        let second = Survivors::from_bits_behind(1, 2, bits, 2, 0);
        assert_eq!(first == Survivors::all(1), bits & 1 == 1);
        assert_eq!(second, Survivors::from_bits(2, bits >> 1, 0, 0));
        seen.insert(format!("{first:?} {second:?}"));
    }
    assert_eq!(seen.len(), 8);
    assert_eq!(Survivors::from_bits_behind(0, 1, 0, 2, 9), Survivors::none(), "the torn write is another disk's");
    assert_eq!(Survivors::from_bits_behind(1, 2, 0, 2, 9), Survivors::from_bits(2, 0, 1, 9));
}

#[test]
fn a_power_cut_at_every_moment_leaves_what_was_flushed() {
    // Two flushed generations of one record, then a third that may be lost: never anything older than the last completed
    // flush, whatever survives.
    for stop_ns in (0..1_200_000u64).step_by(10_000) {
        for bits in 0..4 {
            let mut driver = start();
            let mut flushed = 0;
            let mut steps = Vec::new();
            for generation in 1..=3u8 {
                steps.push((OUT, generation));
                steps.push((FLUSH_REQUEST, generation));
            }
            for (kind, generation) in steps {
                let data = [generation; 512];
                let buffer = if kind == OUT { Buffer::Out(&data) } else { Buffer::Out(&[]) };
                let submitted = request(&mut driver, kind, 10, buffer);
                let due = driver.bench.device.next_completion().unwrap().0;
                driver.bench.run_to(due.min(stop_ns));
                if status_of(&driver, submitted) != OK {
                    break;
                }
                if kind == FLUSH_REQUEST {
                    flushed = generation;
                }
            }
            cut(&mut driver, &Survivors::from_bits(8, bits, 0, 0));
            let left = match durable(&mut driver, 10) {
                10 => 0,
                generation => generation,
            };
            assert!(left == flushed || left == flushed + 1, "stopped at {stop_ns}: {left} left, {flushed} flushed");
        }
    }
}

#[test]
fn a_full_cache_writes_back_what_its_seed_picks() {
    let run = |root: [u8; 32]| {
        let mut config = config();
        config.cache_bytes_max = 8 * 512;
        let mut driver = Driver::start(Block::new(config, &root), FLUSH);
        for index in 0..40u64 {
            assert_eq!(write_now(&mut driver, index * 3, 0xc0, 1), OK);
            assert!(driver.device().disk().cached_bytes() <= 8 * 512);
        }
        assert_eq!(driver.device().disk().written_back(), 32);
        (0..40u64).filter(|index| durable(&mut driver, index * 3) == 0xc0).collect::<Vec<_>>()
    };
    let first = run(ROOT);
    assert_eq!(first.len(), 32);
    assert_eq!(first, run(ROOT));
    assert_ne!(first, run([6; 32]));
    assert_ne!(first, (0..32).collect::<Vec<_>>(), "not simply the oldest");
}

/// The disk against the plainest model: a list of every write, and which of them are durable.
#[test]
fn a_random_history_agrees_with_a_plain_model() {
    for seed in 0..40u8 {
        let mut stream = Stream::new(&[seed; 32], Purpose::SdkChoice);
        let mut config = config();
        config.cache_bytes_max = 16 * 512;
        config.image = PageMap::default();
        let mut driver = Driver::start(Block::new(config, &[seed; 32]), FLUSH);
        let mut visible = vec![0u8; 64];
        let mut fill = 0u8;
        for _ in 0..120 {
            match stream.below(8) {
                0 => flush_now(&mut driver),
                1 => {
                    let medium = driver.bench.device.medium().clone();
                    let pending = driver.device().pending_writes();
                    let everything = stream.below(2) == 0;
                    let bits = if everything { u64::MAX } else { stream.next_u64() };
                    let survivors = Survivors::from_bits(pending.len(), bits, 0, 0);
                    let mut expected: Vec<u8> = (0..64).map(|sector| first_byte(&medium, sector)).collect();
                    for (write, _) in driver
                        .device()
                        .disk()
                        .cache()
                        .to_vec()
                        .iter()
                        .zip(0u32..)
                        .filter(|(_, index)| survivors.0.contains_key(index))
                    {
                        for at in 0..write.data.len() / 512 {
                            expected[write.sector as usize + at] = write.data[at * 512];
                        }
                    }
                    cut(&mut driver, &survivors);
                    let left: Vec<u8> = (0..64).map(|sector| durable(&mut driver, sector)).collect();
                    assert_eq!(left, expected, "seed {seed}");
                    if everything {
                        assert_eq!(left, visible, "seed {seed}: no old write landed on a newer one");
                    }
                    visible = expected;
                }
                _ => {
                    fill = fill.wrapping_add(1);
                    let sector = stream.below(60);
                    let sectors = 1 + stream.below(4) as usize;
                    assert_eq!(write_now(&mut driver, sector, fill, sectors), OK);
                    visible[sector as usize..sector as usize + sectors].fill(fill);
                }
            }
            let (status, data) = read_now(&mut driver, 0, 64);
            let seen: Vec<u8> = data.chunks(512).map(|sector| sector[0]).collect();
            assert_eq!((status, &seen), (OK, &visible), "seed {seed}");
        }
        flush_now(&mut driver);
        let disk = driver.device().disk();
        assert_eq!(disk.medium(), disk.visible(), "seed {seed}");
    }
}

fn first_byte(medium: &PageMap, sector: u64) -> u8 {
    medium.get(sector / 8).map_or(0, |page| page.bytes()[(sector % 8) as usize * 512])
}

#[test]
fn a_written_page_is_shared_between_medium_and_view_once_flushed() {
    let mut driver = three_writes();
    flush_now(&mut driver);
    let disk = driver.device().disk();
    let mut different = 0;
    disk.medium().differences(disk.visible(), &mut |_| different += 1);
    assert_eq!(different, 0);
    let mut copied = 0;
    disk.medium().differences(&image(), &mut |_| copied += 1);
    assert!(copied >= 3, "the images do not share pages in this test");
}

#[test]
fn a_disk_says_whether_another_would_surprise_its_guest() {
    let mut driver = start();
    read_now(&mut driver, 16, 1);
    let mut other = image();
    other.set(9, &[1; 4096]);
    assert!(driver.device().disk().reads_agree_with(&other), "page 9 was not read");
    other.set(2, &[1; 4096]);
    assert!(!driver.device().disk().reads_agree_with(&other));
}

#[test]
fn an_earlier_machine_resumes_only_where_it_cannot_tell() {
    let mut driver = start();
    assert!(driver.device().can_resume_on(&PageMap::default()), "nothing was read");
    read_now(&mut driver, 0, 1);
    assert!(!driver.device().can_resume_on(&PageMap::default()));
    assert!(driver.device().can_resume_on(&image()));
    write(&mut driver, 100, 1, 1);
    assert!(!driver.device().can_resume_on(&image()), "a write is in flight");
}

#[test]
fn the_hash_covers_medium_cache_and_flight() {
    let mut driver = start();
    let mut hashes = vec![driver.device().hash()];
    write(&mut driver, 100, 1, 1);
    hashes.push(driver.device().hash());
    settle(&mut driver);
    assert_eq!(driver.device().hash(), hashes[1], "completion moves a write, it changes none");
    flush_now(&mut driver);
    hashes.push(driver.device().hash());
    write_now(&mut driver, 100, 2, 1);
    hashes.push(driver.device().hash());
    assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), 4);
    assert_eq!(start().device().hash(), hashes[0]);
}

#[test]
fn a_replaced_medium_is_what_the_guest_reads() {
    let mut driver = three_writes();
    driver.device().replace_medium(PageMap::default());
    assert_eq!(driver.device().pending_writes(), []);
    assert_eq!(read_now(&mut driver, 10, 1), (OK, vec![0; 512]));
}
