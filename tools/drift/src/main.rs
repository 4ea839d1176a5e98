// SPDX-License-Identifier: AGPL-3.0-or-later
//! Runs a profile many times in processes of their own and compares every run.

mod runs;

use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::{ExitCode, StageResult};
use chaoscontrol_cli::{
    ALLOW_UNFAITHFUL_KVM, FROM, Failure, Failures, Flag, INPUT, JOBS, PIN_CORE, SEED, STORE, Stage, TIER, Tool,
    WATCHDOG, stage_main,
};
use chaoscontrol_explore::machines::{Host, choose_tier};
use chaoscontrol_explore::stages::drift::{DriftOptions, PROFILES, once};
use chaoscontrol_explore::stages::explore::HORIZON_NS_MAX;

/// Cluster time of a branch: enough for an election or two, and short enough for hundreds of runs.
const HORIZON_NS: u64 = 200_000_000;

static TOOL: Tool = Tool {
    name: "chaos-drift",
    stage: "drift",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs"), include_str!("runs.rs")],
    summary: "run a profile many times in processes of their own and compare every run",
    about: "Runs the branches of a named profile --runs times, each time in a process of its own: every second run beside a \
            thread that does nothing but use a core, and every second pair of runs with two jobs. All runs must give the \
            same traces to the last bit; the first that does not ends with code 12 and the first event that differs. The \
            descriptor says how many runs agreed, and chaos-verdict takes it as any other.",
    reads: "The descriptor of chaos-boot, or of another stage that passes on its snapshot.",
    writes: "Objects: the traces of one run. On stdout: a descriptor.",
    flags: &[
        Flag::one("runs", "N", "How many runs, 2 to 100000").default("20"),
        Flag::one("profile", "NAME", "What a run's branches do").choices(&PROFILES).default("cluster"),
        Flag::one("branches", "N", "Branches of a run").default("2"),
        Flag::one("horizon-ns", "N", "Length of a branch").default("200000000"),
        Flag::switch("from-boot", "Boot the guests in each run in place of restoring the snapshot"),
        Flag::switch("once", "Run once, in this process, and write the traces: what is started for each run"),
        JOBS,
        SEED,
        TIER,
        ALLOW_UNFAITHFUL_KVM,
        PIN_CORE,
        WATCHDOG,
        INPUT,
        STORE,
        FROM,
    ],
    positional: None,
    exit_codes: &[
        ExitCode::BadInput,
        ExitCode::HostLacks,
        ExitCode::GuestFailed,
        ExitCode::BudgetExhausted,
        ExitCode::Diverged,
    ],
    examples: [
        (
            "Does this host keep the promise?",
            "chaos-drift --runs 200 < boot.json | chaos-verdict | chaos-receipt > receipt.json",
        ),
        ("Booting too", "chaos-drift --runs 20 --profile single --from-boot < boot.json"),
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
    let options = DriftOptions {
        profile: arguments.text("profile")?.unwrap_or_else(|| "cluster".to_owned()),
        branches: arguments.number_within("branches", 1, 1 << 16, 2)? as u32,
        horizon_ns: arguments.number_within("horizon-ns", 1, HORIZON_NS_MAX, HORIZON_NS)?,
        seed: stage.seed()?,
        from_boot: arguments.is_set("from-boot"),
        jobs: if arguments.is_set("jobs") { stage.context.jobs()? } else { 1 },
        host,
    };
    if arguments.is_set("once") {
        let progress = &stage.context.progress;
        let talk = |done: u64, total: u64, note: &str| progress.at(done, total, note);
        return Ok(once(stage.store, stage.before()?, &options, &talk)?);
    }
    let runs = arguments.number_within("runs", 2, 100_000, 20)?;
    runs::compare_runs(stage, &options, runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_states_the_horizon_that_holds() {
        let flag = TOOL.flags.iter().find(|flag| flag.long == "horizon-ns").unwrap();
        assert_eq!(flag.default, Some(HORIZON_NS.to_string().as_str()));
    }
}
