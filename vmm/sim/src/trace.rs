// SPDX-License-Identifier: AGPL-3.0-or-later
//! The trace: one record a round, chained into a rolling BLAKE3 (semantics, point 7).

use serde::{Deserialize, Serialize};

/// A BLAKE3 digest.
pub type Digest = [u8; 32];

/// Domain of the chain; a change of a record's bytes changes this text.
const CONTEXT: &str = "chaoscontrol 2026 round trace v1";

/// What one VM did in a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRecord {
    /// 0 up, 1 paused, 2 down.
    pub power: u8,
    /// Instructions since power-on, at the barrier.
    pub instructions: u64,
    /// Hash of its registers at the barrier.
    pub registers: Digest,
    /// Frames sent in the round.
    pub frames_sent: u64,
    /// BLAKE3 over each frame's guest time, length and bytes; zero when there were none.
    pub frames: Digest,
    /// Frames that reached its network card at the start of the round.
    pub frames_delivered: u64,
    /// SDK records drained.
    pub sdk_records: u64,
    /// Hash over the SDK records; zero when there were none.
    pub sdk: Digest,
}

/// One round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// Rounds since the cluster started.
    pub round: u64,
    /// Cluster ns at its start.
    pub start_ns: u64,
    /// Cluster ns of its barrier.
    pub end_ns: u64,
    /// Indices in the schedule of the faults applied or rejected at its start.
    pub faults: Vec<u32>,
    /// The VMs, in order.
    pub vms: Vec<VmRecord>,
}

impl RoundRecord {
    /// The bytes that the chain covers: every field in order, little-endian, lists with a u32 count before them.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(36 + 4 * self.faults.len() + 129 * self.vms.len());
        for value in [self.round, self.start_ns, self.end_ns] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes.extend_from_slice(&count(self.faults.len()));
        for fault in &self.faults {
            bytes.extend_from_slice(&fault.to_le_bytes());
        }
        bytes.extend_from_slice(&count(self.vms.len()));
        for vm in &self.vms {
            bytes.push(vm.power);
            bytes.extend_from_slice(&vm.instructions.to_le_bytes());
            bytes.extend_from_slice(&vm.registers);
            bytes.extend_from_slice(&vm.frames_sent.to_le_bytes());
            bytes.extend_from_slice(&vm.frames);
            bytes.extend_from_slice(&vm.frames_delivered.to_le_bytes());
            bytes.extend_from_slice(&vm.sdk_records.to_le_bytes());
            bytes.extend_from_slice(&vm.sdk);
        }
        bytes
    }
}

fn count(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

/// The rolling hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Hash over all records so far; zero before the first.
    pub rolling: Digest,
    /// Number of records.
    pub rounds: u64,
}

impl Trace {
    /// Chains a record: the next hash covers the last one and the record's bytes.
    pub fn push(&mut self, record: &RoundRecord) {
        self.chain(&record.bytes());
        self.rounds += 1;
    }

    /// The digest of a finished run: the rolling hash and each VM's memory and disk hashes.
    #[must_use]
    pub fn finish(&self, hashes: &[Digest]) -> Digest {
        let mut end = *self;
        end.chain(hashes.as_flattened());
        end.rolling
    }

    fn chain(&mut self, bytes: &[u8]) {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&self.rolling);
        hasher.update(bytes);
        self.rolling = *hasher.finalize().as_bytes();
    }
}
