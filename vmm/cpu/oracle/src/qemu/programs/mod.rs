// SPDX-License-Identifier: AGPL-3.0-or-later
//! Programs for lockstep, one file a topic.

mod build;
mod compat;
mod events;
mod paging;
mod segments;
mod strings;
mod system;

pub use build::{Builder, OK, Program};

/// All programs. Those that draw at random do it from `seed`.
pub fn all(seed: u64) -> Vec<Program> {
    [
        events::programs(),
        paging::programs(seed),
        segments::programs(),
        system::programs(),
        strings::programs(),
        compat::programs(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
