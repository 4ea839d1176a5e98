// SPDX-License-Identifier: Apache-2.0
//! The shell around the core: a loop that waits, feeds the core, makes its output durable, sends it, and applies what is committed.

use crate::bugs::Bug;
use crate::checks::Checks;
use crate::client::Client;
use crate::core::{Core, Durable, Role};
use crate::log::{Index, NodeId};
use crate::machine::Machine;
use crate::message::Message;
use crate::net::Net;
use crate::storage::Storage;
use std::net::SocketAddrV4;
use std::time::Instant;

/// What a node is given.
pub struct Setup {
    pub id: NodeId,
    pub addresses: Vec<SocketAddrV4>,
    pub bug: Bug,
    /// Whether the client thinks between commands.
    pub client_thinks: bool,
    pub durable: Durable,
    pub storage: Box<dyn Storage>,
}

/// A running node.
pub struct Node {
    core: Core,
    net: Net,
    storage: Box<dyn Storage>,
    machine: Machine,
    client: Client,
    checks: Checks,
    served: u64,
    start: Instant,
}

fn draw(bound: u64) -> u64 {
    chaoscontrol_sdk::random_below(bound)
}

impl Node {
    /// Opens the node's socket.
    pub fn new(setup: Setup) -> std::io::Result<Self> {
        let nodes = setup.addresses.len() as u32;
        let term = setup.durable.term;
        // Another life of this node is another client: its numbers begin again.
        let seed = chaoscontrol_sdk::get_random();
        let core = Core::new(setup.id, nodes, setup.bug, setup.durable, 0, &mut draw);
        Ok(Self {
            core,
            net: Net::new(setup.id, setup.addresses)?,
            storage: setup.storage,
            machine: Machine::default(),
            client: Client::new(seed as u32, seed, setup.client_thinks, 0),
            checks: Checks::new(setup.id, term),
            served: 0,
            start: Instant::now(),
        })
    }

    /// Runs until `on_applied` says stop. It is called after each turn that applied something.
    pub fn run(&mut self, on_applied: &mut dyn FnMut(&Core, &Machine) -> bool) {
        loop {
            let before = self.machine.applied;
            self.turn();
            if self.machine.applied > before && !on_applied(&self.core, &self.machine) {
                return;
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn turn(&mut self) {
        let now_ns = self.now_ns();
        let deadline_ns = self.core.deadline_ns().min(self.net.deadline_ns()).min(self.client.deadline_ns());
        let timeout_ms = deadline_ns.saturating_sub(now_ns).div_ceil(1_000_000).min(1000) as i32;
        let start = self.start;
        let received = self.net.wait(timeout_ms, &|| start.elapsed().as_nanos() as u64);
        let now_ns = self.now_ns();
        self.net.tick(now_ns);
        for (from, message) in received {
            match message {
                Message::Forward { command } => {
                    // A node that is not the leader any more drops it; the client repeats it.
                    self.core.propose(command, now_ns);
                }
                message => self.core.receive(from, message, now_ns, &mut draw),
            }
        }
        if now_ns >= self.core.deadline_ns() {
            self.core.tick(now_ns, &mut draw);
        }
        self.submit(now_ns);
        self.flush(now_ns);
    }

    fn submit(&mut self, now_ns: u64) {
        let applied = self.machine.last_number(self.client.id());
        if applied > self.served {
            self.served = applied;
            Checks::client_served(self.client.repeats);
        }
        let Some(command) = self.client.due(now_ns, applied) else { return };
        match self.core.leader() {
            Some(_) if self.core.role() == Role::Leader => {
                self.core.propose(command, now_ns);
            }
            Some(leader) => self.net.send(leader, &Message::Forward { command }),
            None => {}
        }
    }

    fn flush(&mut self, now_ns: u64) {
        let output = self.core.take_output();
        if !output.persist.is_empty() {
            self.storage.persist(&output.persist);
        }
        for (to, message) in &output.send {
            self.net.send(*to, message);
        }
        self.net.flush(now_ns);
        self.checks.observe(&self.core, &output.notices);
        self.apply();
    }

    fn apply(&mut self) {
        let commit: Index = self.core.commit();
        while self.machine.applied < commit {
            let Some(entry) = self.core.log().get(self.machine.applied + 1) else { return };
            self.machine.apply(entry);
            self.checks.applied(&self.core, &self.machine);
        }
    }
}
