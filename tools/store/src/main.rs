// SPDX-License-Identifier: AGPL-3.0-or-later
//! Lists, verifies and collects a store.

fn main() {}
