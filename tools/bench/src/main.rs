// SPDX-License-Identifier: AGPL-3.0-or-later
//! Measures the engine against QEMU, snapshots and exploration.

fn main() {}
