// SPDX-License-Identifier: AGPL-3.0-or-later
//! Tiny guests that check the semantics of the page `docs/cpu.md`: counting, boundaries, faults, modes, memory.

mod boundaries;
mod breakpoints;
mod canonical;
mod coherence;
mod counting;
mod debug;
mod faults;
mod guest;
mod modes;
mod operand_size;
mod outside;
