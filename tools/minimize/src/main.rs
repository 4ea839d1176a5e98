// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shrinks a bug's fault schedule to a 1-minimal one.

fn main() {}
