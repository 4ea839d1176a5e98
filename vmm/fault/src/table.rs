// SPDX-License-Identifier: AGPL-3.0-or-later
//! The fault table: every kind, its parameters and their bounds.

use serde::{Deserialize, Serialize};

use crate::kinds::{Category, Companion, Domain, Draw, Parameter, Role, Spec, Width};

/// Conversion between a field's own type and the table's.
trait Field: Copy {
    const WIDTH: Width;
    fn widen(self) -> i128;
    fn narrow(value: i128) -> Option<Self>;
}

macro_rules! field {
    ($($type:ty => $width:ident),+) => {$(
        impl Field for $type {
            const WIDTH: Width = Width::$width;
            fn widen(self) -> i128 { i128::from(self) }
            fn narrow(value: i128) -> Option<Self> { <$type>::try_from(value).ok() }
        }
    )+};
}
field!(u16 => Small, u32 => Small, u64 => Wide, i64 => Wide);

const SECOND: i128 = 1_000_000_000;
const MILLISECOND: i128 = 1_000_000;

const VM: Domain = Domain { role: Role::Vm, min: 0, max: 31, draw: Draw::Target };
const VMS: Domain = Domain { role: Role::VmSet, min: 1, max: 0xffff_ffff, draw: Draw::Target };
const DISK: Domain = Domain { role: Role::Disk, min: 0, max: 15, draw: Draw::Target };
/// Durations: 0 means until healed or the end of the branch; at most an hour.
const LASTS: Domain =
    Domain { role: Role::Duration, min: 0, max: 3600 * SECOND, draw: Draw::LogOrZero(30 * MILLISECOND, 2 * SECOND) };
/// A pause without an end would be a kill.
const LASTS_BOUNDED: Domain = Domain { min: 1, draw: Draw::Log(50 * MILLISECOND, 2 * SECOND), ..LASTS };
/// A chance in a million. Guests here send some hundred frames and write some ten blocks a second, so that a planned chance
/// starts at one in twenty.
const CHANCE: Domain = Domain { role: Role::Quantity, min: 1, max: 1_000_000, draw: Draw::Log(50_000, 1_000_000) };

/// Time between two strokes of what happens again and again. A stroke ends a round, so that it is never shorter than the
/// shortest round may be.
const EVERY: Domain =
    Domain { role: Role::Quantity, min: 50_000, max: 3600 * SECOND, draw: Draw::Log(MILLISECOND, 500 * MILLISECOND) };

const fn log(min: i128, max: i128, plan_min: i128, plan_max: i128) -> Domain {
    Domain { role: Role::Quantity, min, max, draw: Draw::Log(plan_min, plan_max) }
}

const fn uniform(min: i128, max: i128, plan_min: i128, plan_max: i128) -> Domain {
    Domain { role: Role::Quantity, min, max, draw: Draw::Uniform(plan_min, plan_max) }
}

macro_rules! faults {
    ($(
        $(#[doc = $doc:literal])+
        $kind:ident = $name:literal, $category:ident, weight $weight:literal, beside $companion:ident, observed $observed:literal {
            $( $(#[doc = $field_doc:literal])+ $field:ident: $type:ty = $domain:expr, )*
        }
    )+) => {
        /// What goes wrong, with exact integer parameters. Sets of VMs are bit sets: bit *i* is VM *i*.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $( $(#[doc = $doc])+ $kind { $( $(#[doc = $field_doc])+ $field: $type, )* }, )+
        }

        /// A fault without its parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum FaultKind {
            $( $(#[doc = $doc])+ $kind, )+
        }

        /// The fault table, in the order of [`FaultKind`].
        pub static SPECS: &[Spec] = &[$(
            Spec {
                kind: FaultKind::$kind,
                name: $name,
                category: Category::$category,
                weight: $weight,
                companion: Companion::$companion,
                parameters: &[$(
                    Parameter {
                        name: stringify!($field),
                        width: <$type as Field>::WIDTH,
                        domain: $domain,
                        doc: concat!($($field_doc),+),
                    },
                )*],
                doc: concat!($($doc),+),
                observed: $observed,
            },
        )+];

        impl Fault {
            /// The kind.
            #[must_use]
            pub fn kind(&self) -> FaultKind {
                match self { $( Self::$kind { .. } => FaultKind::$kind, )+ }
            }

            /// The parameters' values in the order of the table.
            #[must_use]
            pub fn values(&self) -> Vec<i128> {
                match *self { $( Self::$kind { $($field),* } => vec![$(Field::widen($field)),*], )+ }
            }

            /// Builds a fault from values in the order of the table; `None` when their number or a type does not fit.
            /// Bounds are not checked here.
            #[must_use]
            pub fn from_values(kind: FaultKind, values: &[i128]) -> Option<Self> {
                match kind { $(
                    FaultKind::$kind => {
                        let [$($field),*] = values else { return None };
                        Some(Self::$kind { $($field: Field::narrow(*$field)?),* })
                    }
                )+ }
            }
        }
    };
}

faults! {
    /// Every frame on the chosen links takes longer by a fixed time.
    NetworkLatency = "network_latency", Network, weight 4, beside None, observed "frames delayed" {
        /// Sending VMs.
        from_vms: u32 = VMS,
        /// Receiving VMs.
        to_vms: u32 = VMS,
        /// Added delay of each frame.
        latency_ns: u64 = log(1, 60 * SECOND, MILLISECOND, 500 * MILLISECOND),
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// Every frame on the chosen links takes longer by a random time, so that frames may overtake each other.
    NetworkJitter = "network_jitter", Network, weight 4, beside None, observed "frames delayed by a draw above zero" {
        /// Sending VMs.
        from_vms: u32 = VMS,
        /// Receiving VMs.
        to_vms: u32 = VMS,
        /// Largest added delay; each frame's is uniform from 0 to this.
        jitter_ns: u64 = log(1, 60 * SECOND, MILLISECOND, 300 * MILLISECOND),
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// Frames on the chosen links get lost.
    NetworkLoss = "network_loss", Network, weight 5, beside None, observed "frames lost" {
        /// Sending VMs.
        from_vms: u32 = VMS,
        /// Receiving VMs.
        to_vms: u32 = VMS,
        /// Chance of each frame, in a million.
        loss_ppm: u32 = CHANCE,
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// Frames on the chosen links arrive twice.
    NetworkDuplication = "network_duplication", Network, weight 3, beside None, observed "frames duplicated" {
        /// Sending VMs.
        from_vms: u32 = VMS,
        /// Receiving VMs.
        to_vms: u32 = VMS,
        /// Chance of each frame, in a million.
        duplication_ppm: u32 = CHANCE,
        /// Delay of the copy behind the first.
        delay_ns: u64 = log(0, 60 * SECOND, 1, 100 * MILLISECOND),
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// Chosen frames are held back, so that later ones overtake them.
    NetworkReorder = "network_reorder", Network, weight 3, beside None, observed "frames held back" {
        /// Sending VMs.
        from_vms: u32 = VMS,
        /// Receiving VMs.
        to_vms: u32 = VMS,
        /// Chance of each frame, in a million.
        reorder_ppm: u32 = CHANCE,
        /// How long a chosen frame is held back.
        delay_ns: u64 = log(1, 60 * SECOND, MILLISECOND, 200 * MILLISECOND),
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// One random bit of a chosen frame is flipped, behind the Ethernet header, so that the guest's checksums meet it.
    NetworkCorruption = "network_corruption", Network, weight 3, beside None, observed "frames with a flipped bit" {
        /// Sending VMs.
        from_vms: u32 = VMS,
        /// Receiving VMs.
        to_vms: u32 = VMS,
        /// Chance of each frame, in a million.
        corruption_ppm: u32 = CHANCE,
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// The chosen links pass so many bytes a second; frames queue behind each other and are lost once a second's worth waits.
    NetworkBandwidth = "network_bandwidth", Network, weight 2, beside None, observed "frames that waited or were lost in the queue" {
        /// Sending VMs.
        from_vms: u32 = VMS,
        /// Receiving VMs.
        to_vms: u32 = VMS,
        /// Bytes a second of each link.
        bytes_per_second: u64 = log(1_000, 100_000_000_000, 1_000, 1_000_000),
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// No frame passes between the chosen VMs and the others, in either direction.
    NetworkPartition = "network_partition", Network, weight 12, beside None, observed "frames dropped" {
        /// VMs on one side; all others are on the other.
        vms: u32 = VMS,
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// No frame passes on the chosen links; the other direction stays open.
    NetworkPartitionOneWay = "network_partition_one_way", Network, weight 8, beside None, observed "frames dropped" {
        /// Sending VMs.
        from_vms: u32 = VMS,
        /// Receiving VMs.
        to_vms: u32 = VMS,
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// Frames on the chosen links wait in a queue, none is lost; when it ends they all arrive, in their order.
    NetworkClog = "network_clog", Network, weight 5, beside None, observed "frames held in the queue" {
        /// Sending VMs.
        from_vms: u32 = VMS,
        /// Receiving VMs.
        to_vms: u32 = VMS,
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// Frames on the chosen links whose packet is longer than this get lost, and nobody is told.
    NetworkMtu = "network_mtu", Network, weight 2, beside None, observed "frames lost for their length" {
        /// Sending VMs.
        from_vms: u32 = VMS,
        /// Receiving VMs.
        to_vms: u32 = VMS,
        /// Longest packet that passes, without the Ethernet header.
        mtu_bytes: u32 = log(28, 9_000, 68, 1_400),
        /// How long; 0 is until healed.
        duration_ns: u64 = LASTS,
    }
    /// Ends every network fault that is in effect.
    NetworkHeal = "network_heal", Network, weight 2, beside PartitionBefore, observed "network faults ended" {
    }
    /// A power cut: the VM stops, what is on its way to it is lost, and its disks keep what was durable plus an explicit
    /// subset of the rest.
    VmKill = "vm_kill", Process, weight 12, beside None, observed "a running VM stopped" {
        /// The VM.
        vm: u16 = VM,
        /// Which writes that were not durable, in flight or completed, survive: bit *i* is the *i*-th oldest, those of the first
        /// disk first; the bits repeat from the 65th write on.
        survivors: u64 = Domain { role: Role::Quantity, min: 0, max: 0xffff_ffff_ffff_ffff, draw: Draw::Bits },
        /// Which of those writes is torn, when `torn_bytes` is above zero.
        torn_write: u32 = uniform(0, 1_000_000, 0, 3),
        /// How many of the torn write's first bytes survive; 0 tears nothing.
        torn_bytes: u32 = uniform(0, 1 << 30, 0, 4096),
        /// How long it stays down; 0 is until a `vm_restart`.
        down_ns: u64 = LASTS,
    }
    /// The VM gets no run time while its clocks go on; frames queue in its network card.
    VmPause = "vm_pause", Process, weight 8, beside None, observed "a VM that could have run did not" {
        /// The VM.
        vm: u16 = VM,
        /// How long.
        duration_ns: u64 = LASTS_BOUNDED,
    }
    /// Starts a VM that is down. A VM that is up is reset: all its writes survive.
    VmRestart = "vm_restart", Process, weight 4, beside None, observed "a VM started again" {
        /// The VM.
        vm: u16 = VM,
    }
    /// A process in the guest is killed by its agent, `chaos-init`; the disk's cache stays.
    ProcessKill = "process_kill", Process, weight 5, beside None, observed "the agent killed it" {
        /// The VM.
        vm: u16 = VM,
        /// Which process: 0 is the workload with its process group, others follow in order of their numbers, counted on from the
        /// first where there are fewer.
        process: u32 = uniform(0, 1_000, 0, 3),
        /// When the agent starts a killed workload again; 0 is at a `process_restart`.
        down_ns: u64 = LASTS,
    }
    /// A process in the guest is stopped by its agent, and goes on after a while.
    ProcessPause = "process_pause", Process, weight 4, beside None, observed "the agent stopped it" {
        /// The VM.
        vm: u16 = VM,
        /// Which process, as for `process_kill`.
        process: u32 = uniform(0, 1_000, 0, 3),
        /// How long.
        duration_ns: u64 = LASTS_BOUNDED,
    }
    /// The workload's process group is killed by the guest's agent, if it runs, and started again.
    ProcessRestart = "process_restart", Process, weight 4, beside None, observed "the agent started it again" {
        /// The VM.
        vm: u16 = VM,
    }
    /// Reads of the disk fail.
    DiskReadError = "disk_read_error", Disk, weight 2, beside RestartDuring, observed "reads failed" {
        /// The VM.
        vm: u16 = VM,
        /// The VM's disk.
        disk: u16 = DISK,
        /// Chance of each request, in a million.
        error_ppm: u32 = CHANCE,
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// Writes to the disk fail and change nothing.
    DiskWriteError = "disk_write_error", Disk, weight 3, beside None, observed "writes failed" {
        /// The VM.
        vm: u16 = VM,
        /// The VM's disk.
        disk: u16 = DISK,
        /// Chance of each request, in a million.
        error_ppm: u32 = CHANCE,
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// Writes to the disk fail after a part of the data was written.
    DiskTornWrite = "disk_torn_write", Disk, weight 3, beside None, observed "writes torn" {
        /// The VM.
        vm: u16 = VM,
        /// The VM's disk.
        disk: u16 = DISK,
        /// Chance of each request, in a million.
        torn_ppm: u32 = CHANCE,
        /// How many of the first bytes are written; a shorter request is written but for its last byte.
        torn_bytes: u32 = log(0, 1 << 30, 1, 4096),
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// Reads from the disk return data with one flipped bit; what is stored stays as it is.
    DiskCorruption = "disk_corruption", Disk, weight 2, beside RestartDuring, observed "reads with a flipped bit" {
        /// The VM.
        vm: u16 = VM,
        /// The VM's disk.
        disk: u16 = DISK,
        /// Chance of each request, in a million.
        corruption_ppm: u32 = CHANCE,
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// The disk's space is used up: every write fails and changes nothing, reads work.
    DiskFull = "disk_full", Disk, weight 2, beside None, observed "writes refused" {
        /// The VM.
        vm: u16 = VM,
        /// The VM's disk.
        disk: u16 = DISK,
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// Requests to the disk take longer by a fixed time.
    DiskLatency = "disk_latency", Disk, weight 3, beside None, observed "requests delayed" {
        /// The VM.
        vm: u16 = VM,
        /// The VM's disk.
        disk: u16 = DISK,
        /// Added time of each request.
        latency_ns: u64 = log(1, 60 * SECOND, MILLISECOND, 500 * MILLISECOND),
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// The VM's clocks, and with them its CPU, run at `numerator / denominator` of cluster time.
    ClockSkew = "clock_skew", Clock, weight 4, beside None, observed "guest time left cluster time" {
        /// The VM.
        vm: u16 = VM,
        /// Guest ns in each `denominator` ns of cluster time; the ratio must lie between 1/10 and 10.
        numerator: u32 = uniform(1, 1_000_000, 500, 2000),
        /// Cluster ns.
        denominator: u32 = uniform(1, 1_000_000, 1000, 1000),
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// The VM's wall clock steps forward or back; its monotonic clocks do not.
    ClockJump = "clock_jump", Clock, weight 2, beside None, observed "the wall clock stepped" {
        /// The VM.
        vm: u16 = VM,
        /// The step; negative is back.
        jump_ns: i64 = Domain {
            role: Role::Quantity,
            min: -(3600 * 24 * 365 * SECOND),
            max: 3600 * 24 * 365 * SECOND,
            draw: Draw::SignedLog(MILLISECOND, 3600 * SECOND),
        },
    }
    /// The VM stands still with all its clocks, as one that is suspended: it notices nothing, and its clocks are behind from then
    /// on.
    ClockFreeze = "clock_freeze", Clock, weight 3, beside None, observed "the VM's clocks stood still" {
        /// The VM.
        vm: u16 = VM,
        /// How long.
        duration_ns: u64 = LASTS_BOUNDED,
    }
    /// Again and again the VM's wall clock steps to a random distance from what it would show; at the end it steps back.
    ClockJitter = "clock_jitter", Clock, weight 3, beside None, observed "steps of the wall clock" {
        /// The VM.
        vm: u16 = VM,
        /// Largest distance, ahead or behind.
        jitter_ns: u64 = log(1, 3600 * SECOND, MILLISECOND, 10 * SECOND),
        /// Time between two steps.
        every_ns: u64 = EVERY,
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// Again and again the VM's CPU stands still for a while, as under a busy hypervisor; its clocks go on.
    CpuStall = "cpu_stall", Resource, weight 3, beside None, observed "a VM that could have run did not" {
        /// The VM.
        vm: u16 = VM,
        /// How long each stall lasts.
        stall_ns: u64 = log(1, 60 * SECOND, MILLISECOND, 200 * MILLISECOND),
        /// Time from the beginning of one stall to that of the next.
        every_ns: u64 = EVERY,
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// The VM's CPU gets a part of each round's time; its clocks go on at their pace.
    CpuThrottle = "cpu_throttle", Resource, weight 4, beside None, observed "rounds that a busy VM did not get whole" {
        /// The VM.
        vm: u16 = VM,
        /// The part, in a million.
        speed_ppm: u32 = log(1_000, 999_000, 10_000, 500_000),
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// The turn of a CPU is cut here: from this instruction on one CPU of the VM runs, and no other, until the time is over or it
    /// has nothing to do.
    CpuSwitch = "cpu_switch", Resource, weight 40, beside None, observed "a turn was cut" {
        /// The VM.
        vm: u16 = VM,
        /// The CPU that runs.
        cpu: u16 = Domain { role: Role::Cpu, min: 0, max: 7, draw: Draw::Target },
        /// How much guest time only that CPU runs.
        hold_ns: u64 = log(1, SECOND, 100, 20 * MILLISECOND),
    }
    /// The guest's agent holds a part of the memory that is available; the kernel frees it first when memory runs out.
    MemoryPressure = "memory_pressure", Resource, weight 2, beside None, observed "the agent held it" {
        /// The VM.
        vm: u16 = VM,
        /// The part, in a million.
        part_ppm: u32 = log(1_000, 990_000, 300_000, 900_000),
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// An interrupt line of the VM rises and falls although its device asked for nothing, again and again.
    InterruptIrq = "interrupt_irq", Interrupt, weight 2, beside None, observed "pulses of the line" {
        /// The VM.
        vm: u16 = VM,
        /// The line: 4 is the serial port, 8 the real-time clock, 9 ACPI, 5 entropy, 10 the console, 11 the network card, 12, 6, 7
        /// and 3 the disks.
        irq: u32 = uniform(1, 14, 3, 12),
        /// Time between two pulses.
        every_ns: u64 = EVERY,
        /// How long; 0 is for the rest of the branch.
        duration_ns: u64 = LASTS,
    }
    /// The VM's first CPU gets a non-maskable interrupt.
    InterruptNmi = "interrupt_nmi", Interrupt, weight 2, beside None, observed "the interrupt was raised" {
        /// The VM.
        vm: u16 = VM,
    }
}
