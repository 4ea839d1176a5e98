// SPDX-License-Identifier: Apache-2.0
//! A service that counts, and clients that ask it to. Replace it with your own.
//!
//! Node 0 counts for each client; the others send it one request after the other over UDP, each again and again until it is answered. What
//! must hold: each request counts once, however often it arrives. The server remembers the last request of each client for that. With
//! `bug=no_memory` it does not: it counts what was sent again.

use chaoscontrol_sdk::{assert_always, assert_reachable, assert_sometimes, details, get_random};
use chaoscontrol_workload::{Failure, Node, Workload};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::Duration;

/// How long a node waits for a message. A client whose request is not answered by then sends it again.
const PATIENCE: Duration = Duration::from_millis(20);

/// A client picks a number for itself at each start, so that two lives of one machine are two clients.
type Client = u64;

enum Role {
    Server { life: u64, remembers: bool, counts: BTreeMap<Client, Count> },
    Asker { client: Client, request: u64, sent: u64, server_life: u64, expected: u64 },
}

#[derive(Default)]
struct Count {
    last_request: u64,
    total: u64,
}

struct Counting {
    node: Node,
    socket: UdpSocket,
    role: Role,
}

impl Workload for Counting {
    fn setup(node: Node) -> Result<Self, Failure> {
        let socket = UdpSocket::bind(node.address(node.me(), 0))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let role = if node.me() == 0 {
            let remembers = node.parameter("bug").as_deref() != Some("no_memory");
            Role::Server { life: get_random(), remembers, counts: BTreeMap::new() }
        } else {
            Role::Asker { client: get_random(), request: 1, sent: 0, server_life: 0, expected: 0 }
        };
        Ok(Self { node, socket, role })
    }

    fn step(&mut self) -> Result<(), Failure> {
        match &self.role {
            Role::Server { .. } => self.serve(),
            Role::Asker { .. } => self.ask(),
        }
    }
}

impl Counting {
    fn serve(&mut self) -> Result<(), Failure> {
        let Role::Server { life, remembers, counts } = &mut self.role else { return Ok(()) };
        let mut buffer = [0; 64];
        let Ok((bytes, from)) = self.socket.recv_from(&mut buffer) else { return Ok(()) };
        let Some([client, request]) = numbers(&buffer[..bytes]) else { return Ok(()) };
        let count = counts.entry(client).or_default();
        let is_old = request <= count.last_request;
        assert_sometimes!(is_old, "a request arrives again");
        if !is_old || !*remembers {
            count.total += 1;
        }
        count.last_request = count.last_request.max(request);
        // An answer that is lost is asked for again.
        let _ = self.socket.send_to(&bytes_of([*life, request, count.total]), from);
        Ok(())
    }

    fn ask(&mut self) -> Result<(), Failure> {
        let Role::Asker { client, request, sent, server_life, expected } = &mut self.role else { return Ok(()) };
        *sent += 1;
        assert_sometimes!(*sent > 1, "a request is sent again");
        // A network that is not there is a reason to try again.
        let _ = self.socket.send_to(&bytes_of([*client, *request]), self.node.address(0, 0));
        let mut buffer = [0; 64];
        let Ok((bytes, _)) = self.socket.recv_from(&mut buffer) else { return Ok(()) };
        let Some([life, answered, total]) = numbers(&buffer[..bytes]) else { return Ok(()) };
        if answered != *request {
            assert_reachable!("an answer comes too late");
            return Ok(());
        }
        if life == *server_life {
            *expected += 1;
            let facts = details! { request: *request, total: total, expected: *expected };
            assert_always!(total == *expected, "each request counts once", facts);
        } else {
            // The server was started anew and has forgotten everything; count from here.
            assert_sometimes!(*server_life != 0, "the server is started again");
            (*server_life, *expected) = (life, total);
        }
        (*request, *sent) = (*request + 1, 0);
        Ok(())
    }
}

fn bytes_of<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let numbers: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
    (bytes.len() == 8 * N).then(|| numbers.try_into().ok()).flatten()
}

fn main() -> ExitCode {
    chaoscontrol_workload::run::<Counting>()
}
