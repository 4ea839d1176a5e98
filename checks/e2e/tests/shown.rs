// SPDX-License-Identifier: AGPL-3.0-or-later
//! `chaos-show` on every kind of artifact, from a guest that tries to steer the terminal wherever its text may turn up.

use std::collections::BTreeSet;
use std::path::Path;

use chaoscontrol_e2e::{Bench, Ran, initrd, kernel, outputs};

/// One fault, so that there is a schedule to show.
const SCHEDULE: &str = r#"{"schema": "chaoscontrol.schedule", "version": 1, "schedule": {"events": [
    {"time_ns": "1000000", "fault": "vm_pause", "vm": 0, "duration_ns": "1000000"}
]}}"#;

fn boot(bench: &Bench, how: &str) -> Ran {
    let (kernel, initrd) = (kernel(), initrd("misbehave"));
    let append = format!("misbehave={how}");
    let disk = bench.path("disk.img");
    let mut image = b"text at the beginning of a disk\x1b[2J".to_vec();
    image.resize(8192, 0);
    std::fs::write(&disk, image).expect("an image");
    let path = |path: &Path| path.to_str().expect("a path").to_owned();
    let (kernel, initrd, disk) = (path(&kernel), path(&initrd), path(&disk));
    let arguments =
        ["--kernel", &kernel, "--initrd", &initrd, "--disk", &disk, "--vms", "1", "--append", &append, "--quiet"];
    bench.run("chaos-boot", &arguments, b"")
}

/// Nothing in it moves the cursor, rings, or reorders what is read.
fn safe(what: &str, text: &str) {
    let steers = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
    };
    let found = text.chars().find(|c| steers(*c));
    assert_eq!(found, None, "{what}: {found:?} reaches the terminal in {text:?}");
}

fn shown(bench: &Bench, what: &str) -> String {
    let ran = bench.run("chaos-show", &[what], b"");
    safe(what, &ran.stderr);
    assert_eq!(ran.code, 0, "{what}: {}", ran.stderr);
    let text = String::from_utf8(ran.stdout).expect("text");
    safe(what, &text);
    text
}

#[test]
fn every_kind_of_artifact_is_shown_and_no_text_of_a_guest_steers_the_terminal() {
    let bench = Bench::new();
    let schedule = bench.path("schedule.json");
    std::fs::write(&schedule, SCHEDULE).expect("a schedule");
    let schedule = schedule.to_str().expect("a path");
    let mut descriptor = boot(&bench, "steer").expect_code(0);
    let mut descriptors = vec![("boot", descriptor.clone())];
    let stages: [(&str, &[&str]); 5] = [
        ("chaos-explore-round", &["--branches", "2", "--horizon-ns", "300000000", "--schedule", schedule]),
        ("chaos-minimize", &[]),
        ("chaos-reproduce", &["--serial"]),
        ("chaos-verdict", &["--require", "snapshot_backed_reproduced"]),
        ("chaos-receipt", &[]),
    ];
    for (tool, arguments) in stages {
        let ran = bench.run(tool, arguments, &descriptor);
        safe(tool, &ran.stderr);
        descriptor = ran.expect_code(0);
        descriptors.push((tool, descriptor.clone()));
    }
    for (tool, descriptor) in &descriptors {
        let ran = bench.run("chaos-show", &[], descriptor);
        safe(tool, &ran.stderr);
        safe(tool, &String::from_utf8(ran.expect_code(0)).expect("text"));
    }
    // Each object by its digest, as its kind, and JSON from a file as well.
    let listed = String::from_utf8(bench.run("chaos-store", &["ls"], b"").expect_code(0)).expect("text");
    let mut kinds = BTreeSet::new();
    for line in listed.lines() {
        let mut words = line.split_ascii_whitespace();
        let (digest, kind) = (words.next().expect("a digest"), words.next().expect("a kind"));
        let text = shown(&bench, digest);
        let title = text.lines().next().expect("a title");
        assert!(kind == "data" || title.starts_with(&format!("{kind} {digest} ")), "{title}");
        kinds.insert(title.split(' ').next().expect("a kind").to_owned());
        let raw = bench.run("chaos-show", &["--raw", digest], b"").expect_code(0);
        if raw.starts_with(b"{") {
            let file = bench.path("document.json");
            std::fs::write(&file, raw).expect("a file");
            let again = shown(&bench, file.to_str().expect("a path"));
            assert!(text.ends_with(&again) || kind == "descriptor", "{kind}: the file and the object are shown alike");
        }
    }
    let expected = [
        "assertions",
        "bug",
        "console",
        "corpus",
        "coverage",
        "descriptor",
        "disk",
        "initrd",
        "kernel",
        "minimized-bug",
        "reproduction",
        "run",
        "schedule",
        "snapshot",
        "trace",
        "verdict",
    ];
    assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    let environments = std::fs::read_dir(bench.store().join("environment")).expect("environments");
    for environment in environments {
        let path = environment.expect("an entry").path();
        assert!(shown(&bench, path.to_str().expect("a path")).contains(" cores, engine "));
    }
    // The text is there, made visible.
    let bug = shown(&bench, &outputs(&descriptors[1].1, "bug")[0]);
    assert!(bug.contains("assertion: \\u{1b}[31mred\\u{202e} message\\u{9b}"), "{bug}");
    let console = shown(&bench, &outputs(&descriptors[3].1, "reproduction")[0]);
    assert!(console.contains("reproduced"), "{console}");

    // One object that is gone keeps none of the others from being shown.
    let round = &descriptors[1].1;
    let corpus = &outputs(round, "corpus")[0];
    let folder = bench.store().join("objects").join(&corpus[..2]);
    for file in std::fs::read_dir(folder).expect("objects") {
        let path = file.expect("an entry").path();
        if path.to_string_lossy().contains(&corpus[..]) {
            std::fs::remove_file(path).expect("deleting the corpus");
        }
    }
    let ran = bench.run("chaos-show", &[], round);
    assert!(ran.code == 3 && ran.stderr.contains(&corpus[..12]), "{} {}", ran.code, ran.stderr);
    let text = String::from_utf8(ran.stdout).expect("text");
    assert!(
        text.contains(&format!("corpus {corpus}: cannot be shown")) && text.contains("red\\u{202e} message"),
        "{text}"
    );
}

#[test]
fn a_failed_boot_quotes_the_console_without_its_control_characters() {
    let bench = Bench::new();
    let ran = boot(&bench, "steer-die");
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    safe("chaos-boot", &ran.stderr);
    assert!(ran.stderr.contains("\\u{1b}[2J"), "{}", ran.stderr);
    let shown = bench.run("chaos-show", &[], &ran.stdout);
    assert_eq!((shown.code, shown.stderr.as_str()), (5, ""));
    safe("chaos-show", &String::from_utf8(shown.stdout).expect("text"));
    // Text from a descriptor that somebody made steers no more than a guest's.
    let mut forged = ran.descriptor();
    forged["message"] = "\u{1b}[2J\u{9b}31m\u{202e}".into();
    for (tool, arguments) in [("chaos-show", &["error.json"][..]), ("chaos-minimize", &["--in", "error.json"])] {
        std::fs::write(bench.path("error.json"), forged.to_string()).expect("a file");
        let ran = bench.run(tool, arguments, b"");
        assert_eq!(ran.code, 5, "{tool}: {}", ran.stderr);
        safe(tool, &ran.stderr);
    }
}
