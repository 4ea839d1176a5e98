// SPDX-License-Identifier: AGPL-3.0-or-later
//! What guests have a say in: their agent's answers, and times without faults.

use chaoscontrol_fault::Fault;
use serde::{Deserialize, Serialize};

use crate::command::{AgentAction, Command};
use crate::round::Commands;
use crate::state::{Power, Sim, SimState};

/// Requests that an agent may have to answer: as many as wait in the guest's ring.
pub(crate) const ASKED_MAX: usize = 32;

/// Longest quiet period that one request gets: a minute of cluster time.
pub const QUIET_NS_MAX: u64 = 60_000_000_000;

/// A request that was not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// The number that the answer names.
    pub number: u16,
    /// The fault's place in the running schedule; none for one that an earlier branch left.
    pub index: Option<u32>,
}

/// A time without faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quiet {
    /// Cluster ns at which faults may begin again.
    pub until_ns: u64,
    /// Whether what was in effect has been ended.
    pub begun: bool,
}

/// What the agent does for a fault that is its own.
pub(crate) fn action_of(fault: &Fault) -> Option<AgentAction> {
    Some(match *fault {
        Fault::ProcessKill { process, down_ns, .. } => AgentAction::KillProcess { process, down_ns },
        Fault::ProcessPause { process, duration_ns, .. } => {
            AgentAction::PauseProcess { process, lasts_ns: duration_ns }
        }
        Fault::ProcessRestart { .. } => AgentAction::RestartWorkload,
        Fault::MemoryPressure { part_ppm, duration_ns, .. } => {
            AgentAction::HoldMemory { part_ppm, lasts_ns: duration_ns }
        }
        _ => return None,
    })
}

impl Sim {
    /// Says under which number the agent of a VM was asked, for the event at `index` if one caused it.
    pub fn agent_asked(&mut self, vm: u16, number: u16, index: Option<usize>) {
        let Some(each) = self.state.vms.get_mut(usize::from(vm)) else { return };
        let lost = (each.asked.len() >= ASKED_MAX).then(|| each.asked.remove(0));
        each.asked.push(Asked { number, index: index.and_then(|index| u32::try_from(index).ok()) });
        if let Some(index) = lost.and_then(|lost| lost.index) {
            self.state.ledger.fail(index as usize, "the guest's agent is too far behind".to_owned());
        }
    }

    /// Takes an agent's answer. An answer that nobody waits for is false.
    pub fn agent_answered(&mut self, vm: u16, number: u16, code: u8, cluster_ns: u64) -> bool {
        let Some(each) = self.state.vms.get_mut(usize::from(vm)) else { return false };
        let Some(place) = each.asked.iter().position(|asked| asked.number == number) else { return false };
        let asked = each.asked.remove(place);
        if let Some(index) = asked.index.map(|index| index as usize) {
            if code == 0 {
                self.state.ledger.apply(index, cluster_ns.max(self.state.now_ns));
                self.state.ledger.observe(index, 1);
            } else {
                self.state.ledger.fail(index, format!("the guest's agent could not: error number {code}"));
            }
        }
        true
    }

    /// A guest asks for a time without faults, from the next barrier on; 0 ends one. At most [`QUIET_NS_MAX`].
    pub fn request_quiet(&mut self, lasts_ns: u64) {
        let until_ns = self.state.now_ns.saturating_add(lasts_ns.min(QUIET_NS_MAX));
        self.state.quiet = match self.state.quiet {
            _ if lasts_ns == 0 => None,
            Some(quiet) => Some(Quiet { until_ns: quiet.until_ns.max(until_ns), ..quiet }),
            None => Some(Quiet { until_ns, begun: false }),
        };
    }
}

impl SimState {
    /// The VM's memory is gone, and with it what its agent was to do.
    pub(crate) fn forget_asked(&mut self, vm: u16) {
        for asked in std::mem::take(&mut self.vms[usize::from(vm)].asked) {
            if let Some(index) = asked.index {
                self.ledger.fail(index as usize, "the VM went down before the guest's agent answered".to_owned());
            }
        }
    }

    /// Whether faults are to wait; where a quiet period has just begun, ends what is in effect and starts what is down.
    pub(crate) fn is_quiet(&mut self, commands: &mut Commands) -> bool {
        let Some(quiet) = self.quiet else { return false };
        if quiet.until_ns <= self.now_ns {
            self.quiet = None;
            return false;
        }
        if !quiet.begun {
            self.quiet = Some(Quiet { begun: true, ..quiet });
            self.end_everything(commands);
        }
        true
    }

    fn end_everything(&mut self, commands: &mut Commands) {
        for ended in self.effects.take_all() {
            self.end(&ended, commands);
        }
        for vm in 0..self.config.vms() {
            match self.vms[usize::from(vm)].power {
                Power::Paused { .. } => self.resume(vm, commands),
                Power::Down { .. } => {
                    self.restart(vm, commands, None);
                    continue;
                }
                Power::On => {}
            }
            commands.push((Command::AskAgent { vm, action: AgentAction::EndAll }, None));
        }
    }
}
