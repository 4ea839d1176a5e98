// SPDX-License-Identifier: AGPL-3.0-or-later
//! Runs the tools as a user does: real processes, real guests, a store on disk.
//!
//! The tools are taken from the directory of the build that runs the test, so build them first (`checks/all` does):
//! `cargo build --release --bins`, and alone `cargo build --release -p chaos-contract`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub use tempfile::TempDir;

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// Where the tools of a profile are: `release` or `debug`, in the target directory that this test was built into.
#[must_use]
pub fn tools(profile: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its path");
    let target = test.ancestors().nth(3).expect("target/PROFILE/deps/TEST");
    let folder = target.join(profile);
    assert!(folder.join("chaos-boot").exists(), "build the tools first: no chaos-boot in {}", folder.display());
    folder
}

/// Every tool: the crates in `tools/` with a binary. One that was not built is an error.
#[must_use]
pub fn tool_names() -> Vec<String> {
    let built = tools("release");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root().join("tools")).expect("tools") {
        let folder = entry.expect("an entry").path();
        let name = format!("chaos-{}", folder.file_name().expect("a name").to_string_lossy());
        if !folder.join("src/main.rs").exists() {
            continue;
        }
        assert!(built.join(&name).exists(), "build the tools first: there is no {name} in {}", built.display());
        names.push(name);
    }
    names.sort();
    names
}

/// PATH with `chaos-contract` on it, for tools of a build that has none beside them.
fn path_with_contract() -> std::ffi::OsString {
    let folder = tools("release");
    let contract = folder.join("chaos-contract");
    assert!(contract.exists(), "build it first: cargo build --release -p chaos-contract");
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(std::env::split_paths(&rest));
    std::env::join_paths(folders).expect("no folder on PATH has a colon in its name")
}

/// The path that a script prints.
#[must_use]
pub fn printed_path(script: &str, arguments: &[&str]) -> PathBuf {
    let output =
        Command::new(root().join(script)).args(arguments).stderr(Stdio::inherit()).output().expect("a script runs");
    assert!(output.status.success(), "{script} {arguments:?} failed");
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

/// The cached guest kernel.
#[must_use]
pub fn kernel() -> PathBuf {
    printed_path("guest/kernel/build", &["--print-path"])
}

/// The cached guest kernel for several CPUs.
#[must_use]
pub fn smp_kernel() -> PathBuf {
    printed_path("guest/kernel/build", &["--smp", "--print-path"])
}

/// One of the built initrds.
#[must_use]
pub fn initrd(name: &str) -> PathBuf {
    printed_path("guest/build", &["--print-initrd", name])
}

/// What a tool did.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; 128 + signal where it was killed.
    pub code: i32,
    /// stdout.
    pub stdout: Vec<u8>,
    /// stderr.
    pub stderr: String,
}

impl Ran {
    /// Runs a command to its end with `input` on stdin.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn from_command(mut command: Command, input: &[u8]) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{:?}: {e}", command.get_program()));
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let input = input.to_vec();
        // A tool that reads nothing closes the pipe: that is not this test's business.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().expect("a child can be waited for");
        writer.join().expect("the writer ends");
        Self::of(output)
    }

    /// How a process ended.
    #[must_use]
    pub fn of(output: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let code = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0));
        Self { code, stdout: output.stdout, stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
    }

    /// stdout, if the code is the expected one.
    ///
    /// # Panics
    /// With what the tool said, if not.
    pub fn expect_code(self, code: i32) -> Vec<u8> {
        assert_eq!(self.code, code, "stderr:\n{}", self.stderr);
        self.stdout
    }

    /// The descriptor on stdout.
    ///
    /// # Panics
    /// If stdout is no JSON.
    #[must_use]
    pub fn descriptor(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|e| panic!("{e}: stdout is no descriptor; stderr:\n{}", self.stderr))
    }
}

/// One store and the tools of one profile.
#[derive(Debug)]
pub struct Bench {
    folder: TempDir,
    tools: PathBuf,
}

impl Bench {
    /// An empty store, with the release tools.
    #[must_use]
    pub fn new() -> Self {
        Self::with_profile("release")
    }

    /// An empty store, with the tools of a profile.
    #[must_use]
    pub fn with_profile(profile: &str) -> Self {
        Self::with_tools(tools(profile))
    }

    /// An empty store, with the tools of a folder.
    #[must_use]
    pub fn with_tools(tools: PathBuf) -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), tools }
    }

    /// The store's folder.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// A path in a folder that goes away with this value.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A tool as a command, with this store.
    #[must_use]
    pub fn command(&self, tool: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.tools.join(tool));
        command.args(arguments).env("CHAOS_STORE", self.store()).current_dir(self.folder.path());
        command.env("PATH", path_with_contract());
        command
    }

    /// Runs a tool to its end with `input` on stdin.
    #[must_use]
    pub fn run(&self, tool: &str, arguments: &[&str], input: &[u8]) -> Ran {
        Ran::from_command(self.command(tool, arguments), input)
    }

    /// Every file of the store that is an object or a pack, as relative paths, sorted.
    #[must_use]
    pub fn objects(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.store()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("the store is there") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.push(path.strip_prefix(self.store()).expect("inside").to_string_lossy().into_owned());
                }
            }
        }
        found.sort();
        found
    }
}

/// Digests of the outputs of a descriptor with this role, in order.
///
/// # Panics
/// If it is no descriptor.
#[must_use]
pub fn outputs(descriptor: &[u8], role: &str) -> Vec<String> {
    let descriptor: serde_json::Value = serde_json::from_slice(descriptor).expect("a descriptor");
    let links = descriptor["outputs"].as_array().expect("outputs");
    let of_role = links.iter().filter(|link| link["role"] == role);
    of_role.map(|link| link["object"]["digest"].as_str().expect("a digest").to_owned()).collect()
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

/// Boots three Raft nodes with more arguments.
#[must_use]
pub fn boot(bench: &Bench, arguments: &[&str]) -> Ran {
    let (kernel, initrd) = (kernel(), initrd("raft"));
    let (kernel, initrd) = (kernel.to_str().expect("a path"), initrd.to_str().expect("a path"));
    let mut all = vec!["--kernel", kernel, "--initrd", initrd, "--vms", "3", "--disk-mib", "16"];
    all.extend(arguments);
    bench.run("chaos-boot", &all, b"")
}

/// The Raft chain with the given bug: descriptors in stage order.
///
/// # Panics
/// If a stage fails.
#[must_use]
pub fn raft_chain(bench: &Bench, bug: &str, seed: u64, branches: u64, jobs: u64) -> Vec<Vec<u8>> {
    let append = format!("raft_bug={bug}");
    let (seed, branches, jobs) = (seed.to_string(), branches.to_string(), jobs.to_string());
    let mut descriptors = vec![boot(bench, &["--seed", &seed, "--append", &append]).expect_code(0)];
    let stages: [(&str, Vec<&str>); 5] = [
        ("chaos-explore-round", vec!["--branches", &branches, "--jobs", &jobs]),
        ("chaos-minimize", vec!["--jobs", &jobs]),
        ("chaos-reproduce", vec![]),
        ("chaos-verdict", vec![]),
        ("chaos-receipt", vec![]),
    ];
    for (tool, arguments) in stages {
        let input = descriptors.last().expect("boot came first").clone();
        descriptors.push(bench.run(tool, &arguments, &input).expect_code(0));
    }
    descriptors
}
