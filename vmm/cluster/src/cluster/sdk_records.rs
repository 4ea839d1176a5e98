// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a round's record says of what a VM's guest told the host.

use chaoscontrol_sim::Digest;

use crate::node::{Message, MessageBody};

/// Domain of the hash over one VM's SDK records in a round.
const SDK_CONTEXT: &str = "chaoscontrol 2026 sdk records v1";

/// The SDK records of one round, hashed.
#[derive(Default)]
pub(super) struct SdkRecords {
    count: u64,
    hasher: Option<blake3::Hasher>,
}

impl SdkRecords {
    /// Covers the message's time, kind and contents, each field with a fixed or stated length.
    pub fn push(&mut self, message: &Message) {
        let hasher = self.hasher.get_or_insert_with(|| blake3::Hasher::new_derive_key(SDK_CONTEXT));
        hasher.update(&message.at_guest_ns.to_le_bytes());
        let mut field = |kind: u8, slot: u32, bytes: &[u8]| {
            hasher.update(&[kind]);
            hasher.update(&slot.to_le_bytes());
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        match &message.body {
            MessageBody::Record { slot, bytes } => field(1, *slot, bytes),
            MessageBody::Refused { slot, reason } => field(2, *slot, reason.as_bytes()),
            MessageBody::Random { slot, below, value } => {
                field(3, *slot, [below.to_le_bytes(), value.to_le_bytes()].as_flattened());
            }
            MessageBody::InitFailed => field(4, 0, &[]),
            MessageBody::WorkloadExited(code) => field(5, 0, &[*code]),
            MessageBody::WorkloadKilled(signal) => field(6, 0, &[*signal]),
            MessageBody::AgentAnswer { number, code } => field(7, u32::from(*number), &[*code]),
        }
        self.count += 1;
    }

    pub fn take(&mut self) -> (u64, Digest) {
        let digest = self.hasher.take().map_or([0; 32], |hasher| hasher.finalize().into());
        (std::mem::take(&mut self.count), digest)
    }
}
