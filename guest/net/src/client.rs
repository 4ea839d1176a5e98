// SPDX-License-Identifier: Apache-2.0
//! A client: one request after the other, each sent again until it is answered or given up.

use crate::message::{Answer, Call, Request, Status, stream_byte};
use crate::server::REGISTERS;
use chaoscontrol_history::{Call as Recorded, Outcome, Value};
use chaoscontrol_sdk::{
    SdkError, assert_agree, assert_always, assert_reachable, assert_sometimes, details, get_random, random_below,
    random_choice,
};
use chaoscontrol_workload::Recorder;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a connection, or an answer, is waited for.
const PATIENCE: Duration = Duration::from_millis(150);
/// How often a request is sent at most.
const ATTEMPTS: u32 = 4;
/// Pauses between requests, in ms.
const PAUSES_MS: [u64; 3] = [2, 10, 40];
const STREAM_BYTES_MAX: u64 = 20_000;

pub struct Client {
    server: SocketAddr,
    stream: Option<TcpStream>,
    recorder: Recorder,
    me: u32,
    client: u64,
    number: u64,
    /// The server's life; what follows is of this life.
    life: Option<u64>,
    /// Requests sent, and those that were answered.
    issued: u64,
    answered: u64,
    /// The newest version of each register that was seen.
    versions: [u64; REGISTERS],
}

impl Client {
    pub fn new(me: u32, server: SocketAddr) -> Self {
        Self {
            server,
            stream: None,
            recorder: Recorder::new(me),
            me,
            client: get_random(),
            number: 0,
            life: None,
            issued: 0,
            answered: 0,
            versions: [0; REGISTERS],
        }
    }

    pub fn is_connected(&self) -> bool {
        self.life.is_some()
    }

    /// One request, or an attempt to find the server.
    pub fn step(&mut self) -> Result<(), SdkError> {
        std::thread::sleep(Duration::from_millis(*random_choice(&PAUSES_MS).expect("there are some")));
        let Some(life) = self.life else {
            self.greet();
            return Ok(());
        };
        let register = random_below(REGISTERS as u64) as u8;
        // A value that nobody else writes.
        let value = (i64::from(self.me) << 32) + self.number as i64 + 1;
        let call = match random_below(8) {
            0..=2 => Call::Read,
            3..=4 => Call::Write(value),
            5..=6 => Call::CompareAndSet { expected: self.last_value(), new: value },
            _ => Call::Stream { seed: get_random() as i64, bytes: random_below(STREAM_BYTES_MAX) as u32 },
        };
        self.number += 1;
        self.issued += 1;
        let request = Request { life, client: self.client, number: self.number, register, call };
        let key = format!("{life:x}/{register}");
        let recorded = recorded(call);
        if let Some(call) = &recorded {
            self.recorder.call(&key, call)?;
        }
        let answer = self.ask(&request);
        if recorded.is_some() {
            self.recorder.returned(&answer.map_or(Outcome::Unknown, |answer| outcome(call, answer)))?;
        }
        match answer {
            Some(answer) => self.judge(&request, answer),
            None => Ok(()),
        }
    }

    /// A value that the register may hold: that of the client's own last write.
    fn last_value(&self) -> i64 {
        if self.number == 0 { 0 } else { (i64::from(self.me) << 32) + self.number as i64 }
    }

    /// Learns which life the server is in.
    fn greet(&mut self) {
        let hello = Request { life: 0, client: self.client, number: 0, register: 0, call: Call::Hello };
        if let Ok(answer) = self.exchange(&hello) {
            self.life = Some(answer.life);
            (self.issued, self.answered) = (0, 0);
            self.versions = [0; REGISTERS];
        }
    }

    /// Sends a request until it is answered; none if nobody knows what became of it.
    fn ask(&mut self, request: &Request) -> Option<Answer> {
        for attempt in 0..ATTEMPTS {
            assert_sometimes!(attempt > 0, "a request is sent again");
            match self.exchange(request) {
                Ok(answer) if answer.status == Status::OtherLife => {
                    assert_reachable!("the server is started again");
                    self.life = None;
                    return None;
                }
                Ok(answer) => return Some(answer),
                Err(_) => self.stream = None,
            }
        }
        assert_reachable!("a request is given up");
        None
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Answer> {
        if self.stream.is_none() {
            let stream = TcpStream::connect_timeout(&self.server, PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().expect("it was made");
        request.write(stream)?;
        if let Call::Stream { seed, bytes } = request.call {
            let content: Vec<u8> = (0..bytes).map(|index| stream_byte(seed, index)).collect();
            stream.write_all(&content)?;
        }
        let answer = Answer::read(stream)?;
        // Each connection carries one request at a time, so an answer to another one is a mistake of the server.
        assert_always!(answer.number == request.number, "an answer is to the request that was asked");
        Ok(answer)
    }

    fn judge(&mut self, request: &Request, answer: Answer) -> Result<(), SdkError> {
        self.answered += 1;
        let facts = details! { applied: answer.applied, issued: self.issued, answered: self.answered };
        assert_always!(answer.applied <= self.issued, "a request applies at most once", facts);
        assert_always!(answer.applied >= self.answered, "an answered request was applied", facts);
        if let Call::Stream { seed, bytes } = request.call {
            let sum: i64 = (0..bytes).map(|index| i64::from(stream_byte(seed, index))).sum();
            assert_always!(answer.value == sum, "the server has what the client sent", details! { bytes: bytes });
            return Ok(());
        }
        let register = usize::from(request.register);
        let before = std::mem::replace(&mut self.versions[register], answer.version);
        let facts = details! { register: register, before: before, version: answer.version };
        assert_always!(answer.version >= before, "a client never sees a register go back", facts);
        assert_sometimes!(answer.status == Status::Refused, "a compare-and-set is refused");
        assert_sometimes!(answer.version > before + 1, "another client writes in between");
        let key = format_args!("{:x}/{register}/{}", answer.life, answer.version);
        assert_agree!("value of a version", key, answer.value as u64)
    }
}

/// How a call stands in the history; a stream is no operation on a register.
fn recorded(call: Call) -> Option<Recorded> {
    match call {
        Call::Read => Some(Recorded::Read),
        Call::Write(value) => Some(Recorded::Write(value.into())),
        Call::CompareAndSet { expected, new } => {
            Some(Recorded::CompareAndSet { expected: held(expected), new: new.into() })
        }
        Call::Hello | Call::Stream { .. } => None,
    }
}

/// What a register holds before the first write is nothing in a history, and 0 on the wire.
fn held(value: i64) -> Value {
    if value == 0 { Value::Nothing } else { Value::Number(value) }
}

fn outcome(call: Call, answer: Answer) -> Outcome {
    match (call, answer.status) {
        (_, Status::Refused) => Outcome::Refused,
        (Call::Read, _) => Outcome::Done(held(answer.value)),
        _ => Outcome::Done(Value::Nothing),
    }
}
