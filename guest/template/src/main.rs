// SPDX-License-Identifier: Apache-2.0
//! A replicated log of three nodes: node 0 writes entries and sends them until each of the others has acknowledged them.
//!
//! What must hold: all nodes have the same entry at the same place. It does, because an entry follows from its place, so that node 0
//! writes the same log again when it starts anew. With `log_bug=restart` on the kernel command line an entry also depends on how
//! often node 0 has been started: kill it once and the nodes disagree.

use chaoscontrol_sdk::{assert_agree, assert_always, assert_sometimes, details, guest, setup_complete};
use std::net::UdpSocket;
use std::time::Duration;

/// Entries of the whole log; then everything is said and the nodes stay quiet.
const ENTRIES: u64 = 64;

struct Node {
    me: u32,
    all: u32,
    socket: UdpSocket,
    /// Entries from the first on without a gap.
    log: Vec<u64>,
    /// What each node is known to have (node 0 only).
    acknowledged: Vec<u64>,
    salt: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    chaoscontrol_sdk::init()?;
    let (me, all) = (guest::vm().unwrap_or(0), guest::vms().unwrap_or(1));
    let socket = UdpSocket::bind("0.0.0.0:9000")?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    // The wall clock differs at each start, so it tells starts apart.
    let planted = guest::parameter("log_bug").is_some_and(|bug| bug == "restart");
    let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let salt = if planted { started } else { 0 };
    let mut node = Node { me, all, socket, log: Vec::new(), acknowledged: vec![0; all as usize], salt };
    setup_complete(details! { node: me })?;
    loop {
        if me == 0 {
            node.write()?;
        }
        node.receive()?;
    }
}

impl Node {
    /// Appends one entry, and sends to each node what it has not acknowledged yet, one entry at a time.
    fn write(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let place = self.log.len() as u64;
        if place < ENTRIES {
            self.append(place * 7 + self.salt)?;
        }
        for peer in 1..self.all {
            let place = self.acknowledged[peer as usize];
            if let Some(entry) = self.log.get(place as usize) {
                self.send(peer, place, *entry);
            }
        }
        Ok(())
    }

    fn append(&mut self, entry: u64) -> Result<(), Box<dyn std::error::Error>> {
        let place = self.log.len() as u64;
        self.log.push(entry);
        assert_agree!("entry at a place of the log", place, entry)?;
        assert_sometimes!(place + 1 == ENTRIES, "the log gets full");
        Ok(())
    }

    fn send(&self, peer: u32, place: u64, entry: u64) {
        let message = [&place.to_le_bytes()[..], &entry.to_le_bytes()[..]].concat();
        // A datagram that is lost is sent again: see `write`.
        let _ = self.socket.send_to(&message, format!("10.0.0.{}:9000", peer + 1));
    }

    /// An entry (from node 0) or an acknowledgement (to node 0): the place and a number.
    fn receive(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let mut buffer = [0u8; 16];
        let Ok((16, from)) = self.socket.recv_from(&mut buffer) else { return Ok(()) };
        let place = u64::from_le_bytes(buffer[..8].try_into()?);
        let number = u64::from_le_bytes(buffer[8..].try_into()?);
        let std::net::IpAddr::V4(address) = from.ip() else { return Ok(()) };
        let peer = u32::from(address.octets()[3]).saturating_sub(1);
        if self.me == 0 {
            let known = self.acknowledged.get_mut(peer as usize).ok_or("a node that is not one of ours")?;
            *known = place.max(*known);
            return Ok(());
        }
        if place == self.log.len() as u64 {
            self.append(number)?;
        }
        let have = self.log.len() as u64;
        assert_always!(have <= ENTRIES, "no log grows past its end", details! { have: have });
        assert_sometimes!(place < have - 1, "an entry arrives twice");
        self.send(peer, have, 0);
        Ok(())
    }
}
