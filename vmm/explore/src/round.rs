// SPDX-License-Identifier: AGPL-3.0-or-later
//! A round: many branches at once, merged in order.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use chaoscontrol_fault::{Applicability, FaultKind, Rejection};

use crate::campaign::{Campaign, Found};
use crate::error::ExploreError;
use crate::pool::Pool;
use crate::subject::{Plan, Ran};

/// What ends a round. All of it is counted in merged branches, so that it falls at the same place whatever ran when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Branches to merge.
    pub branches: u64,
    /// Instructions of all merged branches of the campaign.
    pub instructions: Option<u64>,
    /// Distinct bugs of the campaign.
    pub bugs: Option<u32>,
    /// Whether a fault that could not be applied ends the round.
    pub rejection_is_fatal: bool,
    /// Branches in a row without a new edge.
    pub plateau: Option<u64>,
}

/// Why a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All branches are merged.
    Branches,
    /// The instruction budget is used up.
    Instructions,
    /// Enough bugs are found.
    Bugs,
    /// A fault of this kind, due then in the last branch, could not be applied, and that is fatal.
    Rejected(FaultKind, u64, Rejection),
    /// Coverage stands still.
    Plateau,
    /// The caller asked.
    Asked,
}

/// A new bug with its branch and how that ran.
#[derive(Debug)]
pub struct FoundBug {
    /// Violation and branch.
    pub found: Found,
    /// How the branch ran; its coverage is left out.
    pub ran: Ran,
}

/// What the workers and the merging thread share.
#[derive(Default)]
struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(u64, Plan)>,
    done: BTreeMap<u64, Result<Ran, ExploreError>>,
    closed: bool,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that may panic runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works until the board is closed.
    fn work(&self, pool: &Pool) {
        loop {
            let (index, plan) = {
                let mut state = self.lock();
                loop {
                    if state.closed {
                        return;
                    }
                    match state.waiting.pop_front() {
                        Some(next) => break next,
                        None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    }
                }
            };
            let ran = catch_unwind(AssertUnwindSafe(|| pool.run(&plan)));
            let ran = ran.unwrap_or_else(|_| Err(ExploreError::Internal(format!("branch {index} panicked"))));
            self.lock().done.insert(index, ran);
            self.changed.notify_all();
        }
    }

    /// Waits for how branch `index` ran.
    fn take(&self, index: u64) -> Result<Ran, ExploreError> {
        let mut state = self.lock();
        loop {
            match state.done.remove(&index) {
                Some(ran) => return ran,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Closes the board when it goes away.
struct Closes<'a>(&'a Board);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.0.changed.notify_all();
    }
}

/// Runs branches until a limit. `go_on` is asked after each merge, with the campaign, whether to go on: whoever calls may stop
/// for any reason, and the campaign can be stored and resumed.
pub fn run(
    campaign: &mut Campaign,
    pool: &Pool,
    limits: Limits,
    go_on: &mut dyn FnMut(&Campaign) -> bool,
) -> Result<(Ended, Vec<FoundBug>), ExploreError> {
    let board = Board::default();
    pool.round(|| {
        std::thread::scope(|scope| {
            for _ in 0..pool.jobs() {
                scope.spawn(|| board.work(pool));
            }
            // Also where planning or the caller panics: the scope waits for the workers before it passes that on.
            let _closes = Closes(&board);
            merge_all(campaign, pool, &board, limits, go_on)
        })
    })
}

impl Limits {
    /// Why a round that was merged whole is the last, if it is.
    pub fn reached(&self, campaign: &Campaign) -> Option<Ended> {
        let total = campaign.total();
        if self.bugs.is_some_and(|wanted| total.bugs >= wanted) {
            return Some(Ended::Bugs);
        }
        let since = total.branches.0.saturating_sub(total.novel.0);
        self.plateau.is_some_and(|limit| since >= limit).then_some(Ended::Plateau)
    }
}

fn merge_all(
    campaign: &mut Campaign,
    pool: &Pool,
    board: &Board,
    limits: Limits,
    go_on: &mut dyn FnMut(&Campaign) -> bool,
) -> Result<(Ended, Vec<FoundBug>), ExploreError> {
    let end = campaign.next().saturating_add(limits.branches);
    let mut queued = campaign.next();
    let mut bugs = Vec::new();
    while campaign.next() < end {
        if limits.instructions.is_some_and(|budget| campaign.total().instructions.0 >= budget) {
            return Ok((Ended::Instructions, bugs));
        }
        let new: Vec<(u64, Plan)> = campaign
            .planned()
            .filter(|branch| (queued..end).contains(&branch.branch.0))
            .map(|branch| (branch.branch.0, campaign.plan(branch)))
            .collect();
        queued += new.len() as u64;
        board.lock().waiting.extend(new);
        board.changed.notify_all();
        let mut ran = board.take(campaign.next())?;
        let merged = pool.merging(|| campaign.merge(&ran));
        let rejected = ran.ledger.entries().iter().find_map(|entry| match entry.applicability {
            Applicability::Rejected(why) => Some(Ended::Rejected(entry.event.fault.kind(), entry.event.time_ns, why)),
            _ => None,
        });
        ran.coverage.clear();
        for found in merged.found {
            bugs.push(FoundBug { found, ran: ran.clone() });
        }
        if let Some(ended) = rejected.filter(|_| limits.rejection_is_fatal) {
            return Ok((ended, bugs));
        }
        if !go_on(campaign) {
            return Ok((Ended::Asked, bugs));
        }
        if let Some(ended) = limits.reached(campaign) {
            return Ok((ended, bugs));
        }
    }
    Ok((Ended::Branches, bugs))
}
