// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a user of the CPU chooses. Nothing here but the TSC base and the topology can be seen by a guest.

use crate::model::Topology;

/// Sizes of the CPU's caches, and which CPU it is. No size can be seen by a guest; tests vary them to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Entries of the translation cache: rounded up to a power of two, 16 to 65,536.
    pub tlb_entries: usize,
    /// Pre-decoded operations kept before the block cache starts over: at least 64.
    pub cached_operations: usize,
    /// Longest pre-decoded block in instructions: 1 to 64.
    pub block_instructions: usize,
    /// How instructions are executed.
    pub tier: Tier,
    /// Executions after which a block is compiled: at least 1.
    pub hot_executions: u32,
    /// Bytes of compiled code kept before all of it is dropped: 256 KiB to 1 GiB.
    pub code_bytes: usize,
    /// What CPUID says of several CPUs.
    pub topology: Topology,
}

/// How instructions are executed. No guest and no artifact can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// By the interpreter.
    #[default]
    Reference,
    /// Often executed blocks by host code, on hosts that can (x86-64 Linux); the rest by the interpreter.
    Compiled,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tlb_entries: 2048,
            cached_operations: 1 << 20,
            block_instructions: 32,
            tier: Tier::default(),
            hot_executions: 10,
            code_bytes: 64 << 20,
            topology: Topology::default(),
        }
    }
}

/// How the guest's TSC follows progress: `tsc = base_tsc + (instructions - base_instructions) * numerator / denominator`,
/// rounded down. The machine sets it again whenever guest time jumps or its rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscBase {
    /// Progress at which `base_tsc` holds.
    pub base_instructions: u64,
    /// TSC at `base_instructions`.
    pub base_tsc: u64,
    /// TSC ticks per `denominator` units of progress.
    pub numerator: u64,
    /// See `numerator`; never zero.
    pub denominator: u64,
}

impl Default for TscBase {
    /// Ten ticks an instruction from zero.
    fn default() -> Self {
        Self { base_instructions: 0, base_tsc: 0, numerator: 10, denominator: 1 }
    }
}

impl TscBase {
    /// The TSC at a progress count.
    pub fn tsc_at(&self, instructions: u64) -> u64 {
        let elapsed = instructions.wrapping_sub(self.base_instructions);
        let denominator = self.denominator.max(1);
        let ticks = match elapsed.checked_mul(self.numerator) {
            Some(product) if denominator == 1 => product,
            Some(product) => product / denominator,
            None => (u128::from(elapsed) * u128::from(self.numerator) / u128::from(denominator)) as u64,
        };
        self.base_tsc.wrapping_add(ticks)
    }
}

/// Which edges are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoverageFilter {
    /// Record ring 3 only.
    pub user_only: bool,
    /// Record branches whose address lies in this half-open range.
    pub range: (u64, u64),
}
