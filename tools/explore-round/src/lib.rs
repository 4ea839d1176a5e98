// SPDX-License-Identifier: AGPL-3.0-or-later
//! What `chaos-explore-round` and `chaos-explore` share: the flags of a round, and running rounds.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use chaoscontrol_artifact::schema::{
    CampaignProfile, Descriptor, Handoff, Link, Mode, ProfileDocument, RoundSummary, ScheduleDocument, WINDOW_MAX,
};
use chaoscontrol_artifact::{ExitCode, MediaType, StageResult, document};
use chaoscontrol_cli::{Failure, Failures, Flag, Stage, admit, nearest, read_document, read_input, read_profile};
use chaoscontrol_explore::machines::{Host, choose_tier};
use chaoscontrol_explore::stages::explore::{Along, Effort, ExploreOptions, HORIZON_NS_MAX, Standing, explore};
use chaoscontrol_explore::{ExploreError, Shard};
use chaoscontrol_fault::FaultKind;

/// This file: part of the identity of both tools.
pub const SOURCE: &str = include_str!("lib.rs");

/// `--branches`.
pub const BRANCHES: Flag = Flag::one("branches", "N", "Branches of a round").default("64");
/// `--horizon-ns`.
pub const HORIZON: Flag = Flag::one("horizon-ns", "N", "Length of a branch in cluster ns")
    .default("that of the round before, else 5000000000");
/// `--window`.
pub const WINDOW: Flag = Flag::one("window", "N", "Branch i is planned from the results of branches up to i-N")
    .default("that of the round before, else 16");
/// `--instructions`.
pub const INSTRUCTIONS: Flag = Flag::one("instructions", "N", "Budget of guest instructions for the whole campaign");
/// `--stop-after-bugs`.
pub const BUGS: Flag = Flag::one("stop-after-bugs", "N", "Stop once N distinct bugs are known");
/// `--rejection-is-fatal`.
pub const FATAL: Flag = Flag::switch(
    "rejection-is-fatal",
    "Stop with code 10 at the first fault that could not be applied; without it, the ledger records it and the branch goes on",
);
/// `--time-limit-s`.
pub const TIME: Flag =
    Flag::one("time-limit-s", "N", "Stop after N seconds and leave a corpus to go on from; changes where, not what");
/// `--mode`.
pub const MODE: Flag = Flag::one(
    "mode",
    "NAME",
    "How branches are planned: faults, guided by what branches reach and by what guests do; inputs, other answers to choices \
     that guests leave to the host; hybrid, both; uniform, each fault drawn by itself, to compare with",
)
.choices(&MODES)
.default("that of the round before, else faults");
/// Modes that can be asked for.
const MODES: [&str; 4] = ["faults", "inputs", "hybrid", "uniform"];
/// `--checkpoint`.
pub const CHECKPOINT: Flag = Flag::one(
    "checkpoint",
    "FILE",
    "After each round, leave the descriptor of it here; where FILE is there, go on from it as if never stopped",
);
/// `--log-json`.
pub const LOG_JSON: Flag = Flag::switch("log-json", "A line of JSON on stderr after each branch, in place of the bar");
/// `--stop-on-plateau`.
pub const PLATEAU: Flag = Flag::one("stop-on-plateau", "N", "Stop once N branches in a row reached no new edge");

/// `--schedule`.
pub const SCHEDULE: Flag = Flag::one(
    "schedule",
    "FILE",
    "Faults that every branch has, written by hand: the next branch has just these, later ones get more on top",
)
.default("that of the round before, else none");

/// `--without-faults`.
pub const WITHOUT: Flag = Flag::many(
    "without-faults",
    "KIND",
    "A kind of fault that is never planned, because the guests do not promise to stand it; disk_* are all that begin so",
)
.default("those of the round before");

/// The kinds that `--without-faults` names, sorted; none where it is not given.
fn without(texts: &[String]) -> Failures<Option<Vec<FaultKind>>> {
    let mut kinds = std::collections::BTreeSet::new();
    for text in texts {
        let found = FaultKind::matching(text);
        if found.is_empty() {
            let meant = nearest(text, FaultKind::matching("*").iter().map(|kind| kind.name()));
            let meant = meant.map_or(String::new(), |name| format!("; did you mean {name}?"));
            return Err(Failure::usage(format!("--without-faults: there is no kind of fault {text:?}{meant}")));
        }
        kinds.extend(found);
    }
    Ok((!texts.is_empty()).then(|| kinds.into_iter().collect()))
}

/// `--shard`.
pub const SHARD: Flag = Flag::one(
    "shard",
    "I/N",
    "Explore part I of N of the round only; chaos-merge puts the parts together. --branches is that of the whole round",
)
.default("1/1");

fn shard(text: Option<String>) -> Failures<Shard> {
    let parsed = text.map_or(Ok(Shard::WHOLE), |text| text.parse());
    parsed.map_err(|why| Failure::usage(format!("--shard: {why}")))
}

/// Most rounds of one call.
const ROUNDS_MAX: u64 = 1 << 40;

/// Runs rounds as the arguments say, and where they do not, the profile. `rounds` is how many a tool with `--rounds` runs when
/// nothing says it; a tool without runs one.
pub fn run(stage: &Stage, rounds: Option<u64>) -> Failures<StageResult> {
    let arguments = &stage.context.arguments;
    choose_tier(arguments.text("tier")?.as_deref());
    let document = arguments.path("profile").map(|path| read_profile(stage.store, &path)).transpose()?;
    let profile = document.as_ref().map(campaign).transpose()?;
    let within = |name: &str, max: u64| -> Failures<Option<u64>> {
        arguments.is_set(name).then(|| arguments.number_within(name, 1, max, 1)).transpose()
    };
    let (allow_unfaithful, pin_core, watchdog_s) = arguments.kvm()?;
    let engine = arguments.text("engine")?;
    let of_profile = |value: fn(&CampaignProfile) -> Option<u64>| profile.and_then(value);
    let default_rounds = of_profile(|profile| Some(profile.rounds.into())).or(rounds).unwrap_or(1);
    let host = Host::from_flags(engine.as_deref(), allow_unfaithful, pin_core, watchdog_s).map_err(Failure::usage)?;
    let options = ExploreOptions {
        host: Host { prefix_cache_bytes: arguments.prefix_cache_bytes()?, clock: Some(host_ns), ..host },
        rounds: if rounds.is_some() { within("rounds", ROUNDS_MAX)?.unwrap_or(default_rounds) } else { 1 },
        shard: shard(arguments.text("shard")?)?,
        branches: within("branches", 1 << 40)?.or(of_profile(|profile| Some(profile.branches.into()))).unwrap_or(64),
        jobs: stage.context.jobs()?,
        seed: match of_profile(|profile| profile.seed.map(|seed| seed.0)) {
            Some(seed) if !arguments.is_set("seed") => seed,
            _ => stage.seed()?,
        },
        horizon_ns: within("horizon-ns", HORIZON_NS_MAX)?.or(of_profile(|profile| Some(profile.horizon_ns.0))),
        window: within("window", u64::from(WINDOW_MAX))?
            .or(of_profile(|profile| Some(profile.window.into())))
            .map(|window| window as u32),
        instructions: arguments.number("instructions")?.or(of_profile(|profile| profile.instructions.map(|n| n.0))),
        mode: arguments.text("mode")?.as_deref().and_then(Mode::from_name),
        plateau: within("stop-on-plateau", 1 << 40)?,
        bugs: within("stop-after-bugs", u64::from(u32::MAX))?
            .or(of_profile(|profile| profile.stop_after_bugs.map(u64::from)))
            .map(|bugs| bugs as u32),
        rejection_is_fatal: arguments.is_set("rejection-is-fatal"),
        schedule: match arguments.path("schedule") {
            Some(path) => Some(read_document::<ScheduleDocument>(stage.store, &path)?.schedule),
            None => None,
        },
        without: without(&arguments.texts("without-faults")?)?,
    };
    let limit = within("time-limit-s", 1 << 40)?.map(Duration::from_secs);
    let watch =
        Watch { stage, started: Instant::now(), limit, json: arguments.is_set("log-json"), seen: Mutex::default() };
    let checkpoint = arguments.path("checkpoint");
    if let Some(path) = &checkpoint {
        // Found out now and not after hours.
        let beside = beside(path);
        let created = File::create(&beside).and_then(|_| std::fs::remove_file(&beside));
        created.map_err(|error| {
            Failure::new(ExitCode::HostLacks, format!("--checkpoint {}: it cannot be written: {error}", path.display()))
        })?;
    }
    let begun = checkpoint.as_deref().map(|path| read_checkpoint(stage, path)).transpose()?.flatten();
    let save = |result: &StageResult| match &checkpoint {
        Some(path) => write_checkpoint(stage, path, result),
        None => Ok(()),
    };
    let talk = |done: u64, total: u64, note: &str| watch.talk(done, total, note);
    let along = Along { talk: &talk, branch: &|standing| watch.branch(standing), round: &save };
    let (mut result, total, effort) = explore(stage.store, stage.before()?, &options, begun.as_ref(), &along)?;
    let found = match total.bugs {
        0 => "no bug found; more branches go on from this descriptor".to_owned(),
        1 => "1 bug found".to_owned(),
        bugs => format!("{bugs} bugs found"),
    };
    let speed = watch.speed().map_or(String::new(), |speed| format!("; {speed}"));
    watch.say(&format!("{} branches, {} edges: {found}{speed}", total.branches.0, total.edges));
    watch.say(&spelled_effort(&effort, options.jobs));
    if let Some(document) = document {
        result.inputs.push(Link::new("profile", stage.store.publish(&document)?));
    }
    Ok(result)
}

/// Ns of this host since it was first asked for.
fn host_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// What people see of a running exploration.
struct Watch<'a> {
    stage: &'a Stage<'a>,
    started: Instant,
    limit: Option<Duration>,
    /// Lines of JSON in place of a bar.
    json: bool,
    /// The campaign after the first branch of this call with the time of that, and where it stands.
    seen: Mutex<Option<(Instant, RoundSummary, Standing)>>,
}

impl Watch<'_> {
    fn talk(&self, done: u64, total: u64, note: &str) {
        if !self.json {
            self.stage.context.progress.at(done, total, note);
        }
    }

    fn say(&self, line: &str) {
        if !self.json {
            self.stage.context.progress.say(line);
        }
    }

    /// How fast this call was, for people: branches, and from the second one on virtual time beside time here.
    fn speed(&self) -> Option<String> {
        let (since, first, Standing { done, total, .. }) = (*self.seen.lock().unwrap_or_else(PoisonError::into_inner))?;
        let per_hour = u128::from(done) * 3_600_000 / self.started.elapsed().as_millis().max(1);
        let passed = u128::from(total.cluster_ns.0.saturating_sub(first.cluster_ns.0));
        if passed == 0 {
            return Some(format!("{per_hour} branches/h"));
        }
        let hundredths = passed / 10_000 / since.elapsed().as_millis().max(1);
        Some(format!("{per_hour} branches/h, {}.{:02} s of virtual time a second", hundredths / 100, hundredths % 100))
    }

    /// Shows a branch. Whether there is time for more.
    fn branch(&self, standing: &Standing) -> bool {
        let elapsed = self.started.elapsed();
        let Standing { done, all, total } = *standing;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, first) = seen.map_or((Instant::now(), total), |(since, first, _)| (since, first));
        *seen = Some((since, first, *standing));
        drop(seen);
        let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
        let per_hour = u64::try_from(u128::from(done) * 3_600_000 / u128::from(milliseconds)).unwrap_or(u64::MAX);
        let left_s = all.saturating_sub(done).saturating_mul(milliseconds) / done.max(1) / 1000;
        if self.json {
            let line = serde_json::json!({
                "branches": total.branches.0, "done": done, "of": all, "edges": total.edges, "entries": total.entries,
                "bugs": total.bugs, "novel": total.novel.0, "instructions": total.instructions.0.to_string(),
                "cluster_ns": total.cluster_ns.0.to_string(), "branches_per_hour": per_hour, "left_s": left_s,
            });
            self.stage.context.progress.show(&line.to_string());
        } else {
            let note = format!(
                "branches, {} edges, {} bugs, {per_hour} branches/h, {} left",
                total.edges,
                total.bugs,
                spelled(left_s)
            );
            self.talk(done, all, &note);
        }
        self.limit.is_none_or(|limit| elapsed < limit)
    }
}

/// Where the time went, for people.
fn spelled_effort(effort: &Effort, jobs: u32) -> String {
    let Effort { spent, rounds_ns, merging_ns, cluster_ns, saved_ns } = *effort;
    let of = |part: u64, whole: u128| {
        let tenths = u128::from(part) * 1000 / whole.max(1);
        format!("{}.{} %", tenths / 10, tenths % 10)
    };
    let busy = of(spent.total_ns(), u128::from(rounds_ns) * u128::from(jobs));
    let mut line = format!("{jobs} job{} busy {busy} of the time", if jobs == 1 { "" } else { "s" });
    for (what, part_ns) in [
        ("guests", spent.guests_ns),
        ("network and faults", spent.barriers_ns),
        ("what guests report", spent.reports_ns),
        ("snapshots", spent.snapshots_ns),
        ("hashing", spent.endings_ns),
    ] {
        line.push_str(&format!(", {what} {}", of(part_ns, spent.total_ns().into())));
    }
    line.push_str(&format!("; merging and planning {} of the time of one", of(merging_ns, rounds_ns.into())));
    if saved_ns > 0 {
        line.push_str(&format!(
            "; {} of cluster time went on from the middle of others",
            of(saved_ns, cluster_ns.into())
        ));
    }
    line
}

/// A time for people.
fn spelled(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// Where a checkpoint is written before it takes its name.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    beside.into()
}

/// What an earlier call left in the file; nothing where there is no such file.
fn read_checkpoint(stage: &Stage, path: &Path) -> Failures<Option<Descriptor>> {
    if !path.exists() {
        return Ok(None);
    }
    let name = path.display().to_string();
    let bytes = read_input(path, MediaType::Descriptor.max_bytes())?;
    match admit(stage.store, &name, &bytes)? {
        Handoff::Descriptor(descriptor) => Ok(Some(*descriptor)),
        Handoff::Error(_) => Err(Failure::input(format!("{name}: an error descriptor is no checkpoint"))),
    }
}

/// Leaves what the stage would leave if it ended now. Killed at any instant, the file is whole: the old or the new one.
fn write_checkpoint(stage: &Stage, path: &Path, result: &StageResult) -> Result<(), ExploreError> {
    let failed = |error: &dyn std::fmt::Display| ExploreError::HostLacks(format!("{}: {error}", path.display()));
    let descriptor = stage.descriptor(result);
    stage.store.publish(&descriptor)?;
    // What it names is under its contracts before it can be found.
    stage.store.release()?;
    let mut bytes = document::encode(&descriptor).map_err(|error| failed(&error))?;
    bytes.push(b'\n');
    let beside = beside(path);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|error| failed(&error))
}

fn campaign(profile: &ProfileDocument) -> Failures<&CampaignProfile> {
    profile.values.campaign().ok_or_else(|| {
        let kind = profile.values.kind();
        Failure::input(format!("--profile: a {kind} profile describes no campaign; campaign and workload profiles do"))
    })
}
