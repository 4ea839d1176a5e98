// SPDX-License-Identifier: AGPL-3.0-or-later
//! A whole cluster between two rounds, in memory and as storable parts.

use std::sync::Arc;

use chaoscontrol_machine::MachineSnapshot;
use chaoscontrol_sim::SimState;
use serde::{Deserialize, Serialize};

use crate::oracle::{Oracle, Slots};

/// How a workload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkloadEnd {
    /// By itself, with this code.
    Exited(u8),
    /// By this signal.
    Killed(u8),
}

/// What the shell keeps of a VM beside its machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VmMemo {
    /// Wall clock when the power went off.
    pub wall_at_kill_ns: u64,
    /// How the workload ended, if it did.
    pub workload: Option<WorkloadEnd>,
    /// Whether the guest ended and does not run on.
    pub ended: bool,
    /// The end of the console output.
    pub serial: Vec<u8>,
}

/// Where a restart resumes: the VM just before its workload started.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RestartPoint<S> {
    pub machine: S,
    pub slots: Slots,
}

/// One VM of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct VmSnapshot<S> {
    pub(crate) machine: S,
    pub(crate) restart: Option<Arc<RestartPoint<S>>>,
    pub(crate) memo: VmMemo,
}

/// A whole cluster between two rounds. Cloning shares all pages.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSnapshot<S = MachineSnapshot> {
    pub(crate) sim: SimState,
    pub(crate) oracle: Oracle,
    pub(crate) vms: Vec<VmSnapshot<S>>,
}

impl<S> ClusterSnapshot<S> {
    /// The pure core's state.
    #[must_use]
    pub fn sim(&self) -> &SimState {
        &self.sim
    }

    /// The oracle's state.
    #[must_use]
    pub fn oracle(&self) -> &Oracle {
        &self.oracle
    }

    /// The VMs.
    #[must_use]
    pub fn vms(&self) -> &[VmSnapshot<S>] {
        &self.vms
    }
}

impl<S> VmSnapshot<S> {
    /// The machine.
    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// The machine just before its workload started, where a restart resumes.
    pub fn restart_point(&self) -> Option<&S> {
        self.restart.as_ref().map(|point| &point.machine)
    }
}
