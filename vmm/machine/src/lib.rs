// SPDX-License-Identifier: AGPL-3.0-or-later
//! One deterministic virtual machine: memory, interrupt controllers, timers, devices, boot and snapshots over a CPU engine.

pub mod board;
pub mod boot;
pub mod chips;
pub mod config;
pub mod device;
pub mod engine;
pub mod entropy;
pub mod machine;
pub mod memory;
pub mod pages;
pub mod sdk_window;
pub mod snapshot;
pub mod stop;
#[cfg(test)]
mod testing;
pub mod time;
pub mod virtio;

pub use config::{DiskConfig, EngineKind, NetConfig, VmConfig};
pub use machine::{Machine, SentFrame};
pub use snapshot::{MachineSnapshot, MachineState};
pub use stop::{MachineError, Stop};
pub use time::{ClusterNs, GuestNs, Rate, TimeMap};
