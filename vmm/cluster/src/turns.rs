// SPDX-License-Identifier: AGPL-3.0-or-later
//! Recordings of what the CPUs of each VM took turns at, by VM and round, and runs that are held to them.

use chaoscontrol_machine::smp::journal::SliceRecord;
use serde::{Deserialize, Serialize};

/// The turns of one VM that ended in one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tick {
    /// The round.
    pub round: u64,
    /// Its turns in order.
    pub turns: Vec<SliceRecord>,
}

/// What one VM did from one start to the next power cut, reset or end of the branch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// Rounds in which turns ended.
    pub ticks: Vec<Tick>,
}

impl Segment {
    /// All turns in order.
    #[must_use]
    pub fn turns(&self) -> Vec<SliceRecord> {
        self.ticks.iter().flat_map(|tick| tick.turns.iter().copied()).collect()
    }

    pub(crate) fn push(&mut self, round: u64, turns: Vec<SliceRecord>) {
        match self.ticks.last_mut() {
            _ if turns.is_empty() => {}
            Some(last) if last.round == round => last.turns.extend(turns),
            _ => self.ticks.push(Tick { round, turns }),
        }
    }
}

/// The turns of a branch: for each VM a segment a start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnRecording {
    /// By VM.
    pub vms: Vec<Vec<Segment>>,
}

impl TurnRecording {
    /// A recording of VMs that have not run.
    pub(crate) fn new(vms: usize) -> Self {
        Self { vms: vec![vec![Segment::default()]; vms] }
    }

    /// The segment that a VM is in.
    pub(crate) fn current(&mut self, vm: u16) -> Option<&mut Segment> {
        self.vms.get_mut(usize::from(vm)).and_then(|segments| segments.last_mut())
    }

    /// Number of turns.
    #[must_use]
    pub fn len(&self) -> usize {
        self.vms.iter().flatten().flat_map(|segment| &segment.ticks).map(|tick| tick.turns.len()).sum()
    }

    /// Whether no VM took a turn: VMs have one CPU, or no journal is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
