// SPDX-License-Identifier: AGPL-3.0-or-later
//! What happened in each round of a branch.

use chaoscontrol_fault::{MAX_EVENTS, MAX_VMS};
use serde::{Deserialize, Serialize};

use super::rule;
use crate::Digest;
use crate::document::{Document, MediaType};

/// Rounds of one trace: a day of cluster time in the shortest rounds would have a hundred times as many, and no such trace is kept.
const ROUNDS_MAX: usize = 1 << 24;

/// What one VM did in a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceVm {
    /// 0 up, 1 paused, 2 down.
    pub power: u8,
    /// Instructions since power-on, at the barrier.
    pub instructions: u64,
    /// Hash of its registers at the barrier.
    pub registers: Digest,
    /// Frames sent.
    pub frames_sent: u64,
    /// Hash over them.
    pub frames: Digest,
    /// Frames that reached it.
    pub frames_delivered: u64,
    /// SDK records drained.
    pub sdk_records: u64,
    /// Hash over them.
    pub sdk: Digest,
}

/// One round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRound {
    /// Rounds since the cluster started.
    pub round: u64,
    /// Cluster ns at its start.
    pub start_ns: u64,
    /// Cluster ns of its barrier.
    pub end_ns: u64,
    /// Places in the schedule of the faults that were due.
    pub faults: Vec<u32>,
    /// The VMs, in order.
    pub vms: Vec<TraceVm>,
}

/// A whole branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceDocument {
    /// Covers the rolling hash and every VM's memory and disks at the end: two runs are the same when this is.
    pub digest: Digest,
    /// The rolling hash at the end: it covers every round of the branch.
    pub rolling: Digest,
    /// The branch's rounds.
    pub rounds: Vec<TraceRound>,
}

impl Document for TraceDocument {
    const MEDIA: MediaType = MediaType::Trace;

    fn check(&self) -> Result<(), String> {
        rule::at_most("rounds", self.rounds.len(), ROUNDS_MAX)?;
        for round in &self.rounds {
            rule::at_most("rounds.faults", round.faults.len(), MAX_EVENTS)?;
            rule::at_most("rounds.vms", round.vms.len(), usize::from(MAX_VMS))?;
            round.vms.iter().try_for_each(|vm| rule::within("rounds.vms.power", vm.power, 0, 2))?;
            if round.end_ns < round.start_ns {
                return Err(format!("rounds.end_ns is {}, before the round's start {}", round.end_ns, round.start_ns));
            }
        }
        Ok(())
    }
}
