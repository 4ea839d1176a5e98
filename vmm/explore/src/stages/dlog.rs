// SPDX-License-Identifier: AGPL-3.0-or-later
//! The determinism log of one branch.

use chaoscontrol_artifact::Store;
use chaoscontrol_artifact::schema::Descriptor;
use chaoscontrol_cluster::Cluster;
use chaoscontrol_machine::capacity::ResourceUse;
use chaoscontrol_machine::event_log::LogConfig;
use chaoscontrol_trace::{Entry, Log};

use super::Talk;
use super::diverge::{Begin, DivergeOptions, what};
use crate::error::ExploreError;
use crate::machines::branch_plan;
use crate::subject::Plan;

/// Domain of the hash that says what a log is of.
const SUBJECT_CONTEXT: &str = "chaoscontrol 2026 determinism log subject v1";

/// A branch's log, and what its VMs held for the host.
pub struct Recorded {
    /// The log.
    pub log: Log,
    /// Of each VM, the digest of its capacity plan and the use of it.
    pub capacity: Vec<([u8; 32], Vec<ResourceUse>)>,
}

/// Runs a branch and logs all its VMs, or one.
pub fn record(
    store: &Store,
    previous: &Descriptor,
    options: &DivergeOptions,
    (vm, config): (Option<u16>, LogConfig),
    talk: Talk,
) -> Result<Recorded, ExploreError> {
    let (start, plan) = what(store, previous, options)?;
    talk(0, 1, "runs");
    let (mut cluster, vms) = logged(store, &start, &plan, vm, config)?;
    let mut of = |vm| cluster.node_mut(vm).map(|node| (node.capacity_plan().digest(), node.capacity_use()));
    let capacity = (0..vms.len() as u16).filter_map(&mut of).collect();
    Ok(Recorded { log: Log { subject: subject(&start, &plan, vm, config)?, vms }, capacity })
}

/// The entries of every VM, and the cluster after it ran; VMs that are not logged have none.
pub(super) fn logged(
    store: &Store,
    start: &Begin,
    plan: &Plan,
    only: Option<u16>,
    config: LogConfig,
) -> Result<(Cluster, Vec<Vec<Entry>>), ExploreError> {
    let mut cluster = start.cluster(store)?;
    let vms = cluster.sim().config().vms();
    if let Some(vm) = only.filter(|vm| *vm >= vms) {
        return Err(ExploreError::Input(format!("there is no vm {vm}, the cluster has {vms}")));
    }
    for vm in (0..vms).filter(|vm| only.is_none_or(|only| only == *vm)) {
        if let Some(node) = cluster.node_mut(vm) {
            node.start_log(config);
        }
    }
    cluster.run(&branch_plan(plan))?;
    let mut taken = |vm| {
        let events = cluster.node_mut(vm).map(|node| node.take_log()).unwrap_or_default();
        events.into_iter().filter_map(Entry::of).collect()
    };
    let entries = (0..vms).map(&mut taken).collect();
    Ok((cluster, entries))
}

/// Digest over what the branch is and what the log keeps of it.
fn subject(start: &Begin, plan: &Plan, vm: Option<u16>, config: LogConfig) -> Result<[u8; 32], ExploreError> {
    let schedule = serde_json::to_vec(&(&plan.schedule, &plan.tactic))
        .map_err(|error| ExploreError::Internal(error.to_string()))?;
    let LogConfig { interval, from, to, exits, registers, memory, limit: _ } = config;
    let snapshot = start.snapshot.map_or([0; 32], |snapshot| snapshot.digest.0);
    let mut hasher = blake3::Hasher::new_derive_key(SUBJECT_CONTEXT);
    hasher.update(&start.run.digest.0).update(&snapshot);
    hasher.update(&plan.seed.to_le_bytes()).update(&plan.horizon_ns.to_le_bytes());
    hasher.update(&[u8::from(exits), u8::from(registers), u8::from(memory)]);
    for value in [interval, from, to, vm.map_or(u64::MAX, u64::from), schedule.len() as u64] {
        hasher.update(&value.to_le_bytes());
    }
    hasher.update(&schedule);
    Ok(hasher.finalize().into())
}
