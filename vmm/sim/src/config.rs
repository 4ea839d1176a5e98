// SPDX-License-Identifier: AGPL-3.0-or-later
//! What the pure core is told about a cluster.

use chaoscontrol_fault::{MAX_VMS, Shape};
use serde::{Deserialize, Serialize};

/// Smallest link latency: rounds are never longer than the smallest latency, and shorter rounds than this would cost more in
/// barriers than in guest code.
pub const LINK_LATENCY_NS_MIN: u64 = 50_000;

/// Largest link latency or jitter at rest.
const LINK_LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Largest loss at rest: half of all frames. A network that loses more is a fault, not a rest.
pub const REST_LOSS_PPM_MAX: u32 = 500_000;

/// One direction between two VMs that differs from the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Sending VM.
    pub from: u16,
    /// Receiving VM.
    pub to: u16,
    /// Delay of every frame.
    pub latency_ns: u64,
    /// Largest random delay on top.
    pub jitter_ns: u64,
}

/// The network at rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkConfig {
    /// Delay of every frame.
    pub latency_ns: u64,
    /// Largest random delay on top.
    pub jitter_ns: u64,
    /// Chance of every frame to get lost, in a million; at most [`REST_LOSS_PPM_MAX`].
    pub loss_ppm: u32,
    /// Links that differ.
    pub links: Vec<LinkConfig>,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self { latency_ns: 1_000_000, jitter_ns: 0, loss_ppm: 0, links: Vec::new() }
    }
}

/// A cluster as the pure core sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimConfig {
    /// Number of disks of each VM, in VM order.
    pub disks: Vec<u16>,
    /// The network at rest.
    pub network: NetworkConfig,
    /// CPUs of each VM.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub cpus: u8,
}

fn one() -> u8 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_one(cpus: &u8) -> bool {
    *cpus == 1
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No VM, or too many.
    #[error("a cluster has 1 to {MAX_VMS} VMs, not {0}")]
    Vms(usize),
    /// A latency out of range.
    #[error("link latency {0} ns must lie between {LINK_LATENCY_NS_MIN} ns and {LINK_LATENCY_NS_MAX} ns")]
    Latency(u64),
    /// A loss out of range.
    #[error("loss at rest is {0} in a million, it must be at most {REST_LOSS_PPM_MAX}")]
    Loss(u32),
    /// A jitter out of range.
    #[error("link jitter {0} ns must be at most {LINK_LATENCY_NS_MAX} ns")]
    Jitter(u64),
    /// No CPU, or too many.
    #[error("a VM has 1 to 8 CPUs, not {0}")]
    Cpus(u8),
    /// A link that does not exist.
    #[error("there is no link from VM {from} to VM {to}")]
    Link {
        /// Sending VM.
        from: u16,
        /// Receiving VM.
        to: u16,
    },
    /// A stored state that no run can have.
    #[error("stored state of the pure core: {0}")]
    State(&'static str),
}

impl SimConfig {
    /// Number of VMs.
    #[must_use]
    pub fn vms(&self) -> u16 {
        u16::try_from(self.disks.len()).unwrap_or(u16::MAX)
    }

    /// What schedules are checked against, for branches of `horizon_ns`.
    #[must_use]
    pub fn shape(&self, horizon_ns: u64) -> Shape {
        Shape { disks: self.disks.clone(), cpus: self.cpus, horizon_ns }
    }

    /// Length of a full round: the smallest latency of any link.
    #[must_use]
    pub fn round_ns(&self) -> u64 {
        let links = self.network.links.iter().map(|link| link.latency_ns);
        links.fold(self.network.latency_ns, u64::min).max(LINK_LATENCY_NS_MIN)
    }

    /// Latency and jitter at rest of one direction.
    #[must_use]
    pub(crate) fn link(&self, from: u16, to: u16) -> (u64, u64) {
        let own = self.network.links.iter().find(|link| link.from == from && link.to == to);
        own.map_or((self.network.latency_ns, self.network.jitter_ns), |link| (link.latency_ns, link.jitter_ns))
    }

    /// Checks every value.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.disks.is_empty() || self.disks.len() > usize::from(MAX_VMS) {
            return Err(ConfigError::Vms(self.disks.len()));
        }
        if !(1..=8).contains(&self.cpus) {
            return Err(ConfigError::Cpus(self.cpus));
        }
        let own = self.network.links.iter().map(|link| (link.latency_ns, link.jitter_ns));
        for (latency, jitter) in own.chain([(self.network.latency_ns, self.network.jitter_ns)]) {
            if !(LINK_LATENCY_NS_MIN..=LINK_LATENCY_NS_MAX).contains(&latency) {
                return Err(ConfigError::Latency(latency));
            }
            if jitter > LINK_LATENCY_NS_MAX {
                return Err(ConfigError::Jitter(jitter));
            }
        }
        if self.network.loss_ppm > REST_LOSS_PPM_MAX {
            return Err(ConfigError::Loss(self.network.loss_ppm));
        }
        for link in &self.network.links {
            if link.from == link.to || link.from.max(link.to) >= self.vms() {
                return Err(ConfigError::Link { from: link.from, to: link.to });
            }
        }
        Ok(())
    }
}

/// The hardware address of a VM's network card: locally administered, the VM's number plus one at its end.
#[must_use]
pub fn mac_of(vm: u16) -> [u8; 6] {
    let [high, low] = (vm + 1).to_be_bytes();
    [0x52, 0x54, 0, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> SimConfig {
        SimConfig { disks: vec![0; 3], network: NetworkConfig::default(), cpus: 1 }
    }

    #[test]
    fn rounds_are_as_long_as_the_smallest_latency() {
        let mut config = config();
        assert_eq!(config.round_ns(), 1_000_000);
        config.network.links.push(LinkConfig { from: 0, to: 2, latency_ns: 70_000, jitter_ns: 0 });
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.round_ns(), 70_000);
        assert_eq!((config.link(0, 2), config.link(2, 0)), ((70_000, 0), (1_000_000, 0)));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let with = |change: &dyn Fn(&mut SimConfig)| {
            let mut config = config();
            change(&mut config);
            config.check().unwrap_err()
        };
        assert_eq!(with(&|config| config.disks.clear()), ConfigError::Vms(0));
        assert_eq!(with(&|config| config.disks = vec![0; 33]), ConfigError::Vms(33));
        assert_eq!(with(&|config| config.network.latency_ns = 49_999), ConfigError::Latency(49_999));
        assert_eq!(with(&|config| config.network.jitter_ns = u64::MAX), ConfigError::Jitter(u64::MAX));
        let own = LinkConfig { from: 1, to: 1, latency_ns: 50_000, jitter_ns: 0 };
        assert_eq!(with(&|config| config.network.links.push(own)), ConfigError::Link { from: 1, to: 1 });
    }
}
