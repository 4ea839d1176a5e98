// SPDX-License-Identifier: AGPL-3.0-or-later
//! Runs a thing twice and names the first differing event.

use std::process::ExitCode as ProcessCode;

use chaos_diverge::branch;
use chaoscontrol_artifact::ExitCode;
use chaoscontrol_cli::{
    ALLOW_UNFAITHFUL_KVM, BUG, Context, FROM, Failures, Flag, INPUT, Output, PIN_CORE, SEED, STORE, TIER, Tool,
    WATCHDOG, descriptor_before, stores_checked, tool_main, write_file,
};
use chaoscontrol_explore::events::json_lines;
use chaoscontrol_explore::stages::diverge::{Instruction, diverge};

static TOOL: Tool = Tool {
    name: "chaos-diverge",
    stage: "diverge",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs"), chaos_diverge::SOURCE],
    summary: "run a thing twice and name the first event that differs",
    about: "Runs a bug's branch, or a branch of your own from a snapshot, twice on machines of their own and compares every \
            round. Two runs must be the same to the last bit; where they are not, it names VM, time, instruction and the \
            registers that differ, and ends with code 12.",
    reads: "The descriptor of any stage that wrote a snapshot or bugs; the objects it names.",
    writes: "On stdout: a line, or the first difference. With --events a file, if there is none.",
    flags: &[
        BUG,
        Flag::switch("from-boot", "Boot the guests each time in place of restoring the snapshot"),
        Flag::one("horizon-ns", "N", "Length of a branch of your own").default("5000000000"),
        Flag::one("schedule", "FILE", "Faults of a branch of your own").default("none"),
        Flag::one("events", "FILE", "Write the events that the guests reported, as JSON lines"),
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
        ("Is booting deterministic here?", "chaos-diverge --from-boot --horizon-ns 1000000 < boot.json"),
        ("A bug that would not replay", "chaos-diverge --bug 1 < round.json"),
    ],
};

fn main() -> ProcessCode {
    #[cfg(feature = "canary")]
    chaoscontrol_machine::canary::leak(chaoscontrol_cli::canary::host_ns);
    tool_main(&TOOL, run)
}

fn run(context: &Context) -> Failures<Output> {
    let arguments = &context.arguments;
    let store = stores_checked(context)?;
    let descriptor = descriptor_before(context, &store)?;
    let options = branch(context, &store, &descriptor)?;
    store.release()?;
    let talk = |done: u64, total: u64, note: &str| context.progress.at(done, total, note);
    match diverge(&store, &descriptor, &options, &talk)? {
        Ok(same) => {
            if let Some(path) = arguments.path("events") {
                write_file(&path, json_lines(&same.events).as_bytes())?;
            }
            let line =
                format!("the same: {} rounds, {} instructions, {}\n", same.rounds, same.instructions, same.digest);
            Ok(Output::new(line.into_bytes()))
        }
        Err(diverged) => {
            let at = diverged.at;
            let vm = at.vm.map_or(String::new(), |vm| format!(", vm {vm}"));
            let mut text = format!("diverged in round {} at {} ns{vm}: {}\n", at.round, at.cluster_ns, at.what);
            text.push_str(&format!("  first  {}\n  second {}\n", at.expected, at.found));
            for (name, first, second) in diverged.registers {
                text.push_str(&format!("  {name:24} {first} | {second}\n"));
            }
            if let Some(instruction) = diverged.instruction {
                text.push_str(&shown(&instruction));
            }
            let note = Some("two runs that must be the same are not".to_owned());
            Ok(Output { bytes: text.into_bytes(), code: ExitCode::Diverged, note })
        }
    }
}

fn shown(instruction: &Instruction) -> String {
    let at = instruction.rip.map_or(String::new(), |rip| format!(" at rip {rip:#x}"));
    let mut text = format!("the instruction behind count {} on cpu {}{at}\n", instruction.count, instruction.cpu);
    let [first, second] = &instruction.follows;
    text.push_str(&format!("  first  {first}\n  second {second}\n"));
    for (name, first, second) in &instruction.registers {
        text.push_str(&format!("  {name:24} {first} | {second}\n"));
    }
    text
}
