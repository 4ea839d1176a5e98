// SPDX-License-Identifier: AGPL-3.0-or-later
//! Drives many exploration rounds.

use std::process::ExitCode as ProcessCode;

use chaos_explore_round::{
    BRANCHES, BUGS, CHECKPOINT, FATAL, HORIZON, INSTRUCTIONS, LOG_JSON, MODE, PLATEAU, SCHEDULE, TIME, WINDOW, WITHOUT,
    run,
};
use chaoscontrol_artifact::ExitCode;
use chaoscontrol_cli::{
    ALLOW_UNFAITHFUL_KVM, ENGINE, FROM, Flag, INPUT, JOBS, PIN_CORE, PREFIX_CACHE, PROFILE, SEED, STORE, TIER, Tool,
    WATCHDOG, stage_main,
};

static TOOL: Tool = Tool {
    name: "chaos-explore",
    stage: "explore",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs"), chaos_explore_round::SOURCE],
    summary: "drive many exploration rounds",
    about: "Runs rounds of branches one after the other, as so many chaos-explore-round in a pipeline would, and writes \
            the same objects: a corpus after each round, from which anything can go on.",
    reads: "The descriptor of chaos-boot, or of an earlier exploration to go on from; the objects it names.",
    writes: "Objects: corpus, coverage map and assertions after each round, a trace and a document a bug. On stdout: a \
             descriptor.",
    flags: &[
        Flag::one("rounds", "N", "Rounds").default("10"),
        BRANCHES,
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
        CHECKPOINT,
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
        (
            "Ten rounds, or until a bug is known",
            "chaos-explore --rounds 10 --stop-after-bugs 1 < boot.json > explored.json",
        ),
        ("Go on for an hour", "chaos-explore --rounds 100000 --time-limit-s 3600 < explored.json > more.json"),
    ],
};

fn main() -> ProcessCode {
    stage_main(&TOOL, |stage| run(stage, Some(10)))
}
