// SPDX-License-Identifier: AGPL-3.0-or-later
//! Forks branches from a snapshot, explores fault schedules and reports bugs.

fn main() {}
