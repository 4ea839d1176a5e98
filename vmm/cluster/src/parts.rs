// SPDX-License-Identifier: AGPL-3.0-or-later
//! A cluster snapshot as storable parts: plain state, and pages named by their digests.

use std::sync::Arc;

use chaoscontrol_machine::pages::{Digest, Page, PageMap};
use chaoscontrol_machine::{MachineSnapshot, MachineState};
use chaoscontrol_sim::SimState;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::oracle::{Oracle, Slots};
use crate::snapshot::{ClusterSnapshot, RestartPoint, VmMemo, VmSnapshot};

/// Version of [`ClusterState`]; any change of meaning or layout bumps it.
pub const STATE_VERSION: u32 = 2;

/// Bytes of a page's entry: index u64 little-endian, digest.
const ENTRY_BYTES: usize = 8 + size_of::<Digest>();

/// Most pages of one map: 16 GiB.
const PAGES_MAX: usize = 1 << 22;

/// The non-zero pages of a memory or disk, ascending: index and digest of each. Stored as one byte string of entries of
/// 40 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageList(Vec<(u64, Digest)>);

impl PageList {
    /// The list of a map's pages.
    #[must_use]
    pub fn of(map: &PageMap) -> Self {
        Self(map.iter().map(|(index, page)| (index, page.digest())).collect())
    }

    /// Indices and digests, ascending.
    #[must_use]
    pub fn entries(&self) -> &[(u64, Digest)] {
        &self.0
    }

    /// The map of the list's pages as `source` hands them out.
    pub fn load<E>(&self, source: &mut dyn FnMut(&Digest) -> Result<Arc<Page>, E>) -> Result<PageMap, E> {
        let mut map = PageMap::default();
        for (index, digest) in &self.0 {
            map.insert(*index, Some(source(digest)?));
        }
        Ok(map)
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() || entries.len() > PAGES_MAX {
            return Err(format!("a page list of {} bytes", bytes.len()));
        }
        let split = |entry: &[u8; ENTRY_BYTES]| {
            let (index, digest) = entry.split_at(8);
            let mut pair = ([0; 8], Digest::default());
            pair.0.copy_from_slice(index);
            pair.1.copy_from_slice(digest);
            (u64::from_le_bytes(pair.0), pair.1)
        };
        let list: Vec<(u64, Digest)> = entries.iter().map(split).collect();
        if !list.is_sorted_by(|a, b| a.0 < b.0) {
            return Err("a page list that does not ascend".to_owned());
        }
        Ok(Self(list))
    }
}

impl Serialize for PageList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::with_capacity(self.0.len() * ENTRY_BYTES);
        for (index, digest) in &self.0 {
            bytes.extend_from_slice(&index.to_le_bytes());
            bytes.extend_from_slice(digest);
        }
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for PageList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = PageList;
            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a byte string of page entries")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<PageList, E> {
                PageList::parse(bytes).map_err(E::custom)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PageList, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = list.next_element()? {
                    bytes.push(byte);
                    if bytes.len() > PAGES_MAX * ENTRY_BYTES {
                        return Err(A::Error::custom("a page list that is too long"));
                    }
                }
                PageList::parse(&bytes).map_err(A::Error::custom)
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// One machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineParts {
    /// CPU, devices and clocks.
    pub state: MachineState,
    /// RAM and SDK window.
    pub pages: PageList,
    /// Each disk's durable contents.
    pub disks: Vec<PageList>,
}

impl MachineParts {
    fn of(snapshot: &MachineSnapshot) -> Self {
        let disks = snapshot.disks.iter().map(PageList::of).collect();
        Self { state: snapshot.state.clone(), pages: PageList::of(&snapshot.pages), disks }
    }

    fn load<E>(self, source: &mut dyn FnMut(&Digest) -> Result<Arc<Page>, E>) -> Result<MachineSnapshot, E> {
        let disks = self.disks.iter().map(|disk| disk.load(source)).collect::<Result<_, _>>()?;
        Ok(MachineSnapshot { pages: self.pages.load(source)?, state: self.state, disks })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RestartParts {
    machine: MachineParts,
    slots: Slots,
}

/// One VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmState {
    /// The machine.
    pub machine: MachineParts,
    restart: Option<RestartParts>,
    memo: VmMemo,
}

/// A whole cluster between two rounds, all but the contents of its pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterState {
    version: u32,
    sim: SimState,
    oracle: Oracle,
    vms: Vec<VmState>,
}

impl ClusterState {
    /// The machines, in order of VMs.
    pub fn machines(&self) -> impl Iterator<Item = &MachineParts> {
        self.vms.iter().map(|vm| &vm.machine)
    }
}

/// Why parts do not make a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum PartsError<E> {
    /// Another version of the format.
    #[error("cluster state has version {0}, this program reads version {STATE_VERSION}")]
    Version(u32),
    /// A page that the source does not have.
    #[error("a page of the snapshot: {0}")]
    Page(E),
}

impl ClusterSnapshot {
    /// The plain state. The pages it names are those of [`Self::pages`].
    #[must_use]
    pub fn to_parts(&self) -> ClusterState {
        let vm = |vm: &VmSnapshot<MachineSnapshot>| VmState {
            machine: MachineParts::of(&vm.machine),
            restart: vm
                .restart
                .as_ref()
                .map(|point| RestartParts { machine: MachineParts::of(&point.machine), slots: point.slots.clone() }),
            memo: vm.memo.clone(),
        };
        ClusterState {
            version: STATE_VERSION,
            sim: self.sim.clone(),
            oracle: self.oracle.clone(),
            vms: self.vms.iter().map(vm).collect(),
        }
    }

    /// Every page that the snapshot holds, machine by machine; a page that is held twice comes twice.
    pub fn pages(&self) -> impl Iterator<Item = &Arc<Page>> {
        let machines = self.vms.iter().flat_map(|vm| [Some(&vm.machine), vm.restart_point()]).flatten();
        let maps = machines.flat_map(|machine| std::iter::once(&machine.pages).chain(&machine.disks));
        maps.flat_map(|map| map.iter().map(|(_, page)| page))
    }

    /// The snapshot of a stored state, with its pages from `source` by digest. `source` must hand out one and the same `Arc`
    /// for one digest, so that machines share what they have in common.
    pub fn from_parts<E>(
        state: ClusterState,
        source: &mut dyn FnMut(&Digest) -> Result<Arc<Page>, E>,
    ) -> Result<Self, PartsError<E>> {
        if state.version != STATE_VERSION {
            return Err(PartsError::Version(state.version));
        }
        let mut vms = Vec::with_capacity(state.vms.len());
        for vm in state.vms {
            let machine = vm.machine.load(source).map_err(PartsError::Page)?;
            let restart = match vm.restart {
                None => None,
                Some(point) => {
                    let machine = point.machine.load(source).map_err(PartsError::Page)?;
                    Some(Arc::new(RestartPoint { machine, slots: point.slots }))
                }
            };
            vms.push(VmSnapshot { machine, restart, memo: vm.memo });
        }
        Ok(Self { sim: state.sim, oracle: state.oracle, vms })
    }
}
