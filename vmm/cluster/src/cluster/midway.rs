// SPDX-License-Identifier: AGPL-3.0-or-later
//! Branches in the middle: where one starts that is the same as another up to a barrier.
//!
//! Restoring is exactly running on, so a branch may start from the middle of another one whose plan cannot be told from its own by
//! then: the same seed, horizon and faults up to that barrier, the same answers to every choice made by then, and a tactic of its
//! own that would have done nothing yet. Its outcome is to the last bit that of a run from the campaign's snapshot, so that
//! whoever keeps such middles, drops them or does without changes no result.

use std::sync::Arc;

use chaoscontrol_fault::{Choice, RANDOMS_FROM, Tactician};
use chaoscontrol_machine::MachineSnapshot;
use chaoscontrol_machine::memory::PAGE_BYTES;
use chaoscontrol_sim::{RoundRecord, VmRecord};

use super::{Cluster, Result, Vm};
use crate::branch::{BranchOutcome, BranchPlan, GuestEvent, MARKS_MAX};
use crate::marks::Marks;
use crate::node::Node;
use crate::snapshot::ClusterSnapshot;
use crate::turns::TurnRecording;

/// What a branch has come to beside the cluster itself.
pub(super) type Records = Option<Vec<Arc<[RoundRecord]>>>;

/// How a branch ran, and the branch in its middle.
type Kept<N> = (BranchOutcome, Vec<Midway<<N as Node>::Snapshot>>);

/// A branch at a barrier in its middle.
#[derive(Clone, Debug)]
pub struct Midway<S = MachineSnapshot> {
    /// What it ran under. The schedule is what had come of it by then, and its tactic is left out.
    plan: BranchPlan,
    /// After its start.
    time_ns: u64,
    cluster: ClusterSnapshot<S>,
    vms: Vec<MidwayVm>,
    ran_instructions: u64,
    records: Records,
    event_log: Option<Vec<GuestEvent>>,
    marks: Marks,
    turns: TurnRecording,
}

/// What is kept of a VM beside its snapshot.
#[derive(Clone, Debug)]
struct MidwayVm {
    /// Without what the memory in its snapshot holds.
    edges: Option<Vec<u8>>,
    /// Choices made and numbers drawn since the start of the branch; none for one that was restarted and has no answers any more.
    made: Option<(u64, u64)>,
}

impl<S> Midway<S> {
    /// Cluster ns after the start of the branch.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// The seed of the branch.
    #[must_use]
    pub fn entropy_seed(&self) -> u64 {
        self.plan.entropy_seed
    }

    /// The cluster as it stood.
    #[must_use]
    pub fn cluster(&self) -> &ClusterSnapshot<S> {
        &self.cluster
    }

    /// Whether a branch under `plan` is the same up to here.
    #[must_use]
    pub fn leads_to(&self, plan: &BranchPlan) -> bool {
        let own = &self.plan;
        let alike = |plan: &BranchPlan| (plan.entropy_seed, plan.horizon_ns, plan.coverage, plan.full_trace);
        alike(own) == alike(plan)
            && own.schedule.agrees_until(&plan.schedule, self.time_ns)
            && (0..)
                .zip(&self.vms)
                .all(|(vm, of)| of.choices_agree(vm, own.schedule.choices(), plan.schedule.choices()))
            && self.tactician(plan).is_some()
    }

    /// The plan's tactic as it stands here, if it would have done nothing yet.
    fn tactician(&self, plan: &BranchPlan) -> Option<Option<Tactician>> {
        let Some(tactic) = &plan.tactic else { return Some(None) };
        let shape = self.cluster.sim.config().shape(plan.horizon_ns);
        self.marks.idle_until_now(Tactician::new(tactic.clone(), shape)).map(Some)
    }
}

/// The answers of one VM.
fn of_vm(vm: u16, choices: &[Choice]) -> impl Iterator<Item = &Choice> {
    choices.iter().filter(move |choice| choice.vm == vm)
}

impl MidwayVm {
    /// Whether the VM has got the same answers so far, and those that differ can still be given.
    fn choices_agree(&self, vm: u16, own: &[Choice], others: &[Choice]) -> bool {
        if of_vm(vm, own).eq(of_vm(vm, others)) {
            return true;
        }
        let Some((choices, randoms)) = self.made else { return false };
        let was_given = move |choice: &&Choice| match choice.nth.checked_sub(RANDOMS_FROM) {
            None => u64::from(choice.nth) < choices,
            Some(nth) => u64::from(nth) < randoms,
        };
        let given = |choices| of_vm(vm, choices).filter(was_given);
        given(own).eq(given(others))
    }
}

/// Keeps a branch in the middle: each time it reaches one of these times, at the first barrier then.
pub(super) struct Keeping<'a, S> {
    stops_ns: &'a [u64],
    kept: Vec<Midway<S>>,
}

impl<'a, S> Keeping<'a, S> {
    /// At these times after the start of the branch, ascending.
    pub fn at(stops_ns: &'a [u64]) -> Self {
        Self { stops_ns, kept: Vec::new() }
    }

    /// Whether one of them has come by `now_ns`.
    fn is_due(&mut self, now_ns: u64) -> bool {
        let due = self.stops_ns.partition_point(|stop_ns| *stop_ns <= now_ns);
        self.stops_ns = &self.stops_ns[due..];
        due > 0
    }
}

impl<N: Node> Cluster<N> {
    /// Restores the snapshot and runs one branch from it, or goes on from the middle of another that [leads](Midway::leads_to) to it.
    /// Gives it in the middle too, at the first barrier at or behind each of `stops_ns`, which ascend and count from its start; at none that
    /// lies before where it started.
    pub fn run_branch_keeping(
        &mut self,
        from: &ClusterSnapshot<N::Snapshot>,
        midway: Option<&Midway<N::Snapshot>>,
        plan: &BranchPlan,
        stops_ns: &[u64],
    ) -> Result<Kept<N>, N> {
        self.watch.start();
        let records = match midway {
            None => {
                self.restore(from)?;
                self.start(plan, None)?;
                plan.full_trace.then(Vec::new)
            }
            Some(midway) => {
                self.resume(midway, plan)?;
                midway.records.clone()
            }
        };
        self.watch.lap(|spent| &mut spent.snapshots_ns);
        let reached = stops_ns.partition_point(|stop_ns| midway.is_some_and(|midway| *stop_ns <= midway.time_ns));
        let mut keeping = Keeping::at(&stops_ns[reached..]);
        let outcome = self.run_on(plan, records, &mut keeping)?;
        Ok((outcome, keeping.kept))
    }

    /// Becomes the cluster in the middle of a branch, which goes on under `plan`.
    fn resume(&mut self, from: &Midway<N::Snapshot>, plan: &BranchPlan) -> Result<(), N> {
        assert!(from.leads_to(plan), "the branch would not have come by here");
        self.restore(&from.cluster)?;
        self.sim.change_rest(plan.schedule.clone())?;
        for (index, (vm, of)) in (0..).zip(self.vms.iter_mut().zip(&from.vms)) {
            vm.node.begin_turns();
            vm.node.set_coverage(plan.coverage);
            vm.edges_before.clone_from(&of.edges);
            vm.choices_before = of.made.map(|(choices, _)| vm.node.choices_made() - choices);
            vm.answer(index, vm.node.randoms_made(), plan);
        }
        self.turns = from.turns.clone();
        self.held_to = None;
        self.ran_instructions = from.ran_instructions;
        self.event_log.clone_from(&from.event_log);
        self.marks = from.marks.under(from.tactician(plan).flatten());
        Ok(())
    }

    /// Keeps the branch here, if it is time to.
    pub(super) fn keep_midway(
        &mut self,
        plan: &BranchPlan,
        records: &mut (Records, Vec<RoundRecord>),
        keeping: &mut Keeping<'_, N::Snapshot>,
    ) {
        let time_ns = self.sim.now_ns() - self.sim.branch_start_ns();
        // Of several CPUs the turn that is not over is in no snapshot; and where marks were left out, nobody can say any more what
        // a tactic would have done.
        if !keeping.is_due(time_ns) || self.sim.config().cpus > 1 || self.marks.kept() >= MARKS_MAX {
            return;
        }
        self.watch.lap(|spent| &mut spent.barriers_ns);
        if let Some(sealed) = &mut records.0 {
            sealed.push(std::mem::take(&mut records.1).into());
        }
        let vm = |vm: &Vm<N>| MidwayVm {
            edges: plan.coverage.then(|| vm.edges_beside_memory()),
            made: vm.choices_before.map(|before| (vm.node.choices_made() - before, vm.node.randoms_made())),
        };
        let midway = Midway {
            plan: BranchPlan { schedule: self.sim.schedule().clone(), tactic: None, ..plan.clone() },
            time_ns,
            vms: self.vms.iter().map(vm).collect(),
            cluster: self.snapshot_as_it_stands(),
            ran_instructions: self.ran_instructions,
            records: records.0.clone(),
            event_log: self.event_log.clone(),
            marks: self.marks.under(None),
            turns: self.turns.clone(),
        };
        keeping.kept.push(midway);
        self.watch.lap(|spent| &mut spent.snapshots_ns);
    }
}

impl Midway {
    /// Bytes that it takes beside `base`, from which the branch started, about: what it shares with other middles counts for each.
    #[must_use]
    pub fn own_bytes(&self, base: &ClusterSnapshot) -> u64 {
        let mut pages = 0u64;
        for (own, base) in self.cluster.vms.iter().zip(&base.vms) {
            let points = (own.restart_point(), base.restart_point());
            let machines = [Some((own.machine(), base.machine())), points.0.zip(points.1)];
            for (own, base) in machines.into_iter().flatten() {
                base.pages.differences(&own.pages, &mut |_| pages += 1);
                for (own, base) in own.disks.iter().zip(&base.disks) {
                    base.differences(own, &mut |_| pages += 1);
                }
            }
        }
        let edges = self.vms.iter().flat_map(|vm| &vm.edges).map(|edges| edges.len() as u64).sum::<u64>();
        let last = self.records.iter().flatten().next_back().map_or(0, |records| records.len() as u64);
        pages * PAGE_BYTES as u64 + edges + last * (self.vms.len() as u64 + 1) * size_of::<VmRecord>() as u64
    }
}
