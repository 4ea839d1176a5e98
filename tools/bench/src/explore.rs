// SPDX-License-Identifier: AGPL-3.0-or-later
//! What guidance is worth: branches until the first bug, planned with it and without, over variants of a guest and seeds.
//!
//! Every variant boots once, and both modes explore from that one snapshot with the same kinds of faults and horizon. A result
//! is a line of a file, so that the command goes on where it was stopped.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use chaoscontrol_artifact::ExitCode;
use chaoscontrol_artifact::schema::Mode;
use chaoscontrol_cli::{Context, Failure, Failures, read_input};
use chaoscontrol_cluster::{Cluster, ClusterConfig, DiskSpec};
use chaoscontrol_explore::campaign::{Campaign, Settings, WINDOW};
use chaoscontrol_explore::machines::Machines;
use chaoscontrol_explore::pool::Pool;
use chaoscontrol_explore::round::{self, Limits};
use chaoscontrol_explore::stages::boot::SETUP_LIMIT_NS;
use chaoscontrol_explore::{ExploreError, Factory};
use chaoscontrol_machine::pages::PageMap;
use serde::{Deserialize, Serialize};

use crate::engine::median;
use crate::table::Table;

/// Variants of the Raft guest, each with one planted bug.
pub const VARIANTS: [&str; 6] = [
    "raft_bug=accept_stale_term",
    "raft_bug=double_vote",
    "raft_bug=fig8_commit",
    "raft_bug=leader_no_stepdown",
    "raft_bug=premature_commit",
    "raft_bug=skip_truncate",
];
/// Seed of the guests; those of the campaigns differ.
const BOOT_SEED: u64 = 42;
const VMS: u16 = 3;
const MEMORY_BYTES: u64 = 64 << 20;
const DISK_BYTES: u64 = 16 << 20;

/// One campaign's result, as a line of the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    variant: String,
    seed: u64,
    mode: String,
    budget: u64,
    horizon_ns: u64,
    /// Branches until the bug was found; the budget where it was not.
    branches: u64,
    found: bool,
}

impl Measured {
    fn key(&self) -> (String, u64, String, u64, u64) {
        (self.variant.clone(), self.seed, self.mode.clone(), self.budget, self.horizon_ns)
    }
}

/// Runs what the file does not have yet, and gives medians.
pub fn measure(context: &Context) -> Failures<Table> {
    let arguments = &context.arguments;
    let budget = arguments.number_within("branches", 1, 1 << 30, 256)?;
    let horizon_ns = arguments.number_within("horizon-ns", 1_000_000, 1 << 50, 5_000_000_000)?;
    let seeds = arguments.number_within("seeds", 1, 10_000, 10)?;
    let modes = modes(arguments.texts("mode")?)?;
    let mut variants = arguments.texts("variant")?;
    if variants.is_empty() {
        variants = VARIANTS.map(str::to_owned).into();
    }
    let path = arguments.path("state");
    let mut known = path.as_deref().map(known).transpose()?.unwrap_or_default();
    let all = variants.len() as u64 * seeds * modes.len() as u64;
    let mut done = 0;
    for variant in &variants {
        let mut machines: Option<Machines> = None;
        for seed in 1..=seeds {
            for mode in &modes {
                let mut measured = Measured {
                    variant: variant.clone(),
                    seed,
                    mode: mode.name().to_owned(),
                    budget,
                    horizon_ns,
                    branches: 0,
                    found: false,
                };
                context.progress.at(done, all, &format!("campaigns, {variant} seed {seed} {}", mode.name()));
                done += 1;
                if known.contains_key(&measured.key()) {
                    continue;
                }
                let machines = match &machines {
                    Some(machines) => machines,
                    None => machines.insert(boot(context, variant)?),
                };
                (measured.branches, measured.found) = campaign(context, machines, &measured, *mode)?;
                if let Some(path) = &path {
                    append(path, &measured)?;
                }
                known.insert(measured.key(), measured);
            }
        }
    }
    let wanted = |measured: &&Measured| {
        let same = (measured.budget, measured.horizon_ns) == (budget, horizon_ns);
        same && measured.seed <= seeds && variants.contains(&measured.variant)
    };
    Ok(table(&known.values().filter(wanted).cloned().collect::<Vec<_>>(), &variants, &modes))
}

fn modes(names: Vec<String>) -> Failures<Vec<Mode>> {
    if names.is_empty() {
        return Ok(vec![Mode::Faults, Mode::Uniform]);
    }
    let unknown = |name: &String| Failure::usage(format!("--mode: there is no mode {name:?}"));
    names.iter().map(|name| Mode::from_name(name).ok_or_else(|| unknown(name))).collect()
}

type Known = BTreeMap<(String, u64, String, u64, u64), Measured>;

/// The results of the file. A last line that a kill cut off is dropped from it.
fn known(path: &Path) -> Failures<Known> {
    let bad = |what: String| Failure::new(ExitCode::BadInput, format!("{}: {what}", path.display()));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Known::new()),
        Err(error) => return Err(bad(error.to_string())),
    };
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    if whole < text.len() {
        std::fs::write(path, &text[..whole]).map_err(|error| bad(error.to_string()))?;
    }
    let parse = |line: &str| serde_json::from_str::<Measured>(line).map_err(|error| bad(error.to_string()));
    let lines = text[..whole].lines().map(parse);
    lines.map(|measured| measured.map(|measured| (measured.key(), measured))).collect()
}

fn append(path: &Path, measured: &Measured) -> Failures<()> {
    let failed = |error: std::io::Error| Failure::new(ExitCode::HostLacks, format!("{}: {error}", path.display()));
    let line = serde_json::to_string(measured).map_err(|error| Failure::new(ExitCode::Internal, error.to_string()))?;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    file.write_all(format!("{line}\n").as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)
}

fn boot(context: &Context, variant: &str) -> Failures<Machines> {
    let arguments = &context.arguments;
    let mut config = ClusterConfig::new(VMS, read_input(&arguments.required("kernel")?, 1 << 30)?.into());
    config.initrd = Some(read_input(&arguments.required("raft")?, 1 << 30)?.into());
    config.append = variant.to_owned();
    config.memory_bytes = MEMORY_BYTES;
    config.seed = BOOT_SEED;
    config.disks = vec![DiskSpec { image: Arc::new(PageMap::default()), size_bytes: DISK_BYTES, flush: true }];
    config.setup_limit_ns = SETUP_LIMIT_NS;
    let mut cluster = Cluster::new(&config).map_err(ExploreError::from)?;
    cluster.run_to_setup(config.seed, config.setup_limit_ns).map_err(ExploreError::from)?;
    let snapshot = cluster.snapshot().map_err(ExploreError::from)?;
    Ok(Machines::booted(config, snapshot).with_prefix_cache(arguments.prefix_cache_bytes()?))
}

fn campaign(context: &Context, machines: &Machines, measured: &Measured, mode: Mode) -> Failures<(u64, bool)> {
    let shape = machines.shape(measured.horizon_ns);
    let settings =
        Settings { seed: measured.seed, window: WINDOW, shape, mode, labels: machines.labels(), without: Vec::new() };
    let mut campaign = Campaign::new(settings, None);
    let pool = Pool::new(machines, context.jobs()?);
    let limits = Limits {
        branches: measured.budget,
        instructions: None,
        bugs: Some(1),
        plateau: None,
        rejection_is_fatal: false,
    };
    round::run(&mut campaign, &pool, limits, &mut |_| true)?;
    let total = campaign.total();
    Ok(if total.bugs > 0 { (total.branches.0, true) } else { (measured.budget, false) })
}

/// A row a variant and one for all together; of each mode the median, the largest, and how many campaigns found nothing.
fn table(all: &[Measured], variants: &[String], modes: &[Mode]) -> Table {
    let mut table = Table::default();
    let mut rows: Vec<(&str, Vec<&Measured>)> = Vec::new();
    for variant in variants {
        let name = variant.split_once('=').map_or(variant.as_str(), |(_, name)| name);
        rows.push((name, all.iter().filter(|measured| measured.variant == *variant).collect()));
    }
    rows.push(("all", all.iter().collect()));
    for (name, row) in rows {
        let mut cells = Vec::new();
        let mut medians = Vec::new();
        for mode in modes {
            let of_mode = || row.iter().filter(|measured| measured.mode == mode.name());
            let mut branches: Vec<f64> = of_mode().map(|measured| measured.branches as f64).collect();
            let Some(median) = median(&mut branches) else { continue };
            medians.push(median);
            let [of_median, of_most, of_missed] = columns(*mode);
            let missed = of_mode().filter(|measured| !measured.found).count();
            cells.extend([
                (of_median, median),
                (of_most, branches.last().copied().unwrap_or_default()),
                (of_missed, missed as f64),
            ]);
        }
        if let [first, second] = medians[..] {
            cells.push(("ratio", first / second));
        }
        table.push(name, cells);
    }
    table
}

fn columns(mode: Mode) -> [&'static str; 3] {
    match mode {
        Mode::Faults => ["faults_median", "faults_most", "faults_missed"],
        Mode::Inputs => ["inputs_median", "inputs_most", "inputs_missed"],
        Mode::Hybrid => ["hybrid_median", "hybrid_most", "hybrid_missed"],
        Mode::Uniform => ["uniform_median", "uniform_most", "uniform_missed"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(seed: u64, mode: Mode, branches: u64) -> Measured {
        let (variant, mode) = ("bug=a".to_owned(), mode.name().to_owned());
        Measured { variant, seed, mode, budget: 256, horizon_ns: 5, branches, found: branches < 256 }
    }

    #[test]
    fn a_line_that_a_kill_cut_off_is_dropped_and_the_others_are_kept() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("state");
        assert!(known(&path).expect("no file is no result").is_empty());
        append(&path, &measured(1, Mode::Faults, 3)).expect("written");
        append(&path, &measured(2, Mode::Uniform, 256)).expect("written");
        let whole = std::fs::read(&path).expect("there");
        std::fs::write(&path, [&whole[..], b"{\"variant\":\"bu"].concat()).expect("written");
        let read: Vec<Measured> = known(&path).expect("read").into_values().collect();
        assert_eq!(read, [measured(1, Mode::Faults, 3), measured(2, Mode::Uniform, 256)]);
        assert_eq!(std::fs::read(&path).expect("there"), whole);
        std::fs::write(&path, b"nonsense\n").expect("written");
        assert!(known(&path).is_err());
    }

    #[test]
    fn the_ratio_is_that_of_medians_and_what_was_not_found_counts_as_the_budget() {
        let all = [
            measured(1, Mode::Faults, 2),
            measured(2, Mode::Faults, 4),
            measured(1, Mode::Uniform, 8),
            measured(2, Mode::Uniform, 256),
        ];
        let text = table(&all, &["bug=a".to_owned()], &[Mode::Faults, Mode::Uniform]).to_text();
        let of_all = text.lines().last().expect("a row");
        assert!(of_all.contains("faults_median 3.000") && of_all.contains("uniform_median 132.000"), "{text}");
        assert!(of_all.contains("uniform_missed 1.000") && of_all.contains("ratio 0.023"), "{text}");
    }
}
