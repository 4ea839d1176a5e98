// SPDX-License-Identifier: AGPL-3.0-or-later
//! The rules. Each test reads the sources as text, so a rule holds also for code that no test runs.

use chaoscontrol_tidy::{Source, root, sources};

/// Crates whose results a guest, a decision or an artifact can see.
const DETERMINISTIC: [&str; 10] = [
    "vmm/cpu/",
    "vmm/machine/",
    "vmm/fault/",
    "vmm/sim/",
    "vmm/cluster/",
    "vmm/explore/",
    "vmm/trace/",
    "vmm/artifact/",
    "vmm/evidence/",
    "guest/protocol/",
];

/// Whether a file is code of a deterministic crate, examples of its use included; tests may look at the host.
fn is_deterministic(path: &str) -> bool {
    let below = DETERMINISTIC.iter().find_map(|folder| path.strip_prefix(folder));
    below.is_some_and(|below| below.starts_with("src/") || below.starts_with("examples/"))
}

/// Calls that let the host in, and what to use in their place.
const BANNED: [(&str, &str); 12] = [
    ("Instant::now", "count instructions or cluster nanoseconds"),
    ("SystemTime", "take the wall clock from the configuration"),
    ("thread_rng", "draw from a named seeded stream"),
    ("from_os_rng", "draw from a named seeded stream"),
    ("from_entropy", "draw from a named seeded stream"),
    ("getrandom", "draw from a named seeded stream"),
    ("HashMap", "use BTreeMap: its order is the same everywhere"),
    ("HashSet", "use BTreeSet: its order is the same everywhere"),
    ("RandomState", "use an ordered container"),
    ("thread::current", "results may not depend on a thread"),
    ("available_parallelism", "take the number of jobs as an argument"),
    ("env::var", "read the environment in tools only"),
];

fn code_lines(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    // Tests inside a module may measure or shuffle as they like: it stands at the end of its file, and is left out.
    let end = source.text.find("#[cfg(test)]\nmod tests {").unwrap_or(source.text.len());
    source.text[..end].lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn report(problems: &[String]) {
    assert!(problems.is_empty(), "{} problem(s):\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn deterministic_crates_never_ask_the_host() {
    let mut problems = Vec::new();
    for source in sources(&[".rs"]) {
        if !is_deterministic(&source.path) {
            continue;
        }
        for (number, line) in code_lines(&source) {
            for (call, instead) in BANNED {
                if line.contains(call) {
                    problems.push(format!("{}:{}: `{call}`: {instead}", source.path, number + 1));
                }
            }
        }
    }
    report(&problems);
}

#[test]
fn every_source_names_its_licence_and_the_right_one() {
    let mut problems = Vec::new();
    for source in sources(&[".rs", "Cargo.toml", ".ncl", ".nix"]) {
        if source.path == "Cargo.toml" {
            continue;
        }
        let licence = if source.path.starts_with("guest/") { "Apache-2.0" } else { "AGPL-3.0-or-later" };
        let first = source.text.lines().next().unwrap_or_default();
        if !first.ends_with(&format!("SPDX-License-Identifier: {licence}")) {
            problems.push(format!("{}: the first line must name {licence}", source.path));
        }
    }
    report(&problems);
}

#[test]
fn guest_crates_depend_on_no_host_crate() {
    let guest = ["chaoscontrol-protocol", "chaoscontrol-sdk", "chaoscontrol-history", "chaoscontrol-workload"];
    let mut problems = Vec::new();
    for source in sources(&["Cargo.toml"]).iter().filter(|s| s.path.starts_with("guest/")) {
        for line in source.text.lines().filter(|l| l.starts_with("chaoscontrol-")) {
            if !guest.iter().any(|name| line.starts_with(name)) {
                problems.push(format!("{}: {line}", source.path));
            }
        }
    }
    report(&problems);
}

#[test]
fn files_stay_short_enough_to_have_one_topic() {
    let long: Vec<String> = sources(&[".rs", ".nix"])
        .iter()
        .map(|s| (s, s.text.lines().count()))
        .filter(|(_, lines)| *lines > 800)
        .map(|(s, lines)| format!("{}: {lines} lines, more than 800: split it by topic", s.path))
        .collect();
    report(&long);
}

#[test]
fn nothing_is_left_unfinished() {
    // Written in two halves so that this file does not name what it forbids.
    let words = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("dbg", "!("),
    ];
    let mut problems = Vec::new();
    for source in sources(&[".rs", ".sh", ".md", ".nix"]) {
        for (number, line) in source.text.lines().enumerate() {
            for word in words {
                if line.contains(word) {
                    problems.push(format!("{}:{}: {word}", source.path, number + 1));
                }
            }
        }
    }
    report(&problems);
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut problems = Vec::new();
    for page in sources(&[".md"]) {
        let folder = root().join(&page.path).parent().expect("a file has a folder").to_path_buf();
        for target in page.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") && !file.contains(' ') && !folder.join(file).exists() {
                problems.push(format!("{}: {target} does not exist", page.path));
            }
        }
    }
    report(&problems);
}

#[test]
fn the_rule_against_host_calls_can_see() {
    let source = Source {
        path: "vmm/sim/src/x.rs".into(),
        text: "// HashMap\nlet m: HashMap<u8, u8>;\n#[cfg(test)]\nmod x;\nHashSet\n#[cfg(test)]\nmod tests {\nHashSet"
            .into(),
    };
    assert!(is_deterministic(&source.path) && is_deterministic("vmm/sim/examples/x.rs"));
    assert!(!is_deterministic("vmm/sim/tests/x.rs") && !is_deterministic("tools/show/src/main.rs"));
    let hits: Vec<usize> =
        code_lines(&source).filter(|(_, l)| BANNED.iter().any(|(c, _)| l.contains(c))).map(|(n, _)| n).collect();
    assert_eq!(hits, [1, 4], "a call in code is seen; one in a comment or a test is not");
}

#[test]
fn the_identity_of_a_tool_covers_all_of_its_sources() {
    let all = sources(&[".rs"]);
    let mut problems = Vec::new();
    for main in all.iter().filter(|s| s.path.starts_with("tools/") && s.path.ends_with("/src/main.rs")) {
        let folder = main.path.trim_end_matches("main.rs");
        for source in all.iter().filter(|s| s.path.starts_with(folder)) {
            let name = source.path.trim_start_matches(folder);
            let elsewhere = name == "lib.rs" && main.text.contains("::SOURCE");
            if !elsewhere && !main.text.contains(&format!("include_str!(\"{name}\")")) {
                problems.push(format!("{}: {name} is missing in `sources`", main.path));
            }
        }
    }
    assert!(all.iter().any(|s| s.path == "tools/boot/src/main.rs"), "the tools are where this test looks");
    report(&problems);
}
