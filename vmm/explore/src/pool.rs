// SPDX-License-Identifier: AGPL-3.0-or-later
//! Worker threads, each with its own subject.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use chaoscontrol_cluster::HostClock;

use crate::error::ExploreError;
use crate::subject::{Factory, Plan, Ran, Subject};

/// Subjects that are made once and used by whichever thread needs one.
pub struct Pool<'a> {
    factory: &'a dyn Factory,
    idle: Mutex<Vec<Box<dyn Subject>>>,
    jobs: usize,
    clock: Option<HostClock>,
    merging_ns: AtomicU64,
    rounds_ns: AtomicU64,
}

/// Threads at most: more than any machine has cores for, a bound against mistyped numbers.
pub const JOBS_MAX: u32 = 1024;

impl<'a> Pool<'a> {
    /// A pool of at most `jobs` threads.
    pub fn new(factory: &'a dyn Factory, jobs: u32) -> Self {
        let jobs = jobs.clamp(1, JOBS_MAX) as usize;
        Self {
            factory,
            idle: Mutex::default(),
            jobs,
            clock: None,
            merging_ns: AtomicU64::new(0),
            rounds_ns: AtomicU64::new(0),
        }
    }

    /// The same, measuring what rounds take, and merging.
    #[must_use]
    pub fn timed(self, clock: Option<HostClock>) -> Self {
        Self { clock, ..self }
    }

    /// Does what merges and plans branches, on the one thread that does.
    pub(crate) fn merging<R>(&self, work: impl FnOnce() -> R) -> R {
        self.timing(&self.merging_ns, work)
    }

    /// Runs a round.
    pub(crate) fn round<R>(&self, work: impl FnOnce() -> R) -> R {
        self.timing(&self.rounds_ns, work)
    }

    fn timing<R>(&self, into: &AtomicU64, work: impl FnOnce() -> R) -> R {
        let now_ns = || self.clock.map_or(0, |clock| clock());
        let before_ns = now_ns();
        let done = work();
        into.fetch_add(now_ns().saturating_sub(before_ns), Ordering::Relaxed);
        done
    }

    /// Host time that rounds took, where it was measured.
    pub fn rounds_ns(&self) -> u64 {
        self.rounds_ns.load(Ordering::Relaxed)
    }

    /// Host time that merging took, where it was measured.
    pub fn merging_ns(&self) -> u64 {
        self.merging_ns.load(Ordering::Relaxed)
    }

    /// Number of threads.
    pub fn jobs(&self) -> usize {
        self.jobs
    }

    /// What makes the subjects.
    pub fn factory(&self) -> &dyn Factory {
        self.factory
    }

    /// Runs one branch on an idle subject, or a new one.
    pub fn run(&self, plan: &Plan) -> Result<Ran, ExploreError> {
        let idle = self.idle.lock().map_err(|_| poisoned())?.pop();
        let mut subject = match idle {
            Some(subject) => subject,
            None => self.factory.subject()?,
        };
        let ran = subject.run(plan);
        // A subject that failed may be in any state.
        if ran.is_ok() {
            self.idle.lock().map_err(|_| poisoned())?.push(subject);
        }
        ran
    }

    /// The first plan, by index, whose run `wanted` accepts, with that run. Later ones may have been run in vain.
    pub fn first(
        &self,
        plans: &[Plan],
        wanted: &(dyn Fn(&Ran) -> bool + Sync),
    ) -> Result<Option<(usize, Ran)>, ExploreError> {
        let next = AtomicUsize::new(0);
        let best: Mutex<Option<(usize, Result<Ran, ExploreError>)>> = Mutex::default();
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let done = best.lock().map_or(true, |best| best.as_ref().is_some_and(|(found, _)| *found < index));
                if done || index >= plans.len() {
                    return;
                }
                let ran = self.run(&plans[index]);
                let counts = ran.as_ref().map_or(true, wanted);
                if let (true, Ok(mut best)) = (counts, best.lock())
                    && best.as_ref().is_none_or(|(found, _)| index < *found)
                {
                    *best = Some((index, ran));
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.jobs.min(plans.len()) {
                scope.spawn(work);
            }
            work();
        });
        match best.into_inner().map_err(|_| poisoned())? {
            None => Ok(None),
            Some((index, ran)) => Ok(Some((index, ran?))),
        }
    }
}

fn poisoned() -> ExploreError {
    ExploreError::Internal("a worker thread panicked".to_owned())
}
