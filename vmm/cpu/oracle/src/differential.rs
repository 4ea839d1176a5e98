// SPDX-License-Identifier: AGPL-3.0-or-later
//! Our CPU against the host's: the loop over cases.

use crate::case::Case;
use crate::compare::Difference;
use crate::generate;
use crate::guest::Guests;
use crate::host;
use crate::masks::{self, Open};
use crate::minimize::minimize;
use crate::native::{BATCH, Native, NativeError, NativeRunner};
use crate::random::{below, pick, stream};
use crate::report;
use crate::vendors;
use chaoscontrol_cpu::table::{Status, status};
use iced_x86::{Code, InstructionInfoFactory};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};

/// What kind of cases to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One instruction, every implemented one in turn.
    Single,
    /// Two to six instructions.
    Sequence,
    /// Random bytes: one instruction, or none.
    Noise,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of cases.
    pub cases: u64,
    /// First case's number.
    pub first: u64,
    /// Seed.
    pub seed: u64,
    /// Only mnemonics or codes whose name contains this, without regard to case.
    pub filter: Option<String>,
    /// What kind of cases.
    pub kind: Kind,
    /// Compare with the host too, not only the tiers with each other.
    pub host: bool,
    /// Failures to collect before giving up; one a `Code` is kept.
    pub failures_max: usize,
    /// Threads to run on. The result is the same for any number.
    pub jobs: usize,
}

/// Numbers of cases that a job takes at a time; after each stretch it is seen whether there are failures enough.
const STRETCH: u64 = 1 << 13;
/// Stretches that a job may be ahead of what was looked at.
const AHEAD: usize = 2;

/// A failing case, made small.
pub struct Failure {
    /// Its number.
    pub index: u64,
    /// The first code, for grouping.
    pub code: Code,
    /// The small case.
    pub case: Case,
    /// What differs.
    pub difference: Difference,
}

/// What a campaign found.
#[derive(Default)]
pub struct Summary {
    /// Cases compared.
    pub compared: u64,
    /// Cases that the child did not survive.
    pub lost: Vec<(u64, &'static str)>,
    /// Cases compared for each code.
    pub per_code: BTreeMap<Code, u64>,
    /// Targets for which no encoding was found.
    pub not_encoded: BTreeSet<(Code, u32)>,
    /// Failures, one a code.
    pub failures: Vec<Failure>,
}

/// Every implemented code that the host can judge, with the code segment sizes it exists in.
pub fn targets(filter: Option<&str>) -> Vec<(Code, u32)> {
    let wanted = |code: Code| {
        let name = format!("{code:?}").to_lowercase();
        filter.is_none_or(|filter| name.contains(&filter.to_lowercase()))
    };
    Code::values()
        .filter(|&code| {
            matches!(status(code), Status::Implemented(_)) && host::exclusion(code).is_none() && wanted(code)
        })
        .flat_map(|code| [(code, 64), (code, 32)])
        .filter(|&(code, bits)| if bits == 64 { code.op_code().mode64() } else { code.op_code().mode32() })
        .filter(|&(code, bits)| host::agrees_on_encoding(code, bits))
        .collect()
}

/// Runs a campaign; `progress` is told how many numbers are done. Stretch `n` belongs to job `n` modulo the number of jobs, and the
/// stretches are looked at in their order, so that neither the result nor where it stops depends on the jobs.
pub fn run(options: &Options, mut progress: impl FnMut(u64)) -> Result<Summary, NativeError> {
    let jobs = options.jobs.max(1);
    std::thread::scope(|scope| {
        let start = |job| {
            let (sender, receiver) = sync_channel(AHEAD);
            scope.spawn(move || work(options, job, &sender));
            receiver
        };
        let receivers: Vec<_> = (0..jobs).map(start).collect();
        let mut summary = Summary::default();
        for (stretch, receiver) in options.stretches().zip(receivers.iter().cycle()) {
            // A job that ended without an answer has panicked, which the scope passes on.
            let Ok(part) = receiver.recv() else { break };
            summary.add(part?);
            progress(stretch.end - options.first);
            if summary.failures.len() >= options.failures_max {
                break;
            }
        }
        Ok(summary)
    })
}

/// Runs the stretches of one job until nobody wants more. All of a job happens on one thread, since the child of the native runner
/// ends with the thread that started it.
fn work(options: &Options, job: usize, sender: &SyncSender<Result<Summary, NativeError>>) {
    let mut campaign = match Campaign::new(options) {
        Ok(campaign) => campaign,
        Err(error) => {
            // Only a receiver that has stopped for another job's error is gone already.
            let _ = sender.send(Err(error));
            return;
        }
    };
    for stretch in options.stretches().skip(job).step_by(options.jobs.max(1)) {
        let result = campaign.run(stretch);
        let failed = result.is_err();
        if sender.send(result).is_err() || failed {
            return;
        }
    }
}

impl Options {
    /// The numbers of the cases, cut into stretches.
    fn stretches(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let end = self.first.saturating_add(self.cases);
        std::iter::successors(Some(self.first), |start| start.checked_add(STRETCH))
            .take_while(move |&start| start < end)
            .map(move |start| start..end.min(start.saturating_add(STRETCH)))
    }
}

impl Summary {
    /// Adds what a later stretch found. Of a code that failed in several jobs the lowest case is kept.
    fn add(&mut self, later: Self) {
        self.compared += later.compared;
        self.lost.extend(later.lost);
        for (code, cases) in later.per_code {
            *self.per_code.entry(code).or_default() += cases;
        }
        self.not_encoded.extend(later.not_encoded);
        let known: BTreeSet<Code> = self.failures.iter().map(|failure| failure.code).collect();
        self.failures.extend(later.failures.into_iter().filter(|failure| !known.contains(&failure.code)));
    }
}

/// The outcome of one case on both, for people.
pub fn replay(case: &Case) -> Result<Option<Difference>, NativeError> {
    let mut native = NativeRunner::new()?;
    let results = native.run(std::slice::from_ref(case))?;
    let mut guests = Guests::default();
    let mut factory = InstructionInfoFactory::new();
    Ok(match results.into_iter().next() {
        Some(Native::Done(expected)) => guests.judge(case, &expected, &mut factory),
        Some(Native::Lost(how)) => {
            Some(Difference { what: "the native run".into(), expected: how.into(), got: String::new() })
        }
        None => None,
    })
}

struct Campaign<'a> {
    options: &'a Options,
    /// The host, if it is asked.
    native: Option<NativeRunner>,
    guests: Guests,
    factory: InstructionInfoFactory,
    targets: Vec<(Code, u32)>,
    failed: BTreeSet<Code>,
    summary: Summary,
}

impl<'a> Campaign<'a> {
    fn new(options: &'a Options) -> Result<Self, NativeError> {
        let mut targets = targets(options.filter.as_deref());
        if options.kind == Kind::Sequence {
            targets.retain(|&(code, _)| certain(code));
        }
        Ok(Self {
            options,
            native: options.host.then(NativeRunner::new).transpose()?,
            guests: Guests::default(),
            factory: InstructionInfoFactory::new(),
            targets,
            failed: BTreeSet::new(),
            summary: Summary::default(),
        })
    }

    /// Runs one stretch and gives what it found.
    fn run(&mut self, numbers: Range<u64>) -> Result<Summary, NativeError> {
        let mut batch = Vec::with_capacity(BATCH);
        for index in numbers {
            if let Some((code, case)) = self.generate(index) {
                batch.push((index, code, case));
            }
            if batch.len() == BATCH {
                self.check(&batch)?;
                batch.clear();
            }
        }
        self.check(&batch)?;
        Ok(std::mem::take(&mut self.summary))
    }

    fn generate(&mut self, index: u64) -> Option<(Code, Case)> {
        let mut rng = stream(self.options.seed, index);
        if self.options.kind == Kind::Noise {
            let bits = pick(&mut rng, &[64, 64, 32]);
            let case = generate::safe_noise(&mut rng, bits, |code| host::runs_like_ours(code, bits))?;
            if host::splits_lock(&case) || self.options.host && vendors::differ(&case) {
                return None;
            }
            return Some((generate::encode::decode(bits, case.code(), case.rip).code(), case));
        }
        if self.targets.is_empty() {
            return None;
        }
        let (code, bits) = self.targets[(index % self.targets.len() as u64) as usize];
        let made = match self.options.kind {
            Kind::Sequence => {
                let mut codes = vec![code];
                while codes.len() < 6 && (codes.len() < 2 || below(&mut rng, 3) > 0) {
                    let (code, other) = pick(&mut rng, &self.targets);
                    if other == bits {
                        codes.push(code);
                    }
                }
                generate::sequence(&mut rng, &mut self.factory, &codes, bits)
            }
            _ => generate::single(&mut rng, &mut self.factory, code, bits),
        };
        if made.is_none() && self.options.kind == Kind::Single {
            self.summary.not_encoded.insert((code, bits));
        }
        // Sequences lock nothing at all: their later addresses are not known.
        let unfit = |case: &Case| host::splits_lock(case) || self.options.host && vendors::differ(case);
        made.filter(|case| !unfit(case)).map(|case| (code, case))
    }

    /// Compares the tiers with each other alone.
    fn check_tiers(&mut self, batch: &[(u64, Code, Case)]) {
        for (index, code, case) in batch {
            self.summary.compared += 1;
            *self.summary.per_code.entry(*code).or_default() += 1;
            if self.guests.agree(case).is_some() && self.failed.insert(*code) {
                let guests = &mut self.guests;
                let small = minimize(case, |cases| cases.iter().map(|case| guests.agree(case)).collect());
                let (case, difference) = small.unwrap_or_else(|| {
                    let what = "a difference that did not happen again".into();
                    (*case, Difference { what, expected: String::new(), got: String::new() })
                });
                self.summary.failures.push(Failure { index: *index, code: *code, case, difference });
            }
        }
    }

    fn check(&mut self, batch: &[(u64, Code, Case)]) -> Result<(), NativeError> {
        let cases: Vec<Case> = batch.iter().map(|entry| entry.2).collect();
        let Some(native) = &mut self.native else {
            self.check_tiers(batch);
            return Ok(());
        };
        let results = native.run(&cases)?;
        for ((index, code, case), native) in batch.iter().zip(results) {
            let expected = match native {
                Native::Done(outcome) => outcome,
                Native::Lost(how) => {
                    self.summary.lost.push((*index, how));
                    continue;
                }
            };
            self.summary.compared += 1;
            *self.summary.per_code.entry(*code).or_default() += 1;
            if self.guests.judge(case, &expected, &mut self.factory).is_some() && self.failed.insert(*code) {
                let Self { native: Some(native), guests, factory, .. } = self else { continue };
                let small = minimize(case, |candidates| differences(candidates, native, guests, factory));
                // A failure that does not repeat is one of the harness, and must be seen, too.
                let (case, difference) = small.unwrap_or_else(|| {
                    let what = "a difference that did not happen again".into();
                    (*case, Difference { what, expected: String::new(), got: String::new() })
                });
                self.summary.failures.push(Failure { index: *index, code: *code, case, difference });
            }
        }
        Ok(())
    }
}

/// Whether what `code` computes is certain but for flags, so that a sequence can go on behind it.
fn certain(code: Code) -> bool {
    masks::ROWS
        .iter()
        .filter(|row| row.mnemonics.contains(&code.mnemonic()))
        .all(|row| matches!(row.open, Open::Flags(_) | Open::Shift | Open::Rotate | Open::AccessOrder))
}

/// How each case fails, if it does. What the child does not survive counts as no difference.
fn differences(
    cases: &[Case],
    native: &mut NativeRunner,
    guests: &mut Guests,
    factory: &mut InstructionInfoFactory,
) -> Vec<Option<Difference>> {
    let Ok(results) = native.run(cases) else { return vec![None; cases.len()] };
    let pairs = cases.iter().zip(results);
    pairs
        .map(|(case, native)| match native {
            Native::Done(expected) => guests.judge(case, &expected, factory),
            Native::Lost(_) => None,
        })
        .collect()
}

impl Failure {
    /// Everything needed to see and repeat it.
    pub fn text(&self, options: &Options) -> String {
        format!(
            "# {:?}: {}\n# seed {} case {} ({:?}{})\n{}",
            self.code,
            self.difference,
            options.seed,
            self.index,
            options.kind,
            options.filter.as_ref().map(|filter| format!(", filter {filter}")).unwrap_or_default(),
            report::to_text(&self.case)
        )
    }
}
