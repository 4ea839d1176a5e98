// SPDX-License-Identifier: AGPL-3.0-or-later
//! What `chaos-explore-round` and `chaos-explore` share: the flags of a round, and running rounds.

use std::time::{Duration, Instant};

use chaoscontrol_artifact::schema::{ScheduleDocument, WINDOW_MAX};
use chaoscontrol_artifact::{MediaType, StageResult, document};
use chaoscontrol_cli::{Failure, FailureExt, Failures, Flag, Stage, read_input};
use chaoscontrol_explore::Shard;
use chaoscontrol_explore::machines::{Host, choose_tier};
use chaoscontrol_explore::stages::explore::{ExploreOptions, HORIZON_NS_MAX, explore};

/// This file: part of the identity of both tools.
pub const SOURCE: &str = include_str!("lib.rs");

/// `--branches`.
pub const BRANCHES: Flag = Flag::one("branches", "N", "Branches of a round").default("64");
/// `--horizon-ns`.
pub const HORIZON: Flag = Flag::one("horizon-ns", "N", "Length of a branch in cluster ns")
    .default("that of the round before, else 5000000000");
/// `--window`.
pub const WINDOW: Flag = Flag::one("window", "N", "Branch i is planned from the results of branches up to i-N")
    .default("that of the round before, else 16");
/// `--instructions`.
pub const INSTRUCTIONS: Flag = Flag::one("instructions", "N", "Budget of guest instructions for the whole campaign");
/// `--stop-after-bugs`.
pub const BUGS: Flag = Flag::one("stop-after-bugs", "N", "Stop once N distinct bugs are known");
/// `--time-limit-s`.
pub const TIME: Flag =
    Flag::one("time-limit-s", "N", "Stop after N seconds and leave a corpus to go on from; changes where, not what");
/// `--schedule`.
pub const SCHEDULE: Flag = Flag::one(
    "schedule",
    "FILE",
    "Faults that every branch has, written by hand: the next branch has just these, later ones get more on top",
)
.default("that of the round before, else none");

/// `--shard`.
pub const SHARD: Flag = Flag::one(
    "shard",
    "I/N",
    "Explore part I of N of the round only; chaos-merge puts the parts together. --branches is that of the whole round",
)
.default("1/1");

fn shard(text: Option<String>) -> Failures<Shard> {
    let parsed = text.map_or(Ok(Shard::WHOLE), |text| text.parse());
    parsed.map_err(|why| Failure::usage(format!("--shard: {why}")))
}

/// Runs `rounds` rounds as the arguments say.
pub fn run(stage: &Stage, rounds: u64) -> Failures<StageResult> {
    let arguments = &stage.context.arguments;
    choose_tier(arguments.text("tier")?.as_deref());
    let within = |name: &str, max: u64| -> Failures<Option<u64>> {
        arguments.is_set(name).then(|| arguments.number_within(name, 1, max, 1)).transpose()
    };
    let (allow_unfaithful, pin_core, watchdog_s) = arguments.kvm()?;
    let engine = arguments.text("engine")?;
    let options = ExploreOptions {
        host: Host::from_flags(engine.as_deref(), allow_unfaithful, pin_core, watchdog_s).map_err(Failure::usage)?,
        rounds,
        branches: arguments.number_within("branches", 1, 1 << 40, 64)?,
        shard: shard(arguments.text("shard")?)?,
        jobs: stage.context.jobs()?,
        seed: stage.seed()?,
        horizon_ns: within("horizon-ns", HORIZON_NS_MAX)?,
        window: within("window", u64::from(WINDOW_MAX))?.map(|window| window as u32),
        instructions: arguments.number("instructions")?,
        bugs: within("stop-after-bugs", u64::from(u32::MAX))?.map(|bugs| bugs as u32),
        schedule: match arguments.path("schedule") {
            Some(path) => {
                let bytes = read_input(&path, MediaType::Schedule.max_bytes())?;
                let document: ScheduleDocument = document::decode_loose(&bytes).context(&path.display().to_string())?;
                Some(document.schedule)
            }
            None => None,
        },
    };
    let limit = within("time-limit-s", 1 << 40)?.map(Duration::from_secs);
    let started = Instant::now();
    let go_on = || limit.is_none_or(|limit| started.elapsed() < limit);
    let progress = &stage.context.progress;
    let talk = |done: u64, total: u64, note: &str| progress.at(done, total, note);
    let (result, total) = explore(stage.store, stage.before()?, &options, &go_on, &talk)?;
    let found = match total.bugs {
        0 => "no bug found; more branches go on from this descriptor".to_owned(),
        1 => "1 bug found".to_owned(),
        bugs => format!("{bugs} bugs found"),
    };
    progress.say(&format!("{} branches, {} edges: {found}", total.branches.0, total.edges));
    Ok(result)
}
