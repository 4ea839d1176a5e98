// SPDX-License-Identifier: AGPL-3.0-or-later
//! A [`Machine`] as a node of the cluster, and clusters of machines.

use std::sync::Arc;

use chaoscontrol_machine::engine::CoverageFilter;
use chaoscontrol_machine::{ClusterNs, GuestNs, Machine, MachineError, MachineSnapshot, Rate, Stop, TimeMap};
use chaoscontrol_protocol::host::Counts;
use chaoscontrol_sim::{Clock, Digest, DiskCounts, DiskFaults, PowerCut, SentFrame};

use crate::cluster::Cluster;
use crate::config::{ClusterConfig, ClusterError};
use crate::node::{Message, Node, NodeStop};

/// All edges of user space.
const EDGES: CoverageFilter = CoverageFilter { user_only: true, range: (0, u64::MAX) };

impl Cluster<Machine> {
    /// A cluster that was just switched on: kernels are loaded, nothing has run.
    pub fn new(config: &ClusterConfig) -> Result<Self, ClusterError> {
        config.sim().check()?;
        let machine = |vm| {
            let load = || {
                let mut machine = Machine::new(Arc::new(config.vm(vm)))?;
                machine.load()?;
                Ok(machine)
            };
            load().map_err(|source| ClusterError::Machine { vm, source })
        };
        let machines = (0..config.vms).map(machine).collect::<Result<Vec<_>, _>>()?;
        Self::from_nodes(machines, config.sim(), config.seed)
    }

    /// A cluster that booted: every VM reported `setup_complete`.
    pub fn boot(config: &ClusterConfig) -> Result<Self, ClusterError> {
        let mut cluster = Self::new(config)?;
        cluster.run_to_setup(config.seed, config.setup_limit_ns)?;
        Ok(cluster)
    }
}

#[allow(clippy::todo, unused_variables)]
impl Node for Machine {
    type Snapshot = MachineSnapshot;
    type Error = MachineError;

    fn run_until(&mut self, deadline_guest_ns: u64) -> Result<NodeStop, MachineError> {
        Ok(match Machine::run_until(self, GuestNs(deadline_guest_ns))? {
            Stop::Deadline | Stop::SerialMatch => NodeStop::Deadline,
            Stop::Idle { next_event } => NodeStop::Idle { next_event_guest_ns: next_event.map(|at| at.0) },
            Stop::Doorbell { .. } => NodeStop::Doorbell,
            Stop::RestartPoint => NodeStop::RestartPoint,
            Stop::PowerOff => NodeStop::PowerOff,
            Stop::Panic { hint } => NodeStop::Panic(hint.unwrap_or_default()),
            Stop::Reset => NodeStop::Ended("reset".to_owned()),
            Stop::TripleFault => NodeStop::Ended("triple fault".to_owned()),
            Stop::GuestError(error) => NodeStop::Ended(format!("{error:?}")),
        })
    }

    fn skip_to(&mut self, guest_ns: u64) {
        Machine::skip_to(self, GuestNs(guest_ns));
    }

    fn now_guest_ns(&self) -> u64 {
        self.now().0
    }

    fn instructions(&self) -> u64 {
        Machine::instructions(self)
    }

    fn set_clock(&mut self, clock: Clock) {
        self.set_time_map(TimeMap {
            cluster_origin: ClusterNs(clock.cluster_origin_ns),
            guest_origin: GuestNs(clock.guest_origin_ns),
            rate: Rate { numerator: clock.numerator.into(), denominator: clock.denominator.into() },
        });
    }

    fn wall_clock_ns(&self) -> u64 {
        Machine::wall_clock_ns(self)
    }

    fn set_wall_clock_ns(&mut self, wall_ns: u64) {
        Machine::set_wall_clock_ns(self, wall_ns);
    }

    fn reseed(&mut self, entropy: [u8; 32], generation: [u8; 16]) {
        self.reseed_entropy(entropy);
        self.set_generation_id(generation);
    }

    fn take_frames(&mut self) -> Vec<SentFrame> {
        let frame = |frame: chaoscontrol_machine::SentFrame| SentFrame { at_guest_ns: frame.at.0, bytes: frame.bytes };
        Machine::take_frames(self).into_iter().map(frame).collect()
    }

    fn deliver_frame(&mut self, frame: &[u8]) -> bool {
        Machine::deliver_frame(self, frame)
    }

    fn take_serial(&mut self) -> Vec<u8> {
        Machine::take_serial(self)
    }

    fn drain_sdk(&mut self) {
        todo!()
    }

    fn take_messages(&mut self) -> Vec<Message> {
        todo!()
    }

    fn assertion_counts(&self, slot: u32, visit: &mut dyn FnMut(u16, Counts)) {
        todo!()
    }

    fn set_coverage(&mut self, on: bool) {
        Machine::set_coverage(self, on.then_some(EDGES));
        self.clear_coverage();
    }

    fn coverage(&self) -> Option<&[u8]> {
        Machine::coverage(self)
    }

    fn register_hash(&self) -> Digest {
        Machine::register_hash(self)
    }

    fn memory_hash(&mut self) -> Digest {
        Machine::memory_hash(self)
    }

    fn disk_hash(&mut self) -> Digest {
        todo!()
    }

    fn set_disk_faults(&mut self, disk: u16, faults: DiskFaults) -> Result<(), MachineError> {
        todo!()
    }

    fn disk_counts(&self) -> Vec<DiskCounts> {
        todo!()
    }

    fn snapshot(&mut self) -> MachineSnapshot {
        Machine::snapshot(self)
    }

    fn restore(&mut self, snapshot: &MachineSnapshot) -> Result<(), MachineError> {
        Machine::restore(self, snapshot)
    }

    fn power_cut(&mut self, cut: PowerCut) -> Result<(), MachineError> {
        todo!()
    }

    fn start(&mut self, point: Option<&MachineSnapshot>) -> Result<bool, MachineError> {
        todo!()
    }
}
