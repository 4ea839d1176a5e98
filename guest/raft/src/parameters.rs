// SPDX-License-Identifier: Apache-2.0
//! Parameters of the kernel command line and of the program.

use crate::bugs::Bug;
use crate::log::NodeId;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Port of every node.
const PORT: u16 = 7000;
/// Nodes of a cluster: votes are bits of a word, addresses one network.
const NODES_MAX: u32 = 64;
const ENTRIES_DEFAULT: u64 = 2000;

/// What the program was asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Parameters {
    pub vm: NodeId,
    pub vms: u32,
    pub bug: Bug,
    pub disk: String,
    pub loopback: Option<u16>,
    pub local: Option<u32>,
    pub entries: u64,
}

impl Parameters {
    /// From both sources.
    pub fn read() -> Result<Self, String> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        Self::from(chaoscontrol_sdk::guest::vm().is_some(), &|name| {
            let of_arguments = arguments.iter().rev().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            of_arguments.map(str::to_owned).or_else(|| chaoscontrol_sdk::guest::parameter(name))
        })
    }

    /// What is called `/dev/vda` outside a VM is somebody's own, so a disk is opened there only if it is named.
    fn from(in_vm: bool, value: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let bug = value("raft_bug").unwrap_or_else(|| "none".to_owned());
        let known = || Bug::ALL.map(|(name, _)| name).join(", ");
        let parameters = Self {
            vm: number(value, "chaos.vm", 0)?,
            vms: number(value, "chaos.vms", 1)?,
            bug: Bug::named(&bug).ok_or_else(|| format!("raft_bug={bug} is unknown; there are {}", known()))?,
            disk: value("raft_disk").unwrap_or_else(|| if in_vm { "/dev/vda" } else { "none" }.to_owned()),
            loopback: optional(value, "raft_loopback")?,
            local: optional(value, "raft_local")?,
            entries: number(value, "raft_entries", ENTRIES_DEFAULT)?,
        };
        let nodes = parameters.local.unwrap_or(parameters.vms);
        if nodes == 0 || nodes > NODES_MAX {
            return Err(format!("a cluster has 1 to {NODES_MAX} nodes, not {nodes}"));
        }
        if parameters.vm >= parameters.vms {
            return Err(format!("chaos.vm={} is none of chaos.vms={}", parameters.vm, parameters.vms));
        }
        Ok(parameters)
    }

    /// Where every node listens.
    pub fn addresses(&self) -> Vec<SocketAddrV4> {
        match self.loopback {
            Some(port) => loopback_addresses(self.vms, port),
            None => (0..self.vms).map(|vm| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, vm as u8 + 1), PORT)).collect(),
        }
    }
}

/// Ports of one machine from `port` on.
pub fn loopback_addresses(nodes: u32, port: u16) -> Vec<SocketAddrV4> {
    (0..nodes).map(|node| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port.saturating_add(node as u16))).collect()
}

fn number<T: std::str::FromStr>(value: &dyn Fn(&str) -> Option<String>, name: &str, default: T) -> Result<T, String> {
    Ok(optional(value, name)?.unwrap_or(default))
}

fn optional<T: std::str::FromStr>(value: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Option<T>, String> {
    value(name).map(|text| text.parse().map_err(|_| format!("{name}={text} is not a number"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Parameters, String> {
        let find = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        Parameters::from(true, &|name| find(name).map(str::to_owned))
    }

    #[test]
    fn the_default_is_correct_and_alone() {
        let parameters = parse("").unwrap();
        assert_eq!((parameters.bug, parameters.vm, parameters.vms), (Bug::None, 0, 1));
        assert_eq!(parameters.disk, "/dev/vda");
    }

    #[test]
    fn outside_a_vm_no_disk_is_opened_unless_it_is_named() {
        assert_eq!(Parameters::from(false, &|_| None).unwrap().disk, "none");
        let named = |name: &str| (name == "raft_disk").then(|| "disk.img".to_owned());
        assert_eq!(Parameters::from(false, &named).unwrap().disk, "disk.img");
    }

    #[test]
    fn every_bug_has_its_name() {
        for (name, bug) in Bug::ALL {
            assert_eq!(parse(&format!("raft_bug={name} chaos.vm=2 chaos.vms=3")).unwrap().bug, bug);
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (line, part) in [
            ("raft_bug=x", "double_vote"),
            ("chaos.vm=3 chaos.vms=3", "chaos.vm=3"),
            ("raft_local=0", "1 to 64"),
            ("raft_entries=many", "raft_entries=many"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
