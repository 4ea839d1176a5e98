// SPDX-License-Identifier: AGPL-3.0-or-later
//! Faults that are in effect: from when they were applied to when they end.

use chaoscontrol_fault::{Category, Fault, FaultEvent};
use serde::{Deserialize, Serialize};

use crate::command::DiskFaults;
use crate::config::LINK_LATENCY_NS_MIN;

/// A fault in effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// The fault.
    pub event: FaultEvent,
    /// Its place in the running schedule; none for one that an earlier branch left.
    pub index: Option<u32>,
    /// Cluster ns at which it ends; none is never.
    pub until_ns: Option<u64>,
    /// Cluster ns of its next stroke, for kinds that do something again and again.
    pub stroke_ns: Option<u64>,
    /// How far a jitter has moved the wall clock.
    pub moved_ns: i64,
}

/// Time between two strokes, for kinds that have them.
pub(crate) fn every_ns(fault: &Fault) -> Option<u64> {
    match *fault {
        Fault::ClockJitter { every_ns, .. }
        | Fault::CpuStall { every_ns, .. }
        | Fault::InterruptIrq { every_ns, .. } => Some(every_ns),
        _ => None,
    }
}

/// All faults in effect, in the order in which they were applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Effects {
    list: Vec<Effect>,
}

impl Effects {
    pub fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Effect> {
        self.list.iter()
    }

    /// Takes the effects that end at or before `now_ns`, in order.
    pub fn take_ended(&mut self, now_ns: u64) -> Vec<Effect> {
        let ended = |effect: &mut Effect| effect.until_ns.is_some_and(|until| until <= now_ns);
        self.list.extract_if(.., ended).collect()
    }

    /// Takes all effects, in order.
    pub fn take_all(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.list)
    }

    /// Takes all network effects and says how many there were.
    pub fn heal(&mut self) -> u64 {
        let before = self.list.len();
        self.list.retain(|effect| effect.event.fault.kind().spec().category != Category::Network);
        (before - self.list.len()) as u64
    }

    /// Whether every target exists in a cluster whose VMs have so many disks.
    pub fn fit(&self, disks: &[u16]) -> bool {
        self.list.iter().map(|effect| &effect.event.fault).all(|fault| {
            let target = fault.vm().map(|vm| disks.get(usize::from(vm)).copied());
            target.is_none_or(|disks| disks.is_some_and(|disks| fault.disk().is_none_or(|disk| disk < disks)))
        })
    }

    /// When the next effect ends or strikes.
    pub fn next_change_ns(&self) -> Option<u64> {
        self.list.iter().flat_map(|effect| [effect.until_ns, effect.stroke_ns]).flatten().min()
    }

    /// Takes the effects that strike at or before `now_ns` and sets when they do again.
    pub fn take_strokes(&mut self, now_ns: u64) -> Vec<(usize, Effect)> {
        let mut strokes = Vec::new();
        for (place, effect) in self.list.iter_mut().enumerate() {
            if effect.stroke_ns.is_some_and(|stroke| stroke <= now_ns) {
                effect.stroke_ns =
                    every_ns(&effect.event.fault).map(|every| now_ns.saturating_add(every.max(LINK_LATENCY_NS_MIN)));
                strokes.push((place, effect.clone()));
            }
        }
        strokes
    }

    /// Notes how far the jitter at `place` has moved the wall clock.
    pub fn set_moved(&mut self, place: usize, moved_ns: i64) {
        if let Some(effect) = self.list.get_mut(place) {
            effect.moved_ns = moved_ns;
        }
    }

    /// Forgets which schedule the effects came from.
    pub fn leave_schedule(&mut self) {
        self.list.iter_mut().for_each(|effect| effect.index = None);
    }

    /// The faults in effect on a disk; of two of a kind the later one counts.
    pub fn disk(&self, vm: u16, disk: u16) -> DiskFaults {
        let mut faults = DiskFaults::default();
        for effect in self.on_disk(vm, disk) {
            match effect.event.fault {
                Fault::DiskReadError { error_ppm, .. } => faults.read_error_ppm = error_ppm,
                Fault::DiskWriteError { error_ppm, .. } => faults.write_error_ppm = error_ppm,
                Fault::DiskTornWrite { torn_ppm, torn_bytes, .. } => {
                    (faults.torn_ppm, faults.torn_bytes) = (torn_ppm, torn_bytes);
                }
                Fault::DiskCorruption { corruption_ppm, .. } => faults.corruption_ppm = corruption_ppm,
                Fault::DiskFull { .. } => faults.full = true,
                Fault::DiskLatency { latency_ns, .. } => faults.latency_ns = latency_ns,
                _ => {}
            }
        }
        faults
    }

    /// The effects on a disk, in order.
    pub fn on_disk(&self, vm: u16, disk: u16) -> impl Iterator<Item = &Effect> {
        self.list.iter().filter(move |effect| {
            let fault = &effect.event.fault;
            fault.disk() == Some(disk) && fault.vm() == Some(vm)
        })
    }

    /// The skew in effect on a VM as (numerator, denominator, place in the schedule); the latest one counts.
    pub fn skew(&self, vm: u16) -> Option<(u32, u32, Option<u32>)> {
        self.list.iter().rev().find_map(|effect| match effect.event.fault {
            Fault::ClockSkew { vm: target, numerator, denominator, .. } if target == vm => {
                Some((numerator, denominator, effect.index))
            }
            _ => None,
        })
    }
}

impl Effects {
    /// The throttle in effect on a VM as (part in a million, place in the schedule); the latest one counts.
    pub fn throttle(&self, vm: u16) -> Option<(u32, Option<u32>)> {
        self.list.iter().rev().find_map(|effect| match effect.event.fault {
            Fault::CpuThrottle { vm: target, speed_ppm, .. } if target == vm => Some((speed_ppm, effect.index)),
            _ => None,
        })
    }

    /// The effect that holds frames on the link back, if one does.
    pub fn clog(&self, from: u16, to: u16) -> Option<&Effect> {
        self.list.iter().find(|effect| {
            matches!(effect.event.fault, Fault::NetworkClog { .. }) && covers(&effect.event.fault, from, to)
        })
    }
}

/// Whether the fault covers the direction from one VM to another.
pub(crate) fn covers(fault: &Fault, from: u16, to: u16) -> bool {
    let bit = |set: u32, vm: u16| set.checked_shr(u32::from(vm)).unwrap_or(0) & 1 == 1;
    match *fault {
        Fault::NetworkPartition { vms, .. } => bit(vms, from) != bit(vms, to),
        _ => fault.links().is_some_and(|(senders, receivers)| bit(senders, from) && bit(receivers, to)),
    }
}
