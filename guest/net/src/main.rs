// SPDX-License-Identifier: Apache-2.0
//! A service over TCP: node 0 serves two registers, the others are its clients.
//!
//! Connections break, requests time out and are sent again, the server is started anew and has forgotten everything. What must hold:
//!
//! | property | where |
//! |---|---|
//! | a request applies at most once, however often it is sent | the client compares the server's count with its own |
//! | each version of a register has one value | agreement of all nodes |
//! | a client never sees a register go back | the client |
//! | a stream arrives whole and in order | the server checks each byte, the client the sum |
//! | registers are linearizable | `chaos-history`, from the events of the clients |
//!
//! `net_bug=no_dedup` plants a bug: the server does not remember which requests it has applied. `net_bug=stale_read` another: reads are answered
//! from a copy that is made now and then.

mod client;
mod message;
mod server;
#[cfg(test)]
mod tests;

use chaoscontrol_workload::{Failure, Node, Workload};
use std::process::ExitCode;
use std::time::Duration;

/// Where the service is on its node.
const SERVICE: u16 = 1;

enum Role {
    Server,
    Client(Box<client::Client>),
}

impl Workload for Role {
    fn setup(node: Node) -> Result<Self, Failure> {
        if node.me() == 0 {
            let bug = server::Bug::parse(node.parameter("net_bug").as_deref())?;
            server::start(node.address(0, SERVICE), bug)?;
            return Ok(Self::Server);
        }
        Ok(Self::Client(Box::new(client::Client::new(node.me(), node.address(0, SERVICE)))))
    }

    fn ready(&self) -> bool {
        match self {
            Self::Server => true,
            Self::Client(client) => client.is_connected(),
        }
    }

    fn step(&mut self) -> Result<(), Failure> {
        match self {
            // Its connections have threads of their own.
            Self::Server => std::thread::sleep(Duration::from_millis(20)),
            Self::Client(client) => client.step()?,
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    chaoscontrol_workload::run::<Role>()
}
