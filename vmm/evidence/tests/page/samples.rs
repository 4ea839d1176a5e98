// SPDX-License-Identifier: AGPL-3.0-or-later
//! Reports made by hand: one of each shape that a page must bear.

use std::collections::BTreeMap;

use chaoscontrol_artifact::journal::{Message, MessageFate, NetworkTotals, Said, SaidKind};
use chaoscontrol_artifact::schema::{
    AssertionMoment, AssertionSummary, BugIdentity, FaultCounts, LabelCounts, ToolIdentity, Violation,
};
use chaoscontrol_artifact::{Digest, U64};
use chaoscontrol_evidence::page::model::{
    BINS, BugPart, CampaignPart, FaultPart, Guests, Lane, LinkPart, MessagePart, Moments, Report, StagePart, Stretch,
};

/// What a guest may try: to leave its element, to run something, to reorder the page, to fill it.
pub const HOSTILE: &str = "</td></pre></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;<!--]]>\u{202e}\u{1b}[31m\
    \u{0}\u{85}\r\njavascript:alert(1)AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

const SECOND: u64 = 1_000_000_000;

/// Every sample with its name.
pub fn all() -> Vec<(&'static str, Report)> {
    let mut quiet = report("held", 3, 0);
    (quiet.class, quiet.status) = (Some("no_bug_found".to_owned()), Some("no-bug-coverage-gap".to_owned()));
    let mut unexplored = report("booted", 1, 0);
    (unexplored.class, unexplored.status, unexplored.campaign) = (None, None, None);
    unexplored.assertions.clear();
    unexplored.faults.clear();
    let mut unreplayed = report("one leader per term", 3, 2);
    for bug in &mut unreplayed.bugs {
        (bug.moments, bug.no_moments) = (None, Some("the snapshot is in no store".to_owned()));
        bug.lanes.clear();
    }
    vec![
        ("bug", report("one leader per term", 3, 1)),
        ("crowd", report("what is committed is in the log", 32, 3)),
        ("hostile", hostile(HOSTILE)),
        ("quiet", quiet),
        ("unexplored", unexplored),
        ("unreplayed", unreplayed),
    ]
}

/// A report in which every text that a guest can choose is this one.
pub fn hostile(text: &str) -> Report {
    report(text, 3, 1)
}

fn report(text: &str, vms: u16, bugs: u64) -> Report {
    let own =
        |name: &str| ToolIdentity { name: name.to_owned(), version: "0.1.0".to_owned(), source: Digest::of(b"source") };
    let counts = |of: u64| FaultCounts {
        selected: U64(of),
        applicable: U64(of - of / 5),
        rejected: U64(of / 5),
        applied: U64(of - of / 5),
        failed: U64(0),
        observed: U64(of / 2),
    };
    let stage = |stage: &str| StagePart {
        stage: stage.to_owned(),
        tool: own(&format!("chaos-{stage}")),
        descriptor: Digest::of(stage.as_bytes()),
        parameters: vec![("seed".to_owned(), "42".to_owned()), ("append".to_owned(), text.to_owned())],
    };
    Report {
        format: "chaos-report",
        version: 1,
        tool: own("chaos-report"),
        stage: "receipt".to_owned(),
        descriptor: Digest::of(b"descriptor"),
        class: Some("snapshot_backed_reproduced".to_owned()),
        status: Some("accepted".to_owned()),
        cluster: Some(Guests {
            vms,
            memory_bytes: U64(64 << 20),
            seed: U64(42),
            engine: "exact".to_owned(),
            append: text.to_owned(),
            append_vm: vec![text.to_owned(), String::new()],
            disk_bytes: vec![U64(16 << 20)],
            latency_ns: U64(1_000_000),
            jitter_ns: U64(0),
            kernel: Digest::of(b"kernel"),
            initrd: Some(Digest::of(b"initrd")),
        }),
        campaign: Some(CampaignPart {
            corpus: Digest::of(b"corpus"),
            seed: U64(42),
            mode: "faults".to_owned(),
            branches: U64(256),
            novel: U64(211),
            origins: BTreeMap::from([("mutation".to_owned(), 20), ("tactic".to_owned(), 11)]),
            labels: BTreeMap::from([
                (format!("event {text}"), LabelCounts { branches: U64(3), marks: U64(7), most: U64(4), closest: None }),
                (
                    "send".to_owned(),
                    LabelCounts { branches: U64(256), marks: U64(70_000), most: U64(400), closest: None },
                ),
            ]),
            horizon_ns: U64(5 * SECOND),
            edges: 5676,
            entries: 31,
            instructions: U64(9_876_543_210),
            cluster_ns: U64(1_273 * SECOND),
            growth: vec![(U64(0), 1489), (U64(3), 5581), (U64(40), 5600), (U64(210), 5676)],
            rounds: vec![(U64(64), 5600, 1), (U64(256), 5676, 2)],
        }),
        bugs: (1..=bugs).map(|number| bug(text, number, vms)).collect(),
        assertions: [("always", 10, 1), ("sometimes", 0, 40), ("agree", 9, 0), ("unreachable", 0, 0)]
            .map(|(kind, passes, failures)| {
                let mut summary = AssertionSummary {
                    kind: kind.to_owned(),
                    property: text.to_owned(),
                    identity: format!("package 0.1.0 src/{text}.rs:12:9"),
                    fingerprint: Digest::of(kind.as_bytes()),
                    site: format!("package/src/{text}.rs:12:9"),
                    must_hit: kind != "unreachable",
                    passes: U64(passes),
                    failures: U64(failures),
                    branches: U64(passes.min(3)),
                    first_pass: (passes > 0).then_some(AssertionMoment {
                        branch: None,
                        vm: 0,
                        cluster_ns: U64(SECOND),
                    }),
                    first_failure: (failures > 0).then_some(AssertionMoment {
                        branch: Some(U64(7)),
                        vm: 1,
                        cluster_ns: U64(4 * SECOND),
                    }),
                    verdict: String::new(),
                };
                summary.verdict = summary.judged().to_owned();
                summary
            })
            .to_vec(),
        faults: BTreeMap::from([
            ("network_partition".to_owned(), counts(120)),
            ("vm_kill".to_owned(), counts(77)),
            ("disk_corruption".to_owned(), counts(0)),
        ]),
        stages: ["boot", "explore-round", "minimize", "reproduce", "verdict", "receipt"].map(stage).to_vec(),
    }
}

fn bug(text: &str, number: u64, vms: u16) -> BugPart {
    let fault = |due_ns: u64, kind: &str, vms: Vec<u16>, lasts_ns: Option<u64>| FaultPart {
        due_ns: U64(due_ns),
        kind: kind.to_owned(),
        text: format!("{kind} of something with=parameters that=are long=enough to=wrap"),
        vms,
        applied_ns: Some(U64(due_ns)),
        until_ns: lasts_ns.map(|lasts| U64(due_ns + lasts)),
        fate: format!("failed: {text}"),
        observed: U64(3),
    };
    let schedule = vec![
        fault(SECOND, "network_partition", (0..vms).collect(), Some(SECOND / 3)),
        fault(3_990_000_000, "vm_kill", vec![0], None),
    ];
    BugPart {
        number,
        object: Digest::of(b"bug"),
        violation: Violation {
            identity: BugIdentity { kind: "disagreement".to_owned(), property: text.to_owned() },
            vm: vms - 1,
            cluster_ns: U64(4_757_754_184),
            guest_ns: U64(4_757_754_184),
            instructions: U64(30_843_805),
            facts: BTreeMap::from([("key".to_owned(), "32".to_owned()), ("details".to_owned(), text.to_owned())]),
        },
        class: Some("snapshot_backed_reproduced".to_owned()),
        reproduction: Some(format!("could not be replayed: {text}")),
        branch: Some(U64(3 * number)),
        one_minimal: Some(true),
        attempts: Some(12),
        start_ns: U64(700_000_000),
        cluster_ns: U64(4_060_000_000),
        seed: U64(7),
        instructions: U64(123_456_789),
        found_with: Some(schedule.clone()),
        schedule,
        lanes: (0..vms).map(lane).collect(),
        moments: Some(moments(text, vms)),
        no_moments: None,
        replay: vec![(
            "from its snapshot".to_owned(),
            format!("chaos-show --raw {} | chaos-reproduce --bug 1 --serial", Digest::of(b"x")),
        )],
    }
}

fn lane(vm: u16) -> Lane {
    let stretch = |from, to, power| Stretch { from_ns: U64(from), to_ns: U64(to), power };
    let power = match vm {
        0 => vec![stretch(0, 3_990_000_000, "up"), stretch(3_990_000_000, 4_060_000_000, "down")],
        1 => vec![
            stretch(0, SECOND, "up"),
            stretch(SECOND, 2 * SECOND, "paused"),
            stretch(2 * SECOND, 4_060_000_000, "up"),
        ],
        _ => vec![stretch(0, 4_060_000_000, "up")],
    };
    let traffic = (0..BINS as u64).map(|bin| (bin * 7 + u64::from(vm)) % 13).collect();
    Lane { vm, power, frames_sent: U64(611), frames_delivered: U64(602), records: U64(40), traffic }
}

fn moments(text: &str, vms: u16) -> Moments {
    let end = 4_757_754_184;
    let fates = [
        MessageFate::Delivered,
        MessageFate::Delivered,
        MessageFate::Partitioned,
        MessageFate::Lost,
        MessageFate::ToDown,
        MessageFate::InFlight,
    ];
    let message = |index: u64| {
        let (from, fate) = ((index % u64::from(vms)) as u16, fates[index as usize % fates.len()]);
        let sent_ns = end - 60_000_000 + index / 2 * 3_000_000;
        let takes = if fate == MessageFate::Lost { 0 } else { 1_000_000 };
        let message = Message {
            from,
            to: (from + 1) % vms.max(2),
            sent_ns: U64(sent_ns),
            due_ns: U64(sent_ns + takes),
            fate,
            corrupted: index == 7,
            duplicate: index == 8,
            bytes: 139,
            head: Vec::new(),
        };
        MessagePart { message, text: "TCP 7000 to 40961, 85 bytes".to_owned() }
    };
    let kinds = [
        SaidKind::Event,
        SaidKind::Passed,
        SaidKind::Failed,
        SaidKind::Missed,
        SaidKind::Agree,
        SaidKind::Log,
        SaidKind::Process,
    ];
    let said = |index: u64| Said {
        vm: (index % u64::from(vms)) as u16,
        at_ns: U64(end - 50_000_000 + index * 8_000_000),
        kind: kinds[index as usize % kinds.len()],
        name: text.to_owned(),
        details: text.to_owned(),
    };
    let link = LinkPart {
        from: 0,
        to: 1,
        sent: U64(120),
        delivered: U64(100),
        dropped: U64(20),
        bytes: U64(12_345),
        delay_ns: Some((U64(1_000_000), U64(1_900_000))),
    };
    Moments {
        from_ns: U64(end - 60_000_000),
        messages: (0..24).map(message).collect(),
        bare: 31,
        said: (0..6).map(said).collect(),
        said_before: U64(12),
        links: vec![link; 6],
        network: NetworkTotals {
            sent: U64(900),
            delivered: U64(850),
            partitioned: U64(50),
            ..NetworkTotals::default()
        },
        consoles: (0..vms).map(|vm| vec![(U64(end - 1_000), format!("vm {vm} says {text}")); 5]).collect(),
    }
}
