// SPDX-License-Identifier: AGPL-3.0-or-later
//! The snapshot manifest: everything of a cluster but its pages, and which pages those are.

use serde::{Deserialize, Serialize};

use chaoscontrol_fault::MAX_VMS;

use super::{ObjectRef, rule};
use crate::document::{Document, MediaType};
use crate::{Bytes, Digest, U64};

/// Pages that one manifest names: 32 GiB.
const PAGES_MAX: usize = 1 << 23;

/// A cluster at a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotManifest {
    /// What the cluster consists of.
    pub run: ObjectRef,
    /// Cluster time in ns.
    pub cluster_ns: U64,
    /// Number of VMs.
    pub vms: u16,
    /// Everything but the contents of pages, as the cluster writes it (canonical CBOR). It says where each page goes.
    pub state: Bytes,
    /// Digests of the pages that `state` names, each once, ascending, 32 bytes each. Zero pages are not named.
    pub pages: Bytes,
}

impl SnapshotManifest {
    /// Every page, ascending.
    pub fn page_digests(&self) -> impl Iterator<Item = Digest> + '_ {
        self.pages.0.as_chunks().0.iter().copied().map(Digest)
    }

    /// What `pages` holds for these digests.
    pub fn pages_of(digests: &std::collections::BTreeSet<Digest>) -> Bytes {
        Bytes(digests.iter().flat_map(|digest| digest.0).collect())
    }
}

impl Document for SnapshotManifest {
    const MEDIA: MediaType = MediaType::Snapshot;

    fn check(&self) -> Result<(), String> {
        rule::media("run", &self.run, &[MediaType::Run])?;
        rule::within("vms", self.vms, 1, MAX_VMS)?;
        if self.state.0.is_empty() {
            return Err("state must not be empty".to_owned());
        }
        let bytes = self.pages.0.len();
        if !bytes.is_multiple_of(Digest::BYTES) || bytes / Digest::BYTES > PAGES_MAX {
            return Err(format!("pages has {bytes} bytes, it must hold at most {PAGES_MAX} digests of 32 bytes"));
        }
        if !self.pages.0.as_chunks::<32>().0.is_sorted_by(|a, b| a < b) {
            return Err("pages must ascend, each once".to_owned());
        }
        Ok(())
    }
}
