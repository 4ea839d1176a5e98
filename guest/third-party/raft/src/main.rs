// SPDX-License-Identifier: Apache-2.0
//! `raft`, the consensus library of TiKV: a node a VM over UDP, with its log on a raw disk.
//!
//! The loop is the one of the library's documentation: messages of a ready state go out, entries and hard state are made durable, then the
//! messages that had to wait for that, then committed entries are applied, and the library is told. A leader proposes entries with a
//! content that nobody else makes. What must hold is what Raft promises.

mod log;

use crate::log::Log;
use chaoscontrol_sdk::{
    assert_agree, assert_always, assert_reachable, assert_sometimes, details, get_random, random_below,
};
use chaoscontrol_workload::{Failure, Node, Workload};
use protobuf::Message as _;
use raft::prelude::{Config, Entry, EntryType, Message};
use raft::storage::MemStorage;
use raft::{RawNode, StateRole};
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);
const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 3;
/// A leader proposes in one of so many ticks.
const PROPOSES_IN: u64 = 3;
/// Entries that may wait for their commit; a leader that is cut off proposes no more than that.
const WAITING_MAX: u64 = 64;

struct Member {
    node: Node,
    socket: UdpSocket,
    raft: RawNode<MemStorage>,
    log: Log,
    next_tick: Instant,
    applied: u64,
    /// A hash over everything applied.
    history: u64,
    leaders_seen: Vec<u64>,
    recovered: u64,
}

impl Workload for Member {
    fn setup(node: Node) -> Result<Self, Failure> {
        let socket = UdpSocket::bind(node.address(node.me(), 0))?;
        // Ids of the library begin at 1.
        let voters: Vec<u64> = (1..=u64::from(node.all())).collect();
        let storage = MemStorage::new_with_conf_state((voters, vec![]));
        let log = Log::open(node.disk("raft_disk").as_deref(), &storage)?;
        let recovered = log.entries();
        let config = Config {
            id: u64::from(node.me()) + 1,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            max_size_per_msg: 4096,
            check_quorum: true,
            pre_vote: true,
            ..Config::default()
        };
        config.validate()?;
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raft = RawNode::new(&config, storage, &logger)?;
        assert_sometimes!(recovered > 0, "a node starts again with its log");
        Ok(Self {
            node,
            socket,
            raft,
            log,
            next_tick: Instant::now() + TICK,
            applied: 0,
            history: 0,
            leaders_seen: Vec::new(),
            recovered,
        })
    }

    fn ready(&self) -> bool {
        self.applied > 0
    }

    fn step(&mut self) -> Result<(), Failure> {
        self.receive()?;
        if Instant::now() >= self.next_tick {
            self.next_tick = Instant::now() + TICK;
            self.raft.tick();
            self.propose();
        }
        self.see_leader()?;
        if self.raft.has_ready() {
            self.handle_ready()?;
        }
        Ok(())
    }
}

impl Member {
    fn receive(&mut self) -> Result<(), Failure> {
        let wait = self.next_tick.saturating_duration_since(Instant::now());
        self.socket.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
        let mut buffer = [0; 65_536];
        let Ok((bytes, _)) = self.socket.recv_from(&mut buffer) else { return Ok(()) };
        let Ok(message) = Message::parse_from_bytes(&buffer[..bytes]) else { return Ok(()) };
        // A message that the library does not take (from a member that it does not know) is as good as lost.
        let _ = self.raft.step(message);
        Ok(())
    }

    fn propose(&mut self) {
        let leads = self.raft.raft.state == StateRole::Leader;
        let waiting = self.raft.raft.raft_log.last_index().saturating_sub(self.raft.raft.raft_log.committed);
        if leads && waiting < WAITING_MAX && random_below(PROPOSES_IN) == 0 {
            let content = [self.raft.raft.id, get_random()].map(u64::to_le_bytes).concat();
            // A proposal may be dropped while leadership is handed over.
            let _ = self.raft.propose(Vec::new(), content);
        }
    }

    fn see_leader(&mut self) -> Result<(), Failure> {
        let raft = &self.raft.raft;
        if raft.state == StateRole::Leader {
            assert_agree!("one leader per term", raft.term, raft.id)?;
        }
        if raft.leader_id != 0 && self.leaders_seen.last() != Some(&raft.leader_id) {
            self.leaders_seen.push(raft.leader_id);
        }
        assert_sometimes!(self.leaders_seen.len() > 1, "leadership changes");
        Ok(())
    }

    fn handle_ready(&mut self) -> Result<(), Failure> {
        let mut ready = self.raft.ready();
        self.send(ready.take_messages());
        assert_always!(ready.snapshot().is_empty(), "nobody compacts a log, so nobody sends a snapshot");
        let committed = ready.take_committed_entries();
        self.log.persist(&self.raft.raft.raft_log.store, ready.entries(), ready.hs())?;
        self.send(ready.take_persisted_messages());
        self.apply(committed)?;
        let mut light = self.raft.advance(ready);
        if let Some(commit) = light.commit_index() {
            self.raft.raft.raft_log.store.wl().mut_hard_state().set_commit(commit);
        }
        self.send(light.take_messages());
        let committed = light.take_committed_entries();
        self.apply(committed)?;
        self.raft.advance_apply();
        Ok(())
    }

    fn send(&self, messages: Vec<Message>) {
        for message in messages {
            let Ok(bytes) = message.write_to_bytes() else { continue };
            let peer = u32::try_from(message.to.saturating_sub(1)).unwrap_or(0);
            // A datagram that does not go out is one that gets lost.
            let _ = self.socket.send_to(&bytes, self.node.address(peer, 0));
        }
    }

    fn apply(&mut self, entries: Vec<Entry>) -> Result<(), Failure> {
        for entry in entries {
            let facts = details! { index: entry.index, applied: self.applied };
            assert_always!(entry.index == self.applied + 1, "entries are applied in order, each once", facts);
            self.applied = entry.index;
            let content = hash(hash(entry.term, &entry.index.to_le_bytes()), &entry.data);
            self.history = hash(self.history, &content.to_le_bytes());
            assert_agree!("one entry per applied index", entry.index, content)?;
            assert_agree!("one history per applied index", entry.index, self.history)?;
            if entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty() {
                assert_reachable!("an entry is applied");
            }
            assert_sometimes!(self.leaders_seen.len() > 1, "entries are applied after a change of leaders");
            assert_sometimes!(
                self.recovered > 0 && self.applied > self.recovered,
                "a node that was started again catches up"
            );
        }
        Ok(())
    }
}

/// FNV-1a, 64 bits, from a state on.
fn hash(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state ^ 0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn main() -> ExitCode {
    chaoscontrol_workload::run::<Member>()
}
