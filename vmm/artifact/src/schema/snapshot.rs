// SPDX-License-Identifier: AGPL-3.0-or-later
//! The snapshot manifest: everything of a cluster but its pages, and which pages go where.

use serde::{Deserialize, Serialize};

use super::ObjectRef;
use crate::document::{Document, MediaType};
use crate::{Bytes, Digest, U64};

/// Address spaces of one snapshot.
const REGIONS_MAX: usize = 4096;
/// Pages that one manifest names: 32 GiB.
const PAGES_MAX: usize = 1 << 23;

/// Pages that follow each other and none of which is zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageRun {
    /// Page number of the first.
    pub first: u64,
    /// Their digests, 32 bytes each.
    pub digests: Bytes,
}

impl PageRun {
    fn pages(&self) -> usize {
        self.digests.0.len() / Digest::BYTES
    }
}

/// One address space: the memory or a disk of one VM. Pages in no run are zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// Whose it is; the writer of the state decides.
    pub name: String,
    /// Runs, ascending, none touching the next.
    pub runs: Vec<PageRun>,
}

impl Region {
    /// The region of these pages, given by ascending page number.
    pub fn from_pages(name: &str, pages: impl IntoIterator<Item = (u64, Digest)>) -> Self {
        let mut runs: Vec<PageRun> = Vec::new();
        let mut next = None;
        for (page, digest) in pages {
            if next != Some(page) {
                runs.push(PageRun { first: page, digests: Bytes::default() });
            }
            runs.last_mut().expect("pushed above").digests.0.extend_from_slice(&digest.0);
            next = page.checked_add(1);
        }
        Self { name: name.to_owned(), runs }
    }

    /// Each page's number and digest, ascending.
    pub fn pages(&self) -> impl Iterator<Item = (u64, Digest)> + '_ {
        self.runs.iter().flat_map(|run| {
            let digests = run.digests.0.as_chunks().0.iter().copied().map(Digest);
            (run.first..).zip(digests)
        })
    }
}

/// A cluster at a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotManifest {
    /// What the cluster consists of.
    pub run: ObjectRef,
    /// Cluster time in ns.
    pub cluster_ns: U64,
    /// Number of VMs.
    pub vms: u32,
    /// Version of `state`; a reader of another version refuses it.
    pub state_version: u32,
    /// Everything but the pages, as the cluster writes it (canonical CBOR).
    pub state: Bytes,
    /// Where the pages go.
    pub regions: Vec<Region>,
}

impl SnapshotManifest {
    /// Every page named, as often as it is.
    pub fn page_digests(&self) -> impl Iterator<Item = Digest> + '_ {
        self.regions.iter().flat_map(|region| region.pages().map(|(_, digest)| digest))
    }
}

impl Document for SnapshotManifest {
    const MEDIA: MediaType = MediaType::Snapshot;

    fn check(&self) -> Result<(), String> {
        if self.run.media_type != MediaType::Run {
            return Err(format!("run is a {}, it must be a run configuration", self.run.media_type.schema()));
        }
        if self.regions.len() > REGIONS_MAX {
            return Err(format!("regions has {} entries, at most {REGIONS_MAX} are allowed", self.regions.len()));
        }
        let mut pages = 0;
        for (index, region) in self.regions.iter().enumerate() {
            let mut free = Some(0);
            for run in &region.runs {
                if run.digests.0.is_empty() || run.digests.0.len() % Digest::BYTES != 0 {
                    let bytes = run.digests.0.len();
                    return Err(format!(
                        "regions[{index}] has a run of {bytes} bytes of digests, not a multiple of 32 above 0"
                    ));
                }
                if free.is_none_or(|free| run.first < free) {
                    return Err(format!("regions[{index}] has a run at page {} that is out of order", run.first));
                }
                pages += run.pages();
                // One page between runs at least, else they would be one.
                free = run.first.checked_add(run.pages() as u64 + 1);
            }
        }
        if pages > PAGES_MAX {
            return Err(format!("regions name {pages} pages, at most {PAGES_MAX} are allowed"));
        }
        Ok(())
    }
}
