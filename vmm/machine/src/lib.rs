// SPDX-License-Identifier: AGPL-3.0-or-later
//! One deterministic virtual machine: memory, interrupt controllers, timers, devices, boot and snapshots over a CPU engine.

pub mod board;
pub mod boot;
mod byte_string;
pub mod canary;
pub mod capacity;
pub mod chips;
pub mod config;
pub mod device;
pub mod engine;
pub mod entropy;
pub mod event_log;
pub mod exact;
pub mod kvm;
pub mod layout;
pub mod machine;
pub mod memory;
mod msr;
pub mod pages;
pub mod register_hash;
mod run;
pub mod sdk_window;
pub mod smp;
pub mod snapshot;
pub mod stop;
#[cfg(test)]
mod testing;
pub mod time;
pub mod virtio;

pub use chaoscontrol_cpu::CpuState;
pub use config::{DiskConfig, EngineKind, Firmware, KvmMode, KvmOptions, NetConfig, VmConfig};
pub use machine::Machine;
pub use smp::{CpuSchedule, SmpConfig};
pub use snapshot::{MachineSnapshot, MachineState};
pub use stop::{MachineError, Stop};
pub use time::{ClusterNs, GuestNs, Rate, TimeMap};
