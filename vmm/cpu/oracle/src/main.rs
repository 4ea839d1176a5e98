// SPDX-License-Identifier: AGPL-3.0-or-later
//! `cpu-oracle`: runs any number of cases of the exact CPU against the host's CPU.

use chaoscontrol_cpu_oracle::differential::{self, Kind, Options};
use chaoscontrol_cpu_oracle::{fuzz, host, report};
use lexopt::prelude::{Long, Short, Value, ValueExt};
use std::process::ExitCode;

const HELP: &str = "\
cpu-oracle: the exact CPU against other CPUs

usage:
  cpu-oracle native [--cases N] [--seed S] [--first I] [--kind single|sequence|noise] [--filter NAME] [--failures N]
                    [--jobs N]
  cpu-oracle tiers  [the same]
  cpu-oracle fuzz   [--cases N] [--seed S] [--first I] [--jobs N]
  cpu-oracle replay FILE...

native   runs N random cases (default 100000) on the host CPU and on ours and compares everything;
         the report of a failing case is a case file. --filter keeps codes whose name contains NAME.
tiers    the same cases on both tiers of ours alone, which must agree on every bit.
fuzz     runs N guests of random bytes in all rings on both tiers, between pages without access.
replay   runs case files again.
--jobs   threads to run on (default 1); the result is the same for any number.

exit codes: 0 all equal, 1 a difference or a failure of the runner, 2 wrong usage, 4 the host cannot run cases

examples:
  cpu-oracle native --cases 1000000 --seed 7 --kind sequence
  cpu-oracle native --filter pshufb --cases 20000
";

fn main() -> ExitCode {
    match command() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cpu-oracle: {error} (see --help)");
            ExitCode::from(2)
        }
    }
}

fn command() -> Result<ExitCode, lexopt::Error> {
    let mut parser = lexopt::Parser::from_env();
    let mut options = Options {
        cases: 100_000,
        first: 0,
        seed: 1,
        filter: None,
        kind: Kind::Single,
        host: true,
        failures_max: 20,
        jobs: 1,
    };
    let mut words = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            Long("cases") => options.cases = parser.value()?.parse()?,
            Long("seed") => options.seed = parser.value()?.parse()?,
            Long("first") => options.first = parser.value()?.parse()?,
            Long("failures") => options.failures_max = parser.value()?.parse()?,
            Long("jobs") => options.jobs = parser.value()?.parse()?,
            Long("filter") => options.filter = Some(parser.value()?.string()?),
            Long("kind") => {
                options.kind = match parser.value()?.string()?.as_str() {
                    "single" => Kind::Single,
                    "sequence" => Kind::Sequence,
                    "noise" => Kind::Noise,
                    other => return Err(format!("unknown kind {other}").into()),
                }
            }
            Value(word) => words.push(word.string()?),
            other => return Err(other.unexpected()),
        }
    }
    options.host = words.first().is_none_or(|word| !matches!(word.as_str(), "tiers" | "fuzz"));
    if let (true, Err(reason)) = (options.host, host::available()) {
        eprintln!("cpu-oracle: {reason}");
        return Ok(ExitCode::from(4));
    }
    match words.split_first() {
        Some((word, [])) if word == "native" || word == "tiers" => Ok(native(&options)),
        Some((word, [])) if word == "fuzz" => Ok(fuzz(&options)),
        Some((word, files)) if word == "replay" && !files.is_empty() => Ok(replay(files)),
        _ => Err("which command?".into()),
    }
}

fn fuzz(options: &Options) -> ExitCode {
    let Options { cases, first, seed, jobs, .. } = *options;
    let progress = |done: u64| {
        if done.is_multiple_of(100_000) {
            eprintln!("{done} guests");
        }
    };
    match fuzz::run_inputs(seed, first, cases, jobs, &progress) {
        Ok(fuzz::Ran { events, compiled }) => {
            println!(
                "# {cases} guests from {first} of seed {seed}, {events} counted events on each tier, \
                 {compiled} of them compiled, no difference"
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cpu-oracle: memory for guests: {error}");
            ExitCode::FAILURE
        }
    }
}

fn native(options: &Options) -> ExitCode {
    let mut told = 0;
    let summary = match differential::run(options, |done| {
        if done / 1_000_000 > told {
            told = done / 1_000_000;
            eprintln!("{done} cases");
        }
    }) {
        Ok(summary) => summary,
        Err(error) => {
            eprintln!("cpu-oracle: {error}");
            return ExitCode::FAILURE;
        }
    };
    for failure in &summary.failures {
        println!("{}", failure.text(options));
    }
    for (index, how) in &summary.lost {
        println!("# case {index}: {how}");
    }
    for (code, bits) in &summary.not_encoded {
        println!("# no encoding found for {code:?} in {bits}-bit code");
    }
    println!(
        "# {} cases of {} codes compared, {} failures",
        summary.compared,
        summary.per_code.len(),
        summary.failures.len()
    );
    if summary.failures.is_empty() && summary.lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(files: &[String]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let result = std::fs::read_to_string(file)
            .map_err(|error| error.to_string())
            .and_then(|text| report::from_text(&text))
            .and_then(|case| differential::replay(&case).map_err(|error| error.to_string()));
        match result {
            Ok(None) => println!("{file}: equal"),
            Ok(Some(difference)) => {
                println!("{file}: {difference}");
                code = ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("cpu-oracle: {file}: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
