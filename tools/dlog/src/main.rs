// SPDX-License-Identifier: AGPL-3.0-or-later
//! Records, shows and compares determinism logs.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode as ProcessCode;

use chaos_diverge::branch;
use chaoscontrol_artifact::{Digest, ExitCode};
use chaoscontrol_cli::{
    ALLOW_UNFAITHFUL_KVM, BUG, Context, FROM, Failure, Failures, Flag, INPUT, Output, PIN_CORE, Positional, SEED,
    STORE, TIER, Tool, WATCHDOG, descriptor_before, read_input, stores_checked, tool_main, write_file,
};
use chaoscontrol_explore::stages::dlog::{Recorded, record};
use chaoscontrol_machine::capacity::ResourceUse;
use chaoscontrol_machine::event_log::LogConfig;
use chaoscontrol_trace::format::BYTES_MAX;
use chaoscontrol_trace::stats::stats;
use chaoscontrol_trace::{Difference, Log, first_difference};

/// What it can do.
const COMMANDS: [&str; 4] = ["record", "dump", "stats", "diff"];
/// Events of one VM unless more are asked for: some 100 MiB of memory.
const EVENTS: u64 = 1 << 20;

static TOOL: Tool = Tool {
    name: "chaos-dlog",
    stage: "dlog",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs"), chaos_diverge::SOURCE],
    summary: "record, show and compare determinism logs",
    about: "A determinism log has every exit of every VM of a branch with what was answered, every interrupt, and with \
            --interval a mark with hashes at fixed counts. record runs a branch and writes its log; dump and stats show \
            one; diff names the first difference of two logs of the same thing, made on two hosts or at two times, and how \
            to record again what encloses it, down to the instruction.",
    reads: "record: the descriptor of any stage that wrote a snapshot or bugs. The others: logs.",
    writes: "record: the log, to --out. The others: text on stdout.",
    flags: &[
        Flag::one("out", "FILE", "record: where the log goes"),
        Flag::one("interval", "N", "record: instructions between two marks; 0 sets none").default("0"),
        Flag::one("vm", "N", "record: log this VM alone").default("all"),
        Flag::one("from-instruction", "N", "record: log from this count on").default("0"),
        Flag::one("to-instruction", "N", "record: log up to this count").default("the end"),
        Flag::switch("registers", "record: marks have all registers"),
        Flag::switch("memory", "record: marks have a hash of memory"),
        Flag::switch("no-exits", "record: marks alone"),
        Flag::one("events-max", "N", "record: events of one VM; a branch that has more ends with code 3")
            .default("1048576"),
        BUG,
        Flag::switch("from-boot", "record: boot the guests in place of restoring the snapshot"),
        Flag::one("horizon-ns", "N", "record: length of a branch of your own").default("5000000000"),
        Flag::one("schedule", "FILE", "record: faults of a branch of your own").default("none"),
        SEED,
        TIER,
        ALLOW_UNFAITHFUL_KVM,
        PIN_CORE,
        WATCHDOG,
        INPUT,
        STORE,
        FROM,
    ],
    positional: Some(Positional {
        name: "record|dump|stats|diff",
        help: "What to do, and the logs to do it with",
        min: 1,
        max: 3,
        choices: &COMMANDS,
    }),
    exit_codes: &[
        ExitCode::BadInput,
        ExitCode::HostLacks,
        ExitCode::GuestFailed,
        ExitCode::BudgetExhausted,
        ExitCode::Diverged,
    ],
    examples: [
        (
            "What a branch did",
            "chaos-dlog record --out a.dlog --interval 100000 < boot.json && chaos-dlog stats a.dlog",
        ),
        ("Do two hosts agree?", "chaos-dlog diff here.dlog there.dlog"),
    ],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, |context| {
        let words = &context.arguments.positional;
        let (command, files) = words.split_first().ok_or_else(|| Failure::usage("which command?"))?;
        let command = command.to_str().unwrap_or_default();
        match (command, files) {
            ("record", []) => recorded(context),
            ("dump", [file]) => dump(&read(Path::new(file))?),
            ("stats", [file]) => Ok(Output::new(stats(&read(Path::new(file))?).into_bytes())),
            ("diff", [first, second]) => diff(&read(Path::new(first))?, &read(Path::new(second))?),
            _ => Err(Failure::usage("record takes no log, dump and stats take one, diff takes two")),
        }
    })
}

fn read(path: &Path) -> Failures<Log> {
    let bytes = read_input(path, BYTES_MAX)?;
    Log::decode(&bytes).map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

fn recorded(context: &Context) -> Failures<Output> {
    let arguments = &context.arguments;
    let out = arguments.required("out")?;
    let store = stores_checked(context)?;
    let descriptor = descriptor_before(context, &store)?;
    let options = branch(context, &store, &descriptor)?;
    let config = LogConfig {
        interval: arguments.number("interval")?.unwrap_or(0),
        from: arguments.number("from-instruction")?.unwrap_or(0),
        to: arguments.number("to-instruction")?.unwrap_or(u64::MAX),
        exits: !arguments.is_set("no-exits"),
        registers: arguments.is_set("registers"),
        memory: arguments.is_set("memory"),
        limit: arguments.number_within("events-max", 1 << 12, 1 << 28, EVENTS)? as usize,
    };
    let vm = arguments.number("vm")?.map(|vm| u16::try_from(vm).unwrap_or(u16::MAX));
    store.release()?;
    let talk = |done: u64, total: u64, note: &str| context.progress.at(done, total, note);
    let Recorded { log, capacity } = record(&store, &descriptor, &options, (vm, config), &talk)?;
    let bytes = log.encode().map_err(|error| Failure::new(ExitCode::Internal, error.to_string()))?;
    write_file(&out, &bytes)?;
    let entries: usize = log.vms.iter().map(Vec::len).sum();
    let mut text = format!("{entries} entries, {} bytes\n", bytes.len());
    for (vm, (plan, rows)) in capacity.iter().enumerate() {
        let _ = writeln!(text, "vm {vm}, capacity plan {}", Digest(*plan));
        for ResourceUse { resource, limit, used, high_water, exhausted } in rows {
            let _ = writeln!(
                text,
                "  {resource:<24} {used:>8} held, at most {high_water:>8} of {limit:>9}, {exhausted} lost"
            );
        }
    }
    Ok(Output::new(text.into_bytes()))
}

fn dump(log: &Log) -> Failures<Output> {
    let mut text = String::new();
    for (vm, entries) in log.vms.iter().enumerate() {
        let _ = writeln!(text, "vm {vm}");
        entries.iter().for_each(|entry| {
            let _ = writeln!(text, "{}", entry.line());
        });
    }
    Ok(Output::new(text.into_bytes()))
}

fn diff(first: &Log, second: &Log) -> Failures<Output> {
    if first.subject != second.subject || first.vms.len() != second.vms.len() {
        let what = "these are logs of two things, or keep different parts of one: record both from the same descriptor \
                    with the same flags";
        return Err(Failure::input(what));
    }
    match first_difference(&first.vms, &second.vms) {
        None => Ok(Output::new(b"the same\n".to_vec())),
        Some(difference) => {
            let note = Some("two runs that must be the same are not".to_owned());
            Ok(Output { bytes: shown(&difference).into_bytes(), code: ExitCode::Diverged, note })
        }
    }
}

fn shown(difference: &Difference) -> String {
    let line = |entry: &Option<chaoscontrol_trace::Entry>| entry.as_ref().map_or("(ends)".to_owned(), |e| e.line());
    let mut text = format!("vm {}, entry {}\n", difference.vm, difference.index);
    if difference.before.is_some() {
        let _ = writeln!(text, "  both   {}", line(&difference.before));
    }
    let _ = writeln!(text, "  first  {}", line(&difference.first));
    let _ = writeln!(text, "  second {}", line(&difference.second));
    let (from, to) = difference.bracket();
    let Some(to) = to else { return text };
    if to - from <= 1 {
        let _ = writeln!(text, "the instruction behind count {from} is where they come apart");
    } else {
        let interval = (to - from).div_ceil(1024);
        let _ = writeln!(
            text,
            "between counts {from} and {to}; to go on, record both again with\n  --vm {} --interval {interval} --from-instruction \
             {from} --to-instruction {to} --registers --memory",
            difference.vm
        );
    }
    text
}
