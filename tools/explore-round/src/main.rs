// SPDX-License-Identifier: AGPL-3.0-or-later
//! Forks branches from a snapshot, explores fault schedules and reports bugs.

use std::process::ExitCode as ProcessCode;

use chaos_explore_round::{
    BRANCHES, BUGS, FATAL, HORIZON, INSTRUCTIONS, LOG_JSON, MODE, PLATEAU, SCHEDULE, SHARD, TIME, WINDOW, WITHOUT, run,
};
use chaoscontrol_artifact::ExitCode;
use chaoscontrol_cli::{
    ALLOW_UNFAITHFUL_KVM, ENGINE, FROM, INPUT, JOBS, PIN_CORE, PREFIX_CACHE, PROFILE, SEED, STORE, TIER, Tool,
    WATCHDOG, stage_main,
};

static TOOL: Tool = Tool {
    name: "chaos-explore-round",
    stage: "explore-round",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs"), chaos_explore_round::SOURCE],
    summary: "fork branches from a snapshot, explore fault schedules and report bugs",
    about: "Runs branches from one snapshot, each under its own schedule of faults, keeps the schedules that reach new \
            edges, grows later schedules from them, and reports every distinct violation once. A bug is data: the exit \
            code is 0 with and without one.",
    reads: "The descriptor of chaos-boot, or of an earlier round to go on from; the objects it names.",
    writes: "Objects: corpus, coverage map, assertions, a trace and a document a bug. On stdout: a descriptor.",
    flags: &[
        BRANCHES,
        SHARD,
        JOBS,
        PREFIX_CACHE,
        TIER,
        SEED,
        PROFILE,
        HORIZON,
        SCHEDULE,
        WITHOUT,
        MODE,
        BUGS,
        FATAL,
        PLATEAU,
        LOG_JSON,
        INSTRUCTIONS,
        TIME,
        WINDOW,
        ENGINE.default("that of the stage before"),
        ALLOW_UNFAITHFUL_KVM,
        PIN_CORE,
        WATCHDOG,
        INPUT,
        STORE,
        FROM,
    ],
    positional: None,
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks, ExitCode::RequirementFailed, ExitCode::BudgetExhausted],
    examples: [
        ("64 branches from a booted cluster", "chaos-explore-round --branches 64 < boot.json > round.json"),
        (
            "One branch under a schedule of your own",
            "chaos-explore-round --branches 1 --schedule faults.json < boot.json | chaos-show",
        ),
    ],
};

fn main() -> ProcessCode {
    stage_main(&TOOL, |stage| run(stage, None))
}
