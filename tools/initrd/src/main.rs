// SPDX-License-Identifier: AGPL-3.0-or-later
//! Packs a static binary and extra files into a reproducible newc initrd.

mod archive;

use archive::Archive;
use chaoscontrol_artifact::ExitCode;
use chaoscontrol_cli::elf::check_static;
use chaoscontrol_cli::{Context, Failure, Failures, Flag, Output, Tool, tool_main, write_file};
use std::path::{Path, PathBuf};
use std::process::ExitCode as ProcessCode;

const TOOL: Tool = Tool {
    name: "chaos-initrd",
    stage: "initrd",
    sources: &[include_str!("../Cargo.toml"), include_str!("archive.rs"), include_str!("main.rs")],
    summary: "pack a static binary and extra files into a reproducible initrd",
    about: "The same files give the same bytes, whoever packs them, wherever and whenever: entries are sorted, and owner, \
            times and inode numbers are fixed. /dev/console and the directories that chaos-init mounts on are added.",
    reads: "the named files",
    writes: "a newc cpio archive (to stdout, or to --output)",
    flags: &[
        Flag::one("init", "FILE", "Becomes /init: a static x86-64 program, usually chaos-init"),
        Flag::one("workload", "FILE", "Becomes /workload, which chaos-init runs: a static x86-64 program"),
        Flag::many("add", "SRC:DEST[:MODE]", "Add a file or a directory; MODE is octal and replaces the file's own"),
        Flag::one("output", "FILE", "Where the archive goes; - is stdout").short('o').default("-"),
    ],
    positional: None,
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks],
    examples: [
        ("A guest that runs my-node", "chaos-initrd --init chaos-init --workload my-node -o my-node.cpio"),
        (
            "The same with a configuration file",
            "chaos-initrd --init chaos-init --workload my-node --add node.toml:/etc/node.toml:0644 -o my-node.cpio",
        ),
    ],
};

fn main() -> ProcessCode {
    tool_main(&TOOL, run)
}

fn run(context: &Context) -> Failures<Output> {
    let arguments = &context.arguments;
    let mut archive = Archive::new();
    add_program(&mut archive, &arguments.required("init")?, "/init")?;
    if let Some(workload) = arguments.path("workload") {
        add_program(&mut archive, &workload, "/workload")?;
    }
    for text in arguments.texts("add")? {
        let (source, destination, mode) = parse_addition(&text)?;
        archive.add_tree(&source, &destination, mode).map_err(bad_input)?;
    }
    let bytes = archive.bytes().map_err(bad_input)?;
    match arguments.path("output").filter(|path| path != Path::new("-")) {
        None => Ok(Output::new(bytes)),
        Some(path) => {
            write_file(&path, &bytes)?;
            Ok(Output::new(Vec::new()))
        }
    }
}

fn add_program(archive: &mut Archive, path: &Path, destination: &str) -> Failures<()> {
    let bytes = std::fs::read(path).map_err(|error| Failure::input(format!("reading {}: {error}", path.display())))?;
    check_static(&bytes).map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
    archive.add_file(destination, 0o755, bytes).map_err(bad_input)
}

fn bad_input(error: archive::ArchiveError) -> Failure {
    Failure::from_error(ExitCode::BadInput, &error)
}

/// `SRC:DEST[:MODE]`.
fn parse_addition(text: &str) -> Failures<(PathBuf, String, Option<u32>)> {
    let wrong = |why: &str| Failure::usage(format!("--add {text}: {why} (expected SRC:DEST[:MODE])"));
    let mut parts = text.split(':');
    let (Some(source), Some(destination)) = (parts.next(), parts.next()) else {
        return Err(wrong("there is no destination"));
    };
    let mode = match parts.next() {
        None => None,
        Some(mode) => match u32::from_str_radix(mode, 8) {
            Ok(mode) if mode <= 0o7777 => Some(mode),
            _ => return Err(wrong("the mode is not an octal number up to 7777")),
        },
    };
    if parts.next().is_some() {
        return Err(wrong("there are too many colons"));
    }
    Ok((PathBuf::from(source), destination.to_owned(), mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_are_parsed_strictly() {
        let ok = |text| parse_addition(text).unwrap();
        assert_eq!(ok("a:/b"), (PathBuf::from("a"), "/b".to_owned(), None));
        assert_eq!(ok("a:/b:0644"), (PathBuf::from("a"), "/b".to_owned(), Some(0o644)));
        for wrong in ["a", "a:/b:9", "a:/b:17777", "a:/b:644:x"] {
            assert_eq!(parse_addition(wrong).unwrap_err().code, ExitCode::Usage, "{wrong}");
        }
    }
}
