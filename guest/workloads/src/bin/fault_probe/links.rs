// SPDX-License-Identifier: Apache-2.0
//! Numbered datagrams to every peer, which echoes them.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

const PORT: u16 = 7200;
const MAGIC: u32 = u32::from_le_bytes(*b"PROB");
/// Every so many datagrams one is made long.
const LARGE_EVERY: u64 = 5;
/// Bytes of a long one.
const LARGE_BYTES: usize = 600;
/// A datagram: magic, sender, kind, number, sender's time, and for an echo the echoing node's time.
const DATAGRAM_BYTES: usize = 36;
/// Numbers remembered to tell a duplicate from a late datagram.
const REMEMBERED_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Datagram {
    sender: u32,
    is_echo: bool,
    number: u64,
    sent_ns: u64,
    echoed_ns: u64,
}

impl Datagram {
    fn encode(&self) -> [u8; DATAGRAM_BYTES] {
        let mut out = [0; DATAGRAM_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.sender.to_le_bytes());
        out[8..12].copy_from_slice(&u32::from(self.is_echo).to_le_bytes());
        out[12..20].copy_from_slice(&self.number.to_le_bytes());
        out[20..28].copy_from_slice(&self.sent_ns.to_le_bytes());
        out[28..36].copy_from_slice(&self.echoed_ns.to_le_bytes());
        out
    }

    /// What follows the fields is filling.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; DATAGRAM_BYTES] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        (word(0) == MAGIC).then(|| Self {
            sender: word(4),
            is_echo: word(8) != 0,
            number: long(12),
            sent_ns: long(20),
            echoed_ns: long(28),
        })
    }
}

fn is_large(number: u64) -> bool {
    number % LARGE_EVERY == LARGE_EVERY - 1
}

/// What happened on one link in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub peer: u32,
    /// Datagrams sent to the peer.
    pub sent: u64,
    /// The peer's own datagrams that arrived, duplicates not counted.
    pub heard: u64,
    /// Those of them that were long.
    pub large_heard: u64,
    /// Echoes of ours that arrived.
    pub echoed: u64,
    pub duplicated: u64,
    /// Arrived after one with a higher number.
    pub reordered: u64,
    /// Numbers below the highest heard that never came.
    pub missing: u64,
    pub rtt_min_us: Option<u64>,
    pub rtt_max_us: Option<u64>,
    /// How much faster the peer's clock runs than ours, in a million.
    pub rate_ppm: Option<i64>,
}

#[derive(Default)]
struct Peer {
    window: Window,
    next: u64,
    highest: Option<u64>,
    seen: BTreeSet<u64>,
    ever_heard: bool,
    /// Our and the peer's time at the last window's last echo.
    clock: Option<(u64, u64)>,
    last_clock: Option<(u64, u64)>,
}

impl Peer {
    /// A datagram of the peer's own.
    fn hear(&mut self, number: u64) {
        self.ever_heard = true;
        // A restarted peer counts from the beginning again.
        if self.highest.is_some_and(|highest| number + REMEMBERED_MAX as u64 / 2 < highest) || number == 0 {
            self.highest = None;
            self.seen.clear();
        }
        if !self.seen.insert(number) {
            self.window.duplicated += 1;
            return;
        }
        if self.seen.len() > REMEMBERED_MAX {
            self.seen.pop_first();
        }
        self.window.heard += 1;
        self.window.large_heard += u64::from(is_large(number));
        match self.highest {
            Some(highest) if number < highest => {
                self.window.reordered += 1;
                self.window.missing = self.window.missing.saturating_sub(1);
            }
            Some(highest) => {
                self.window.missing += number - highest - 1;
                self.highest = Some(number);
            }
            None => self.highest = Some(number),
        }
    }

    /// An echo of one of ours.
    fn echo(&mut self, datagram: &Datagram, now_ns: u64) {
        self.window.echoed += 1;
        let rtt_us = now_ns.saturating_sub(datagram.sent_ns) / 1000;
        self.window.rtt_min_us = Some(self.window.rtt_min_us.map_or(rtt_us, |min| min.min(rtt_us)));
        self.window.rtt_max_us = Some(self.window.rtt_max_us.map_or(rtt_us, |max| max.max(rtt_us)));
        self.clock = Some((now_ns, datagram.echoed_ns));
    }

    fn take_window(&mut self) -> Window {
        if let (Some((ours, theirs)), Some((last_ours, last_theirs))) = (self.clock, self.last_clock)
            && ours > last_ours
            && theirs > last_theirs
        {
            let (ours, theirs) = (i128::from(ours - last_ours), i128::from(theirs - last_theirs));
            self.window.rate_ppm = i64::try_from((theirs - ours) * 1_000_000 / ours).ok();
        }
        self.last_clock = self.clock.take().or(self.last_clock);
        let fresh = Window { peer: self.window.peer, ..Window::default() };
        std::mem::replace(&mut self.window, fresh)
    }
}

/// All links of this node.
pub struct Links {
    vm: u32,
    socket: UdpSocket,
    peers: Vec<Peer>,
    start: Instant,
}

impl Links {
    /// Opens the socket.
    pub fn open(vm: u32, vms: u32) -> io::Result<Self> {
        let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT))?;
        let peer = |peer| Peer { window: Window { peer, ..Window::default() }, ..Peer::default() };
        Ok(Self { vm, socket, peers: (0..vms).map(peer).collect(), start: Instant::now() })
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Whether every peer was heard at least once.
    pub fn all_heard(&self) -> bool {
        (0..).zip(&self.peers).all(|(id, peer): (u32, _)| id == self.vm || peer.ever_heard)
    }

    /// One datagram to each peer. What the kernel refuses (no route, no neighbour) is lost like anything else.
    pub fn send_probes(&mut self) {
        let sent_ns = self.now_ns();
        for id in (0..self.peers.len() as u32).filter(|id| *id != self.vm) {
            let peer = &mut self.peers[id as usize];
            let datagram = Datagram { sender: self.vm, is_echo: false, number: peer.next, sent_ns, echoed_ns: 0 };
            peer.next += 1;
            peer.window.sent += 1;
            let mut bytes = datagram.encode().to_vec();
            if is_large(datagram.number) {
                bytes.resize(LARGE_BYTES, 0);
            }
            let _ = self.socket.send_to(&bytes, address_of(id));
        }
    }

    /// Receives and echoes for this long.
    pub fn receive_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        let mut buffer = [0; 2048];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.socket.set_read_timeout(Some(left)).is_err() {
                return;
            }
            // A timeout ends the turn at the next check; an ICMP error is news of an earlier datagram.
            if let Ok((bytes, _)) = self.socket.recv_from(&mut buffer)
                && let Some(datagram) = Datagram::decode(&buffer[..bytes])
            {
                self.take(datagram);
            }
        }
    }

    fn take(&mut self, datagram: Datagram) {
        let now_ns = self.now_ns();
        let Some(peer) = self.peers.get_mut(datagram.sender as usize) else { return };
        if datagram.is_echo {
            peer.echo(&datagram, now_ns);
        } else {
            peer.hear(datagram.number);
            let echo = Datagram { sender: self.vm, is_echo: true, echoed_ns: now_ns, ..datagram };
            let _ = self.socket.send_to(&echo.encode(), address_of(datagram.sender));
        }
    }

    /// What happened since the last call.
    pub fn take_windows(&mut self) -> Vec<Window> {
        let vm = self.vm as usize;
        self.peers.iter_mut().enumerate().filter(|(id, _)| *id != vm).map(|(_, peer)| peer.take_window()).collect()
    }
}

fn address_of(vm: u32) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, vm as u8 + 1), PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_survive_encoding_and_others_are_ignored() {
        let datagram = Datagram { sender: 2, is_echo: true, number: 7, sent_ns: 1, echoed_ns: u64::MAX };
        assert_eq!(Datagram::decode(&datagram.encode()), Some(datagram));
        assert_eq!(Datagram::decode(&[0; DATAGRAM_BYTES]), None);
        assert_eq!(Datagram::decode(&datagram.encode()[1..]), None);
    }

    #[test]
    fn duplicates_late_and_missing_datagrams_are_told_apart() {
        let mut peer = Peer::default();
        [5, 6, 6, 9, 7, 10].into_iter().for_each(|number| peer.hear(number));
        let window = peer.take_window();
        assert_eq!((window.heard, window.duplicated, window.reordered, window.missing), (5, 1, 1, 1));
        assert_eq!(peer.take_window(), Window::default());
        peer.hear(0);
        assert_eq!(peer.take_window().reordered, 0, "a restarted peer begins again");
    }

    #[test]
    fn a_faster_peer_has_a_positive_rate() {
        let mut peer = Peer::default();
        let echo = |at| Datagram { sender: 0, is_echo: true, number: 0, sent_ns: 0, echoed_ns: at };
        peer.echo(&echo(1_000_000), 1_000_000);
        assert_eq!(peer.take_window().rate_ppm, None);
        peer.echo(&echo(3_000_000), 2_000_000);
        assert_eq!(peer.take_window().rate_ppm, Some(1_000_000));
    }
}
