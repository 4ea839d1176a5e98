// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shows any artifact to people.

fn main() {}
