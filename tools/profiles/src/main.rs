// SPDX-License-Identifier: AGPL-3.0-or-later
//! Projects profiles to JSON, and says when a projection is stale.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::{ExitCode, MediaType};
use chaoscontrol_cli::{Context, Failure, Failures, Flag, Output, Positional, Tool, checker, read_input, tool_main};

static TOOL: Tool = Tool {
    name: "chaos-profiles",
    stage: "profiles",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "project profiles written in Nickel to JSON",
    about: "A profile is a file NAME.ncl; its projection is NAME.json beside it: canonical JSON with the values and the digests \
            of the source, of all it imports, of the contracts and of the values. --write writes the projections, --check says \
            which are stale or missing and ends with code 10. A folder stands for the .ncl files in it; those in folders \
            below are for importing.",
    reads: "Profiles, and the files of their folders.",
    writes: "Projections beside the profiles (--write). On stdout: a line a profile.",
    flags: &[
        Flag::switch("write", "Write the projections"),
        Flag::switch("check", "Only compare them with what --write would write"),
    ],
    positional: Some(Positional {
        name: "PATH",
        help: "Profiles, or folders of profiles",
        min: 1,
        max: 4096,
        choices: &[],
    }),
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks, ExitCode::RequirementFailed],
    examples: [
        ("Project all profiles of a folder", "chaos-profiles --write profiles"),
        ("In CI", "chaos-profiles --check profiles"),
    ],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, run)
}

fn run(context: &Context) -> Failures<Output> {
    let (write, check) = (context.arguments.is_set("write"), context.arguments.is_set("check"));
    if write == check {
        return Err(Failure::usage("give one of --write and --check"));
    }
    let mut profiles = Vec::new();
    for path in &context.arguments.positional {
        profiles_at(Path::new(path), &mut profiles)?;
    }
    if profiles.is_empty() {
        return Err(Failure::input("there is no profile: no name ends in .ncl"));
    }
    let projections = project(&profiles)?;
    let (mut lines, mut stale) = (String::new(), Vec::new());
    for (profile, projection) in profiles.iter().zip(&projections) {
        let target = profile.with_extension("json");
        let is_fresh = read_input(&target, MediaType::Profile.max_bytes()).is_ok_and(|found| found == *projection);
        let shown = target.display();
        if is_fresh {
            lines.push_str(&format!("{shown}: fresh\n"));
        } else if write {
            let lacks = |error| Failure::new(ExitCode::HostLacks, format!("writing {shown}: {error}"));
            fs::write(&target, projection).map_err(lacks)?;
            lines.push_str(&format!("{shown}: written\n"));
        } else {
            lines.push_str(&format!("{shown}: stale\n"));
            stale.push(shown.to_string());
        }
    }
    let output = Output::new(lines.into_bytes());
    if stale.is_empty() {
        return Ok(output);
    }
    let note = format!("stale or missing: {}; run chaos-profiles --write", stale.join(", "));
    Ok(Output { code: ExitCode::RequirementFailed, note: Some(note), ..output })
}

/// The profile, or the profiles of a folder in order of names.
fn profiles_at(path: &Path, profiles: &mut Vec<PathBuf>) -> Failures<()> {
    if !path.is_dir() {
        profiles.push(path.to_owned());
        return Ok(());
    }
    let unreadable = |error| Failure::input(format!("reading {}: {error}", path.display()));
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?.path();
        if entry.is_file() && entry.extension().is_some_and(|extension| extension == "ncl") {
            found.push(entry);
        }
    }
    found.sort();
    profiles.extend(found);
    Ok(())
}

/// The projection of each profile, with a line end, in one call.
fn project(profiles: &[PathBuf]) -> Failures<Vec<Vec<u8>>> {
    let arguments: Vec<&OsStr> =
        std::iter::once(OsStr::new("project")).chain(profiles.iter().map(|path| path.as_os_str())).collect();
    let answer = checker()?.ask(&arguments, Vec::new())?;
    let lines: Vec<Vec<u8>> = answer.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    // A last line without an end was cut off.
    if lines.len() != profiles.len() || lines.iter().any(|line| !line.ends_with(b"\n")) {
        let what = format!("chaos-contract projected {} of {} profiles", lines.len(), profiles.len());
        return Err(Failure::new(ExitCode::Internal, what));
    }
    Ok(lines)
}
