// SPDX-License-Identifier: AGPL-3.0-or-later
//! Packs a static binary and extra files into a reproducible newc initrd.

fn main() {}
