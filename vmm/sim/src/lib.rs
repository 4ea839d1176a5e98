// SPDX-License-Identifier: AGPL-3.0-or-later
//! The pure core: cluster time, barriers, the network switch, fault decisions and round traces.
//!
//! [`Sim`] takes observations and emits commands. It knows no machine, file, thread or clock, holds its whole state as plain
//! data ([`SimState`]), and draws every random number from a stream named by VM and purpose. One round is:
//!
//! 1. [`Sim::plan_round`]: faults that are due, faults that end, frames that are due, and where the barrier is.
//! 2. The shell carries the commands out, in order, and runs each VM to its [`Sim::deadline`].
//! 3. [`Sim::finish_round`]: what each VM did; frames enter the switch, the round's record joins the trace.

mod agent;
mod clock;
mod command;
mod config;
mod effects;
mod log;
mod round;
mod state;
mod switch;
mod trace;

pub use agent::QUIET_NS_MAX;
pub use chaoscontrol_fault::{Stream, StreamState};
pub use clock::Clock;
pub use command::{AgentAction, Command, DiskCounts, DiskFaults, Observation, PowerCut, Round, SentFrame, VmEnd};
pub use config::{ConfigError, LINK_LATENCY_NS_MIN, LinkConfig, NetworkConfig, REST_LOSS_PPM_MAX, SimConfig, mac_of};
pub use log::{COPIES_MAX, CopyFate, FrameCopy, FrameLog, HEAD_BYTES};
pub use state::{Power, Sim, SimState};
pub use switch::{FRAME_BYTES_MAX, IN_FLIGHT_MAX, NetworkCounts};
pub use trace::{Digest, RoundRecord, Trace, VmRecord};
