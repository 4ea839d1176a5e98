// SPDX-License-Identifier: Apache-2.0
//! The server's state machine, and frames.

use crate::message::{Answer, Call, Request, Status, stream_byte};
use crate::server::{Bug, State};

fn request(number: u64, call: Call) -> Request {
    Request { life: 7, client: 1, number, register: 0, call }
}

#[test]
fn frames_survive_the_wire_and_damage_is_seen() {
    let mut bytes = Vec::new();
    let sent = request(3, Call::CompareAndSet { expected: -1, new: i64::MAX });
    sent.write(&mut bytes).unwrap();
    assert_eq!(Request::read(&mut &bytes[..]).unwrap(), sent);
    for place in 4..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 4;
        assert!(Request::read(&mut &damaged[..]).is_err(), "byte {place}");
    }
    let mut bytes = Vec::new();
    let sent = Answer { number: 1, status: Status::Refused, life: 2, version: 3, value: -4, applied: 5 };
    sent.write(&mut bytes).unwrap();
    assert_eq!(Answer::read(&mut &bytes[..]).unwrap(), sent);
    assert!(Answer::read(&mut &bytes[..bytes.len() - 1]).is_err());
}

#[test]
fn a_request_that_is_sent_again_applies_once_unless_the_bug_is_planted() {
    for (bug, applied) in [(Bug::None, 1), (Bug::NoDedup, 2)] {
        let mut state = State::new(7, bug);
        let first = state.answer(&request(1, Call::Write(5)), 0);
        assert_eq!((first.applied, first.version, first.value), (1, 1, 5));
        assert_eq!(state.answer(&request(1, Call::Write(5)), 0).applied, applied);
    }
}

#[test]
fn a_server_of_another_life_does_nothing() {
    let mut state = State::new(8, Bug::None);
    assert_eq!(state.answer(&request(1, Call::Write(5)), 0).status, Status::OtherLife);
    let hello = Request { life: 0, ..request(0, Call::Hello) };
    assert_eq!(state.answer(&hello, 0).life, 8);
    let read = Request { life: 8, ..request(1, Call::Read) };
    assert_eq!(state.answer(&read, 0).version, 0);
}

#[test]
fn compare_and_set_and_stale_reads() {
    let mut state = State::new(7, Bug::StaleRead);
    let set = |expected, new| Call::CompareAndSet { expected, new };
    assert_eq!(state.answer(&request(1, set(0, 4)), 0).status, Status::Done);
    assert_eq!(state.answer(&request(2, set(0, 5)), 0).status, Status::Refused);
    assert_eq!(state.answer(&request(3, Call::Read), 0).value, 0, "the copy is old");
}

#[test]
fn bytes_of_a_stream_depend_on_seed_and_place() {
    let bytes = |seed| (0..64).map(|index| stream_byte(seed, index)).collect::<Vec<_>>();
    assert_eq!(bytes(3), bytes(3));
    assert_ne!(bytes(3), bytes(4));
}
