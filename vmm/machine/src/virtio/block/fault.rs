// SPDX-License-Identifier: AGPL-3.0-or-later
//! Faults of a disk, as data: while a fault is active, each request that completes may meet it.
//!
//! Whether it does is drawn from the disk's fault stream, one draw a request and fault with a chance below one. `applied`
//! counts faults that became active, `observed` the requests whose result one changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::entropy::Stream;

/// Faults that are active at one time.
pub const FAULTS_MAX: usize = 64;
/// A chance of one.
pub const CERTAIN_PPM: u32 = 1_000_000;

/// What a fault does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// A read fails; no data reaches the guest.
    ReadError,
    /// A write fails and changes nothing.
    WriteError,
    /// A write fails after its first bytes were written; one that is no longer than that loses its last byte.
    TornWrite {
        /// How many bytes are written.
        bytes: u32,
    },
    /// A read succeeds with one bit flipped; what is stored stays as it is.
    CorruptRead {
        /// Which bit of the request's data, modulo its length; drawn where not given.
        bit: Option<u64>,
    },
    /// A write succeeds, but one bit is stored flipped.
    CorruptWrite {
        /// Which bit of the request's data, modulo its length; drawn where not given.
        bit: Option<u64>,
    },
    /// The space is used up: every write fails and changes nothing. Virtio has no status of its own for this, so that the
    /// guest sees an I/O error.
    Full,
    /// A request takes longer. Decided when it is taken, for reads, writes and flushes alike, and never left to chance.
    Delay {
        /// How much longer, in guest time.
        ns: u64,
    },
}

impl Effect {
    /// The kind, without its parameters.
    pub fn kind(self) -> EffectKind {
        match self {
            Effect::ReadError => EffectKind::ReadError,
            Effect::WriteError => EffectKind::WriteError,
            Effect::TornWrite { .. } => EffectKind::TornWrite,
            Effect::CorruptRead { .. } => EffectKind::CorruptRead,
            Effect::CorruptWrite { .. } => EffectKind::CorruptWrite,
            Effect::Full => EffectKind::Full,
            Effect::Delay { .. } => EffectKind::Delay,
        }
    }

    fn meets_reads(self) -> bool {
        matches!(self, Effect::ReadError | Effect::CorruptRead { .. })
    }
}

/// The kinds of [`Effect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EffectKind {
    /// [`Effect::ReadError`].
    ReadError,
    /// [`Effect::WriteError`].
    WriteError,
    /// [`Effect::TornWrite`].
    TornWrite,
    /// [`Effect::CorruptRead`].
    CorruptRead,
    /// [`Effect::CorruptWrite`].
    CorruptWrite,
    /// [`Effect::Full`].
    Full,
    /// [`Effect::Delay`].
    Delay,
}

/// A fault of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFault {
    /// What it does.
    pub effect: Effect,
    /// Chance of each request, in a million.
    pub chance_ppm: u32,
    /// Only requests that touch these sectors, first and last; `None` is the whole disk.
    pub sectors: Option<(u64, u64)>,
}

impl DiskFault {
    /// A fault that meets every request of its kind on the whole disk.
    pub fn certain(effect: Effect) -> Self {
        DiskFault { effect, chance_ppm: CERTAIN_PPM, sectors: None }
    }
}

/// How often a fault, or a kind of fault, happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCount {
    /// Faults that became active.
    pub applied: u64,
    /// Requests whose result one changed.
    pub observed: u64,
}

/// An active fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveFault {
    /// The fault.
    pub fault: DiskFault,
    /// Requests whose result it changed so far.
    pub observed: u64,
}

/// The active faults of a disk and their counts; plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    active: BTreeMap<u64, ActiveFault>,
    next_id: u64,
    stream: Stream,
    counts: BTreeMap<EffectKind, FaultCount>,
}

/// What a read meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    Good,
    Error,
    /// This bit is flipped.
    Flipped(u64),
}

/// What a write meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Good,
    /// It fails after this many bytes.
    Error(usize),
    /// This bit is flipped.
    Flipped(u64),
}

impl Faults {
    /// No fault.
    pub fn new(stream: Stream) -> Self {
        Faults { active: BTreeMap::new(), next_id: 0, stream, counts: BTreeMap::new() }
    }

    /// Makes a fault active and returns its name; `None` when [`FAULTS_MAX`] are.
    pub fn add(&mut self, fault: DiskFault) -> Option<u64> {
        if self.active.len() >= FAULTS_MAX {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.active.insert(id, ActiveFault { fault, observed: 0 });
        self.counts.entry(fault.effect.kind()).or_default().applied += 1;
        Some(id)
    }

    /// Ends a fault and returns what it did.
    pub fn remove(&mut self, id: u64) -> Option<ActiveFault> {
        self.active.remove(&id)
    }

    /// Ends every active fault and makes these active, as many as fit into [`FAULTS_MAX`]. A fault that goes on is not applied
    /// again, and keeps its name and count.
    pub fn replace(&mut self, faults: &[DiskFault]) {
        let mut wanted = faults.to_vec();
        self.active.retain(|_, active| match wanted.iter().position(|fault| *fault == active.fault) {
            Some(position) => {
                wanted.remove(position);
                true
            }
            None => false,
        });
        for fault in wanted {
            self.add(fault);
        }
    }

    /// The active faults by name.
    pub fn active(&self) -> &BTreeMap<u64, ActiveFault> {
        &self.active
    }

    /// How often faults of each kind happened; kinds that never did are absent.
    pub fn counts(&self) -> &BTreeMap<EffectKind, FaultCount> {
        &self.counts
    }

    /// Starts the fault stream over under another root seed.
    pub fn reseed(&mut self, root: &[u8; 32]) {
        self.stream.reseed(root);
    }

    /// What a read of these sectors meets; the oldest fault that hits decides.
    pub(super) fn on_read(&mut self, sector: u64, bytes: u64) -> ReadOutcome {
        match self.hit(true, sector, bytes) {
            Some(Effect::ReadError) => ReadOutcome::Error,
            Some(Effect::CorruptRead { bit }) => ReadOutcome::Flipped(self.bit(bit, bytes)),
            _ => ReadOutcome::Good,
        }
    }

    /// What a write of these sectors meets; the oldest fault that hits decides.
    pub(super) fn on_write(&mut self, sector: u64, bytes: u64) -> WriteOutcome {
        match self.hit(false, sector, bytes) {
            Some(Effect::WriteError | Effect::Full) => WriteOutcome::Error(0),
            Some(Effect::TornWrite { bytes: kept }) => WriteOutcome::Error(u64::from(kept).min(bytes - 1) as usize),
            Some(Effect::CorruptWrite { bit }) => WriteOutcome::Flipped(self.bit(bit, bytes)),
            _ => WriteOutcome::Good,
        }
    }

    /// How much longer a request takes that is taken now.
    pub(super) fn on_submit(&mut self) -> u64 {
        let mut delay_ns: u64 = 0;
        for active in self.active.values_mut() {
            if let Effect::Delay { ns } = active.fault.effect {
                delay_ns = delay_ns.saturating_add(ns);
                active.observed += 1;
                self.counts.entry(EffectKind::Delay).or_default().observed += 1;
            }
        }
        delay_ns
    }

    fn bit(&mut self, given: Option<u64>, bytes: u64) -> u64 {
        let bits = bytes * 8;
        given.map_or_else(|| self.stream.below(bits), |bit| bit % bits)
    }

    fn hit(&mut self, read: bool, sector: u64, bytes: u64) -> Option<Effect> {
        let last = sector + (bytes - 1) / super::SECTOR_BYTES;
        for active in self.active.values_mut() {
            let DiskFault { effect, chance_ppm, sectors } = active.fault;
            let touched = sectors.is_none_or(|(from, to)| sector <= to && from <= last);
            if effect.meets_reads() != read || !touched || matches!(effect, Effect::Delay { .. }) {
                continue;
            }
            if chance_ppm < CERTAIN_PPM && self.stream.below(u64::from(CERTAIN_PPM)) >= u64::from(chance_ppm) {
                continue;
            }
            active.observed += 1;
            self.counts.entry(effect.kind()).or_default().observed += 1;
            return Some(effect);
        }
        None
    }
}
