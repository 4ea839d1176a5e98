// SPDX-License-Identifier: AGPL-3.0-or-later
//! Boots a cluster, runs seeded branches from its snapshot, and prints what they found and what they cost.
//!
//!     cargo run --release -p chaoscontrol-cluster --example branches -- vmlinux raft.cpio [VMS] [BRANCHES] [SECONDS] [APPEND...]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use chaoscontrol_cluster::{BranchPlan, Cluster, ClusterConfig, DiskSpec};
use chaoscontrol_fault::{Planner, Schedule, Stream};
use chaoscontrol_machine::Firmware;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kernel = arguments.next().ok_or("usage: branches KERNEL INITRD [VMS] [BRANCHES] [SECONDS] [APPEND...]")?;
    let initrd = arguments.next().ok_or("which initrd?")?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (vms, branches, seconds) = (number(3)?, number(8)?, number(2)?);

    let mut config = ClusterConfig::new(u16::try_from(vms)?, std::fs::read(kernel)?.into());
    config.initrd = Some(std::fs::read(initrd)?.into());
    let append: Vec<String> = arguments.collect();
    if append.iter().any(|word| word == "legacy") {
        config.firmware = Firmware::Legacy;
    }
    config.append = append.into_iter().filter(|word| word != "legacy").collect::<Vec<_>>().join(" ");
    config.disks = vec![DiskSpec { image: Arc::default(), size_bytes: 16 << 20, flush: true }];

    let started = Instant::now();
    let mut cluster = Cluster::new(&config)?;
    let booted = cluster.run_to_setup(config.seed, config.setup_limit_ns);
    for vm in 0..config.vms {
        let tail = String::from_utf8_lossy(cluster.serial_tail(vm)).into_owned();
        let lines: Vec<&str> = tail.lines().collect();
        eprintln!("vm {vm}: {}", lines[lines.len().saturating_sub(6)..].join("\n      ").escape_debug());
    }
    booted?;
    let instructions: u64 = (0..config.vms).filter_map(|vm| Some(cluster.node_mut(vm)?.instructions())).sum();
    let took = started.elapsed().as_secs_f64();
    eprintln!("boot: cluster {} ns, {instructions} instructions, {took:.2} s", cluster.sim().now_ns());

    let started = Instant::now();
    let snapshot = cluster.snapshot();
    eprintln!("snapshot: {} pages, {:.1} ms", snapshot.pages().count(), started.elapsed().as_secs_f64() * 1e3);

    let horizon_ns = seconds * 1_000_000_000;
    let planner = Planner::new(cluster.sim().config().shape(horizon_ns));
    let mut totals = BTreeMap::new();
    let mut passes: BTreeMap<String, u64> = BTreeMap::new();
    let started = Instant::now();
    for seed in 0..branches {
        let schedule = match seed {
            0 => Schedule::default(),
            _ => planner.random(&mut Stream::named(seed, "example", 0)),
        };
        let plan = BranchPlan::new(schedule, horizon_ns, seed);
        let branch = Instant::now();
        cluster.restore(&snapshot)?;
        let restored = branch.elapsed().as_secs_f64() * 1e3;
        let outcome = cluster.run(&plan)?;
        let took = branch.elapsed().as_secs_f64();
        outcome.ledger.count_into(&mut totals);
        eprintln!(
            "branch {seed}: {:?}, {} rounds, {} M instructions, {took:.2} s ({:.0} M/s), restore {restored:.1} ms, digest {:02x?}",
            outcome.end,
            outcome.trace.rounds,
            outcome.instructions / 1_000_000,
            outcome.instructions as f64 / took / 1e6,
            &outcome.digest[..4]
        );
        eprintln!("  network {:?}", outcome.network);
        for violation in &outcome.violations {
            eprintln!("  vm {} at {}: {:?}", violation.vm, violation.cluster_ns, violation.kind);
        }
        for row in outcome.assertions.iter().filter(|row| row.must_hit) {
            *passes.entry(row.message.clone()).or_default() += row.passes;
        }
        if seed == 0 {
            for row in &outcome.assertions {
                eprintln!("  {} {:?}: {} passes, {} failures", row.kind, row.message, row.passes, row.failures);
            }
            eprintln!("  events {:?}", outcome.events);
        }
    }
    eprintln!("{branches} branches in {:.2} s", started.elapsed().as_secs_f64());
    for (message, passes) in passes {
        eprintln!("{passes} passes: {message:?}");
    }
    for (kind, counts) in totals {
        eprintln!("{}: {counts:?}", kind.name());
    }
    Ok(())
}
