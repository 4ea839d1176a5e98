// SPDX-License-Identifier: AGPL-3.0-or-later
//! One deterministic virtual machine: memory, interrupt controllers, timers, devices, boot and snapshots over a CPU engine.

pub mod engine;
