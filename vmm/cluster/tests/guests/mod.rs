// SPDX-License-Identifier: AGPL-3.0-or-later
//! Guests that were built before: a kernel and initrds.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::PathBuf;
use std::sync::Arc;

use chaoscontrol_cluster::{ClusterConfig, DiskSpec};
use chaoscontrol_fault::{Fault, FaultEvent, Schedule};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// The guest kernel: `CHAOS_TEST_KERNEL`, or the one that was built last.
fn kernel() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CHAOS_TEST_KERNEL") {
        return Some(PathBuf::from(path));
    }
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    let entries = std::fs::read_dir(cache.join("chaoscontrol/kernel")).ok()?;
    // The PIC-only kernel of the machine's tests has no network here.
    let usable = |path: &PathBuf| {
        let built = std::fs::read_to_string(path.with_file_name("config")).unwrap_or_default();
        built.contains("CONFIG_X86_LOCAL_APIC=y") && path.is_file()
    };
    let built = entries.filter_map(|entry| Some(entry.ok()?.path().join("vmlinux"))).filter(usable);
    built.max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
}

/// An initrd of `guest/build`: in `CHAOS_GUEST_TARGET`, or in `target/guest`.
fn initrd(name: &str) -> PathBuf {
    let target = std::env::var_os("CHAOS_GUEST_TARGET").map(PathBuf::from);
    let target = target.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/guest"));
    target.join("initrd").join(format!("{name}.cpio"))
}

/// A cluster of these guests with a 16 MiB disk each; says so and gives none where they were not built.
pub fn config(name: &str, vms: u16) -> Option<ClusterConfig> {
    let Some(kernel) = kernel() else {
        eprintln!("skipped: no guest kernel; run guest/kernel/build or set CHAOS_TEST_KERNEL");
        return None;
    };
    let path = initrd(name);
    let Ok(initrd) = std::fs::read(&path) else {
        eprintln!("skipped: no {}; run guest/build or set CHAOS_GUEST_TARGET", path.display());
        return None;
    };
    let mut config = ClusterConfig::new(vms, std::fs::read(kernel).expect("the kernel can be read").into());
    config.initrd = Some(initrd.into());
    config.disks = vec![DiskSpec { image: Arc::default(), size_bytes: 16 << 20, flush: true }];
    Some(config)
}

pub fn schedule(events: &[(u64, Fault)]) -> Schedule {
    let event = |(time_ns, fault): &(u64, Fault)| FaultEvent { time_ns: *time_ns, fault: *fault };
    Schedule::new(events.iter().map(event).collect()).unwrap()
}
