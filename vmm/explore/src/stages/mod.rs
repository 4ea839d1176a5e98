// SPDX-License-Identifier: AGPL-3.0-or-later
//! The work of each stage: objects in, objects out. Tools parse arguments, call one of these, and write the descriptor.

pub mod boot;
pub mod diverge;
pub mod dlog;
pub mod drift;
pub mod explore;
pub mod export;
pub mod merge;
pub mod minimize;
pub mod reproduce;
mod turns;

use chaoscontrol_artifact::schema::{
    BranchRecord, Bug, BugIdentity, Descriptor, MinimizedBug, RunConfiguration, Violation,
};
use chaoscontrol_artifact::{MediaType, ObjectRef, Store};

use crate::error::ExploreError;
use crate::subject::Plan;

/// Where a stage says how far it is: done, of how many (0 where unknown), and a note.
pub type Talk<'a> = &'a (dyn Fn(u64, u64, &str) + Sync);

/// A bug or a minimized bug, as far as they are alike.
#[derive(Clone, Debug)]
pub struct AnyBug {
    /// Its document.
    pub reference: ObjectRef,
    /// The violation.
    pub violation: Violation,
    /// How its branch ran.
    pub record: BranchRecord,
    /// Whether it was minimized to the last fault.
    pub one_minimal: bool,
}

impl AnyBug {
    /// Reads either kind.
    pub fn load(store: &Store, reference: ObjectRef) -> Result<Self, ExploreError> {
        if reference.media_type == MediaType::MinimizedBug {
            let MinimizedBug { violation, record, one_minimal, .. } = store.load(&reference)?;
            return Ok(Self { reference, violation, record, one_minimal });
        }
        let Bug { violation, record, .. } = store.load(&reference)?;
        Ok(Self { reference, violation, record, one_minimal: false })
    }

    /// Which bug it is.
    pub fn identity(&self) -> &BugIdentity {
        &self.violation.identity
    }

    /// What runs its branch again.
    pub fn plan(&self) -> Plan {
        let record = &self.record;
        Plan {
            schedule: record.schedule.clone(),
            seed: record.seed.0,
            horizon_ns: record.horizon_ns.0,
            ..Plan::default()
        }
    }
}

/// Refuses a descriptor whose other parts are of another guest than its snapshot: put together from two boots, it would explore
/// something else than it says.
pub(crate) fn same_guest(store: &Store, descriptor: &Descriptor, run: &ObjectRef) -> Result<(), ExploreError> {
    let configuration: RunConfiguration = store.load(run)?;
    for (role, of_snapshot) in
        [("run", Some(*run)), ("kernel", Some(configuration.kernel)), ("initrd", configuration.initrd)]
    {
        let named = descriptor.outputs_of(role).find(|named| Some(*named) != of_snapshot);
        if let Some(named) = named {
            let of_snapshot = of_snapshot.map_or("none".to_owned(), |object| object.digest.to_string());
            return Err(ExploreError::Input(format!(
                "the descriptor names {role} {}, but its snapshot is of a guest with {role} {of_snapshot}: it was put \
                 together from two boots; use the descriptor of one",
                named.digest
            )));
        }
    }
    Ok(())
}

/// The bugs that a stage wrote, minimized ones in place of those they came from; with `only`, the one of that number,
/// counted from 1 in order of discovery.
pub fn bugs_of(descriptor: &Descriptor, only: Option<u64>) -> Result<Vec<ObjectRef>, ExploreError> {
    let is_bug = |media: MediaType| matches!(media, MediaType::Bug | MediaType::MinimizedBug);
    let written = descriptor.outputs.iter().filter(|link| link.role == "bug" || link.role == "minimized-bug");
    let bugs: Vec<ObjectRef> = written.map(|link| link.object).filter(|bug| is_bug(bug.media_type)).collect();
    let Some(number) = only else { return Ok(bugs) };
    let index = number.checked_sub(1).and_then(|index| usize::try_from(index).ok());
    match index.and_then(|index| bugs.get(index)) {
        Some(bug) => Ok(vec![*bug]),
        None => {
            let have = bugs.len();
            Err(ExploreError::Input(format!("there is no bug {number}: stage {} wrote {have}", descriptor.stage)))
        }
    }
}
