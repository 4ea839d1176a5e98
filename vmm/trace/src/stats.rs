// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a log consists of.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::entry::{Entry, KINDS};
use crate::format::Log;

/// Addresses named for each kind of access.
const SHOWN: usize = 8;

/// Counts by VM and kind, and the most used addresses of each kind of access.
#[must_use]
pub fn stats(log: &Log) -> String {
    let mut text = String::new();
    for (vm, entries) in log.vms.iter().enumerate() {
        let span = |pick: fn(&Entry) -> u64| {
            let values = entries.iter().map(pick);
            (values.clone().min().unwrap_or(0), values.max().unwrap_or(0))
        };
        let (progress, time) = (span(|entry| entry.progress), span(|entry| entry.guest_ns));
        let _ = writeln!(
            text,
            "vm {vm}: {} entries, progress {} to {}, guest ns {} to {}",
            entries.len(),
            progress.0,
            progress.1,
            time.0,
            time.1
        );
        for (kind, (name, names)) in (0u8..).zip(KINDS) {
            let of_kind = || entries.iter().filter(|entry| entry.kind == kind);
            let count = of_kind().count();
            if count == 0 {
                continue;
            }
            let _ = writeln!(text, "  {name:16} {count:>10}");
            if names.is_empty() {
                continue;
            }
            let mut by_first: BTreeMap<u64, u64> = BTreeMap::new();
            of_kind().filter_map(|entry| entry.fields.first()).for_each(|at| *by_first.entry(*at).or_default() += 1);
            let mut often: Vec<(u64, u64)> = by_first.into_iter().collect();
            often.sort_by_key(|(at, count)| (std::cmp::Reverse(*count), *at));
            for (at, count) in often.into_iter().take(SHOWN) {
                let _ = writeln!(text, "    {} {at:#x}: {count}", names[0]);
            }
        }
    }
    text
}
