// SPDX-License-Identifier: AGPL-3.0-or-later
//! The runs: a process each, beside a hog or not, with one job or two.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use chaoscontrol_artifact::schema::{Handoff, Link, Parameter, TraceDocument, read_handoff};
use chaoscontrol_artifact::{ExitCode, ObjectRef, StageResult, Store, document};
use chaoscontrol_cli::{Failure, Failures, Stage};
use chaoscontrol_explore::stages::drift::{DriftOptions, compare};

/// How a run is disturbed. Nothing of it may reach a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Disturbance {
    hog: bool,
    jobs: u32,
}

impl Disturbance {
    /// Every second run has a hog, every second pair two jobs.
    fn of(run: u64) -> Self {
        Self { hog: run % 2 == 1, jobs: 1 + (run / 2 % 2) as u32 }
    }
}

/// What a run left: its traces, in a store that is deleted with it.
struct Run {
    folder: tempfile::TempDir,
    traces: Vec<ObjectRef>,
}

/// Runs the profile and compares every run with the first.
pub fn compare_runs(stage: &Stage, options: &DriftOptions, runs: u64) -> Failures<StageResult> {
    let first = run(stage, options, Disturbance::of(0))?;
    let expected = load(stage, &first)?;
    let (mut beside_hog, mut two_jobs) = (0, 0);
    for number in 1..runs {
        stage.context.progress.at(number, runs, "runs, all the same");
        let how = Disturbance::of(number);
        let other = run(stage, options, how)?;
        beside_hog += u64::from(how.hog);
        two_jobs += u64::from(how.jobs == 2);
        if other.traces != first.traces {
            let found = load(stage, &other)?;
            let what = compare(&expected, &found).unwrap_or_else(|| "traces of other digests".to_owned());
            let text = format!("run {number} of {runs} ({how:?}) is not run 0: {what}");
            return Err(Failure::new(ExitCode::Diverged, text));
        }
    }
    let mut result = StageResult { engine: "in processes of their own".to_owned(), ..StageResult::default() };
    for trace in &expected {
        result.outputs.push(Link::new("trace", stage.store.publish(trace)?));
    }
    let mut set = |name: &str, value: Parameter| result.parameters.insert(name.to_owned(), value);
    set("profile", options.profile.as_str().into());
    set("branches", u64::from(options.branches).into());
    set("horizon_ns", options.horizon_ns.into());
    set("seed", options.seed.into());
    set("from_boot", Parameter::Flag(options.from_boot));
    set("runs", runs.into());
    set("runs_beside_a_hog", beside_hog.into());
    set("runs_with_two_jobs", two_jobs.into());
    Ok(result)
}

/// The stores that a run reads: those of this process.
fn stores(stage: &Stage) -> Vec<PathBuf> {
    let arguments = &stage.context.arguments;
    let own = arguments.path("store").unwrap_or_else(|| PathBuf::from(".chaos"));
    std::iter::once(own).chain(arguments.all("from").iter().map(PathBuf::from)).collect()
}

fn load(stage: &Stage, run: &Run) -> Failures<Vec<TraceDocument>> {
    let mut all = vec![run.folder.path().to_owned()];
    all.extend(stores(stage));
    let store = Store::open_read_only(&all)?;
    run.traces.iter().map(|trace| Ok(store.load(trace)?)).collect()
}

fn failed(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(ExitCode::Internal, format!("{what}: {error}"))
}

fn run(stage: &Stage, options: &DriftOptions, how: Disturbance) -> Failures<Run> {
    let folder = tempfile::tempdir().map_err(|error| failed("a folder for a run", &error))?;
    let hog = AtomicBool::new(how.hog);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while hog.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let output = child(stage, options, how.jobs, folder.path());
        hog.store(false, Ordering::Relaxed);
        output
    })?;
    match read_handoff(&output) {
        Ok(Handoff::Descriptor(descriptor)) => {
            let traces = descriptor.outputs_of("trace").collect();
            Ok(Run { folder, traces })
        }
        Ok(Handoff::Error(error)) => {
            let code = ExitCode::from_number(error.exit_code).unwrap_or(ExitCode::Internal);
            Err(Failure::new(code, format!("a run: {}", error.message)))
        }
        Err(error) => Err(Failure::new(ExitCode::Internal, format!("a run wrote no descriptor: {error}"))),
    }
}

/// The descriptor that a process of its own writes.
fn child(stage: &Stage, options: &DriftOptions, jobs: u32, store: &Path) -> Failures<Vec<u8>> {
    let arguments = &stage.context.arguments;
    let program = std::env::current_exe().map_err(|error| failed("finding this program", &error))?;
    let mut command = Command::new(program);
    command.args(["--once", "--quiet", "--profile", &options.profile]);
    for (flag, value) in [
        ("--jobs", u64::from(jobs)),
        ("--branches", u64::from(options.branches)),
        ("--horizon-ns", options.horizon_ns),
        ("--seed", options.seed),
    ] {
        command.args([flag, &value.to_string()]);
    }
    command.arg("--store").arg(store);
    for from in stores(stage).iter().filter(|from| from.exists()) {
        command.arg("--from").arg(from);
    }
    command.args(options.from_boot.then_some("--from-boot"));
    for flag in ["tier", "pin-core", "watchdog-s"] {
        if let Some(value) = arguments.text(flag)? {
            command.args([format!("--{flag}"), value]);
        }
    }
    command.args(arguments.is_set("allow-unfaithful-kvm").then_some("--allow-unfaithful-kvm"));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed("starting a run", &error))?;
    let descriptor = document::encode(stage.before()?)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A run that ends before it has read everything says why itself.
        let _ = stdin.write_all(&descriptor);
    }
    let output = child.wait_with_output().map_err(|error| failed("waiting for a run", &error))?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_runs_have_a_hog_half_two_jobs_and_a_quarter_both() {
        let all: Vec<Disturbance> = (0..200).map(Disturbance::of).collect();
        let count = |wanted: fn(&Disturbance) -> bool| all.iter().filter(|how| wanted(how)).count();
        assert_eq!(count(|how| how.hog), 100);
        assert_eq!(count(|how| how.jobs == 2), 100);
        assert_eq!(count(|how| how.hog && how.jobs == 2), 50);
    }
}
