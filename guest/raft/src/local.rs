// SPDX-License-Identifier: Apache-2.0
//! A whole cluster in one process, over loopback: a fixed amount of work between two marker lines, for benchmarks.

use crate::bugs::Bug;
use crate::core::Durable;
use crate::node::{Node, Setup};
use crate::parameters::loopback_addresses;
use crate::storage::Memory;
use std::sync::mpsc;

const PORT: u16 = 7100;
/// Entries before the first marker: connections and the first election are behind then.
const WARM_UP_ENTRIES: u64 = 50;

/// Runs until the first node has applied `entries` more after the warm-up.
pub fn run(nodes: u32, entries: u64, bug: Bug) -> Result<(), String> {
    let (done, wait) = mpsc::channel();
    for id in 0..nodes {
        let setup = Setup {
            id,
            addresses: loopback_addresses(nodes, PORT),
            bug,
            client_thinks: false,
            durable: Durable::default(),
            storage: Box::new(Memory),
        };
        let done = done.clone();
        std::thread::spawn(move || run_one(setup, entries, &done));
    }
    wait.recv().map_err(|_| "every node ended".to_owned())?
}

fn run_one(setup: Setup, entries: u64, done: &mpsc::Sender<Result<(), String>>) {
    let (id, nodes) = (setup.id, setup.addresses.len());
    let mut began = false;
    let ended = Node::new(setup).map_err(|error| format!("node {id} cannot listen: {error}")).map(|mut node| {
        node.run(&mut |_, machine| {
            if id == 0 && !began && machine.applied >= WARM_UP_ENTRIES {
                began = true;
                println!("chaos-raft: begin, {nodes} nodes, {entries} entries");
            }
            id != 0 || machine.applied < WARM_UP_ENTRIES + entries
        });
        println!("chaos-raft: end");
    });
    // The main thread ends with the first word it gets.
    let _ = done.send(ended);
}
