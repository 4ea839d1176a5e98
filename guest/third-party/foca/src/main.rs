// SPDX-License-Identifier: Apache-2.0
//! foca, a SWIM membership library, one member a VM over UDP.
//!
//! An identity is a node and a *life*: how often the machine was started, counted on its disk, so that a member that comes back wins over
//! what it was before, as the library's documentation asks. What must hold of each member's list, at all times: a node is in it once, never
//! oneself, and never as an earlier life than it was in it before. That members see each other is a goal and not a promise: a network may
//! be cut for as long as it likes.

mod life;

use chaoscontrol_sdk::{
    assert_always, assert_always_or_unreachable, assert_reachable, assert_sometimes, details, get_random,
};
use chaoscontrol_workload::{Failure, Node, Workload};
use foca::{AccumulatingRuntime, Config, Foca, Identity, NoCustomBroadcast, OwnedNotification, PostcardCodec, Timer};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::num::{NonZeroU32, NonZeroUsize};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest wait of one step.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a member that sees nobody waits before it announces itself again.
const ALONE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    node: u32,
    life: u64,
}

impl Identity for Member {
    type Addr = u32;

    /// A member that others declared down comes back as a later one at once: lives are counted in steps, which leaves room.
    fn renew(&self) -> Option<Self> {
        Some(Self { life: self.life + 1, ..*self })
    }

    fn addr(&self) -> u32 {
        self.node
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        self.life > other.life
    }
}

struct Swim {
    node: Node,
    socket: UdpSocket,
    foca: Foca<Member, PostcardCodec, StdRng, NoCustomBroadcast>,
    runtime: AccumulatingRuntime<Member>,
    timers: BTreeMap<(Instant, u64), Timer<Member>>,
    timers_made: u64,
    /// The latest life in which each node was listed.
    seen: BTreeMap<u32, u64>,
    alone_since: Instant,
    was_complete: bool,
}

impl Workload for Swim {
    fn setup(node: Node) -> Result<Self, Failure> {
        let socket = UdpSocket::bind(node.address(node.me(), 0))?;
        let me = Member { node: node.me(), life: life::begin(&node)? };
        let size = NonZeroU32::new(node.all().max(1)).expect("at least one");
        // The library's settings for a LAN, ten times as fast: a branch is a few seconds long.
        let mut config = Config::new_lan(size);
        config.probe_period /= 10;
        config.probe_rtt /= 10;
        config.suspect_to_down_after /= 10;
        config.remove_down_after = Some(Duration::from_secs(20));
        config.periodic_announce = Some(periodic(500, 1));
        config.periodic_announce_to_down_members = Some(periodic(700, 2));
        config.periodic_gossip = Some(periodic(50, 3));
        let foca = Foca::new(me, config, StdRng::seed_from_u64(get_random()), PostcardCodec);
        let alone_since = Instant::now() - ALONE;
        Ok(Self {
            node,
            socket,
            foca,
            runtime: AccumulatingRuntime::new(),
            timers: BTreeMap::new(),
            timers_made: 0,
            seen: BTreeMap::new(),
            alone_since,
            was_complete: false,
        })
    }

    fn ready(&self) -> bool {
        self.is_complete()
    }

    fn step(&mut self) -> Result<(), Failure> {
        if self.foca.num_members() == 0 && self.alone_since.elapsed() >= ALONE {
            self.alone_since = Instant::now();
            for peer in self.node.peers() {
                // Whoever has the address: the life is not known yet.
                self.foca.announce(Member { node: peer, life: 0 }, &mut self.runtime)?;
            }
        }
        self.receive()?;
        self.fire()?;
        self.send();
        self.check();
        Ok(())
    }
}

fn periodic(milliseconds: u64, members: usize) -> foca::PeriodicParams {
    let num_members = NonZeroUsize::new(members).expect("at least one");
    foca::PeriodicParams { frequency: Duration::from_millis(milliseconds), num_members }
}

impl Swim {
    fn is_complete(&self) -> bool {
        self.foca.num_members() + 1 == self.node.all() as usize
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        let due = self.timers.keys().next().map_or(PATIENCE, |(due, _)| due.saturating_duration_since(now));
        self.socket.set_read_timeout(Some(due.clamp(Duration::from_millis(1), PATIENCE)))?;
        let mut buffer = [0; 2048];
        let Ok((bytes, _)) = self.socket.recv_from(&mut buffer) else { return Ok(()) };
        // Data that is not its own, or damaged: the library says what is wrong with it, and goes on.
        let _ = self.foca.handle_data(&buffer[..bytes], &mut self.runtime);
        Ok(())
    }

    fn fire(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            let timer = entry.remove();
            let done = self.foca.handle_timer(timer, &mut self.runtime);
            let why = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
            assert_always!(
                done.is_ok(),
                "the library takes every timer that it asked for",
                details! { why: why.as_str() }
            );
        }
        Ok(())
    }

    fn send(&mut self) {
        while let Some((to, data)) = self.runtime.to_send() {
            // A datagram that does not go out is one that gets lost.
            let _ = self.socket.send_to(&data, self.node.address(to.node, 0));
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.timers_made += 1;
            self.timers.insert((Instant::now() + after, self.timers_made), timer);
        }
        while let Some(notification) = self.runtime.to_notify() {
            match notification {
                OwnedNotification::MemberDown(_) => assert_reachable!("a member is declared down"),
                OwnedNotification::Rejoin(_) => assert_reachable!("a member finds itself declared down and comes back"),
                OwnedNotification::Rename(before, after) => {
                    let facts = details! { node: after.node, before: before.life, after: after.life };
                    assert_always_or_unreachable!(
                        after.life > before.life,
                        "a member is renamed to a later life",
                        facts
                    );
                }
                _ => {}
            }
        }
    }

    fn check(&mut self) {
        let me = self.node.me();
        let mut listed = BTreeMap::new();
        for member in self.foca.iter_members().map(|member| *member.id()) {
            let again = listed.insert(member.node, member.life).is_some();
            assert_always!(!again, "a node is listed once", details! { node: member.node, life: member.life });
            assert_always!(member.node != me, "nobody lists itself", details! { life: member.life });
            let before = self.seen.insert(member.node, member.life).unwrap_or(0);
            let facts = details! { node: member.node, before: before, life: member.life };
            assert_always!(member.life >= before, "a node is never listed as an earlier life", facts);
        }
        let complete = self.is_complete();
        assert_sometimes!(self.was_complete && !complete, "a member is missed");
        assert_sometimes!(
            complete && self.seen.values().any(|life| *life >= 2 * life::STEP),
            "a machine that was started again is seen"
        );
        self.was_complete |= complete;
    }
}

fn main() -> ExitCode {
    chaoscontrol_workload::run::<Swim>()
}
