// SPDX-License-Identifier: Apache-2.0
//! Which node this is, and where the others are.

use chaoscontrol_sdk::guest;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Ports that a node of a dry run has to itself.
const PORTS: u16 = 64;

/// A node: its number, how many there are, their addresses, and its parameters.
#[derive(Clone, Debug)]
pub struct Node {
    me: u32,
    all: u32,
    /// The first port of the loopback, if this is a dry run.
    local: Option<u16>,
    parameters: Arc<[(String, String)]>,
}

impl Node {
    /// The node that this machine is; none outside a VM.
    pub(crate) fn of_this_machine() -> Option<Self> {
        let (me, all) = (guest::vm()?, guest::vms()?);
        Some(Self { me, all, local: None, parameters: Arc::from([]) })
    }

    /// A node of a dry run.
    pub(crate) fn local(me: u32, all: u32, port: u16, parameters: Arc<[(String, String)]>) -> Self {
        Self { me, all, local: Some(port), parameters }
    }

    /// Its number, from 0.
    #[must_use]
    pub fn me(&self) -> u32 {
        self.me
    }

    /// How many there are.
    #[must_use]
    pub fn all(&self) -> u32 {
        self.all
    }

    /// The numbers of the others.
    pub fn peers(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.me;
        (0..self.all).filter(move |peer| *peer != me)
    }

    /// Where service number `service` (below 64) of a node is: bind to your own, send to others'.
    #[must_use]
    pub fn address(&self, node: u32, service: u16) -> SocketAddr {
        debug_assert!(service < PORTS, "a node has {PORTS} services");
        match self.local {
            None => (Ipv4Addr::new(10, 0, 0, (node + 1) as u8), 9000 + service).into(),
            Some(first) => (Ipv4Addr::LOCALHOST, first + node as u16 * PORTS + service).into(),
        }
    }

    /// The disk that the node may write to: the one that the parameter `name` names, else `/dev/vda` in a VM. A dry run has none unless it is
    /// named: what is called `/dev/vda` on your own machine is yours.
    #[must_use]
    pub fn disk(&self, name: &str) -> Option<String> {
        self.parameter(name).or_else(|| self.local.is_none().then(|| "/dev/vda".to_owned()))
    }

    /// A parameter: from the kernel command line, or an argument of the dry run.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<String> {
        match self.local {
            None => guest::parameter(name),
            Some(_) => self.parameters.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_dry_run_have_addresses_of_their_own() {
        let parameters = Arc::from([("bug".to_owned(), "a".to_owned()), ("bug".to_owned(), "b".to_owned())]);
        let node = Node::local(1, 3, 24_000, parameters);
        assert_eq!(node.peers().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(node.address(1, 2).to_string(), "127.0.0.1:24066");
        assert_eq!(node.parameter("bug").as_deref(), Some("b"), "the last one counts");
        assert_eq!(node.parameter("bugs"), None);
        assert_eq!(node.disk("disk"), None, "a dry run touches no disk of the machine it runs on");
    }

    #[test]
    fn nodes_in_vms_are_siblings_on_the_network() {
        let node = Node { me: 0, all: 2, local: None, parameters: Arc::from([]) };
        assert_eq!(node.address(1, 0).to_string(), "10.0.0.2:9000");
        assert_eq!(node.disk("disk").as_deref(), Some("/dev/vda"));
    }
}
