// SPDX-License-Identifier: Apache-2.0
//! How often this machine was started, counted in the first sector of its disk.

use chaoscontrol_workload::{Failure, Node};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

/// What a start adds: between two starts a member may renew itself so often.
pub const STEP: u64 = 1 << 20;
const ATTEMPTS: u32 = 200;
const RETRY: Duration = Duration::from_millis(10);

/// Begins the next life: a number above all before it. Without a disk (a dry run) there is one life.
pub fn begin(node: &Node) -> Result<u64, Failure> {
    let Some(path) = node.disk("foca_disk") else { return Ok(STEP) };
    let Ok(disk) = File::options().read(true).write(true).custom_flags(o_dsync()).open(&path) else {
        return Ok(STEP);
    };
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match next(&disk) {
            Ok(life) => return Ok(life),
            Err(error) => last = Some(error),
        }
        std::thread::sleep(RETRY);
    }
    Err(format!("{path}: {}", last.map_or_else(String::new, |error| error.to_string())).into())
}

fn next(disk: &File) -> std::io::Result<u64> {
    let mut sector = [0; 512];
    disk.read_exact_at(&mut sector, 0)?;
    let life = u64::from_le_bytes(sector[..8].try_into().expect("eight bytes")) + STEP;
    sector[..8].copy_from_slice(&life.to_le_bytes());
    disk.write_all_at(&sector, 0)?;
    Ok(life)
}

/// `O_DSYNC` on Linux: a write is durable when it returns (open(2), asm-generic/fcntl.h).
fn o_dsync() -> i32 {
    0o10000
}
