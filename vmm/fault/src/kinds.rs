// SPDX-License-Identifier: AGPL-3.0-or-later
//! What the fault table consists of, and what can be asked of a kind.

use crate::table::{Fault, FaultKind, SPECS};

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
pub enum Category {
    /// Links between VMs.
    Network,
    /// Disks.
    Disk,
    /// Whole VMs, and processes inside them.
    Process,
    /// Clocks.
    Clock,
    /// Memory and CPU time.
    Resource,
    /// Interrupts that no device asked for.
    Interrupt,
}

impl Category {
    /// All categories, in the order of the docs.
    pub const ALL: [Self; 6] = [Self::Network, Self::Disk, Self::Process, Self::Clock, Self::Resource, Self::Interrupt];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Disk => "disk",
            Self::Process => "process",
            Self::Clock => "clock",
            Self::Resource => "resource",
            Self::Interrupt => "interrupt",
        }
    }
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
    /// Category.
    pub category: Category,
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

    /// Whether the guest's agent carries it out, and answers.
    #[must_use]
    pub fn is_for_agent(&self) -> bool {
        matches!(
            self,
            Self::ProcessKill { .. }
                | Self::ProcessPause { .. }
                | Self::ProcessRestart { .. }
                | Self::MemoryPressure { .. }
        )
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
            | Self::NetworkClog { from_vms, to_vms, .. }
            | Self::NetworkMtu { from_vms, to_vms, .. }
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
