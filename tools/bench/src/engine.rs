// SPDX-License-Identifier: AGPL-3.0-or-later
//! One VM through a marked interval: instructions and CPU seconds, ours and QEMU's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use chaoscontrol_artifact::{ExitCode, escape};
use chaoscontrol_cli::{Context, Failure, Failures, read_input};
use chaoscontrol_machine::{GuestNs, Machine, Stop, VmConfig};

use crate::qemu;
use crate::table::{Table, thread_cpu_s};

/// Guest time between two looks at the console: 100,000 instructions.
const STEP_NS: u64 = 1_000_000;
/// Guest time after which a guest without its marker is given up.
const LIMIT_NS: u64 = 600_000_000_000;

/// A guest and the lines that bound what is measured.
pub struct Workload {
    /// Its row.
    pub name: &'static str,
    /// Which initrd.
    pub initrd: Arc<[u8]>,
    /// The same as a file.
    pub initrd_path: PathBuf,
    /// For the kernel's command line.
    pub append: String,
    /// The interval begins with the line that holds this; none is the first output of all.
    pub begin: Option<&'static str>,
    /// The interval ends with the line that holds this.
    pub end: &'static str,
}

/// What an interval cost.
#[derive(Clone, Copy, Debug)]
struct Cost {
    cpu_s: f64,
    instructions: u64,
    /// Of them, retired in compiled code.
    compiled: u64,
}

/// Measures each workload `--repeat` times, ours and QEMU's in turn, so that what else the host does falls on both alike.
pub fn measure(context: &Context) -> Failures<Table> {
    let arguments = &context.arguments;
    let repeat = arguments.number_within("repeat", 1, 1000, 3)?;
    let kernel_path = arguments.required("kernel")?;
    let kernel: Arc<[u8]> = read_input(&kernel_path, 1 << 30)?.into();
    let qemu = arguments.os("qemu").cloned().unwrap_or_else(|| "qemu-system-x86_64".into());
    let icount = !arguments.is_set("plain-tcg");
    let names =
        if icount { ["qemu_icount_cpu_s", "ratio_to_qemu_icount"] } else { ["qemu_tcg_cpu_s", "ratio_to_qemu_tcg"] };
    let bzimage = arguments.path("bzimage").unwrap_or_else(|| bzimage_beside(&kernel_path));
    let mut table = Table::default();
    for workload in workloads(context)? {
        let (mut ours_s, mut theirs_s, mut instructions, mut compiled) = (Vec::new(), Vec::new(), 0, 0);
        for round in 1..=repeat {
            context.progress.say(&format!("{}: {round} of {repeat}", workload.name));
            let cost = ours(&kernel, &workload)?;
            ours_s.push(cost.cpu_s);
            (instructions, compiled) = (cost.instructions, cost.compiled);
            if qemu != "none" {
                theirs_s.push(qemu::cpu_s(&qemu, icount, &bzimage, &workload)?);
            }
        }
        let cpu_s = median(&mut ours_s).unwrap_or_default();
        let millions = instructions as f64 / 1e6;
        let mut cells = vec![("mips", millions / cpu_s), ("instructions_m", millions), ("cpu_s", cpu_s)];
        cells.push(("compiled_percent", compiled as f64 * 100.0 / instructions.max(1) as f64));
        if let Some(theirs) = median(&mut theirs_s) {
            cells.extend([(names[0], theirs), (names[1], theirs / cpu_s)]);
        }
        table.push(workload.name, cells);
    }
    Ok(table)
}

/// QEMU boots no ELF `vmlinux`: the `bzImage` in the same directory, where a kernel's build leaves both, or the kernel itself.
fn bzimage_beside(kernel: &Path) -> PathBuf {
    let beside = kernel.with_file_name("bzImage");
    if beside.is_file() { beside } else { kernel.to_owned() }
}

/// The middle one; of an even number, the mean of the two in the middle.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

fn workloads(context: &Context) -> Failures<Vec<Workload>> {
    let arguments = &context.arguments;
    let rounds = arguments.number_within("rounds", 1, 1 << 40, 20_000_000)?;
    let entries = arguments.number_within("entries", 1, 1 << 30, 500)?;
    let only = arguments.texts("only")?;
    let (raft_path, loops_path) = (arguments.required("raft")?, arguments.required("loops")?);
    let raft: Arc<[u8]> = read_input(&raft_path, 1 << 30)?.into();
    let loops: Arc<[u8]> = read_input(&loops_path, 1 << 30)?.into();
    let of_loop = |name: &'static str| Workload {
        name,
        initrd: loops.clone(),
        initrd_path: loops_path.clone(),
        append: format!("loop={name} loop_rounds={rounds}"),
        begin: Some("chaos-loops: begin"),
        end: "chaos-loops: end",
    };
    let mut all = vec![
        Workload {
            begin: None,
            end: "chaos-loops: begin",
            append: "loop=integer loop_rounds=1".to_owned(),
            ..of_loop("boot")
        },
        Workload {
            name: "raft",
            initrd: raft,
            initrd_path: raft_path,
            append: format!("raft_local=3 raft_entries={entries}"),
            begin: Some("chaos-raft: begin"),
            end: "chaos-raft: end",
        },
    ];
    all.extend(["integer", "memory", "call", "float"].map(of_loop));
    all.retain(|workload| only.is_empty() || only.iter().any(|name| name == workload.name));
    Ok(all)
}

fn ours(kernel: &Arc<[u8]>, workload: &Workload) -> Failures<Cost> {
    let mut config = VmConfig::new(64 << 20, kernel.clone());
    config.initrd = Some(workload.initrd.clone());
    config.append = workload.append.clone();
    let failed = |error: chaoscontrol_machine::MachineError| Failure::from_error(ExitCode::BadInput, &error);
    let mut machine = Machine::new(Arc::new(config)).map_err(failed)?;
    machine.load().map_err(failed)?;
    let mut console = String::new();
    let mut began: Option<(f64, u64, u64)> = None;
    let mut now = 0;
    while now < LIMIT_NS {
        now += STEP_NS;
        let ended = run_to(&mut machine, GuestNs(now)).map_err(failed)?;
        console.push_str(&String::from_utf8_lossy(&machine.take_serial()));
        let here = (thread_cpu_s(), machine.instructions(), machine.compiled_instructions());
        let begun = workload.begin.map_or(!console.is_empty(), |marker| console.contains(marker));
        if begun && began.is_none() {
            began = Some(here);
        }
        if let (Some((cpu_s, instructions, compiled)), true) = (began, console.contains(workload.end)) {
            let (instructions, compiled) = (here.1 - instructions, here.2 - compiled);
            return Ok(Cost { cpu_s: here.0 - cpu_s, instructions, compiled });
        }
        if ended {
            break;
        }
    }
    let tail: Vec<&str> = console.lines().rev().take(8).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    let what = format!("{}: the guest never printed {:?}; its console ends with:", workload.name, workload.end);
    Err(Failure::new(ExitCode::GuestFailed, format!("{what}\n{}", escape::terminal_lines(&tail.join("\n")))))
}

/// Runs to a moment of guest time, idle time skipped. True when the guest has ended.
fn run_to(machine: &mut Machine, to: GuestNs) -> Result<bool, chaoscontrol_machine::MachineError> {
    loop {
        match machine.run_until(to)? {
            Stop::Deadline => break,
            Stop::Idle { .. } => {
                machine.skip_to(to);
                break;
            }
            Stop::Doorbell { .. } | Stop::RestartPoint | Stop::SerialMatch => {
                machine.sdk_mut().take_messages();
            }
            _ => return Ok(true),
        }
    }
    machine.drain_sdk();
    machine.sdk_mut().take_messages();
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_ignore_order_and_outliers() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 90.0]), Some(3.0));
    }

    #[test]
    fn the_bzimage_beside_the_kernel_is_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let kernel = directory.path().join("vmlinux");
        assert_eq!(bzimage_beside(&kernel), kernel);
        std::fs::write(directory.path().join("bzImage"), b"").expect("a file");
        assert_eq!(bzimage_beside(&kernel), directory.path().join("bzImage"));
    }
}
