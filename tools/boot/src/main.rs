// SPDX-License-Identifier: AGPL-3.0-or-later
//! Boots N guests to setup_complete and stores one cluster snapshot.

fn main() {}
