// SPDX-License-Identifier: Apache-2.0
//! The harness of a workload: one program that runs as a node in each machine of a cluster, and as all nodes at once on your own.
//!
//! A workload says how a node becomes healthy ([`Workload::setup`]) and what it does again and again ([`Workload::step`]); what must hold
//! stands in it as assertions of the SDK. [`run`] does the rest:
//!
//! - in a ChaosControl VM it sets the node up, tells the host, and steps until the machine is stopped;
//! - elsewhere it is a *dry run*: some nodes as threads, on the loopback, for some steps; then a report of every property that was
//!   registered and what was observed of it. It ends with code 10 if one is broken, so that it can stand in a test.
//!
//! | argument of the dry run | meaning |
//! |---|---|
//! | `--nodes N` | nodes (default 3) |
//! | `--steps N` | steps of each (default 200) |
//! | `--port N` | first port of the loopback (default 24100) |
//! | `NAME=VALUE` | a parameter, as it would stand on the kernel command line |

mod local;
mod node;
mod recorder;

pub use node::Node;
pub use recorder::Recorder;

use std::error::Error;
use std::process::ExitCode;

/// Why a node cannot go on.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A node of a workload.
pub trait Workload: Sized {
    /// Starts the node: listening, recovered. It must not wait for other nodes. A machine that is started again after a power cut
    /// comes here too.
    fn setup(node: Node) -> Result<Self, Failure>;

    /// Whether the node is where faults may begin, for instance connected to the others; asked after each step until it is.
    fn ready(&self) -> bool {
        true
    }

    /// One turn: receive something, send something, check something. It may wait, and must return now and then.
    fn step(&mut self) -> Result<(), Failure>;
}

/// What the program ends with when a node cannot go on.
const CANNOT_GO_ON: u8 = 1;

/// Runs the workload, in a VM or dry.
#[must_use]
pub fn run<W: Workload>() -> ExitCode {
    if let Err(error) = chaoscontrol_sdk::init() {
        println!("sdk: {error}");
    }
    let Some(node) = Node::of_this_machine() else { return local::run::<W>(std::env::args().skip(1)) };
    match in_vm::<W>(node) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("the node cannot go on: {error}");
            ExitCode::from(CANNOT_GO_ON)
        }
    }
}

fn in_vm<W: Workload>(node: Node) -> Result<(), Failure> {
    let me = node.me();
    let mut workload = W::setup(node)?;
    let mut told = false;
    loop {
        if !told && workload.ready() {
            chaoscontrol_sdk::setup_complete(chaoscontrol_sdk::details! { node: me })?;
            told = true;
        }
        workload.step()?;
    }
}
