// SPDX-License-Identifier: AGPL-3.0-or-later
//! Replays a bug and compares the whole trace.

use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::{ExitCode, StageResult, escape};
use chaoscontrol_cli::{
    ALLOW_UNFAITHFUL_KVM, BUG, FROM, Failure, Failures, Flag, INPUT, PIN_CORE, STORE, Stage, TIER, Tool, WATCHDOG,
    stage_main, write_file,
};
use chaoscontrol_explore::events::json_lines;
use chaoscontrol_explore::machines::{Host, choose_tier};
use chaoscontrol_explore::stages::reproduce::{Heard, ReproduceOptions, reproduce_bugs};

static TOOL: Tool = Tool {
    name: "chaos-reproduce",
    stage: "reproduce",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "replay a bug and compare the whole trace",
    about: "Runs the branch of each bug again, from its snapshot or from cold boot, and compares every round with the \
            recorded one. A snapshot that is missing or damaged is a result; a replay that differs ends with code 12 and \
            names the first difference.",
    reads: "The descriptor of chaos-minimize or of a round; the bugs it names, their traces and snapshot.",
    writes: "Objects: a reproduction a bug, console output with --serial. On stdout: a descriptor. With --events a file.",
    flags: &[
        BUG,
        Flag::switch("from-boot", "Boot the guests again in place of restoring the snapshot"),
        Flag::switch("serial", "Keep console output, and show it on stderr"),
        Flag::one("events", "FILE", "Write the events of the one bug that is replayed, as JSON lines"),
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
        ("All bugs from their snapshot", "chaos-reproduce < minimal.json > reproduced.json"),
        (
            "The first one from cold boot, with its console",
            "chaos-reproduce --bug 1 --from-boot --serial < minimal.json > reproduced.json",
        ),
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
    let options = ReproduceOptions {
        kvm: host.kvm,
        bug: arguments.number("bug")?,
        from_boot: arguments.is_set("from-boot"),
        serial: arguments.is_set("serial"),
    };
    let progress = &stage.context.progress;
    let talk = |done: u64, total: u64, note: &str| progress.at(done, total, note);
    let (result, heard) = reproduce_bugs(stage.store, stage.before()?, &options, &talk)?;
    for Heard { bug, serial, .. } in &heard {
        for (vm, text) in serial.iter().enumerate() {
            let text = escape::terminal_lines(&String::from_utf8_lossy(text));
            progress.show(&format!("bug {}, console of vm {vm}:\n{text}", bug.digest.short()));
        }
    }
    if let Some(path) = arguments.path("events") {
        let events = match heard.as_slice() {
            [] => &[][..],
            [one] => &one.events,
            more => {
                let what =
                    format!("--events writes those of one bug, and there are {}: say which with --bug", more.len());
                return Err(Failure::usage(what));
            }
        };
        write_file(&path, json_lines(events).as_bytes())?;
    }
    Ok(result)
}
