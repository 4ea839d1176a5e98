// SPDX-License-Identifier: Apache-2.0
//! The server: two registers in memory, a thread a connection.

use crate::message::{Answer, Call, Request, Status, stream_byte};
use chaoscontrol_sdk::{assert_always, assert_sometimes, details, get_random};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Registers that are served.
pub const REGISTERS: usize = 2;
/// A connection on which nothing comes for so long is given up.
const IDLE: Duration = Duration::from_secs(2);
/// Connections at a time; beyond them a client has to come again.
const CONNECTIONS_MAX: usize = 64;
/// With [`Bug::StaleRead`]: writes between two copies.
const COPY_EVERY: u64 = 4;

/// What is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// A request that is sent again is applied again.
    NoDedup,
    /// Reads are answered from a copy.
    StaleRead,
}

impl Bug {
    pub fn parse(name: Option<&str>) -> Result<Self, String> {
        match name {
            None | Some("none") => Ok(Self::None),
            Some("no_dedup") => Ok(Self::NoDedup),
            Some("stale_read") => Ok(Self::StaleRead),
            Some(other) => Err(format!("net_bug={other}: there are none, no_dedup and stale_read")),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Register {
    value: i64,
    version: u64,
}

/// What the server knows of a client: its last request with the answer, and how many it has applied.
#[derive(Clone, Copy, Debug)]
struct Known {
    last: Answer,
    applied: u64,
}

/// Everything the server holds, for one life.
#[derive(Debug)]
pub struct State {
    life: u64,
    bug: Bug,
    registers: [Register; REGISTERS],
    copies: [Register; REGISTERS],
    clients: BTreeMap<u64, Known>,
}

impl State {
    pub fn new(life: u64, bug: Bug) -> Self {
        Self { life, bug, registers: Default::default(), copies: Default::default(), clients: BTreeMap::new() }
    }

    /// Answers a request whose stream, if it has one, arrived and added up to `sum`.
    pub fn answer(&mut self, request: &Request, sum: i64) -> Answer {
        let plain =
            |status| Answer { number: request.number, status, life: self.life, version: 0, value: 0, applied: 0 };
        if request.call == Call::Hello {
            return plain(Status::Done);
        }
        if request.life != self.life {
            return plain(Status::OtherLife);
        }
        let known = self.clients.get(&request.client).copied();
        let again = known.is_some_and(|known| known.last.number >= request.number);
        assert_sometimes!(again, "a request arrives again");
        if let Some(known) = known.filter(|_| again && self.bug != Bug::NoDedup) {
            return known.last;
        }
        let applied = known.map_or(0, |known| known.applied) + 1;
        let answer = self.apply(request, sum, applied);
        self.clients.insert(request.client, Known { last: answer, applied });
        answer
    }

    fn apply(&mut self, request: &Request, sum: i64, applied: u64) -> Answer {
        let index = usize::from(request.register) % REGISTERS;
        let register = &mut self.registers[index];
        let mut status = Status::Done;
        let mut write = |value| *register = Register { value, version: register.version + 1 };
        match request.call {
            Call::Write(value) => write(value),
            Call::CompareAndSet { expected, new } if register.value == expected => {
                *register = Register { value: new, version: register.version + 1 };
            }
            Call::CompareAndSet { .. } => status = Status::Refused,
            Call::Hello | Call::Read | Call::Stream { .. } => {}
        }
        let now = self.registers[index];
        if now.version.is_multiple_of(COPY_EVERY) {
            self.copies[index] = now;
        }
        let stale = self.bug == Bug::StaleRead && request.call == Call::Read;
        let shown = if stale { self.copies[index] } else { now };
        let value = if matches!(request.call, Call::Stream { .. }) { sum } else { shown.value };
        Answer { number: request.number, status, life: self.life, version: shown.version, value, applied }
    }
}

/// Listens, and serves in threads of its own.
pub fn start(address: SocketAddr, bug: Bug) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let state = Arc::new(Mutex::new(State::new(get_random() | 1, bug)));
    let connections = Arc::new(());
    std::thread::spawn(move || {
        // A connection that fails before it is there is the client's affair.
        for stream in listener.incoming().flatten() {
            if Arc::strong_count(&connections) > CONNECTIONS_MAX {
                continue;
            }
            let (state, counted) = (state.clone(), connections.clone());
            std::thread::spawn(move || {
                let _ = serve(stream, &state);
                drop(counted);
            });
        }
    });
    Ok(())
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_nodelay(true)?;
    loop {
        let request = Request::read(&mut stream)?;
        let sum = match request.call {
            Call::Stream { seed, bytes } => receive(&mut stream, seed, bytes)?,
            _ => 0,
        };
        let answer = state.lock().expect("no thread panics with the lock").answer(&request, sum);
        answer.write(&mut stream)?;
    }
}

/// Reads a stream to its end; gives the sum of its bytes.
fn receive(stream: &mut TcpStream, seed: i64, bytes: u32) -> io::Result<i64> {
    let mut buffer = [0; 2048];
    let (mut index, mut sum) = (0, 0);
    while index < bytes {
        let room = buffer.len().min((bytes - index) as usize);
        let read = stream.read(&mut buffer[..room])?;
        assert_sometimes!(read == 0, "a stream is cut off");
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let wrong = buffer[..read].iter().zip(index..).find(|(byte, index)| **byte != stream_byte(seed, *index));
        let place = wrong.map_or(0, |(_, index)| index);
        assert_always!(wrong.is_none(), "a stream arrives whole and in order", details! { place: place, bytes: bytes });
        sum += buffer[..read].iter().map(|byte| i64::from(*byte)).sum::<i64>();
        index += read as u32;
    }
    Ok(sum)
}
