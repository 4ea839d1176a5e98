// SPDX-License-Identifier: AGPL-3.0-or-later
//! A whole machine as plain data plus shared pages.

use chaoscontrol_cpu::CpuState;
use serde::{Deserialize, Serialize};

use crate::board::BoardState;
use crate::engine::ProgressUnit;
use crate::pages::PageMap;
use crate::time::{GuestNs, TimeMap};

/// Version of [`MachineState`]; any change of meaning or layout bumps it.
pub const STATE_VERSION: u32 = 1;

/// Everything of a machine but its memory pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineState {
    /// [`STATE_VERSION`].
    pub version: u32,
    /// Bytes of RAM.
    pub memory_bytes: u64,
    /// Guest nanoseconds per unit of progress; a machine of another value refuses the snapshot.
    pub ns_per_instruction: u32,
    /// What a unit of progress is.
    pub progress_unit: ProgressUnit,
    /// Guest time.
    pub now: GuestNs,
    /// Guest time over cluster time.
    pub time_map: TimeMap,
    /// Whether the guest ended (reset, power-off, triple fault, undefined behaviour).
    pub ended: bool,
    /// The CPU.
    pub cpu: CpuState,
    /// Every device and interrupt controller.
    pub board: BoardState,
}

/// A machine at an instruction boundary. Cloning shares the pages.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSnapshot {
    /// CPU, devices and clocks.
    pub state: MachineState,
    /// RAM and SDK window by guest-physical page number.
    pub pages: PageMap,
}
