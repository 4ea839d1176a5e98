// SPDX-License-Identifier: AGPL-3.0-or-later
//! Minimize: each bug to the faults that matter.

use chaoscontrol_artifact::schema::{BranchRecord, Descriptor, Link, MinimizedBug, Parameters};
use chaoscontrol_artifact::{ExitCode, ObjectRef, StageResult, Store, StoreError, U64};
use chaoscontrol_machine::KvmOptions;

use super::{AnyBug, Talk, bugs_of};
use crate::error::ExploreError;
use crate::machines::{Host, Machines, note_engine};
use crate::minimize::{Minimal, minimize};
use crate::pool::Pool;

/// Branches that minimizing one bug may run unless it is said otherwise.
pub const ATTEMPTS: u32 = 400;

/// What to minimize.
#[derive(Clone, Copy, Debug)]
pub struct MinimizeOptions {
    /// The bug of this number only, counted from 1.
    pub bug: Option<u64>,
    /// Branches that one bug may cost.
    pub attempts: u32,
    /// Worker threads.
    pub jobs: u32,
    /// Whether and how KVM may be used.
    pub kvm: KvmOptions,
}

/// Minimizes the bugs that the stage before wrote. A bug whose snapshot cannot be read is passed on as it is: what to make of
/// it is for reproduce and verdict to say.
pub fn minimize_bugs(
    store: &Store,
    previous: &Descriptor,
    options: &MinimizeOptions,
    talk: Talk,
) -> Result<StageResult, ExploreError> {
    let mut result = StageResult { jobs: options.jobs, ..StageResult::default() };
    result.parameters = Parameters::from([("attempts".to_owned(), u64::from(options.attempts).into())]);
    if let Some(seed) = previous.number("seed") {
        result.parameters.insert("seed".to_owned(), seed.into());
    }
    if let Some(bug) = options.bug {
        result.parameters.insert("bug".to_owned(), bug.into());
    }
    let mut notes = Vec::new();
    for reference in bugs_of(previous, options.bug)? {
        let bug = AnyBug::load(store, reference)?;
        result.inputs.push(Link::new("bug", reference));
        match minimize_one(store, &bug, options, talk)? {
            Minimized::Done(minimized) => {
                result.outputs.push(Link::new("minimized-bug", minimized));
                note_engine(&mut result, &store.load(&bug.record.run)?);
            }
            Minimized::Skipped(why) => {
                notes.push(format!("{}: not minimized: {why}", bug.identity().property.escape_debug()));
                result.outputs.push(Link::new("bug", reference));
            }
            Minimized::Gone => {
                result.code = ExitCode::Diverged;
                let what = "its own branch, run again, does not show it";
                notes.push(format!("{}: {what}", bug.identity().property.escape_debug()));
                result.outputs.push(Link::new("bug", reference));
            }
        }
    }
    result.note = (!notes.is_empty()).then(|| notes.join("; "));
    Ok(result)
}

enum Minimized {
    Done(ObjectRef),
    Skipped(String),
    Gone,
}

fn minimize_one(store: &Store, bug: &AnyBug, options: &MinimizeOptions, talk: Talk) -> Result<Minimized, ExploreError> {
    let Some(snapshot) = bug.record.snapshot else { return Ok(Minimized::Skipped("it names no snapshot".to_owned())) };
    let host = Host { kvm: options.kvm, ..Host::default() }.on_engine_of(&store.load(&bug.record.run)?);
    let machines = match Machines::load(store, &snapshot, &host) {
        Ok((machines, _)) => machines,
        Err(ExploreError::Store(
            error @ (StoreError::Missing { .. } | StoreError::Damaged { .. } | StoreError::Wrong { .. }),
        )) => {
            return Ok(Minimized::Skipped(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    let pool = Pool::new(&machines, options.jobs);
    let mut on_step = |attempts: u32, faults: usize| {
        talk(u64::from(attempts), 0, &format!("attempts, {faults} faults left"));
    };
    let identity = bug.identity();
    let Some(minimal) = minimize(&pool, &bug.plan(), identity, options.attempts, &mut on_step)? else {
        return Ok(Minimized::Gone);
    };
    Ok(Minimized::Done(publish(store, bug, minimal)?))
}

fn publish(store: &Store, bug: &AnyBug, minimal: Minimal) -> Result<ObjectRef, ExploreError> {
    let Minimal { schedule, ran, attempts, one_minimal } = minimal;
    let violation = ran.violations.iter().find(|violation| violation.identity == *bug.identity());
    let violation =
        violation.cloned().ok_or_else(|| ExploreError::Internal("a minimal schedule without its bug".into()))?;
    let record = BranchRecord {
        schedule,
        ledger: ran.ledger,
        trace: store.publish(&ran.trace)?,
        instructions: U64(ran.instructions),
        cluster_ns: U64(ran.cluster_ns),
        ..bug.record.clone()
    };
    let minimized = MinimizedBug {
        bug: bug.reference,
        violation,
        record,
        original_faults: bug.record.schedule.len() as u32,
        attempts,
        one_minimal,
    };
    Ok(store.publish(&minimized)?)
}
