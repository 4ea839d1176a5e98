// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a machine may hold for the host: everything that waits, with its bound.
//!
//! The plan is a function of the configuration. It is checked and hashed before a machine exists, so that two hosts agree on
//! where anything would run out. What runs out is lost and counted, or refused with a typed error; nothing ends the process.

use crate::config::VmConfig;
use crate::machine::Machine;
use crate::pages::Digest;
use crate::sdk_window::MESSAGE_BYTES_MAX;
use crate::stop::MachineError;
use crate::virtio::VirtioDevice;
use crate::virtio::block::{Block, REQUEST_BYTES_MAX};
use crate::virtio::net::{FRAME_BYTES_MAX, Net, TRANSMITTED_FRAMES_MAX};

/// Most bytes that one machine may plan for beside its memory and disks: 32 of them fit a host of 16 GiB.
pub const PLANNED_BYTES_MAX: u64 = 512 << 20;
/// A record of a turn, in memory.
const RECORD_BYTES: u64 = 128;
/// A frame's own fields.
const FRAME_OVERHEAD_BYTES: u64 = 64;
/// A descriptor (16 bytes), its ring entries (2 and 8) and what the device knows of it.
const QUEUE_ENTRY_BYTES: u64 = 32;
/// Domain of the plan's hash.
const CONTEXT: &str = "chaoscontrol 2026 machine capacity plan v1";

/// One bounded resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// What waits.
    pub resource: &'static str,
    /// Most of it.
    pub limit: u64,
    /// Bytes of each.
    pub bytes_each: u64,
}

/// Everything bounded that a machine may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityPlan {
    /// In a fixed order.
    pub reservations: Vec<Reservation>,
}

impl CapacityPlan {
    /// The plan of a configuration, or why it is refused.
    pub fn of(config: &VmConfig) -> Result<Self, MachineError> {
        let disks = config.disks.len() as u64;
        let nets = u64::from(config.net.is_some());
        let entries = |sizes: &[u16]| sizes.iter().map(|size| u64::from(*size)).sum::<u64>();
        let queue_entries = disks * entries(Block::QUEUE_SIZES) + nets * entries(Net::QUEUE_SIZES);
        let row = |resource, limit, bytes_each| Reservation { resource, limit, bytes_each };
        let reservations = vec![
            row("schedule journal records", u64::from(config.smp.journal_limit), RECORD_BYTES),
            row("frames", nets * TRANSMITTED_FRAMES_MAX as u64, FRAME_BYTES_MAX as u64 + FRAME_OVERHEAD_BYTES),
            row("sdk message bytes", MESSAGE_BYTES_MAX, 1),
            row("serial output bytes", crate::chips::serial::CAPTURE_BYTES_MAX as u64, 1),
            row("console output bytes", crate::virtio::console::OUTPUT_BYTES_MAX as u64, 1),
            row("disk request bytes", disks * REQUEST_BYTES_MAX, 1),
            row("queue entries", queue_entries, QUEUE_ENTRY_BYTES),
        ];
        let plan = Self { reservations };
        match plan.bytes() {
            bytes if bytes > PLANNED_BYTES_MAX => {
                let rule = format!("the machine plans for {bytes} bytes of what waits, at most {PLANNED_BYTES_MAX}");
                Err(MachineError::Config { field: "capacity", rule })
            }
            _ => Ok(plan),
        }
    }

    /// Bytes if everything were used to its limit.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = |row: &Reservation| row.limit.saturating_mul(row.bytes_each);
        self.reservations.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Hash over every row.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        for Reservation { resource, limit, bytes_each } in &self.reservations {
            hasher.update(&(resource.len() as u64).to_le_bytes()).update(resource.as_bytes());
            hasher.update(&limit.to_le_bytes()).update(&bytes_each.to_le_bytes());
        }
        hasher.finalize().into()
    }
}

/// How much of a resource is and was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceUse {
    /// As in the plan.
    pub resource: &'static str,
    /// As in the plan.
    pub limit: u64,
    /// Held now: what the host has not taken.
    pub used: u64,
    /// Most that was held at the end of a run since power-on.
    pub high_water: u64,
    /// How much was lost, or how often something was refused, for want of room.
    pub exhausted: u64,
}

/// High-water marks, in the plan's order. They belong to this process: no snapshot has them.
#[derive(Debug, Default)]
pub(crate) struct HighWater([u64; HELD]);

/// The plan's first rows are what accumulates until the host takes it.
const HELD: usize = 5;

impl Machine {
    /// What this machine may hold.
    #[must_use]
    pub fn capacity_plan(&self) -> &CapacityPlan {
        &self.capacity
    }

    /// What it holds and held of everything that accumulates until the host takes it.
    #[must_use]
    pub fn capacity_use(&self) -> Vec<ResourceUse> {
        let now = self.held();
        let net = self.board.net.as_ref().map(|net| net.device().counters().transmit_overflow);
        let exhausted = [
            self.journal_refusals,
            net.unwrap_or(0),
            self.board.sdk.counters().dropped_messages,
            self.board.serial.capture().lost,
            self.board.console.device().output_dropped(),
        ];
        let rows = self.capacity.reservations.iter().zip(now).zip(self.high_water.0).zip(exhausted);
        let row = |(((row, used), high_water), exhausted): (((&Reservation, u64), u64), u64)| ResourceUse {
            resource: row.resource,
            limit: row.limit,
            used,
            high_water: high_water.max(used),
            exhausted,
        };
        rows.map(row).collect()
    }

    fn held(&self) -> [u64; HELD] {
        [
            self.schedule_journal().len() as u64,
            self.board.net.as_ref().map_or(0, |net| net.device().waiting() as u64),
            self.board.sdk.waiting_bytes(),
            self.board.serial.capture().bytes.len() as u64,
            self.board.console.device().waiting() as u64,
        ]
    }

    /// At the end of a run, where most is held.
    pub(crate) fn note_high_water(&mut self) {
        let now = self.held();
        self.high_water.0.iter_mut().zip(now).for_each(|(most, now)| *most = now.max(*most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DiskConfig, NetConfig};
    use crate::pages::PageMap;
    use crate::smp::SmpConfig;

    fn config() -> VmConfig {
        let mut config = VmConfig::new(64 << 20, Vec::new().into());
        config.net = Some(NetConfig { mac: [2; 6] });
        config
    }

    fn disk() -> DiskConfig {
        DiskConfig { image: PageMap::default().into(), size_bytes: 1 << 20, flush: true, read_only: false }
    }

    #[test]
    fn the_plan_follows_the_configuration_and_its_hash_every_limit() {
        let plan = CapacityPlan::of(&config()).unwrap();
        assert_eq!(plan, CapacityPlan::of(&config()).unwrap());
        let mut other = config();
        other.disks.push(disk());
        assert_ne!(plan.digest(), CapacityPlan::of(&other).unwrap().digest());
        other = config();
        other.smp = SmpConfig { cpus: 2, journal_limit: 1, ..SmpConfig::default() };
        assert_ne!(plan.digest(), CapacityPlan::of(&other).unwrap().digest());
    }

    #[test]
    fn the_largest_machine_that_may_be_configured_still_has_a_plan() {
        let mut config = config();
        config.smp = SmpConfig { cpus: 8, journal_limit: crate::smp::journal::RECORDS_MAX, ..SmpConfig::default() };
        config.disks = vec![disk(); crate::config::DISKS_MAX];
        assert!(CapacityPlan::of(&config).unwrap().bytes() <= PLANNED_BYTES_MAX);
    }
}
