// SPDX-License-Identifier: AGPL-3.0-or-later
//! Judges what a reproduction proves.

fn main() {}
