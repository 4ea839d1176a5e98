// SPDX-License-Identifier: AGPL-3.0-or-later
//! A shell without machines: VMs that send frames at given times and are otherwise idle (or always busy).
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;

use chaoscontrol_fault::{Fault, FaultEvent, Schedule};
use chaoscontrol_sim::{
    Command, DiskCounts, NetworkConfig, Observation, RoundRecord, SentFrame, Sim, SimConfig, VmEnd, mac_of,
};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

pub struct World {
    pub sim: Sim,
    /// What VMs send, by cluster time.
    pub sends: BTreeMap<(u64, u16), Vec<Vec<u8>>>,
    /// Whether VMs always have something to do.
    pub busy: bool,
    /// Frames as they reached network cards: (cluster ns, VM, frame).
    pub received: Vec<(u64, u16, Vec<u8>)>,
    /// All other commands with the cluster time of their round.
    pub commands: Vec<(u64, Command)>,
    pub records: Vec<RoundRecord>,
    pub instructions: Vec<u64>,
    /// Guest time of each VM at the last barrier.
    pub guest_ns: Vec<u64>,
    /// Reported for every disk of every VM.
    pub disks: DiskCounts,
    /// Guest time at which restarted VMs come up.
    pub restart_guest_ns: u64,
}

pub fn config(vms: usize) -> SimConfig {
    SimConfig { disks: vec![1; vms], network: NetworkConfig::default(), cpus: 1 }
}

impl World {
    pub fn new(config: SimConfig, seed: u64, events: &[(u64, Fault)]) -> Self {
        let vms = config.disks.len();
        let mut sim = Sim::new(config, seed, SECOND).unwrap();
        let event = |(time_ns, fault): &(u64, Fault)| FaultEvent { time_ns: *time_ns, fault: *fault };
        let schedule = Schedule::new(events.iter().map(event).collect()).unwrap();
        sim.begin_branch(schedule, SECOND, seed).unwrap();
        Self {
            sim,
            sends: BTreeMap::new(),
            busy: false,
            received: Vec::new(),
            commands: Vec::new(),
            records: Vec::new(),
            instructions: vec![0; vms],
            guest_ns: vec![0; vms],
            disks: DiskCounts::default(),
            restart_guest_ns: 0,
        }
    }

    /// Three VMs where every `every_ns` VM 0 sends a frame to VM 1, numbered from 0, for half a second.
    pub fn stream(seed: u64, every_ns: u64, events: &[(u64, Fault)]) -> Self {
        let mut world = Self::new(config(3), seed, events);
        for number in 0..SECOND / 2 / every_ns {
            world.send(number * every_ns, 0, frame(0, 1, number));
        }
        world
    }

    pub fn send(&mut self, at_ns: u64, vm: u16, frame: Vec<u8>) {
        self.sends.entry((at_ns, vm)).or_default().push(frame);
    }

    pub fn step(&mut self) {
        let round = self.sim.plan_round();
        for (command, _) in &round.commands {
            match command {
                Command::Deliver { vm, frame } => self.received.push((round.start_ns, *vm, frame.clone())),
                other => {
                    if let Command::Restart { vm, .. } = other {
                        self.sim.restarted(*vm, self.restart_guest_ns);
                    }
                    self.commands.push((round.start_ns, other.clone()));
                }
            }
        }
        let vms = self.instructions.len();
        let mut observations = Vec::new();
        for vm in 0..vms as u16 {
            let index = usize::from(vm);
            let mut observation = Observation::nothing(self.instructions[index], [0; 32]);
            observation.disks = vec![self.disks];
            if let Some(deadline) = self.sim.deadline(&round, vm) {
                let clock = self.sim.clock(vm).unwrap();
                self.guest_ns[index] = deadline;
                self.instructions[index] += 1;
                observation.instructions = self.instructions[index];
                let due = self.sends.range((round.start_ns, 0)..(round.end_ns, 0)).filter(|((_, from), _)| *from == vm);
                for ((at_ns, _), frames) in due {
                    let frame =
                        |bytes: &Vec<u8>| SentFrame { at_guest_ns: clock.to_guest_ns(*at_ns), bytes: bytes.clone() };
                    observation.frames.extend(frames.iter().map(frame));
                }
                let later = self.sends.range((round.end_ns, 0)..).find(|((_, from), _)| *from == vm);
                let next_event_guest_ns = later.map(|((at_ns, _), _)| clock.to_guest_ns(*at_ns));
                observation.end = if self.busy { VmEnd::Busy } else { VmEnd::Idle { next_event_guest_ns } };
            }
            observations.push(observation);
        }
        let record = self.sim.finish_round(&round, &observations);
        self.records.push(record);
    }

    pub fn run(&mut self) -> &mut Self {
        while !self.sim.finished() {
            self.step();
        }
        self
    }

    /// Numbers of the frames that the VM received, in order.
    pub fn numbers(&self, vm: u16) -> Vec<u64> {
        self.received.iter().filter(|(_, to, _)| *to == vm).map(|(_, _, frame)| number(frame)).collect()
    }

    /// How often the effect of the schedule's event was observed.
    pub fn observed(&self, event: usize) -> u64 {
        self.sim.ledger().entries()[event].observed
    }
}

/// An Ethernet frame with a number in it.
pub fn frame(from: u16, to: u16, number: u64) -> Vec<u8> {
    let mut frame = mac_of(to).to_vec();
    frame.extend_from_slice(&mac_of(from));
    frame.extend_from_slice(&[8, 0]);
    frame.extend_from_slice(&number.to_le_bytes());
    frame.extend_from_slice(&[0; 92]);
    frame
}

pub fn number(frame: &[u8]) -> u64 {
    u64::from_le_bytes(frame[14..22].try_into().unwrap())
}
