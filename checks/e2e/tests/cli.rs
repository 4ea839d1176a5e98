// SPDX-License-Identifier: AGPL-3.0-or-later
//! What comes from the flag table, for every tool: help, version, manual page, completions, suggestions, colour; and what
//! holds for every tool's stdout.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use chaoscontrol_e2e::{Bench, tool_names};

fn text(bench: &Bench, tool: &str, arguments: &[&str]) -> String {
    String::from_utf8(bench.run(tool, arguments, b"").expect_code(0)).expect("text")
}

/// Whether a program of the host is there; says so loudly if not, because the test then shows less.
fn there_is(program: &str, what: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    // Where everything was installed first, as checks/all does, a missing program is a fault.
    assert!(found || std::env::var_os("CHAOS_REQUIRE_TOOLS").is_none(), "{what}: there is no {program}");
    if !found {
        eprintln!("skipped: {what}: there is no {program} here (checks/setup installs it)");
    }
    found
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Long flags of a tool, as its help lists them.
fn long_flags(bench: &Bench, tool: &str) -> Vec<String> {
    let help = text(bench, tool, &["--help"]);
    let (_, flags) = help.split_once("\nFlags:\n").expect("a list of flags");
    let (flags, _) = flags.split_once("\n\n").expect("something follows");
    let names = flags.lines().filter_map(|line| line.get(6..)?.strip_prefix("--"));
    names.map(|rest| format!("--{}", rest.split(' ').next().expect("a name"))).collect()
}

/// What `--generate` writes, in a file.
fn generated(bench: &Bench, tool: &str, what: &str) -> PathBuf {
    let path = bench.path(&format!("{tool}.{what}"));
    std::fs::write(&path, text(bench, tool, &["--generate", what])).expect("a file");
    path
}

#[test]
fn every_tool_says_what_it_reads_writes_and_ends_with() {
    let bench = Bench::new();
    for tool in tool_names() {
        let help = text(&bench, &tool, &["--help"]);
        for part in
            ["Usage:", "Flags:", "Reads:", "Writes:", "Exit codes:", "Examples:", "--version", "\n   0  the stage"]
        {
            assert!(help.contains(part), "{tool}: no {part:?} in:\n{help}");
        }
        assert!(help.lines().all(|line| line.chars().count() <= 140), "{tool}: a line is too long");
        let (_, examples) = help.split_once("Examples:\n").expect("checked");
        assert_eq!(examples.matches("  # ").count(), 2, "{tool}: two examples");
        for example in examples.split("  # ").skip(1) {
            let (_, command) = example.split_once('\n').expect("a command below what it is for");
            assert!(command.contains(&tool), "{tool}: an example that does not call it: {example}");
        }
        let version = text(&bench, &tool, &["--version"]);
        let rest = version.strip_prefix(&format!("{tool} ")).unwrap_or_else(|| panic!("{version}"));
        let (number, source) = rest.split_once(" (source ").unwrap_or_else(|| panic!("{version}"));
        assert!(number.split('.').count() == 3, "{version}");
        assert_eq!(source.trim_end().trim_end_matches(')').len(), 64, "{version}");
    }
}

#[test]
fn a_misspelt_flag_value_or_command_is_answered_with_the_nearest() {
    let bench = Bench::new();
    for tool in tool_names() {
        for (wrong, meant) in [("--vresion", "--version"), ("-v", "-V"), ("-help", "--help")] {
            let ran = bench.run(&tool, &[wrong], b"");
            assert_eq!(ran.code, 2, "{tool}: {}", ran.stderr);
            assert!(ran.stderr.contains(&format!("did you mean {meant}?")), "{tool}: {}", ran.stderr);
        }
    }
    for (tool, arguments, meant) in [
        ("chaos-store", &["verfiy"][..], "verify"),
        ("chaos-bench", &["snaphsot"], "snapshot"),
        ("chaos-verdict", &["--require", "no_bugs_found"], "no_bug_found"),
        ("chaos-boot", &["--generate", "mna"], "man"),
    ] {
        let ran = bench.run(tool, arguments, b"");
        assert_eq!(ran.code, 2, "{tool}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!("did you mean {meant}?")), "{tool}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{tool}: {}", ran.stderr);
    }
}

#[test]
fn manual_pages_are_clean_and_complete() {
    let bench = Bench::new();
    let (groff, man) = (there_is("groff", "manual pages under groff"), there_is("man", "manual pages under man"));
    for tool in tool_names() {
        let page = generated(&bench, &tool, "man");
        let source = std::fs::read_to_string(&page).expect("a page").replace("\\-", "-");
        for flag in long_flags(&bench, &tool) {
            assert!(source.contains(&flag), "{tool}: its page lacks {flag}");
        }
        if groff {
            let ran = output(Command::new("groff").args(["-ww", "-man", "-Tutf8", "-z"]).arg(&page));
            let said = [ran.stdout, ran.stderr].concat();
            assert!(ran.status.success() && said.is_empty(), "{tool}: {}", String::from_utf8_lossy(&said));
        }
        if man {
            let mut command = Command::new("man");
            command.args(["--warnings=w", "-l"]).arg(&page).env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8");
            let ran = output(&mut command);
            let (shown, said) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
            assert!(ran.status.success() && said.is_empty(), "{tool}: {said}");
            assert!(shown.contains("EXIT STATUS") && shown.contains(&tool), "{tool}: {shown}");
        }
    }
}

#[test]
fn bash_completes_every_flag_and_choice() {
    if !there_is("bash", "completions for bash") {
        return;
    }
    let bench = Bench::new();
    let ask = "source \"$1\"; tool=$2; shift 2; COMP_WORDS=(\"$tool\" \"$@\"); COMP_CWORD=$#; \"_${tool//-/_}\"; \
               printf '%s\\n' \"${COMPREPLY[@]}\"; complete -p \"$tool\" >/dev/null";
    let completes = |script: &Path, tool: &str, words: &[&str]| -> Vec<String> {
        let mut command = Command::new("bash");
        command.args(["--norc", "-c", ask, "bash"]).arg(script).arg(tool).args(words).current_dir(bench.path(""));
        let ran = output(&mut command);
        assert!(ran.status.success() && ran.stderr.is_empty(), "{tool}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("text").lines().map(str::to_owned).collect()
    };
    std::fs::write(bench.path("kernel image"), "").expect("a file");
    for tool in tool_names() {
        let script = generated(&bench, &tool, "complete-bash");
        let flags = long_flags(&bench, &tool);
        assert_eq!(completes(&script, &tool, &["--"]), flags, "{tool}");
        assert_eq!(completes(&script, &tool, &["--quiet", "--vers"]), ["--version"], "{tool}");
        assert_eq!(completes(&script, &tool, &["--generate", "=", "m"]), ["man"], "{tool}");
        assert_eq!(completes(&script, &tool, &["--generate", "="]).len(), 4, "{tool}");
    }
    let script = |tool: &str| bench.path(&format!("{tool}.complete-bash"));
    assert_eq!(completes(&script("chaos-store"), "chaos-store", &["v"]), ["verify"]);
    assert_eq!(completes(&script("chaos-boot"), "chaos-boot", &["--kernel", "kernel"]), ["kernel image"]);
}

#[test]
fn fish_completes_every_flag_and_choice() {
    if !there_is("fish", "completions for fish") {
        return;
    }
    let bench = Bench::new();
    let completes = |tool: &str, line: &str| -> Vec<String> {
        let mut command = Command::new("fish");
        command.args(["--no-config", "-c", "source $argv[1]; complete -C \"$argv[2]\""]);
        command.arg(bench.path(&format!("{tool}.complete-fish"))).arg(line).env("HOME", bench.path(""));
        let ran = output(&mut command);
        assert!(ran.status.success() && ran.stderr.is_empty(), "{tool}: {}", String::from_utf8_lossy(&ran.stderr));
        let shown = String::from_utf8(ran.stdout).expect("text");
        shown.lines().map(|line| line.split('\t').next().expect("a word").to_owned()).collect()
    };
    for tool in tool_names() {
        let _ = generated(&bench, &tool, "complete-fish");
        let mut flags = long_flags(&bench, &tool);
        flags.sort();
        let mut offered = completes(&tool, &format!("{tool} --"));
        offered.sort();
        assert_eq!(offered, flags, "{tool}");
        assert_eq!(completes(&tool, &format!("{tool} --generate complete-z")), ["complete-zsh"], "{tool}");
    }
    assert_eq!(completes("chaos-store", "chaos-store ver"), ["verify"]);
}

/// Types each word and a tab into an interactive zsh whose function TOOL writes its arguments down.
const ZSH: &str = r#"
zmodload zsh/zpty
script=$1 tool=$2 out=$3; shift 3
export TERM=vt100
zpty child zsh -f -i
zpty -w child "PS1= PS2= RPS1=; unsetopt beep; autoload -Uz compinit; compinit -u -D; source ${(q)script}"
zpty -w child "$tool() { print -rl -- \"\$@\" >>${(q)out}; }"
for word in "$@"; do
    zpty -w -n child "$tool $word"$'\t\n'
done
zpty -w child ": >${(q)out}.done; exit"
for i in {1..600}; do
    [[ -e $out.done ]] && break
    zpty -r -t child >/dev/null
    sleep 0.1
done
zpty -d child
[[ -e $out.done ]]
"#;

#[test]
fn zsh_completes_every_flag_and_choice() {
    if !there_is("zsh", "completions for zsh") {
        return;
    }
    let bench = Bench::new();
    let completes = |tool: &str, words: &[String]| -> Vec<String> {
        let out = bench.path(&format!("{tool}.typed"));
        for old in [out.clone(), out.with_extension("typed.done")] {
            let _ = std::fs::remove_file(old);
        }
        let mut command = Command::new("zsh");
        command.args(["-f", "-c", ZSH, "zsh"]).arg(generated(&bench, tool, "complete-zsh")).arg(tool).arg(&out);
        let ran = output(command.args(words).env("HOME", bench.path("")).env("ZDOTDIR", bench.path("")));
        assert!(ran.status.success(), "{tool}: {}", String::from_utf8_lossy(&ran.stderr));
        std::fs::read_to_string(&out).expect("what was typed").lines().map(str::to_owned).collect()
    };
    for tool in tool_names() {
        let flags = long_flags(&bench, &tool);
        // All but the last letter, where that leaves one flag to mean.
        let typed = |flag: &String| {
            let most = &flag[..flag.len() - 1];
            let meant = flags.iter().filter(|flag| flag.starts_with(most)).count();
            (if meant == 1 { most } else { flag }).to_owned()
        };
        let mut words: Vec<String> = flags.iter().map(typed).collect();
        words.push("--generate complete-f".to_owned());
        let mut typed = completes(&tool, &words);
        assert_eq!(typed.split_off(flags.len()), ["--generate", "complete-fish"], "{tool}");
        // What takes a value may come with its `=`.
        let typed: Vec<&str> = typed.iter().map(|word| word.trim_end_matches('=')).collect();
        assert_eq!(typed, flags, "{tool}");
    }
    assert_eq!(completes("chaos-store", &["veri".to_owned()])[..], ["verify"]);
}

#[test]
fn only_a_terminal_without_no_color_gets_colour() {
    let bench = Bench::new();
    if !there_is("script", "colour on a terminal") {
        return;
    }
    // script(1) runs a command on a terminal of its own and copies what it says.
    let on_terminal = |arguments: &str, no_color: &str| {
        let tool = bench.command("chaos-boot", &[]);
        let line = format!("{} {arguments}", tool.get_program().to_str().expect("a path"));
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
        let ran = output(command.env("TERM", "xterm").env("NO_COLOR", no_color).current_dir(bench.path("")));
        String::from_utf8(ran.stdout).expect("text")
    };
    let wrong = "--vms 1 --kernel /nowhere";
    assert!(on_terminal(wrong, "").contains("\x1b[1;31mchaos-boot\x1b[0m: reading /nowhere"));
    assert!(on_terminal("--help", "").contains("\x1b[1mUsage:\x1b[0m chaos-boot"));
    for arguments in [wrong, "--help"] {
        assert!(!on_terminal(arguments, "1").contains('\x1b'), "{arguments}: colour although NO_COLOR is set");
    }
    let piped = bench.run("chaos-boot", &["--help"], b"").expect_code(0);
    assert!(!piped.contains(&0x1b), "colour in a pipe");
}

#[test]
fn a_reader_that_goes_away_is_no_failure_and_a_full_disk_is() {
    let bench = Bench::new();
    for tool in tool_names() {
        let mut command = bench.command(&tool, &["--help"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tool starts");
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        assert!(child.wait().expect("our own child").success(), "{tool}: {stderr}");
        assert_eq!(stderr, "", "{tool}");
        for (redirection, code, said) in [(">&-", 0, ""), (">/dev/full", 4, "writing stdout")] {
            let line = format!("exec \"$0\" --version {redirection}");
            let program = bench.command(&tool, &[]).get_program().to_owned();
            let ran = output(Command::new("sh").args(["-c", &line]).arg(program));
            let stderr = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(code), "{tool} {redirection}: {stderr}");
            assert!(stderr.contains(said) && (code != 0 || stderr.is_empty()), "{tool} {redirection}: {stderr}");
        }
    }
}
