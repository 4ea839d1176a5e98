// SPDX-License-Identifier: Apache-2.0
//! Two stacks on a bad wire: what is sent arrives whole and in order, and a run is a function of its seed.

use chaos_smolnet::{Connection, Duration, FRAME_BYTES_MAX, Frames, Moment, Received, Stack, StackError};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

const BYTES: usize = 60_000;
/// Virtual time that a transfer may take.
const LIMIT_US: i64 = 600_000_000;

/// A wire's end: frames that wait to be taken, and those that were sent.
#[derive(Clone, Default)]
struct End {
    incoming: Rc<RefCell<VecDeque<Vec<u8>>>>,
    outgoing: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Frames for End {
    fn receive(&mut self) -> Option<Vec<u8>> {
        self.incoming.borrow_mut().pop_front()
    }

    fn send(&mut self, frame: &[u8]) {
        assert!(frame.len() <= FRAME_BYTES_MAX);
        self.outgoing.borrow_mut().push(frame.to_vec());
    }
}

/// How bad the wire is, in percent.
#[derive(Clone, Copy, Default)]
struct Badness {
    lost: u64,
    doubled: u64,
    damaged: u64,
    late: u64,
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

struct World {
    stacks: [Stack<End>; 2],
    ends: [End; 2],
    /// Frames under way: when, number, to whom.
    under_way: BTreeMap<(i64, u64), (usize, Vec<u8>)>,
    sent: u64,
    /// A hash of every frame that was sent.
    trace: u64,
    now: i64,
    draw: Draw,
    badness: Badness,
}

impl World {
    fn new(seed: u64, badness: Badness) -> Self {
        let ends = [End::default(), End::default()];
        let stack = |node: u8| {
            Stack::new(ends[usize::from(node)].clone(), node, seed + u64::from(node), Moment::from_micros(0))
        };
        Self {
            stacks: [stack(0), stack(1)],
            ends: ends.clone(),
            under_way: BTreeMap::new(),
            sent: 0,
            trace: 0,
            now: 0,
            draw: Draw(seed),
            badness,
        }
    }

    /// Lets both stacks work, moves frames, and goes to the next moment at which something is due.
    fn turn(&mut self) {
        let mut next = self.now + 100_000;
        for node in 0..2 {
            if let Some(delay) = self.stacks[node].poll(Moment::from_micros(self.now)) {
                next = next.min(self.now + (delay.total_micros() as i64).max(1));
            }
            let frames: Vec<Vec<u8>> = self.ends[node].outgoing.borrow_mut().drain(..).collect();
            frames.into_iter().for_each(|frame| self.put(1 - node, frame));
        }
        if let Some(((due, _), _)) = self.under_way.first_key_value() {
            next = next.min(*due);
        }
        self.now = next.max(self.now + 1);
        while let Some(entry) = self.under_way.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, frame) = entry.remove();
            self.ends[to].incoming.borrow_mut().push_back(frame);
        }
    }

    fn put(&mut self, to: usize, mut frame: Vec<u8>) {
        for byte in &frame {
            self.trace = (self.trace ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
        if self.draw.below(100) < self.badness.lost {
            return;
        }
        // ARP has no checksum, and counts on that of Ethernet.
        let has_checksum = frame.len() > 14 && frame[12..14] == [8, 0];
        if self.draw.below(100) < self.badness.damaged && has_checksum {
            let bit = self.draw.below(8 * (frame.len() as u64 - 14));
            frame[14 + bit as usize / 8] ^= 1 << (bit % 8);
        }
        let copies = 1 + u64::from(self.draw.below(100) < self.badness.doubled);
        for _ in 0..copies {
            let late = if self.draw.below(100) < self.badness.late { self.draw.below(30_000) as i64 } else { 0 };
            self.sent += 1;
            self.under_way.insert((self.now + 1000 + late, self.sent), (to, frame.clone()));
        }
    }

    /// Sends a stream from node 1 to node 0; gives what arrived, or nothing if the connection broke.
    fn transfer(&mut self) -> Option<Vec<u8>> {
        let server = self.stacks[0].listen(9000).expect("a free port");
        let client = self.stacks[1].connect(0, 9000).expect("an address");
        let (mut given, mut taken) = (0, Vec::new());
        while self.now < LIMIT_US {
            self.turn();
            if given < BYTES {
                let end = BYTES.min(given + 4096);
                match self.stacks[1].send(client, &stream(given..end)) {
                    Ok(bytes) => given += bytes,
                    Err(StackError::Closed) => return None,
                    Err(error) => panic!("{error}"),
                }
                if given == BYTES {
                    self.stacks[1].close(client);
                }
            }
            // The end of the stream is not waited for: whoever needs to know its length says so in the stream.
            if self.take(server, &mut taken) || taken.len() >= BYTES {
                return Some(taken);
            }
        }
        None
    }

    /// Takes what came; whether it was all.
    fn take(&mut self, server: Connection, taken: &mut Vec<u8>) -> bool {
        let mut buffer = [0; 2048];
        loop {
            match self.stacks[0].receive(server, &mut buffer) {
                Received::Bytes(bytes) => taken.extend(&buffer[..bytes]),
                Received::Nothing => return false,
                Received::End => return true,
            }
        }
    }
}

fn stream(range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(|index| (index * 31 + index / 251) as u8).collect()
}

#[test]
fn a_stream_arrives_whole_on_a_good_wire() {
    let mut world = World::new(1, Badness::default());
    assert!(world.transfer().as_deref() == Some(&stream(0..BYTES)[..]));
    assert!(world.now < 5_000_000, "{} us", world.now);
}

#[test]
fn a_stream_arrives_whole_however_bad_the_wire_is() {
    for seed in 0..12 {
        let badness = Badness { lost: 10, doubled: 10, damaged: 5, late: 20 };
        let mut world = World::new(seed, badness);
        assert!(world.transfer().as_deref() == Some(&stream(0..BYTES)[..]), "seed {seed}");
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let run = |seed| {
        let mut world = World::new(seed, Badness { lost: 10, ..Badness::default() });
        world.transfer();
        (world.trace, world.now)
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn what_nobody_answers_is_neither_connected_nor_over_for_a_while() {
    let mut world = World::new(1, Badness { lost: 100, ..Badness::default() });
    let client = world.stacks[1].connect(0, 9000).unwrap();
    for _ in 0..50 {
        world.turn();
    }
    assert!(!world.stacks[1].is_connected(client) && !world.stacks[1].is_over(client));
    world.stacks[1].forget(client, Moment::from_micros(world.now) + Duration::from_millis(1));
    let most = (0..200).take_while(|_| world.stacks[1].connect(0, 9000).is_ok()).count();
    assert_eq!(most, chaos_smolnet::CONNECTIONS_MAX);
}
