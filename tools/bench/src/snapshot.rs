// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a branch costs by its dirty pages: restoring, and storing.

use std::sync::Arc;
use std::time::Instant;

use chaoscontrol_artifact::Store;
use chaoscontrol_artifact::schema::{RunConfiguration, SnapshotManifest};
use chaoscontrol_cli::{Context, Failures, descriptor_before};
use chaoscontrol_cluster::{BranchPlan, Cluster, ClusterError, ClusterSnapshot};
use chaoscontrol_explore::{ExploreError, machines, snapshots};
use chaoscontrol_fault::Schedule;
use chaoscontrol_machine::{KvmOptions, Machine, MachineSnapshot, VmConfig};

use crate::table::Table;

/// Restores of which the fastest counts.
const REPEATS: usize = 5;

/// Measures branches of growing length.
pub fn measure(context: &Context) -> Failures<Table> {
    let horizon_ns = context.arguments.number_within("horizon-ns", 1_000_000, 1 << 50, 2_000_000_000)?;
    let store = chaoscontrol_cli::stores_read(context)?;
    let reference = descriptor_before(context, &store)?.output("snapshot");
    let reference = reference.ok_or_else(|| ExploreError::Input("the descriptor names no snapshot".to_owned()))?;
    let manifest: SnapshotManifest = store.load(&reference)?;
    let started = Instant::now();
    let base = snapshots::load(&store, &manifest)?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    let config =
        machines::configuration(&store, &store.load::<RunConfiguration>(&manifest.run)?, KvmOptions::default())?;
    let mut cluster = Cluster::new(&config).map_err(ExploreError::from)?;
    let started = Instant::now();
    cluster.restore(&base).map_err(ExploreError::from)?;
    let mut table = Table::default();
    let first_ms = started.elapsed().as_secs_f64() * 1e3;
    table.push(
        "load",
        vec![("read_ms", load_ms), ("first_restore_ms", first_ms), ("pages", base.pages().count() as f64)],
    );
    for pages in [200, 2_000] {
        let restore_ms = one_machine(config.vm(0), base.vms()[0].machine(), pages).map_err(ExploreError::from)?;
        table.push(&format!("vm_{pages}"), vec![("dirty_pages", pages as f64), ("restore_ms", restore_ms)]);
    }
    for part in [32, 8, 2, 1] {
        table.push(&format!("1/{part}"), branch(&mut cluster, &base, horizon_ns / part, &manifest)?);
    }
    Ok(table)
}

/// Milliseconds that restoring one machine takes which differs from `base` in so many pages, spread over its memory.
fn one_machine(config: VmConfig, base: &MachineSnapshot, pages: u64) -> Result<f64, ClusterError> {
    let stride = (config.memory_bytes >> 12) / pages;
    let measured = || {
        let mut machine = Machine::new(Arc::new(config))?;
        machine.restore(base)?;
        let mut restore_ms = f64::MAX;
        for repeat in 0..REPEATS as u64 {
            for page in 0..pages {
                machine.memory().write((page * stride) << 12, &(page + repeat).to_le_bytes())?;
            }
            // As at the end of a branch: what is dirty is collected.
            machine.snapshot();
            let started = Instant::now();
            machine.restore(base)?;
            restore_ms = restore_ms.min(started.elapsed().as_secs_f64() * 1e3);
        }
        Ok(restore_ms)
    };
    measured().map_err(|source| ClusterError::Machine { vm: 0, source })
}

fn branch(
    cluster: &mut Cluster,
    base: &ClusterSnapshot,
    horizon_ns: u64,
    manifest: &SnapshotManifest,
) -> Failures<Vec<(&'static str, f64)>> {
    let mut plan = BranchPlan::new(Schedule::default(), horizon_ns, 1);
    plan.coverage = false;
    let mut restore_ms = f64::MAX;
    for _ in 0..REPEATS {
        cluster.run_branch(base, &plan).map_err(ExploreError::from)?;
        let started = Instant::now();
        cluster.restore(base).map_err(ExploreError::from)?;
        restore_ms = restore_ms.min(started.elapsed().as_secs_f64() * 1e3);
    }
    cluster.run_branch(base, &plan).map_err(ExploreError::from)?;
    let started = Instant::now();
    let after = cluster.snapshot().map_err(ExploreError::from)?;
    let snapshot_ms = started.elapsed().as_secs_f64() * 1e3;
    let mut dirty = 0;
    for (before, after) in base.vms().iter().zip(after.vms()) {
        before.machine().pages.differences(&after.machine().pages, &mut |_| dirty += 1);
    }
    let (stored_kib, store_ms) = store_both(base, &after, manifest)?;
    Ok(vec![
        ("dirty_pages", f64::from(dirty)),
        ("restore_ms", restore_ms),
        ("snapshot_ms", snapshot_ms),
        ("store_ms", store_ms),
        ("stored_kib", stored_kib),
    ])
}

/// What the second of two snapshots adds to a store that has the first.
fn store_both(base: &ClusterSnapshot, after: &ClusterSnapshot, manifest: &SnapshotManifest) -> Failures<(f64, f64)> {
    let root = std::env::temp_dir().join(format!("chaos-bench-{}", std::process::id()));
    let measured = (|| {
        let store = Store::open(&root, &[])?;
        snapshots::save(&store, manifest.run, base)?;
        let before = bytes_below(&root);
        let started = Instant::now();
        snapshots::save(&store, manifest.run, after)?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        Ok::<_, ExploreError>(((bytes_below(&root) - before) as f64 / 1024.0, ms))
    })();
    // The directory is ours alone; what cannot be deleted is left to the host.
    let _ = std::fs::remove_dir_all(&root);
    Ok(measured?)
}

fn bytes_below(root: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(root) else { return 0 };
    let bytes = |path: std::path::PathBuf| {
        if path.is_dir() { bytes_below(&path) } else { path.metadata().map_or(0, |metadata| metadata.len()) }
    };
    entries.flatten().map(|entry| bytes(entry.path())).sum()
}
