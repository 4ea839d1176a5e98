// SPDX-License-Identifier: Apache-2.0
//! What the host asks of the guest's agent: `chaos-init`, which started the workload and can stop it.
//!
//! The host writes a request into a ring in the window's header and then raises the count of requests; the agent looks at the
//! count now and then, carries out what is new and answers each request by a ring of the doorbell
//! ([`crate::Doorbell::AgentAnswer`]). An agent that is more than [`AGENT_REQUESTS`] behind has lost the oldest ones.
//!
//! | offset in a request | type | what |
//! |---|---|---|
//! | 0 | u32 | number: requests before it |
//! | 4 | u32 | action |
//! | 8 | u64 | which process, or which part in a million |
//! | 16 | u64 | how long, in nanoseconds; 0 is without end |
//! | 24 | u64 | zero |

use crate::layout::AGENT_REQUEST_BYTES;

/// A request that succeeded is answered with this code; another code is the system's error number.
pub const AGENT_DONE: u8 = 0;

/// What an agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentAction {
    /// Kills a process: 0 is the workload with its group, others are the guest's other processes in order of their numbers,
    /// counted on from the first where there are fewer.
    KillProcess {
        /// Which.
        process: u32,
        /// The workload is started again after this time; 0 is not.
        down_ns: u64,
    },
    /// Stops a process and lets it go on after a while.
    PauseProcess {
        /// Which, as above.
        process: u32,
        /// How long.
        lasts_ns: u64,
    },
    /// Kills the workload with its group, if it runs, and starts it again.
    RestartWorkload,
    /// Holds a part of the memory that is available.
    HoldMemory {
        /// The part, in a million.
        part_ppm: u32,
        /// How long; 0 is without end.
        lasts_ns: u64,
    },
    /// Ends every pause and gives all memory back; a workload that was killed starts again.
    EndAll,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentRequest {
    /// Requests before it.
    pub number: u32,
    /// What to do.
    pub action: AgentAction,
}

impl AgentRequest {
    /// The request's bytes.
    pub fn encode(&self) -> [u8; AGENT_REQUEST_BYTES as usize] {
        let (kind, which, lasts_ns): (u32, u32, u64) = match self.action {
            AgentAction::KillProcess { process, down_ns } => (1, process, down_ns),
            AgentAction::PauseProcess { process, lasts_ns } => (2, process, lasts_ns),
            AgentAction::RestartWorkload => (3, 0, 0),
            AgentAction::HoldMemory { part_ppm, lasts_ns } => (4, part_ppm, lasts_ns),
            AgentAction::EndAll => (5, 0, 0),
        };
        let mut bytes = [0; AGENT_REQUEST_BYTES as usize];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&u64::from(which).to_le_bytes());
        bytes[16..24].copy_from_slice(&lasts_ns.to_le_bytes());
        bytes
    }

    /// The request that these bytes are, if they are one.
    pub fn decode(bytes: &[u8; AGENT_REQUEST_BYTES as usize]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (which, lasts_ns) = (u32::try_from(word(8)).ok()?, word(16));
        let action = match word(0) >> 32 {
            1 => AgentAction::KillProcess { process: which, down_ns: lasts_ns },
            2 => AgentAction::PauseProcess { process: which, lasts_ns },
            3 => AgentAction::RestartWorkload,
            4 => AgentAction::HoldMemory { part_ppm: which, lasts_ns },
            5 => AgentAction::EndAll,
            _ => return None,
        };
        Some(Self { number: word(0) as u32, action })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_survives_encoding_and_others_are_none() {
        let actions = [
            AgentAction::KillProcess { process: 3, down_ns: 9 },
            AgentAction::PauseProcess { process: u32::MAX, lasts_ns: u64::MAX },
            AgentAction::RestartWorkload,
            AgentAction::HoldMemory { part_ppm: 900_000, lasts_ns: 1 },
            AgentAction::EndAll,
        ];
        for action in actions {
            let request = AgentRequest { number: 77, action };
            assert_eq!(AgentRequest::decode(&request.encode()), Some(request));
        }
        assert_eq!(AgentRequest::decode(&[0; 32]), None);
        assert_eq!(AgentRequest::decode(&[0xff; 32]), None);
    }
}
