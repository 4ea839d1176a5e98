// SPDX-License-Identifier: AGPL-3.0-or-later
//! Says which engines and modes work on this host, and what each may claim here.

use std::process::ExitCode as ProcessCode;
use std::time::Instant;

use chaoscontrol_artifact::escape;
use chaoscontrol_cli::{Context, Failure, Failures, Flag, Output, Tool, tool_main};
use chaoscontrol_machine::kvm::{ExitCost, HostReport, measure, report};

static TOOL: Tool = Tool {
    name: "chaos-capabilities",
    stage: "capabilities",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "say which engines and modes work on this host, and what each may claim here",
    about: "Runs tiny guests on this host's KVM and reports whether it behaves like a CPU (kvm.faithful, else kvm.reasons), \
            what of the host a guest can see, which modes work and why others do not, and what an exit costs. The exact \
            engine needs nothing and works everywhere.",
    reads: "Nothing but this host.",
    writes: "On stdout: a table; with --json one JSON document.",
    flags: &[
        Flag::switch("json", "Write JSON"),
        Flag::switch("no-measure", "Measure no times: what is written then is the same each time"),
    ],
    positional: None,
    exit_codes: &[],
    examples: [
        ("What can this host do?", "chaos-capabilities"),
        ("May a check count on KVM?", "chaos-capabilities --json | grep -q '\"faithful\":true'"),
    ],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, run)
}

fn run(context: &Context) -> Failures<Output> {
    let report = report();
    let started = Instant::now();
    let clock = || started.elapsed().as_nanos() as u64;
    let measured = report.present && !context.arguments.is_set("no-measure");
    let cost = if measured { measure(&clock) } else { None };
    let text = if context.arguments.is_set("json") { json(report, cost)? } else { table(report, cost) };
    Ok(Output::new(text.into_bytes()))
}

fn json(report: &HostReport, cost: Option<ExitCost>) -> Failures<String> {
    let document = serde_json::json!({
        "schema": "chaoscontrol.capabilities",
        "version": 1,
        "engines": { "exact": { "works": true, "leaks": [] } },
        "kvm": report,
        "cost": cost,
    });
    let internal =
        |error: serde_json::Error| Failure::new(chaoscontrol_artifact::ExitCode::Internal, error.to_string());
    Ok(serde_json::to_string(&document).map_err(internal)? + "\n")
}

fn table(report: &HostReport, cost: Option<ExitCost>) -> String {
    let mut lines = Vec::new();
    let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
    let mut row = |name: &str, value: String| lines.push(format!("{name:24} {value}"));
    row("/dev/kvm", yes(report.present));
    row("faithful", yes(report.faithful));
    for reason in &report.reasons {
        row("  reason", reason.clone());
    }
    if report.present {
        row("kernel code", if report.ring0_emulated { "emulated" } else { "runs on the cpu" }.to_owned());
        row("cpuid shows the model", yes(report.cpuid_filtered));
        row("rdtsc reaches the host", yes(report.rdtsc_reachable));
        row("rdrand reaches the host", yes(report.rdrand_reachable));
        row("single step", yes(report.single_step));
        row("halt seen in a step", yes(report.halt_seen_in_step));
        row("host page tables seen", yes(report.host_page_tables_seen));
        row("tsc scaling", yes(report.tsc_scaling));
        row("instruction counter", report.pmu_why_not.clone().unwrap_or_else(|| "yes".to_owned()));
    }
    if let Some(cost) = cost {
        row("one exit", format!("{} ns", cost.exit_ns));
        row("one single step", format!("{} ns", cost.step_ns));
        row("kernel code", format!("{} instructions/s", cost.ring0_instructions_per_second));
    }
    row("engine exact", "works".to_owned());
    for mode in &report.modes {
        let how = match &mode.why_not {
            Some(why) => format!("does not work: {why}"),
            None if report.faithful => "works".to_owned(),
            None => "works with --allow-unfaithful-kvm only".to_owned(),
        };
        row(&format!("engine {}", mode.name), how);
        for leak in &mode.leaks {
            row("  shows the host", leak.clone());
        }
    }
    // The reasons hold the host's own error texts.
    escape::terminal_lines(&lines.join("\n")) + "\n"
}
