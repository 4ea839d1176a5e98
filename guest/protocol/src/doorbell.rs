// SPDX-License-Identifier: Apache-2.0
//! What a 4-byte write to the doorbell page means.

use crate::layout::SLOTS;

const RESTART_POINT: u32 = 0x1000_0000;
const INIT_FAILED: u32 = 0x1000_0001;
const WORKLOAD_EXITED: u32 = 0x2000_0000;
const WORKLOAD_KILLED: u32 = 0x2000_0100;
const AGENT_ANSWER: u32 = 0x3000_0000;

/// A doorbell value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Drain this slot now, before the guest goes on.
    Drain(u32),
    /// The workload is about to start: a restart of this VM resumes here. Rung by `chaos-init`.
    RestartPoint,
    /// `chaos-init` could not start the workload; the console says why.
    InitFailed,
    /// The workload exited with this code; the VM powers off next.
    WorkloadExited(u8),
    /// A signal ended the workload; the VM powers off next.
    WorkloadKilled(u8),
    /// The agent answers a request of the host.
    AgentAnswer {
        /// The low half of the request's number.
        number: u16,
        /// [`crate::AGENT_DONE`], or the system's error number.
        code: u8,
    },
}

impl Doorbell {
    /// The value to write.
    pub const fn encode(self) -> u32 {
        match self {
            Self::Drain(slot) => slot,
            Self::RestartPoint => RESTART_POINT,
            Self::InitFailed => INIT_FAILED,
            Self::WorkloadExited(code) => WORKLOAD_EXITED | code as u32,
            Self::WorkloadKilled(signal) => WORKLOAD_KILLED | signal as u32,
            Self::AgentAnswer { number, code } => AGENT_ANSWER | (code as u32) << 16 | number as u32,
        }
    }

    /// The meaning of a written value, or none where it has none.
    pub const fn decode(value: u32) -> Option<Self> {
        match value {
            slot if slot < SLOTS => Some(Self::Drain(slot)),
            RESTART_POINT => Some(Self::RestartPoint),
            INIT_FAILED => Some(Self::InitFailed),
            _ if value & !0xff == WORKLOAD_EXITED => Some(Self::WorkloadExited(value as u8)),
            _ if value & !0xff == WORKLOAD_KILLED => Some(Self::WorkloadKilled(value as u8)),
            _ if value & !0xff_ffff == AGENT_ANSWER => {
                Some(Self::AgentAnswer { number: value as u16, code: (value >> 16) as u8 })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_doorbell_survives_encoding() {
        let all = (0..SLOTS)
            .map(Doorbell::Drain)
            .chain([Doorbell::RestartPoint, Doorbell::InitFailed])
            .chain((0..=255).map(Doorbell::WorkloadExited))
            .chain((0..=255).map(Doorbell::WorkloadKilled))
            .chain((0..=255).map(|code| Doorbell::AgentAnswer { number: 0xfedc, code }));
        for bell in all {
            assert_eq!(Doorbell::decode(bell.encode()), Some(bell));
        }
    }

    #[test]
    fn a_slot_that_does_not_exist_means_nothing() {
        assert_eq!(Doorbell::decode(SLOTS), None);
        assert_eq!(Doorbell::decode(u32::MAX), None);
    }
}
