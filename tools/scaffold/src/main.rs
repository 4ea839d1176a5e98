// SPDX-License-Identifier: AGPL-3.0-or-later
//! Writes a project with a first workload.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode as ProcessCode;

use chaos_rust_workload::{FIND_BUG, IGNORED, LOCK, MAIN, MANIFEST, README};
use chaoscontrol_artifact::ExitCode;
use chaoscontrol_cli::{Context, Failure, Failures, Flag, Output, Positional, Tool, tool_main};

/// Bytes of a package name; crates.io allows as many.
const NAME_BYTES_MAX: usize = 64;

static TOOL: Tool = Tool {
    name: "chaos-scaffold",
    stage: "scaffold",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs"), FIND_BUG, IGNORED, LOCK, MAIN, MANIFEST, README],
    summary: "write a project with a first workload",
    about: "The project is a workload on the harness, with a bug planted in it: it builds offline, dry-runs on this machine with a \
            report of every property, and find-bug finds its bug in virtual machines. Files that are there are never replaced.",
    reads: "Nothing; --chaoscontrol names a checkout, whose SDK the project depends on by its path.",
    writes: "The folder NAME, or --output: Cargo.toml, Cargo.lock, src/main.rs, README.md, find-bug, .gitignore. On stdout: the folder.",
    flags: &[
        Flag::one("chaoscontrol", "DIR", "Checkout with the SDK")
            .environment("CHAOSCONTROL")
            .default("the current folder"),
        Flag::one("output", "DIR", "The project's folder; it must not exist or be empty").short('o').default("NAME"),
    ],
    positional: Some(Positional { name: "NAME", help: "Name of the package", min: 1, max: 1, choices: &[] }),
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks],
    examples: [
        ("In a checkout", "chaos-scaffold my-node -o ../my-node && cd ../my-node && cargo run && ./find-bug"),
        ("From anywhere", "chaos-scaffold my-node --chaoscontrol ~/chaoscontrol"),
    ],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, run)
}

fn run(context: &Context) -> Failures<Output> {
    let arguments = &context.arguments;
    let name = arguments.positional.first().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    check_name(&name)?;
    let checkout = arguments.path("chaoscontrol").unwrap_or_else(|| PathBuf::from("."));
    let checkout = std::fs::canonicalize(&checkout)
        .ok()
        .filter(|folder| folder.join("guest/sdk/Cargo.toml").exists())
        .ok_or_else(|| {
            Failure::input(format!(
                "--chaoscontrol {}: there is no guest/sdk in it; name a checkout of ChaosControl",
                checkout.display()
            ))
        })?;
    let checkout = checkout.to_str().filter(|path| !path.contains(['"', '\\', '$', '`', '\n']));
    let checkout =
        checkout.ok_or_else(|| Failure::input("--chaoscontrol: the path has characters that scripts cannot hold"))?;
    let folder = arguments.path("output").unwrap_or_else(|| PathBuf::from(&name));
    if std::fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::input(format!("{} is there and not empty", folder.display())));
    }
    let filled = |text: &str| text.replace("@NAME@", &name).replace("@CHAOSCONTROL@", checkout);
    let files = [
        ("Cargo.toml", filled(MANIFEST), 0o644),
        ("Cargo.lock", filled(LOCK), 0o644),
        ("src/main.rs", own_program(), 0o644),
        ("README.md", filled(README), 0o644),
        ("find-bug", filled(FIND_BUG), 0o755),
        (".gitignore", IGNORED.to_owned(), 0o644),
    ];
    for (path, text, mode) in files {
        write(&folder.join(path), &text, mode)?;
    }
    context.progress.say(&format!("cd {} && cargo run && ./find-bug", folder.display()));
    Ok(Output::new(format!("{}\n", folder.display()).into_bytes()))
}

/// The program without the line that names this repository's licence for it: the new project is its author's.
fn own_program() -> String {
    MAIN.lines().filter(|line| !line.starts_with("// SPDX")).map(|line| format!("{line}\n")).collect()
}

/// What Cargo and the file system take without quoting.
fn check_name(name: &str) -> Failures<()> {
    let fits = name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
    if fits {
        return Ok(());
    }
    let what = "a name has small letters, digits, - and _, begins with a letter, and has at most 64 bytes";
    Err(Failure::usage(format!("{name:?} is no name for a package: {what}")))
}

fn write(path: &Path, text: &str, mode: u32) -> Failures<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let done = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)));
    done.map_err(|error| Failure::new(ExitCode::HostLacks, format!("writing {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_need_quoting_are_refused() {
        for good in ["a", "my-node", "n2_x"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "My", "2n", "-x", "a b", "a/b", "ä", "a\"", &"a".repeat(65)] {
            assert_eq!(check_name(bad).unwrap_err().code, ExitCode::Usage, "{bad}");
        }
    }

    #[test]
    fn the_program_of_a_new_project_has_no_licence_of_ours() {
        assert!(own_program().starts_with("//! A service that counts"));
    }
}
