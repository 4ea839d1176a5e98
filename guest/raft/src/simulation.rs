// SPDX-License-Identifier: Apache-2.0
//! The core alone, in a simulated cluster: delays, losses, partitions and restarts from a seeded stream. The correct protocol
//! never breaks a safety property; every planted bug does under some schedule, and none without faults.

use crate::bugs::Bug;
use crate::core::{Core, Durable, Output, Persist, Role};
use crate::log::{Command, Entry, Index, NodeId, Term};
use crate::message::Message;
use std::collections::BTreeMap;

const NODES: u32 = 3;
const MS: u64 = 1_000_000;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// What a schedule does at a time.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// One node hears and is heard by nobody.
    Isolate(NodeId),
    /// Nobody hears one node.
    Mute(NodeId),
    Heal,
    /// Stops, and starts again later with what was durable.
    Kill(NodeId),
    Pause(NodeId),
}

struct Cluster {
    bug: Bug,
    random: Random,
    now_ns: u64,
    cores: Vec<Core>,
    durable: Vec<Durable>,
    down_until_ns: Vec<u64>,
    killed: Vec<bool>,
    blocked: Vec<(NodeId, NodeId)>,
    /// Ordered by arrival time and sending order.
    frames: BTreeMap<(u64, u64), (NodeId, NodeId, Message)>,
    sent: u64,
    leaders: BTreeMap<Term, NodeId>,
    committed: BTreeMap<Index, Entry>,
    checked: Vec<Index>,
    number: u64,
    changes: u64,
    violation: Option<String>,
}

impl Cluster {
    fn new(bug: Bug, seed: u64) -> Self {
        let mut random = Random(seed);
        let cores =
            (0..NODES).map(|id| Core::new(id, NODES, bug, Durable::default(), 0, &mut |n| random.below(n))).collect();
        let nodes = NODES as usize;
        Self {
            bug,
            random,
            now_ns: 0,
            cores,
            durable: vec![Durable::default(); nodes],
            down_until_ns: vec![0; nodes],
            killed: vec![false; nodes],
            blocked: Vec::new(),
            frames: BTreeMap::new(),
            sent: 0,
            leaders: BTreeMap::new(),
            committed: BTreeMap::new(),
            checked: vec![0; nodes],
            number: 0,
            changes: 0,
            violation: None,
        }
    }

    fn flush(&mut self, id: NodeId) {
        let output = self.cores[id as usize].take_output();
        let durable = &mut self.durable[id as usize];
        store(durable, &output);
        for (to, message) in output.send {
            if !self.blocked.contains(&(id, to)) {
                self.sent += 1;
                // Streams keep their order, so a constant delay is all there is between two nodes.
                self.frames.insert((self.now_ns + MS, self.sent), (id, to, message));
            }
        }
        self.check(id);
    }

    fn check(&mut self, id: NodeId) {
        let core = &self.cores[id as usize];
        if core.role() == Role::Leader {
            let known = *self.leaders.entry(core.term()).or_insert_with(|| {
                self.changes += 1;
                id
            });
            if known != id {
                self.violation = Some(format!("nodes {known} and {id} lead term {}", core.term()));
            }
        }
        for index in self.checked[id as usize] + 1..=core.commit() {
            let Some(entry) = core.log().get(index) else { break };
            let known = *self.committed.entry(index).or_insert(*entry);
            if known != *entry {
                self.violation = Some(format!("node {id} commits {entry:?} at {index}, known is {known:?}"));
            }
            self.checked[id as usize] = index;
        }
    }

    fn apply(&mut self, fault: Fault) {
        match fault {
            Fault::Isolate(id) => {
                for other in (0..NODES).filter(|other| *other != id) {
                    self.blocked.extend([(id, other), (other, id)]);
                }
            }
            Fault::Mute(id) => self.blocked.extend((0..NODES).filter(|other| *other != id).map(|other| (id, other))),
            Fault::Heal => self.blocked.clear(),
            Fault::Kill(id) => {
                self.killed[id as usize] = true;
                self.down_until_ns[id as usize] = self.now_ns + (50 + self.random.below(1000)) * MS;
            }
            Fault::Pause(id) => self.down_until_ns[id as usize] = self.now_ns + (100 + self.random.below(800)) * MS,
        }
    }

    fn step(&mut self) {
        self.now_ns += MS / 2;
        for id in 0..NODES {
            let at = id as usize;
            if self.now_ns < self.down_until_ns[at] {
                continue;
            }
            let (random, now_ns) = (&mut self.random, self.now_ns);
            let mut draw = |n| random.below(n);
            if self.killed[at] {
                self.killed[at] = false;
                self.cores[at] = Core::new(id, NODES, self.bug, self.durable[at].clone(), now_ns, &mut draw);
                self.checked[at] = 0;
            }
            if now_ns >= self.cores[at].deadline_ns() {
                self.cores[at].tick(now_ns, &mut draw);
                self.flush(id);
            }
            if self.now_ns.is_multiple_of(100 * MS) {
                self.number += 1;
                let command = Command::Add { client: id, number: self.number, value: 1 };
                if self.cores[at].propose(command, self.now_ns) {
                    self.flush(id);
                }
            }
        }
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.frames.first_entry().filter(|entry| entry.key().0 <= self.now_ns) {
            let (key, (from, to, message)) = entry.remove_entry();
            if self.blocked.contains(&(from, to)) || self.killed[to as usize] {
                continue;
            }
            if self.now_ns < self.down_until_ns[to as usize] {
                // A paused node's frames wait.
                self.frames.insert((self.down_until_ns[to as usize], key.1), (from, to, message));
                continue;
            }
            let random = &mut self.random;
            self.cores[to as usize].receive(from, message, self.now_ns, &mut |n| random.below(n));
            self.flush(to);
        }
    }

    /// Runs 2 s without faults, then 5 s under the schedule, each fault at its time.
    fn run(&mut self, schedule: &[(u64, Fault)]) {
        let mut next = 0;
        while self.now_ns < 7000 * MS && self.violation.is_none() {
            while next < schedule.len() && schedule[next].0 <= self.now_ns {
                self.apply(schedule[next].1);
                next += 1;
            }
            self.step();
        }
    }
}

fn store(durable: &mut Durable, output: &Output) {
    for operation in &output.persist {
        match operation {
            Persist::Vote { term, voted_for } => (durable.term, durable.voted_for) = (*term, *voted_for),
            Persist::Truncate { from } => durable.log.truncate(*from),
            Persist::Append { index, entry } => assert_eq!(durable.log.push(*entry), *index),
        }
    }
}

/// Eight faults at random times.
fn schedule(seed: u64) -> Vec<(u64, Fault)> {
    let mut random = Random(seed ^ 0x5eed);
    let mut out: Vec<_> = (0..8)
        .map(|_| {
            let at = (2000 + random.below(4500)) * MS;
            let node = random.below(u64::from(NODES)) as NodeId;
            let fault = match random.below(6) {
                0 => Fault::Isolate(node),
                1 => Fault::Mute(node),
                2 | 3 => Fault::Heal,
                4 => Fault::Kill(node),
                _ => Fault::Pause(node),
            };
            (at, fault)
        })
        .collect();
    out.sort_by_key(|(at, _)| *at);
    out
}

/// How many of `seeds` end in a violation; the first is told.
fn violations(bug: Bug, seeds: u64, faults: bool) -> (u64, Option<String>) {
    let mut count = 0;
    let mut first = None;
    for seed in 0..seeds {
        let mut cluster = Cluster::new(bug, seed);
        cluster.run(&if faults { schedule(seed) } else { Vec::new() });
        if let Some(violation) = cluster.violation {
            count += 1;
            first.get_or_insert(format!("seed {seed}: {violation}"));
        }
    }
    (count, first)
}

#[test]
fn the_correct_protocol_is_safe_under_faults_and_makes_progress() {
    for seed in 0..400 {
        let mut cluster = Cluster::new(Bug::None, seed);
        cluster.run(&schedule(seed));
        assert_eq!(cluster.violation, None, "seed {seed}");
        assert!(cluster.committed.len() > 5, "seed {seed} commits");
    }
    let mut cluster = Cluster::new(Bug::None, 1);
    cluster.run(&[(2000 * MS, Fault::Isolate(0)), (3000 * MS, Fault::Heal)]);
    assert!(cluster.changes >= 2, "an isolated leader is replaced");
    assert!(cluster.committed.len() > 40);
}

#[test]
fn no_variant_fails_without_faults() {
    for (name, bug) in Bug::ALL {
        assert_eq!(violations(bug, 64, false), (0, None), "{name}");
    }
}

#[test]
fn five_bugs_are_found_by_random_faults() {
    for (name, bug) in Bug::ALL.into_iter().filter(|(_, bug)| !matches!(bug, Bug::None | Bug::Fig8Commit)) {
        let (count, first) = violations(bug, 400, true);
        println!("{name}: {count} of 400, {first:?}");
        assert!(count > 0, "{name}");
    }
}

impl Cluster {
    /// Cuts every link of the given nodes, and heals all others.
    fn isolate_only(&mut self, nodes: &[NodeId]) {
        self.blocked.clear();
        nodes.iter().for_each(|id| self.apply(Fault::Isolate(*id)));
    }

    fn step_until(&mut self, what: &str, reached: impl Fn(&Self) -> bool) {
        for _ in 0..20_000 {
            if reached(self) || self.violation.is_some() {
                return;
            }
            self.step();
        }
        panic!("never: {what}");
    }

    fn leader_among(&self, nodes: &[NodeId], after: Term) -> Option<NodeId> {
        let leads = |id: &&NodeId| {
            let core = &self.cores[**id as usize];
            core.role() == Role::Leader && core.term() > after
        };
        nodes.iter().find(leads).copied()
    }

    /// Whether the node has an entry of the term it is in.
    fn has_own_entry(&self, id: NodeId) -> bool {
        let core = &self.cores[id as usize];
        core.log().last_term() == core.term()
    }

    fn has_uncommitted(&self, id: NodeId) -> bool {
        let core = &self.cores[id as usize];
        core.log().last_index() > core.commit()
    }
}

/// Figure 8 of the paper with three nodes: a leads and keeps an entry to itself, b leads and does the same, a leads again and
/// spreads its old entry, b leads again and overwrites it.
fn figure_8(bug: Bug) -> Option<String> {
    let mut cluster = Cluster::new(bug, 1);
    cluster.step_until("a first leader", |c| c.leader_among(&[0, 1, 2], 0).is_some() && c.committed.len() > 3);
    let a = cluster.leader_among(&[0, 1, 2], 0).unwrap();
    let others: Vec<NodeId> = (0..NODES).filter(|id| *id != a).collect();
    cluster.isolate_only(&[a]);
    cluster.step_until("an entry that only a has", |c| c.has_uncommitted(a));
    let term = cluster.cores[a as usize].term();
    cluster.step_until("a second leader", |c| c.leader_among(&others, term).is_some());
    let b = cluster.leader_among(&others, term).unwrap();
    let c = others.iter().copied().find(|id| *id != b).unwrap();
    cluster.isolate_only(&[a, b]);
    cluster.step_until("an entry that only b has", |cluster| cluster.has_own_entry(b));
    cluster.isolate_only(&[b]);
    let old = cluster.cores[a as usize].log().last_index();
    cluster.step_until("a spreads its old entry", |cluster| {
        let (a, c) = (&cluster.cores[a as usize], &cluster.cores[c as usize]);
        a.role() == Role::Leader && a.term() > term + 1 && (a.commit() >= old || c.log().last_term() == a.term())
    });
    cluster.isolate_only(&[a]);
    cluster.step_until("b or c leads at last and commits", |cluster| {
        let last = cluster.leader_among(&[b, c], cluster.cores[a as usize].term());
        last.is_some_and(|id| cluster.cores[id as usize].commit() > old)
    });
    cluster.violation
}

#[test]
fn figure_8_breaks_only_the_variant_without_its_rule() {
    assert_eq!(figure_8(Bug::None), None);
    let violation = figure_8(Bug::Fig8Commit).expect("an entry that was committed is replaced");
    assert!(violation.contains("commits"), "{violation}");
}
