// SPDX-License-Identifier: Apache-2.0
//! The protocol as a pure state machine: inputs in, output out; no clock, no network, no disk, no randomness of its own.
//! (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014; sections in parentheses.)
//!
//! The shell feeds inputs, then takes the [`Output`]: it makes `persist` durable first, then sends, then applies what is
//! committed. So several inputs may share one write.

use crate::bugs::Bug;
use crate::log::{Command, Entry, Index, Log, NodeId, Term};
use crate::message::{ENTRIES_MAX, Message};

/// Times of the protocol, in nanoseconds.
pub const HEARTBEAT_NS: u64 = 50_000_000;
/// Shortest election timeout.
pub const ELECTION_NS_MIN: u64 = 150_000_000;
/// Election timeouts are drawn in steps: `ELECTION_STEPS` values from the shortest on, below 300 ms.
pub const ELECTION_STEP_NS: u64 = 20_000_000;
/// See `ELECTION_STEP_NS`.
pub const ELECTION_STEPS: u64 = 8;
/// A fresh cluster's first election is staggered by node, so that it needs no luck.
const FIRST_ELECTION_STAGGER_NS: u64 = 200_000_000;
/// A leader asks again for an answer after this.
const ANSWER_NS: u64 = 2 * HEARTBEAT_NS;

/// What must be durable before anything else of an output happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Persist {
    /// The term, and the vote in it.
    Vote { term: Term, voted_for: Option<NodeId> },
    /// The entries from this index on are void.
    Truncate { from: Index },
    /// One more entry.
    Append { index: Index, entry: Entry },
}

/// Something the checks want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An election began.
    Campaigned,
    /// A leader or candidate learned of a later term and follows.
    SteppedDown { was_leader: bool },
    /// A vote was refused to a candidate of the current term.
    RefusedVote,
    /// A follower dropped entries from `from` on while `commit` was known to be committed.
    Truncated { from: Index, commit: Index },
    /// An entry was added to the log.
    Appended { index: Index, term: Term },
}

/// What came of the inputs since the last output.
#[derive(Clone, Debug, Default)]
pub struct Output {
    pub persist: Vec<Persist>,
    pub send: Vec<(NodeId, Message)>,
    pub notices: Vec<Notice>,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Follower,
    Candidate,
    Leader,
}

/// What survives a restart.
#[derive(Clone, Debug, Default)]
pub struct Durable {
    pub term: Term,
    pub voted_for: Option<NodeId>,
    pub log: Log,
}

/// What a leader knows of a follower.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    next: Index,
    matched: Index,
    /// When an answer was last asked for and is still due.
    asked_ns: Option<u64>,
    /// When anything was last sent.
    sent_ns: u64,
}

/// One node.
pub struct Core {
    id: NodeId,
    nodes: u32,
    bug: Bug,
    term: Term,
    voted_for: Option<NodeId>,
    log: Log,
    commit: Index,
    role: Role,
    leader: Option<NodeId>,
    votes: u64,
    progress: Vec<Progress>,
    /// The timeout drawn last.
    timeout_ns: u64,
    election_deadline_ns: u64,
    output: Output,
}

/// Draws an election timeout, in steps below [`ELECTION_STEPS`].
pub type Draw<'a> = &'a mut dyn FnMut(u64) -> u64;

fn election_timeout(draw: Draw<'_>) -> u64 {
    ELECTION_NS_MIN + draw(ELECTION_STEPS) * ELECTION_STEP_NS
}

impl Core {
    /// A node as it starts, with what survived.
    pub fn new(id: NodeId, nodes: u32, bug: Bug, durable: Durable, now_ns: u64, draw: Draw<'_>) -> Self {
        let fresh = durable.term == 0;
        let mut core = Self {
            id,
            nodes,
            bug,
            term: durable.term,
            voted_for: durable.voted_for,
            log: durable.log,
            commit: 0,
            role: Role::Follower,
            leader: None,
            votes: 0,
            progress: vec![Progress::default(); nodes as usize],
            timeout_ns: 0,
            election_deadline_ns: 0,
            output: Output::default(),
        };
        core.draw_timeout(now_ns, draw);
        if fresh {
            core.election_deadline_ns = now_ns + FIRST_ELECTION_STAGGER_NS * (u64::from(id) + 1) + ELECTION_NS_MIN;
        }
        core
    }

    pub fn role(&self) -> Role {
        self.role
    }

    pub fn term(&self) -> Term {
        self.term
    }

    pub fn leader(&self) -> Option<NodeId> {
        if self.role == Role::Leader { Some(self.id) } else { self.leader }
    }

    pub fn commit(&self) -> Index {
        self.commit
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    /// When [`Core::tick`] has something to do.
    pub fn deadline_ns(&self) -> u64 {
        if self.role != Role::Leader {
            return self.election_deadline_ns;
        }
        let due = |peer: NodeId| self.progress[peer as usize].sent_ns + HEARTBEAT_NS;
        self.peers().map(due).min().unwrap_or(u64::MAX)
    }

    /// Takes what came of the inputs so far.
    pub fn take_output(&mut self) -> Output {
        std::mem::take(&mut self.output)
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ns: u64, draw: Draw<'_>) {
        if self.role == Role::Leader {
            for peer in self.peers() {
                if now_ns >= self.progress[peer as usize].sent_ns + HEARTBEAT_NS {
                    self.send_append(peer, now_ns);
                }
            }
        } else if now_ns >= self.election_deadline_ns {
            self.campaign(now_ns, draw);
        }
    }

    /// A client's command for this node. False when it is not the leader.
    pub fn propose(&mut self, command: Command, now_ns: u64) -> bool {
        if self.role != Role::Leader {
            return false;
        }
        self.append(Entry { term: self.term, command });
        self.advance_commit();
        for peer in self.peers() {
            self.send_new_entries(peer, now_ns);
        }
        true
    }

    /// A message from a peer.
    pub fn receive(&mut self, from: NodeId, message: Message, now_ns: u64, draw: Draw<'_>) {
        if from >= self.nodes || from == self.id {
            return;
        }
        match message {
            Message::RequestVote { term, last_index, last_term } => {
                self.learn_term(term, now_ns, draw);
                self.on_request_vote(from, term, (last_term, last_index), now_ns);
            }
            Message::Vote { term, granted } => {
                self.learn_term(term, now_ns, draw);
                if granted && term == self.term && self.role == Role::Candidate {
                    self.votes |= 1 << from;
                    self.count_votes(now_ns);
                }
            }
            Message::Append { term, previous_index, previous_term, commit, entries } => {
                self.learn_term(term, now_ns, draw);
                if self.role == Role::Follower {
                    // Each wait for a leader is timed anew (5.2), so every branch has its own elections.
                    self.timeout_ns = election_timeout(draw);
                }
                self.on_append(from, term, (previous_index, previous_term), commit, &entries, now_ns);
            }
            Message::Appended { term, success, index } => {
                self.learn_term(term, now_ns, draw);
                if term == self.term && self.role == Role::Leader {
                    self.on_appended(from, success, index, now_ns);
                }
            }
            // The shell handles these.
            Message::Hello { .. } | Message::Forward { .. } => {}
        }
    }

    fn peers(&self) -> impl Iterator<Item = NodeId> + use<> {
        let id = self.id;
        (0..self.nodes).filter(move |peer| *peer != id)
    }

    fn majority(&self) -> u32 {
        self.nodes / 2 + 1
    }

    fn draw_timeout(&mut self, now_ns: u64, draw: Draw<'_>) {
        self.timeout_ns = election_timeout(draw);
        self.restart_timeout(now_ns);
    }

    fn restart_timeout(&mut self, now_ns: u64) {
        self.election_deadline_ns = now_ns + self.timeout_ns;
    }

    fn send(&mut self, to: NodeId, message: Message) {
        self.output.send.push((to, message));
    }

    fn persist_vote(&mut self) {
        self.output.persist.push(Persist::Vote { term: self.term, voted_for: self.voted_for });
    }

    /// A later term makes everyone a follower of it (5.1).
    fn learn_term(&mut self, term: Term, now_ns: u64, draw: Draw<'_>) {
        if term <= self.term {
            return;
        }
        self.term = term;
        self.voted_for = None;
        self.persist_vote();
        if self.role == Role::Leader && self.bug == Bug::LeaderNoStepdown {
            return;
        }
        if self.role != Role::Follower {
            self.output.notices.push(Notice::SteppedDown { was_leader: self.role == Role::Leader });
            self.draw_timeout(now_ns, draw);
        }
        self.role = Role::Follower;
        self.leader = None;
    }

    fn campaign(&mut self, now_ns: u64, draw: Draw<'_>) {
        self.term += 1;
        self.voted_for = Some(self.id);
        self.role = Role::Candidate;
        self.leader = None;
        self.votes = 1 << self.id;
        self.persist_vote();
        self.draw_timeout(now_ns, draw);
        self.output.notices.push(Notice::Campaigned);
        let ask = Message::RequestVote {
            term: self.term,
            last_index: self.log.last_index(),
            last_term: self.log.last_term(),
        };
        for peer in self.peers() {
            self.send(peer, ask.clone());
        }
        self.count_votes(now_ns);
    }

    /// One vote a term, and only for a log at least as complete as ours (5.2, 5.4.1).
    fn on_request_vote(&mut self, from: NodeId, term: Term, last: (Term, Index), now_ns: u64) {
        let complete = last >= (self.log.last_term(), self.log.last_index());
        let free = self.bug == Bug::DoubleVote || self.voted_for.is_none() || self.voted_for == Some(from);
        let granted = term == self.term && free && complete;
        if granted {
            self.voted_for = Some(from);
            self.persist_vote();
            self.restart_timeout(now_ns);
        } else if term == self.term {
            self.output.notices.push(Notice::RefusedVote);
        }
        self.send(from, Message::Vote { term: self.term, granted });
    }

    fn count_votes(&mut self, now_ns: u64) {
        if self.votes.count_ones() < self.majority() {
            return;
        }
        self.role = Role::Leader;
        let next = self.log.last_index() + 1;
        self.progress.fill(Progress { next, ..Progress::default() });
        // An entry of its own lets a leader commit what earlier terms left (8).
        if self.bug != Bug::Fig8Commit {
            self.append(Entry { term: self.term, command: Command::Nothing });
        }
        self.advance_commit();
        for peer in self.peers() {
            self.send_append(peer, now_ns);
        }
    }

    fn append(&mut self, entry: Entry) {
        let index = self.log.push(entry);
        self.output.persist.push(Persist::Append { index, entry });
        self.output.notices.push(Notice::Appended { index, term: entry.term });
    }

    fn send_new_entries(&mut self, peer: NodeId, now_ns: u64) {
        let progress = self.progress[peer as usize];
        let waits = progress.asked_ns.is_some_and(|asked| now_ns < asked + ANSWER_NS);
        if !waits && progress.next <= self.log.last_index() {
            self.send_append(peer, now_ns);
        }
    }

    fn send_append(&mut self, peer: NodeId, now_ns: u64) {
        let next = self.progress[peer as usize].next.max(1);
        let previous_index = next - 1;
        let previous_term = self.log.term_at(previous_index).unwrap_or(0);
        let entries = self.log.slice(next, ENTRIES_MAX).to_vec();
        let progress = &mut self.progress[peer as usize];
        progress.sent_ns = now_ns;
        progress.asked_ns = Some(now_ns);
        let (term, commit) = (self.term, self.commit);
        self.send(peer, Message::Append { term, previous_index, previous_term, commit, entries });
    }

    /// Entries are taken only where the logs match before them; what conflicts is dropped (5.3).
    fn on_append(
        &mut self,
        from: NodeId,
        term: Term,
        previous: (Index, Term),
        commit: Index,
        entries: &[Entry],
        now_ns: u64,
    ) {
        if self.role == Role::Leader && term == self.term {
            // Only a broken protocol has two leaders in a term; neither follows the other.
            return;
        }
        if term < self.term && !(self.bug == Bug::AcceptStaleTerm && self.role == Role::Follower) {
            let index = self.log.last_index();
            return self.send(from, Message::Appended { term: self.term, success: false, index });
        }
        self.role = Role::Follower;
        self.leader = Some(from);
        self.restart_timeout(now_ns);
        let (previous_index, previous_term) = previous;
        if self.log.term_at(previous_index) != Some(previous_term) {
            let index = self.log.before_term_of(previous_index);
            return self.send(from, Message::Appended { term, success: false, index });
        }
        self.take_entries(previous_index, entries);
        let index = previous_index + entries.len() as Index;
        self.commit = self.commit.max(commit.min(index));
        self.send(from, Message::Appended { term, success: true, index });
    }

    fn take_entries(&mut self, previous_index: Index, entries: &[Entry]) {
        for (index, entry) in (previous_index + 1..).zip(entries) {
            match self.log.term_at(index) {
                Some(term) if term == entry.term => continue,
                Some(_) if self.bug == Bug::SkipTruncate => continue,
                Some(_) => {
                    self.log.truncate(index);
                    self.output.persist.push(Persist::Truncate { from: index });
                    self.output.notices.push(Notice::Truncated { from: index, commit: self.commit });
                }
                None => {}
            }
            self.append(*entry);
        }
    }

    fn on_appended(&mut self, from: NodeId, success: bool, index: Index, now_ns: u64) {
        let last = self.log.last_index();
        let progress = &mut self.progress[from as usize];
        progress.asked_ns = None;
        if success {
            progress.matched = progress.matched.max(index.min(last));
            progress.next = progress.next.max(progress.matched + 1);
            self.advance_commit();
            self.send_new_entries(from, now_ns);
        } else {
            // The answer may be old: never below what is known to match.
            progress.next = (index + 1).min(progress.next.saturating_sub(1)).max(progress.matched + 1);
            self.send_append(from, now_ns);
        }
    }

    /// What a majority has is committed, if it is of this term (5.4.2).
    fn advance_commit(&mut self) {
        let mut matched: Vec<Index> = self.peers().map(|peer| self.progress[peer as usize].matched).collect();
        matched.push(self.log.last_index());
        matched.sort_unstable();
        let mut index = matched[matched.len() - self.majority() as usize];
        if self.bug == Bug::PrematureCommit {
            index = self.log.last_index();
        }
        let own_term = self.log.term_at(index) == Some(self.term) || self.bug == Bug::Fig8Commit;
        if index > self.commit && own_term {
            self.commit = index;
        }
    }
}
