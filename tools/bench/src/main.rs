// SPDX-License-Identifier: AGPL-3.0-or-later
//! Measures the engine against QEMU, snapshots and exploration.

mod engine;
mod explore;
mod qemu;
mod rate;
mod snapshot;
mod table;

use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::ExitCode;
use chaoscontrol_cli::{
    Context, FROM, Failures, Flag, INPUT, JOBS, Output, PREFIX_CACHE, Positional, STORE, TIER, Tool, tool_main,
};
use chaoscontrol_explore::machines::choose_tier;

/// Marked intervals of the guests.
const INTERVALS: [&str; 6] = ["boot", "raft", "integer", "memory", "call", "float"];
/// What it can measure.
const KINDS: [&str; 4] = ["engine", "snapshot", "rate", "explore"];

/// How branches can be planned.
const MODES: [&str; 4] = ["faults", "inputs", "hybrid", "uniform"];

static TOOL: Tool = Tool {
    name: "chaos-bench",
    stage: "bench",
    sources: &[
        include_str!("../Cargo.toml"),
        include_str!("engine.rs"),
        include_str!("explore.rs"),
        include_str!("main.rs"),
        include_str!("qemu.rs"),
        include_str!("rate.rs"),
        include_str!("snapshot.rs"),
        include_str!("table.rs"),
    ],
    summary: "measure the engine against QEMU, snapshots and exploration",
    about: "engine runs one VM and QEMU (tcg, -icount shift=0) through the same marked interval of the same guest, in turn, \
            and compares medians of CPU seconds. snapshot measures what restoring and storing a branch costs by its dirty \
            pages. rate measures branches a second with one job and with two. Numbers are of this host, now. explore \
            counts branches until the first bug, guided and not, over variants of the Raft guest and seeds: the same on every \
            host, however often it was stopped in between.",
    reads: "engine, explore: a kernel and the initrds of guest/build. snapshot, rate: the descriptor of chaos-boot. explore: the \
            file of --state, if there is one.",
    writes: "On stdout: a table, or one JSON object with --json. explore: a line of JSON a campaign to the file of --state.",
    flags: &[
        Flag::switch("json", "One JSON object in place of the table"),
        Flag::one("kernel", "FILE", "engine: kernel for both, an ELF vmlinux or a bzImage"),
        Flag::one(
            "bzimage",
            "FILE",
            "engine: bzImage of the same kernel for QEMU; default: the file bzImage beside --kernel",
        ),
        Flag::one("repeat", "N", "engine: runs of each row, whose medians count").default("3"),
        Flag::one("raft", "FILE", "engine: initrd raft.cpio"),
        Flag::one("loops", "FILE", "engine: initrd loops.cpio"),
        Flag::many("only", "NAME", "engine: only this interval").choices(&INTERVALS),
        Flag::one("rounds", "N", "engine: rounds of each loop").default("20000000"),
        Flag::one("entries", "N", "engine: committed entries of raft").default("500"),
        Flag::one("qemu", "PROGRAM", "engine: QEMU; none leaves the comparison out").default("qemu-system-x86_64"),
        Flag::switch("plain-tcg", "engine: QEMU as it is fastest, without -icount, which counts no instructions"),
        Flag::one("branches", "N", "rate, explore: branches of each run, at most").default("16, explore 256"),
        Flag::one("horizon-ns", "N", "snapshot, rate, explore: length of a branch")
            .default("2000000000, explore 5000000000"),
        Flag::one("seeds", "N", "explore: seeds, from 1 on").default("10"),
        Flag::many(
            "variant",
            "WORDS",
            "explore: appended to the command line of the kernel; default: each planted Raft bug",
        ),
        Flag::many("mode", "NAME", "explore: how branches are planned; default: faults and uniform").choices(&MODES),
        Flag::one("state", "FILE", "explore: results, a line each; what it has is not run again"),
        JOBS,
        PREFIX_CACHE,
        TIER,
        INPUT,
        STORE,
        FROM,
    ],
    positional: Some(Positional {
        name: "engine|snapshot|rate|explore",
        help: "What to measure",
        min: 1,
        max: 1,
        choices: &KINDS,
    }),
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks, ExitCode::GuestFailed],
    examples: [
        ("The engine against QEMU", "chaos-bench engine --kernel vmlinux --raft raft.cpio --loops loops.cpio --json"),
        ("Branches a second", "chaos-bench rate < boot.json"),
    ],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, run)
}

fn run(context: &Context) -> Failures<Output> {
    choose_tier(context.arguments.text("tier")?.as_deref());
    let what = context.arguments.positional.first().and_then(|what| what.to_str()).unwrap_or_default();
    let table = match what {
        "engine" => engine::measure(context)?,
        "snapshot" => snapshot::measure(context)?,
        "rate" => rate::measure(context)?,
        "explore" => explore::measure(context)?,
        other => unreachable!("{other:?} is none of {KINDS:?}"),
    };
    let text = if context.arguments.is_set("json") { table.to_json(what) } else { table.to_text() };
    Ok(Output::new(text.into_bytes()))
}
