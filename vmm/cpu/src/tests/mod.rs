// SPDX-License-Identifier: AGPL-3.0-or-later
//! Tiny guests that check the semantics of the page `docs/cpu.md`: counting, boundaries, faults, modes, memory. Every test runs on
//! both tiers.

macro_rules! tests_of {
    ($tier:ident, $name:ident) => {
        #[path = "."]
        #[expect(clippy::duplicate_mod, reason = "the same tests run on both tiers")]
        mod $name {
            /// What executes these tests' guests, from the first block on.
            const TIER: crate::Tier = crate::Tier::$tier;

            mod boundaries;
            mod breakpoints;
            mod canonical;
            mod coherence;
            mod counting;
            mod debug;
            mod faults;
            pub mod guest;
            mod modes;
            mod operand_size;
            mod outside;
            mod shared;
        }
    };
}

tests_of!(Reference, on_reference);
tests_of!(Compiled, on_compiled);

mod lockstep;
