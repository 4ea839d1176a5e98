// SPDX-License-Identifier: AGPL-3.0-or-later
//! Drives many exploration rounds.

fn main() {}
