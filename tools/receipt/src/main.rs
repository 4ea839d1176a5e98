// SPDX-License-Identifier: AGPL-3.0-or-later
//! Binds a chain of artifacts into one receipt, or checks one.

fn main() {}
