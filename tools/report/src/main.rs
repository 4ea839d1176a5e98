// SPDX-License-Identifier: AGPL-3.0-or-later
//! Writes a campaign as one page for people.

use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::{ExitCode, ObjectRef};
use chaoscontrol_cli::{
    ALLOW_UNFAITHFUL_KVM, BUG, Context, FROM, Failure, Failures, Flag, INPUT, Output, PIN_CORE, STORE, TIER, Tool,
    WATCHDOG, descriptor_before, identity, stores_checked, tool_main,
};
use chaoscontrol_evidence::page;
use chaoscontrol_explore::journal::journal_of;
use chaoscontrol_explore::machines::{Host, choose_tier};
use chaoscontrol_explore::stages::reproduce::without_paths;

static TOOL: Tool = Tool {
    name: "chaos-report",
    stage: "report",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "write a campaign as one page for people",
    about: "Writes one self-contained HTML page about a campaign, from the descriptor of any of its stages: the verdict, each bug \
            with its minimal schedule, what machines, messages and consoles did before it, and the command that runs it again; \
            coverage, assertions, faults. Each bug's branch is replayed to watch it; what the documents say is shown without that \
            too. The page loads nothing and runs no script, text from guests is escaped, and the same campaign gives the same bytes.",
    reads: "The descriptor of any stage, best that of chaos-receipt; the objects it goes back to.",
    writes: "On stdout: the report.",
    flags: &[
        Flag::one("format", "NAME", "How it is written").choices(&["html", "text", "json"]).default("html"),
        BUG,
        Flag::switch("no-replay", "Show what the documents say only; run nothing"),
        TIER,
        ALLOW_UNFAITHFUL_KVM,
        PIN_CORE,
        WATCHDOG,
        INPUT,
        STORE,
        FROM,
    ],
    positional: None,
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks],
    examples: [
        ("A page for colleagues", "chaos-report < receipt.json > report.html"),
        ("The first bug on the terminal", "chaos-report --format text --bug 1 --in receipt.json"),
    ],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, run)
}

fn run(context: &Context) -> Failures<Output> {
    let arguments = &context.arguments;
    choose_tier(arguments.text("tier")?.as_deref());
    let (allow_unfaithful, pin_core, watchdog_s) = arguments.kvm()?;
    let host = Host::from_flags(None, allow_unfaithful, pin_core, watchdog_s).map_err(Failure::usage)?;
    let format = arguments.text("format")?;
    let only = arguments.number("bug")?;
    let replays = !arguments.is_set("no-replay");
    let store = stores_checked(context)?;
    let descriptor = descriptor_before(context, &store)?;
    let mut replayed = 0;
    let mut replay = |bug: &ObjectRef| {
        if !replays {
            return Err("the report was asked for without replaying".to_owned());
        }
        context.progress.at(replayed, 0, "bugs replayed");
        replayed += 1;
        journal_of(&store, bug, host.kvm).map_err(|error| without_paths(&error))
    };
    let report = page::gather(&store, identity(&TOOL), descriptor, only, &mut replay)?;
    store.release()?;
    let text = match format.as_deref() {
        Some("text") => page::text(&report),
        Some("json") => page::json(&report)?,
        _ => page::html(&report),
    };
    Ok(Output::new(text.into_bytes()))
}
