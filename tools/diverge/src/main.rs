// SPDX-License-Identifier: AGPL-3.0-or-later
//! Runs a thing twice and names the first differing event.

fn main() {}
