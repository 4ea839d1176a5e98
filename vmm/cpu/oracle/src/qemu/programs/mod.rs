// SPDX-License-Identifier: AGPL-3.0-or-later
//! Programs for lockstep, one file a topic.

mod build;
mod compat;
mod events;
mod paging;
mod segments;
mod start_up;
mod strings;
mod system;

pub use build::{Builder, OK, Program};

/// All programs. Those of [`drawn`] do it from `seed`.
pub fn all(seed: u64) -> Vec<Program> {
    let mut programs = long_mode(seed);
    programs.extend(start_up());
    programs
}

/// Those that start in real mode.
pub fn start_up() -> Vec<Program> {
    start_up::programs()
}

/// Those that start in long mode.
pub fn long_mode(seed: u64) -> Vec<Program> {
    [events::programs(), drawn(seed), segments::programs(), system::programs(), strings::programs(), compat::programs()]
        .into_iter()
        .flatten()
        .collect()
}

/// The programs that draw at random.
pub fn drawn(seed: u64) -> Vec<Program> {
    paging::programs(seed)
}
