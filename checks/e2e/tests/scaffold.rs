// SPDX-License-Identifier: AGPL-3.0-or-later
//! What `chaos-scaffold` writes builds without a network, dry-runs with a report, and finds its own planted bug.

use std::process::Command;

use chaoscontrol_e2e::{Bench, Ran, root};

fn project(bench: &Bench) -> std::path::PathBuf {
    let (folder, checkout) = (bench.path("my-node"), root());
    let (folder_text, checkout) = (folder.to_str().expect("a path"), checkout.to_str().expect("a path"));
    let arguments = ["my-node", "--output", folder_text, "--chaoscontrol", checkout, "--quiet"];
    let said = bench.run("chaos-scaffold", &arguments, b"").expect_code(0);
    assert_eq!(String::from_utf8_lossy(&said).trim(), folder_text);
    let again = bench.run("chaos-scaffold", &arguments, b"");
    assert_eq!(again.code, 3, "it writes over what is there: {}", again.stderr);
    folder
}

/// A command in the project, with the tools of this build.
fn command(bench: &Bench, program: &std::path::Path, folder: &std::path::Path) -> Command {
    let path = bench
        .command("chaos-show", &[])
        .get_envs()
        .find(|(name, _)| *name == "PATH")
        .and_then(|(_, path)| path.map(Into::into));
    let path: std::ffi::OsString = path.expect("PATH is set");
    let mut command = Command::new(program);
    command.current_dir(folder).env("PATH", path).env_remove("CARGO_TARGET_DIR");
    command
}

#[test]
fn a_new_project_builds_dry_runs_and_finds_its_bug() {
    let bench = Bench::new();
    let folder = project(&bench);
    let mut dry = command(&bench, std::path::Path::new("cargo"), &folder);
    dry.args(["run", "--quiet", "--offline", "--locked", "--", "--steps", "30"]);
    let report = String::from_utf8(Ran::from_command(dry, b"").expect_code(0)).expect("text");
    assert!(report.contains("ok        always                 each request counts once"), "{report}");
    assert!(report.contains("not seen  sometimes              the server is started again"), "{report}");
    assert!(report.contains("5 properties registered"), "{report}");

    let mut find = command(&bench, &folder.join("find-bug"), &folder);
    // The guests' programs are built by this repository, into its own folder.
    find.env("CARGO_TARGET_DIR", chaoscontrol_e2e::tools("release").parent().expect("a target folder"));
    find.args(["--jobs", "2"]);
    let found = String::from_utf8(Ran::from_command(find, b"").expect_code(0)).expect("text");
    assert!(found.contains("each request counts once"), "{found}");
}
