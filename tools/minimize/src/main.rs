// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shrinks a bug's schedule to the faults that matter.

use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::{ExitCode, StageResult};
use chaoscontrol_cli::{
    ALLOW_UNFAITHFUL_KVM, BUG, FROM, Failure, Failures, Flag, INPUT, JOBS, PIN_CORE, PREFIX_CACHE, STORE, Stage, TIER,
    Tool, WATCHDOG, stage_main,
};
use chaoscontrol_explore::machines::{Host, choose_tier};
use chaoscontrol_explore::stages::minimize::{ATTEMPTS, MinimizeOptions, minimize_bugs};

static TOOL: Tool = Tool {
    name: "chaos-minimize",
    stage: "minimize",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "shrink a bug's schedule to the faults that matter",
    about: "Runs each bug again under smaller and smaller schedules until leaving out any one fault makes it go away, \
            then makes parameters small and times round. A bug whose snapshot cannot be read is passed on as it is.",
    reads: "The descriptor of a round; the bugs it names and their snapshot.",
    writes: "Objects: a minimized bug and its trace for each bug. On stdout: a descriptor.",
    flags: &[
        BUG,
        Flag::one("attempts", "N", "Branches that one bug may cost").default("400"),
        Flag::switch(
            "exhaustive",
            "Also run every subset of up to three of the faults found, and say how many the smallest has that shows the bug",
        ),
        JOBS,
        PREFIX_CACHE,
        TIER,
        ALLOW_UNFAITHFUL_KVM,
        PIN_CORE,
        WATCHDOG,
        INPUT,
        STORE,
        FROM,
    ],
    positional: None,
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks, ExitCode::BudgetExhausted, ExitCode::Diverged],
    examples: [
        ("All bugs of a round", "chaos-minimize < round.json > minimal.json"),
        ("The second one, and look at it", "chaos-minimize --bug 2 < round.json | chaos-show"),
    ],
};

fn main() -> ProcessCode {
    stage_main(&TOOL, work)
}

fn work(stage: &Stage) -> Failures<StageResult> {
    let arguments = &stage.context.arguments;
    choose_tier(arguments.text("tier")?.as_deref());
    let (allow_unfaithful, pin_core, watchdog_s) = arguments.kvm()?;
    let host = Host::from_flags(None, allow_unfaithful, pin_core, watchdog_s).map_err(Failure::usage)?;
    let options = MinimizeOptions {
        host: Host { prefix_cache_bytes: arguments.prefix_cache_bytes()?, ..host },
        bug: arguments.number("bug")?,
        attempts: arguments.number_within("attempts", 1, 1 << 20, u64::from(ATTEMPTS))? as u32,
        jobs: stage.context.jobs()?,
        exhaustive: arguments.is_set("exhaustive"),
    };
    let progress = &stage.context.progress;
    Ok(minimize_bugs(stage.store, stage.before()?, &options, &|done, total, note| progress.at(done, total, note))?)
}
