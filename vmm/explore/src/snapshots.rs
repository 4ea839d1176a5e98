// SPDX-License-Identifier: AGPL-3.0-or-later
//! Cluster snapshots in a store: a manifest and pages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chaoscontrol_artifact::schema::SnapshotManifest;
use chaoscontrol_artifact::{Bytes, Digest, ObjectRef, Store, U64, cbor};
use chaoscontrol_cluster::{ClusterSnapshot, ClusterState};
use chaoscontrol_machine::pages::Page;
use serde::{Deserialize, Serialize};

use crate::error::ExploreError;

/// What a manifest's state holds.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// Digest of the run configuration that the cluster ran under: what a manifest names must be that.
    run: Digest,
    /// The cluster's own state, with its own version.
    cluster: ClusterState,
}

/// Stores a snapshot of the cluster that `run` describes: first the pages that no store has, then the manifest that names
/// them, so that a manifest never names what is not there.
pub fn save(store: &Store, run: ObjectRef, snapshot: &ClusterSnapshot) -> Result<ObjectRef, ExploreError> {
    let pages: BTreeMap<Digest, &[u8; chaoscontrol_artifact::pack::PAGE_BYTES]> =
        snapshot.pages().map(|page| (Digest(page.digest()), page.bytes())).collect();
    store.put_pages(&pages)?;
    let digests: BTreeSet<Digest> = pages.into_keys().collect();
    let state = cbor::to_canonical(&State { run: run.digest, cluster: snapshot.to_parts() });
    let state = state.map_err(|error| ExploreError::Internal(format!("cluster state: {error}")))?;
    let manifest = SnapshotManifest {
        run,
        cluster_ns: U64(snapshot.sim().now_ns()),
        vms: snapshot.vms().len() as u16,
        state: Bytes(state),
        pages: SnapshotManifest::pages_of(&digests),
    };
    Ok(store.publish(&manifest)?)
}

/// Reads a snapshot back. Every page is hashed; equal pages are shared.
pub fn load(store: &Store, manifest: &SnapshotManifest) -> Result<ClusterSnapshot, ExploreError> {
    let state = state(manifest)?;
    let mut pages: BTreeMap<Digest, Arc<Page>> = BTreeMap::new();
    store.read_pages(manifest.page_digests(), |digest, page| {
        pages.insert(digest, Arc::new(Page::new(*page)));
    })?;
    let mut source = |digest: &[u8; 32]| {
        let unnamed = || format!("its state names page {}, which its list of pages does not", Digest(*digest));
        pages.get(&Digest(*digest)).cloned().ok_or_else(unnamed)
    };
    ClusterSnapshot::from_parts(state, &mut source).map_err(|error| bad(error.to_string()))
}

fn bad(what: String) -> ExploreError {
    ExploreError::Input(format!("snapshot: {what}"))
}

/// The state of the cluster that the manifest names. Another guest's would restore and go wrong in ways that nobody could explain.
fn state(manifest: &SnapshotManifest) -> Result<ClusterState, ExploreError> {
    let State { run, cluster } = cbor::from_canonical(&manifest.state.0)
        .map_err(|error| bad(format!("its state is of another version of this program, boot again: {error}")))?;
    if run != manifest.run.digest {
        let named = manifest.run.digest;
        return Err(bad(format!(
            "it names run {named}, but its state is of run {run}: it is of another guest; boot again"
        )));
    }
    Ok(cluster)
}

/// What is in a snapshot, a line a VM, without reading a page.
pub fn describe(manifest: &SnapshotManifest) -> Result<Vec<String>, ExploreError> {
    let state = state(manifest)?;
    let machines = state.machines().enumerate();
    Ok(machines
        .map(|(vm, machine)| {
            let cpu = &machine.state.cpu;
            format!(
                "vm {vm}: {} pages of {} MiB, {} instructions, at {:#x}{}",
                machine.pages.entries().len(),
                machine.state.memory_bytes >> 20,
                cpu.instructions,
                cpu.rip,
                if cpu.halted { ", halted" } else { "" }
            )
        })
        .collect())
}
