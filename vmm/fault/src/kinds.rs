// SPDX-License-Identifier: AGPL-3.0-or-later
//! The fault table: every kind, its parameters and their bounds.

use serde::{Deserialize, Serialize};

/// What a parameter names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Index of a VM.
    Vm,
    /// Set of VMs: bit *i* is VM *i*. Never empty.
    VmSet,
    /// Index of a disk of the VM named beside it.
    Disk,
    /// Index of a CPU of a VM.
    Cpu,
    /// How long the fault lasts, in ns of cluster time.
    Duration,
    /// A measure within bounds.
    Quantity,
}

/// How the planner draws a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// From the cluster's shape (VMs, sets, disks).
    Target,
    /// Uniform in magnitude in the range, and one time in eight 0.
    LogOrZero(i128, i128),
    /// Uniform in the range.
    Uniform(i128, i128),
    /// Uniform in magnitude in the range, which must not be negative.
    Log(i128, i128),
    /// Uniform in magnitude up to the bound, with a random sign.
    SignedLog(i128, i128),
    /// Any 64 bits.
    Bits,
}

/// Where a parameter's values come from and how far they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    /// What the value names.
    pub role: Role,
    /// Smallest allowed value.
    pub min: i128,
    /// Largest allowed value.
    pub max: i128,
    /// How a value is drawn.
    pub draw: Draw,
}

/// Integer type of a parameter; 64-bit values are strings in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Unsigned, at most 32 bits.
    Small,
    /// 64 bits, unsigned or signed.
    Wide,
}

/// One parameter of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Field name, with its unit.
    pub name: &'static str,
    /// Integer type.
    pub width: Width,
    /// Values.
    pub domain: Domain,
    /// One sentence for people.
    pub doc: &'static str,
}

/// What part of the world a kind breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Links between VMs.
    Network,
    /// Whole VMs.
    Vm,
    /// Disks.
    Disk,
    /// Clocks.
    Clock,
    /// Turns of the CPUs of one VM.
    Cpu,
}

/// What the planner puts beside a new fault that alone would meet nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Companion {
    /// Nothing.
    None,
    /// A restart of the same VM while the fault lasts: guests read their disks when they start.
    RestartDuring,
    /// A partition without an end, at some time before.
    PartitionBefore,
}

/// One row of the fault table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The kind.
    pub kind: FaultKind,
    /// Name in schedules.
    pub name: &'static str,
    /// Group.
    pub group: Group,
    /// How often the planner picks it, relative to the others.
    pub weight: u32,
    /// What the planner puts beside it.
    pub companion: Companion,
    /// Parameters in their order.
    pub parameters: &'static [Parameter],
    /// What it does, for people.
    pub doc: &'static str,
    /// What counts as its observed effect.
    pub observed: &'static str,
}

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

const fn log(min: i128, max: i128, plan_min: i128, plan_max: i128) -> Domain {
    Domain { role: Role::Quantity, min, max, draw: Draw::Log(plan_min, plan_max) }
}

const fn uniform(min: i128, max: i128, plan_min: i128, plan_max: i128) -> Domain {
    Domain { role: Role::Quantity, min, max, draw: Draw::Uniform(plan_min, plan_max) }
}

macro_rules! faults {
    ($(
        $(#[doc = $doc:literal])+
        $kind:ident = $name:literal, $group:ident, weight $weight:literal, beside $companion:ident, observed $observed:literal {
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
                group: Group::$group,
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
    /// Ends every network fault that is in effect.
    NetworkHeal = "network_heal", Network, weight 2, beside PartitionBefore, observed "network faults ended" {
    }
    /// A power cut: the VM stops, what is on its way to it is lost, and its disks keep what was durable plus an explicit
    /// subset of the rest.
    VmKill = "vm_kill", Vm, weight 12, beside None, observed "a running VM stopped" {
        /// The VM.
        vm: u16 = VM,
        /// Which writes that were not durable survive: bit *i* is the *i*-th oldest of each disk; the bits repeat from the
        /// 65th write on.
        survivors: u64 = Domain { role: Role::Quantity, min: 0, max: 0xffff_ffff_ffff_ffff, draw: Draw::Bits },
        /// Which of those writes is torn, when `torn_bytes` is above zero.
        torn_write: u32 = uniform(0, 1_000_000, 0, 3),
        /// How many of the torn write's first bytes survive; 0 tears nothing.
        torn_bytes: u32 = uniform(0, 1 << 30, 0, 4096),
        /// How long it stays down; 0 is until a `vm_restart`.
        down_ns: u64 = LASTS,
    }
    /// The VM gets no run time while its clocks go on; frames queue in its network card.
    VmPause = "vm_pause", Vm, weight 8, beside None, observed "a VM that could have run did not" {
        /// The VM.
        vm: u16 = VM,
        /// How long.
        duration_ns: u64 = LASTS_BOUNDED,
    }
    /// Starts a VM that is down. A VM that is up is reset: all its writes survive.
    VmRestart = "vm_restart", Vm, weight 4, beside None, observed "a VM started again" {
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
    /// The turn of a CPU is cut here: from this instruction on one CPU of the VM runs, and no other, until the time is over or it
    /// has nothing to do.
    CpuSwitch = "cpu_switch", Cpu, weight 40, beside None, observed "a turn was cut" {
        /// The VM.
        vm: u16 = VM,
        /// The CPU that runs.
        cpu: u16 = Domain { role: Role::Cpu, min: 0, max: 7, draw: Draw::Target },
        /// How much guest time only that CPU runs.
        hold_ns: u64 = log(1, SECOND, 100, 20 * MILLISECOND),
    }
}

impl FaultKind {
    /// The row of the table.
    #[must_use]
    pub fn spec(self) -> &'static Spec {
        &SPECS[self as usize]
    }

    /// The name in schedules.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// The kinds that `pattern` names: one by its name, or all whose names begin with what stands before a final `*`.
    #[must_use]
    pub fn matching(pattern: &str) -> Vec<Self> {
        let fits = |name: &str| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == pattern,
        };
        SPECS.iter().filter(|spec| fits(spec.name)).map(|spec| spec.kind).collect()
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        SPECS.iter().find(|spec| spec.name == name).map(|spec| spec.kind)
    }
}

impl Fault {
    /// The value of the parameter with this role, if the kind has one.
    fn by_role(&self, role: Role) -> Option<i128> {
        let position = self.kind().spec().parameters.iter().position(|parameter| parameter.domain.role == role)?;
        self.values().get(position).copied()
    }

    /// How long the fault lasts, for kinds that have a duration; 0 is without end.
    #[must_use]
    pub fn duration_ns(&self) -> Option<u64> {
        self.by_role(Role::Duration).and_then(|value| u64::try_from(value).ok())
    }

    /// The VM it targets, for kinds that target one.
    #[must_use]
    pub fn vm(&self) -> Option<u16> {
        self.by_role(Role::Vm).and_then(|value| u16::try_from(value).ok())
    }

    /// The disk of [`Self::vm`] it targets, for kinds that target one.
    #[must_use]
    pub fn disk(&self) -> Option<u16> {
        self.by_role(Role::Disk).and_then(|value| u16::try_from(value).ok())
    }

    /// The links it targets as (sending, receiving) sets; a partition in both directions gives the two sides.
    #[must_use]
    pub fn links(&self) -> Option<(u32, u32)> {
        match *self {
            Self::NetworkLatency { from_vms, to_vms, .. }
            | Self::NetworkJitter { from_vms, to_vms, .. }
            | Self::NetworkLoss { from_vms, to_vms, .. }
            | Self::NetworkDuplication { from_vms, to_vms, .. }
            | Self::NetworkReorder { from_vms, to_vms, .. }
            | Self::NetworkCorruption { from_vms, to_vms, .. }
            | Self::NetworkBandwidth { from_vms, to_vms, .. }
            | Self::NetworkPartitionOneWay { from_vms, to_vms, .. } => Some((from_vms, to_vms)),
            Self::NetworkPartition { vms, .. } => Some((vms, !vms)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_its_kinds() {
        for (index, spec) in SPECS.iter().enumerate() {
            assert_eq!(spec.kind as usize, index);
            assert_eq!(FaultKind::from_name(spec.name), Some(spec.kind));
            let json = serde_json::to_string(&spec.kind).unwrap();
            assert_eq!(json, format!("\"{}\"", spec.name), "the kind and its name in schedules agree");
        }
    }

    #[test]
    fn planned_ranges_lie_within_bounds() {
        for spec in SPECS {
            for parameter in spec.parameters {
                let Domain { min, max, draw, .. } = parameter.domain;
                assert!(min <= max);
                let (low, high) = match draw {
                    Draw::Target | Draw::Bits => continue,
                    Draw::Uniform(low, high) | Draw::Log(low, high) => (low, high),
                    Draw::LogOrZero(low, high) => {
                        assert_eq!(min, 0, "{} {}", spec.name, parameter.name);
                        (low, high)
                    }
                    Draw::SignedLog(low, high) => {
                        assert!(min <= -high, "{} {}", spec.name, parameter.name);
                        (low, high)
                    }
                };
                assert!(min <= low && low <= high && high <= max, "{} {}", spec.name, parameter.name);
            }
        }
    }

    #[test]
    fn values_and_back_give_the_same_fault() {
        for spec in SPECS {
            let values: Vec<i128> = spec.parameters.iter().map(|parameter| parameter.domain.max).collect();
            let fault = Fault::from_values(spec.kind, &values).unwrap();
            assert_eq!(fault.kind(), spec.kind);
            assert_eq!(fault.values(), values);
            assert_eq!(Fault::from_values(spec.kind, &[&values[..], &[1]].concat()), None);
        }
    }
}
