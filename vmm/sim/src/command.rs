// SPDX-License-Identifier: AGPL-3.0-or-later
//! What crosses between the pure core and the shell: commands out, observations in.

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::trace::Digest;

/// What survives a power cut of the writes that were not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerCut {
    /// Bit *i* keeps the *i*-th oldest write, those of the first disk first; the bits repeat from the 65th write on.
    pub survivors: u64,
    /// Which of those writes is torn.
    pub torn_write: u32,
    /// How many of its first bytes survive; 0 tears nothing.
    pub torn_bytes: u32,
}

/// The faults in effect on one disk. Chances are in a million; 0 is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFaults {
    /// Reads fail.
    pub read_error_ppm: u32,
    /// Writes fail and change nothing.
    pub write_error_ppm: u32,
    /// Writes fail after a part was written.
    pub torn_ppm: u32,
    /// How many bytes of a torn write are written.
    pub torn_bytes: u32,
    /// Reads return a flipped bit.
    pub corruption_ppm: u32,
    /// Every write fails.
    pub full: bool,
    /// Added time of each request.
    pub latency_ns: u64,
}

/// How often each disk fault hit a request, since power-on of the VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskCounts {
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Writes that were torn.
    pub torn: u64,
    /// Reads with a flipped bit.
    pub corrupted: u64,
    /// Writes refused because the disk is full.
    pub refused: u64,
    /// Requests that took longer.
    pub delayed: u64,
}

/// What a guest's agent is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentAction {
    /// Kills a process; a workload starts again after a while, if not 0.
    KillProcess {
        /// Which.
        process: u32,
        /// After how long.
        down_ns: u64,
    },
    /// Stops a process for a while.
    PauseProcess {
        /// Which.
        process: u32,
        /// How long.
        lasts_ns: u64,
    },
    /// Starts the workload again.
    RestartWorkload,
    /// Holds memory.
    HoldMemory {
        /// The part of what is available, in a million.
        part_ppm: u32,
        /// How long; 0 is without end.
        lasts_ns: u64,
    },
    /// Ends all of that.
    EndAll,
}

/// An order to the shell, at the start of a round. A round's commands are carried out in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Power cut. The VM does not run until it is restarted.
    Kill {
        /// The VM.
        vm: u16,
        /// What its disks keep.
        cut: PowerCut,
    },
    /// Starts a VM that is down, or resets one that is up (`reset`: all its writes survive). The shell answers with
    /// [`crate::Sim::restarted`] before it asks for deadlines.
    Restart {
        /// The VM.
        vm: u16,
        /// Whether it was up.
        reset: bool,
        /// Cluster ns since it went down.
        down_ns: u64,
        /// New seed of its entropy device.
        entropy: [u8; 32],
        /// New VM Generation ID.
        generation: [u8; 16],
    },
    /// Guest time passed without run time: a pause ended.
    SkipTo {
        /// The VM.
        vm: u16,
        /// Guest time now.
        guest_ns: u64,
    },
    /// The VM's guest time follows cluster time in another way from now on.
    SetClock {
        /// The VM.
        vm: u16,
        /// The new clock, which names the same instant now.
        clock: Clock,
    },
    /// The wall clock steps.
    StepWallClock {
        /// The VM.
        vm: u16,
        /// The step; negative is back.
        jump_ns: i64,
    },
    /// Replaces the faults in effect on a disk.
    SetDiskFaults {
        /// The VM.
        vm: u16,
        /// Its disk.
        disk: u16,
        /// All faults in effect.
        faults: DiskFaults,
    },
    /// An interrupt line rises and falls.
    PulseIrq {
        /// The VM.
        vm: u16,
        /// The line, 0 to 15.
        irq: u8,
    },
    /// The first CPU gets a non-maskable interrupt.
    Nmi {
        /// The VM.
        vm: u16,
    },
    /// The guest's agent is asked for something. The shell answers with [`crate::Sim::agent_asked`].
    AskAgent {
        /// The VM.
        vm: u16,
        /// For what.
        action: AgentAction,
    },
    /// From here on one CPU of the VM runs and no other, for a while.
    SwitchCpu {
        /// The VM.
        vm: u16,
        /// The CPU.
        cpu: u16,
        /// Guest ns for which only it runs.
        hold_ns: u64,
    },
    /// A frame reaches the network card.
    Deliver {
        /// Receiving VM.
        vm: u16,
        /// The Ethernet frame.
        frame: Vec<u8>,
    },
}

impl Command {
    /// The VM it is for.
    #[must_use]
    pub fn vm(&self) -> u16 {
        match *self {
            Self::Kill { vm, .. }
            | Self::Restart { vm, .. }
            | Self::SkipTo { vm, .. }
            | Self::SetClock { vm, .. }
            | Self::StepWallClock { vm, .. }
            | Self::SetDiskFaults { vm, .. }
            | Self::PulseIrq { vm, .. }
            | Self::Nmi { vm }
            | Self::AskAgent { vm, .. }
            | Self::SwitchCpu { vm, .. }
            | Self::Deliver { vm, .. } => vm,
        }
    }
}

/// One round's orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Cluster ns at its start.
    pub start_ns: u64,
    /// Cluster ns of the barrier that ends it.
    pub end_ns: u64,
    /// In order; each command with the schedule's event that caused it, if one did.
    pub commands: Vec<(Command, Option<usize>)>,
    /// Places in the schedule of the faults applied or rejected at its start.
    pub faults: Vec<u32>,
    /// How many frames each VM gets at its start.
    pub delivered: Vec<u64>,
}

/// A frame that a guest sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    /// Guest time at which it was sent.
    pub at_guest_ns: u64,
    /// The Ethernet frame.
    pub bytes: Vec<u8>,
}

/// How a VM came to the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VmEnd {
    /// It has more to do.
    Busy,
    /// It is halted; its next timer event is due at this guest time, if there is one.
    Idle {
        /// Guest ns.
        next_event_guest_ns: Option<u64>,
    },
    /// It does not run on (panic, power-off, reset, triple fault), or had no run command.
    Stopped,
}

/// What one VM did in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// How it came to the barrier.
    pub end: VmEnd,
    /// Instructions since power-on.
    pub instructions: u64,
    /// Hash of its registers.
    pub registers: Digest,
    /// Frames in the order they were sent.
    pub frames: Vec<SentFrame>,
    /// Number of SDK records drained.
    pub sdk_records: u64,
    /// Hash over those records; zero when there were none.
    pub sdk: Digest,
    /// Cumulative fault counts of each disk.
    pub disks: Vec<DiskCounts>,
}

impl Observation {
    /// What is reported for a VM that did not run and did nothing.
    #[must_use]
    pub fn nothing(instructions: u64, registers: Digest) -> Self {
        Self {
            end: VmEnd::Stopped,
            instructions,
            registers,
            frames: Vec::new(),
            sdk_records: 0,
            sdk: [0; 32],
            disks: Vec::new(),
        }
    }
}
