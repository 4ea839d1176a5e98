// SPDX-License-Identifier: Apache-2.0
//! A Raft node, one a VM, with planted bugs to find. The default is correct.
//!
//! Parameters are words of the kernel command line, or arguments of the program, which win:
//!
//! | parameter | meaning |
//! |---|---|
//! | `chaos.vm=I` `chaos.vms=N` | this node and how many there are |
//! | `raft_bug=NAME` | plants a bug: see [`bugs::Bug`] |
//! | `raft_disk=PATH` | the disk (default /dev/vda, outside a VM `none`); `none` forgets everything at a restart |
//! | `raft_loopback=PORT` | the nodes are processes of one machine, at 127.0.0.1:PORT+I |
//! | `raft_local=N` | N nodes as threads of this process, over loopback, without disks: for benchmarks |
//! | `raft_entries=N` | with `raft_local`: ends after so many committed entries (default 2000) |

mod bugs;
mod bytes;
mod checks;
mod client;
mod core;
mod local;
mod log;
mod machine;
mod message;
mod net;
mod node;
mod parameters;
#[cfg(test)]
mod simulation;
mod storage;

use crate::checks::Checks;
use crate::core::Durable;
use crate::node::{Node, Setup};
use crate::parameters::Parameters;
use crate::storage::{Disk, Memory, Storage, StorageError};
use std::path::Path;
use std::process::ExitCode;

/// What the program ends with when its parameters make no sense.
const WRONG_USAGE: u8 = 2;
/// What it ends with when it cannot start.
const CANNOT_START: u8 = 1;

fn main() -> ExitCode {
    let parameters = match Parameters::read() {
        Ok(parameters) => parameters,
        Err(error) => {
            println!("chaos-raft: {error}");
            return ExitCode::from(WRONG_USAGE);
        }
    };
    if let Err(error) = chaoscontrol_sdk::init() {
        println!("chaos-raft: {error}");
    }
    let ended = match parameters.local {
        Some(nodes) => local::run(nodes, parameters.entries, parameters.bug),
        None => run_node(&parameters),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("chaos-raft: {error}");
            ExitCode::from(CANNOT_START)
        }
    }
}

fn run_node(parameters: &Parameters) -> Result<(), String> {
    let (durable, storage) = open_storage(&parameters.disk)?;
    println!(
        "chaos-raft: node {} of {}, term {}, {} entries, bug {:?}",
        parameters.vm,
        parameters.vms,
        durable.term,
        durable.log.last_index(),
        parameters.bug
    );
    let setup = Setup {
        id: parameters.vm,
        addresses: parameters.addresses(),
        bug: parameters.bug,
        client_thinks: true,
        durable,
        storage,
    };
    let mut node = Node::new(setup).map_err(|error| format!("cannot listen: {error}"))?;
    let mut ready = false;
    node.run(&mut |core, machine| {
        if !ready && core.leader().is_some() {
            ready = true;
            println!("chaos-raft: ready, leader {:?}, term {}", core.leader(), core.term());
            let details = chaoscontrol_sdk::details! { term: core.term(), applied: machine.applied };
            if let Err(error) = chaoscontrol_sdk::setup_complete(details) {
                println!("chaos-raft: {error}");
            }
        }
        true
    });
    Ok(())
}

fn open_storage(path: &str) -> Result<(Durable, Box<dyn Storage>), String> {
    if path == "none" {
        return Ok((Durable::default(), Box::new(Memory)));
    }
    match Disk::open(Path::new(path)) {
        Ok(recovered) => {
            Checks::disk_is_whole(true);
            Checks::recovered(recovered.durable.log.last_index(), recovered.torn);
            Ok((recovered.durable, Box::new(recovered.disk)))
        }
        Err(error) => {
            Checks::disk_is_whole(!matches!(error, StorageError::Damaged { .. }));
            Err(format!("{path}: {error} (raft_disk=none runs without)"))
        }
    }
}
