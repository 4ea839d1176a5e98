// SPDX-License-Identifier: AGPL-3.0-or-later
//! Minimize: each bug to the faults that matter.

use std::collections::BTreeMap;

use chaoscontrol_artifact::schema::{BranchRecord, BugIdentity, Descriptor, Link, MinimizedBug, Parameters};
use chaoscontrol_artifact::{ExitCode, ObjectRef, StageResult, Store, StoreError, U64};
use chaoscontrol_fault::Schedule;

use super::{AnyBug, Talk, bugs_of, turns};
use crate::error::ExploreError;
use crate::machines::{Host, Machines, note_engine};
use crate::minimize::{Minimal, SUBSET_MAX, minimize, smallest};
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
    /// Whether to say how many faults the smallest subset of those found has, by running all of up to three.
    pub exhaustive: bool,
    /// Where the guests run, but for the engine, which is that of the bug.
    pub host: Host,
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
    let mut seen: BTreeMap<(BugIdentity, Schedule), ObjectRef> = BTreeMap::new();
    let bugs = bugs_of(previous, options.bug)?;
    if bugs.is_empty() {
        notes.push("there is no bug to shrink".to_owned());
    }
    for reference in bugs {
        let bug = AnyBug::load(store, reference)?;
        result.inputs.push(Link::new("bug", reference));
        match minimize_one(store, &bug, options, talk)? {
            Minimized::Done { bug: minimized, schedule, note } => {
                note_engine(&mut result, &store.load(&bug.record.run)?);
                notes.extend(note);
                // One property and one minimal schedule is one bug, whichever campaigns found it.
                match seen.insert((bug.identity().clone(), schedule), minimized) {
                    None => result.outputs.push(Link::new("minimized-bug", minimized)),
                    Some(_) => notes.push(format!("{}: found twice", bug.identity().property.escape_debug())),
                }
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
    Done { bug: ObjectRef, schedule: Schedule, note: Option<String> },
    Skipped(String),
    Gone,
}

fn minimize_one(store: &Store, bug: &AnyBug, options: &MinimizeOptions, talk: Talk) -> Result<Minimized, ExploreError> {
    let Some(snapshot) = bug.record.snapshot else { return Ok(Minimized::Skipped("it names no snapshot".to_owned())) };
    let host = options.host.on_engine_of(&store.load(&bug.record.run)?);
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
    let note = if options.exhaustive {
        talk(0, 0, "running every subset of up to three faults");
        let property = identity.property.escape_debug();
        let left = minimal.schedule.len();
        let beside = match smallest(&pool, &bug.plan(), identity)? {
            Some(size) => format!("the smallest subset that shows it has {size}"),
            None => format!("no subset of up to {SUBSET_MAX} shows it"),
        };
        Some(format!("{property}: {left} faults left, {beside}"))
    } else {
        None
    };
    let schedule = minimal.schedule.clone();
    Ok(Minimized::Done { bug: publish(store, bug, minimal)?, schedule, note })
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
        turns: turns::publish(store, &ran.turns)?,
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
