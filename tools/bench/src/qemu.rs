// SPDX-License-Identifier: AGPL-3.0-or-later
//! QEMU through the same interval, in CPU seconds of its process.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use chaoscontrol_artifact::ExitCode;
use chaoscontrol_cli::{Failure, Failures};

use crate::engine::Workload;

/// The part of the command line that removes calibration and randomness, as in our own machine.
const FIXED: &str = "console=ttyS0 nokaslr mitigations=off audit=0 norandmaps random.trust_cpu=off tsc=reliable \
                     tsc_early_khz=1000000 no_timer_check pci=off panic=-1 8250.nr_uarts=1";

/// CPU seconds that QEMU takes for the workload's interval, counting instructions (`-icount`) or not.
pub fn cpu_s(qemu: &OsStr, icount: bool, kernel: &Path, workload: &Workload) -> Failures<f64> {
    let mut child = Command::new(qemu)
        .args(if icount { &["-icount", "shift=0"][..] } else { &[] })
        .args(["-accel", "tcg", "-m", "64", "-display", "none", "-no-reboot", "-nodefaults"])
        .args(["-serial", "stdio", "-kernel"])
        .arg(kernel)
        .arg("-initrd")
        .arg(&workload.initrd_path)
        .args(["-append", &format!("{FIXED} {}", workload.append)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| {
            let what = format!("running {}: {error}; name one with --qemu, or --qemu none", qemu.display());
            Failure::new(ExitCode::HostLacks, what)
        })?;
    let pid = child.id();
    let mut out = child.stdout.take().ok_or_else(|| Failure::new(ExitCode::Internal, "no pipe from QEMU"))?;
    let mut console = String::new();
    let mut chunk = [0; 4096];
    let mut began = None;
    let result = loop {
        let got = match out.read(&mut chunk) {
            Ok(0) | Err(_) => break None,
            Ok(got) => got,
        };
        console.push_str(&String::from_utf8_lossy(&chunk[..got]));
        let now = process_cpu_s(pid);
        let begun = workload.begin.map_or(!console.is_empty(), |marker| console.contains(marker));
        if begun && began.is_none() {
            began = Some(now);
        }
        if let (Some(began), true) = (began, console.contains(workload.end)) {
            break Some(now - began);
        }
    };
    // It is our own child; it may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
    result.ok_or_else(|| {
        let what = format!("{}: QEMU ended before {:?} was printed", workload.name, workload.end);
        Failure::new(ExitCode::GuestFailed, what)
    })
}

/// CPU seconds of all threads of a process.
fn process_cpu_s(pid: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let of_task = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    tasks.flatten().filter_map(of_task).sum::<u64>() as f64 * 1e-9
}
