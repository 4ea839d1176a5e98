// SPDX-License-Identifier: AGPL-3.0-or-later
//! Pipelines as a shell runs them: the lines of `docs/pipelines.md`, several stores, stages that fail in the middle, and
//! readers that go away.

use std::path::Path;
use std::process::{Command, Stdio};

use chaoscontrol_e2e::{Bench, Ran, initrd, kernel, root};

/// A folder with a kernel and an initrd under the names that the documents use, and the tools on PATH.
struct Shell(Bench);

impl Shell {
    fn new(guest: &str) -> Self {
        let bench = Bench::new();
        let link = |from: &Path, name: &str| std::os::unix::fs::symlink(from, bench.path(name)).expect("a link");
        link(&kernel(), "vmlinux");
        link(&initrd(guest), "raft.cpio");
        Self(bench)
    }

    /// Runs a script with bash; `$?` is that of its last command.
    fn run(&self, script: &str) -> Ran {
        let tool = self.0.command("chaos-boot", &[]);
        let tools = Path::new(tool.get_program()).parent().expect("a folder").to_owned();
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").expect("PATH"));
        let mut command = Command::new("bash");
        command.args(["-c", script]).env("PATH", path).env("CHAOS_STORE", ".chaos").current_dir(self.0.path(""));
        Ran::of(command.stdin(Stdio::null()).output().expect("bash runs"))
    }

    fn exists(&self, name: &str) -> bool {
        self.0.path(name).exists()
    }
}

/// Boots one VM that fails an assertion soon after its setup.
const BOOT: &str = "chaos-boot --quiet --kernel vmlinux --initrd raft.cpio --vms 1 --append misbehave=fail";
const ROUND: &str = "chaos-explore-round --quiet --branches 2 --horizon-ns 300000000";

/// The code block that follows this line of the page.
fn documented(after: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/pipelines.md")).expect("the page");
    let (_, rest) = page.split_once(after).unwrap_or_else(|| panic!("the page lacks {after:?}"));
    let lines = rest.lines().skip_while(|line| !line.starts_with("    "));
    let block: Vec<&str> = lines.map_while(|line| line.strip_prefix("    ")).collect();
    assert!(!block.is_empty(), "no code follows {after:?}");
    block.join("\n")
}

#[test]
fn the_pipeline_of_the_documents_works_as_written() {
    let lines = documented("# Pipelines");
    // The guest's name on disk is that of the page; what it does is quicker than 64 branches of a cluster.
    let small = Shell::new("misbehave");
    let ran = small.run(&lines.replace("--seed 42", "--seed 42 --append misbehave=fail"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let shown = small.run("chaos-show receipt.json");
    let text = String::from_utf8(shown.expect_code(0)).expect("text");
    assert!(text.contains("receipt: class snapshot_backed_reproduced"), "{text}");
    let _ = small.run("chaos-receipt --check receipt.json").expect_code(0);
    // The Raft guest boots with exactly what the page says, too.
    let boot = lines.lines().find(|line| line.starts_with("chaos-boot")).expect("a boot").trim_end_matches('\\');
    let raft = Shell::new("raft");
    let ran = raft.run(&format!("{boot} | chaos-show"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn the_steps_of_the_documents_work_as_written_and_give_the_same_receipt() {
    let shell = Shell::new("misbehave");
    let boots = |lines: String| lines.replace("--seed 42", "--seed 42 --append misbehave=fail");
    let ran = shell.run(&format!("set -e -o pipefail\n{}", boots(documented("## The same in steps"))));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let step_by_step = std::fs::read(shell.0.path("receipt.json")).expect("a receipt");
    let piped = Shell::new("misbehave");
    // The steps ask for one bug and require a class, which the receipt binds as parameters.
    let lines = boots(documented("# Pipelines")).replace("chaos-minimize", "chaos-minimize --bug 1");
    let lines = lines.replace("chaos-verdict", "chaos-verdict --require snapshot_backed_reproduced");
    let _ = piped.run(&lines).expect_code(0);
    assert!(step_by_step == std::fs::read(piped.0.path("receipt.json")).expect("a receipt"), "the receipts differ");
    for name in ["minimal.json", "round-2.json", "verdict.json"] {
        assert!(shell.exists(name), "{name}");
    }
}

#[test]
fn several_stores_are_read_and_only_one_is_written() {
    let shell = Shell::new("misbehave");
    let arguments = "--kernel vmlinux --initrd raft.cpio --vms 1 --append misbehave=fail";
    let lines = documented("## Several stores").replace("...", arguments);
    let (boot, others) = lines.split_once('\n').expect("a boot and what reads from it");
    let files = "find base -type f | sort | xargs sha256sum";
    let before = shell.run(&format!("set -e\n{boot}\n{files}")).expect_code(0);
    let ran = shell.run(&format!("set -e\n{others}\n{files}"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stdout, before, "a store that is only read was written to");
    // The rest of the chain reads from all three, and a store that links to them needs no --from.
    let rest = "mkdir -p all/from && ln -s ../../base ../../round ../../minimal all/from/\n\
                chaos-reproduce --store all --in minimal.json | chaos-verdict --store all \
                --require snapshot_backed_reproduced | chaos-receipt --store all > receipt.json\n\
                chaos-receipt --check receipt.json --store all";
    let ran = shell.run(&format!("set -e -o pipefail\n{rest}"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    // Without the store that holds the snapshot the stage says what is missing.
    let ran = shell.run("chaos-minimize --store other --from round --in round.json | chaos-verdict --store other");
    assert!([0, 3].contains(&ran.code), "{}", ran.stderr);
    let ran = shell.run("chaos-explore-round --store other --in boot.json");
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("is in none of the stores"), "{}", ran.stderr);
}

/// The tools of a chain with arguments that suit the small guest.
const STAGES: [&str; 6] = [
    BOOT,
    ROUND,
    "chaos-minimize --quiet",
    "chaos-reproduce --quiet",
    "chaos-verdict --quiet",
    "chaos-receipt --quiet",
];

#[test]
fn a_stage_that_fails_anywhere_gives_one_message_and_its_code() {
    let shell = Shell::new("misbehave");
    let file = |index: usize| format!("before-{index}.json");
    // What each stage reads, so that a chain can begin anywhere.
    for (index, stage) in STAGES.iter().enumerate() {
        let input = if index == 0 { String::new() } else { format!(" < {}", file(index)) };
        let _ = shell.run(&format!("{stage}{input} > {}", file(index + 1))).expect_code(0);
    }
    for index in 0..STAGES.len() {
        let mut chain = STAGES[index..].to_vec();
        let input = if index == 0 { String::new() } else { format!("cat {} | ", file(index)) };
        let name = STAGES[index].split(' ').next().expect("a name");
        let wrong = format!("{} --sotre x", STAGES[index]);
        chain[0] = &wrong;
        let ran = shell.run(&format!("{input}{}", chain.join(" | ")));
        assert_eq!(ran.code, 2, "{wrong}: {}", ran.stderr);
        assert_eq!(ran.stderr, format!("{name}: unknown flag --sotre; did you mean --store?\n"), "{wrong}");
        let error = ran.descriptor();
        assert_eq!((error["stage"].as_str(), error["exit_code"].as_i64()), (name.strip_prefix("chaos-"), Some(2)));
    }
    for index in 1..STAGES.len() {
        // A descriptor cut in half, as a full disk or a broken copy leaves it.
        let chain = STAGES[index..].join(" | ");
        let ran = shell.run(&format!("head -c 200 {} | {chain}", file(index)));
        let said = ran.stderr.lines().filter(|line| line.starts_with("chaos-")).count();
        assert_eq!((ran.code, said), (3, 1), "{}", ran.stderr);
        assert!(ran.stderr.contains("the document must be JSON"), "{}", ran.stderr);
        // A stage that was killed wrote nothing and can say nothing; the next one does.
        let ran = shell.run(&format!("(kill -9 $BASHPID) | {chain}"));
        let said: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("chaos-")).collect();
        assert_eq!((ran.code, said.len()), (3, 1), "{}", ran.stderr);
        assert!(said[0].contains("stdin: empty: the stage before wrote no descriptor"), "{}", ran.stderr);
    }
}

#[test]
fn an_error_that_is_kept_in_a_file_is_said_by_whoever_reads_it() {
    let shell = Shell::new("misbehave");
    let failed = shell.run(&format!("{} > failed.json", BOOT.replace("=fail", "=die")));
    assert_eq!(failed.code, 5, "{}", failed.stderr);
    for (script, name) in [
        ("chaos-minimize --in failed.json", "failed.json"),
        ("chaos-minimize < failed.json", "stdin"),
        ("chaos-diverge --in failed.json", "failed.json"),
        ("chaos-bench snapshot < failed.json", "stdin"),
    ] {
        let ran = shell.run(script);
        assert_eq!(ran.code, 5, "{script}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!(": {name}: stage boot failed: vm 0")), "{script}: {}", ran.stderr);
    }
    // Through a pipe it was heard a moment ago.
    for script in ["cat failed.json | chaos-minimize", "cat failed.json | chaos-diverge"] {
        let ran = shell.run(script);
        assert_eq!((ran.code, ran.stderr.as_str()), (5, ""), "{script}");
    }
    let shown = shell.run("cat failed.json | chaos-show");
    assert_eq!((shown.code, shown.stderr.as_str()), (5, ""));
    assert!(String::from_utf8_lossy(&shown.stdout).contains("stage boot failed with exit code 5: vm 0"));
}

#[test]
fn a_reader_that_goes_away_loses_nothing() {
    let shell = Shell::new("misbehave");
    let _ = shell.run(&format!("{BOOT} > boot.json && {ROUND} < boot.json > round.json")).expect_code(0);
    let _ = shell.run("find .chaos/objects -type f | sort > expected && rm -r .chaos").expect_code(0);
    for gone in ["| true", "| head -c 0", ">&-"] {
        let script = format!(
            "{BOOT} {gone}\necho ${{PIPESTATUS[0]}}\n{ROUND} < boot.json {gone}\necho ${{PIPESTATUS[0]}}\n\
             find .chaos/objects -type f | sort | diff - expected && rm -r .chaos"
        );
        let ran = shell.run(&script);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{gone}");
        assert_eq!(ran.stdout, b"0\n0\n", "{gone}");
    }
}

#[test]
fn a_verdict_that_does_not_hold_is_data_for_later_stages_and_an_error_for_pipefail() {
    let shell = Shell::new("misbehave");
    let chain = format!(
        "{BOOT} | {ROUND} | chaos-minimize --quiet | chaos-reproduce --quiet | chaos-verdict --require no_bug_found | \
         chaos-receipt > receipt.json"
    );
    let ran = shell.run(&format!("{chain}; echo ${{PIPESTATUS[@]}}"));
    assert_eq!(ran.stdout, b"0 0 0 0 10 0\n", "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert_eq!(shell.run(&format!("set -o pipefail\n{chain}")).code, 10);
    let _ = shell.run("chaos-receipt --check receipt.json").expect_code(0);
}
