// SPDX-License-Identifier: AGPL-3.0-or-later
//! Worker threads, each with its own subject.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::ExploreError;
use crate::subject::{Factory, Plan, Ran, Subject};

/// Subjects that are made once and used by whichever thread needs one.
pub struct Pool<'a> {
    factory: &'a dyn Factory,
    idle: Mutex<Vec<Box<dyn Subject>>>,
    jobs: usize,
}

/// Threads at most: more than any machine has cores for, a bound against mistyped numbers.
pub const JOBS_MAX: u32 = 1024;

impl<'a> Pool<'a> {
    /// A pool of at most `jobs` threads.
    pub fn new(factory: &'a dyn Factory, jobs: u32) -> Self {
        Self { factory, idle: Mutex::default(), jobs: jobs.clamp(1, JOBS_MAX) as usize }
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
