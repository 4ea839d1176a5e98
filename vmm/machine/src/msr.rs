// SPDX-License-Identifier: AGPL-3.0-or-later
//! Model-specific registers outside the CPU: the local APIC's and the platform's.
//!
//! Everything not listed raises #GP(0), which Linux takes for "not there". Source: AMD64 APM vol. 2 appendix A, and the
//! processor programming references for the platform's.

use crate::board::Board;
use crate::time::GuestNs;

/// APIC base.
const APIC_BASE: u32 = 0x1b;
/// TSC deadline.
pub(crate) const TSC_DEADLINE: u32 = 0x6e0;

/// Platform registers that read as zero and ignore writes: what kernels touch without asking first.
const READ_AS_ZERO: [u32; 4] = [
    0xc001_001a, // TOP_MEM
    0xc001_001d, // TOP_MEM2
    0xc001_001f, // NB_CFG
    0xc001_0055, // interrupt pending and CMP-halt
];

/// RDMSR; none raises #GP(0).
pub(crate) fn read(board: &Board, index: u32) -> Option<u64> {
    match index {
        APIC_BASE => Some(board.lapic().base()),
        TSC_DEADLINE => Some(board.lapic().tsc_deadline()),
        _ => READ_AS_ZERO.contains(&index).then_some(0),
    }
}

/// WRMSR; false raises #GP(0). `tsc_offset` is what the guest added to its TSC.
pub(crate) fn write(board: &mut Board, index: u32, value: u64, tsc_offset: u64, now: GuestNs) -> bool {
    match index {
        APIC_BASE => board.lapic_mut().set_base(value),
        TSC_DEADLINE => {
            board.lapic_mut().set_tsc_deadline(value, tsc_offset, now);
            true
        }
        _ => READ_AS_ZERO.contains(&index),
    }
}
