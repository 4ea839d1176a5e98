// SPDX-License-Identifier: AGPL-3.0-or-later
//! Debug registers: execution and data breakpoints.

use crate::core_state::{Core, DR7_ENABLES};

impl Core {
    /// Notes which data breakpoints an access hits; #DB follows when the instruction retires.
    pub fn note_data_breakpoint(&mut self, address: u64, bytes: u64, write: bool) {
        if self.dr7 & DR7_ENABLES == 0 {
            return;
        }
        for index in 0..4 {
            let condition = (self.dr7 >> (16 + index * 4)) & 3;
            let hit = match condition {
                1 => write,
                3 => true,
                _ => false,
            };
            if hit && self.breakpoint_overlaps(index, address, bytes) {
                self.noted_breakpoints |= 1 << index;
            }
        }
    }

    /// Breakpoint `index` is enabled and its range overlaps `[address, address + bytes)`.
    fn breakpoint_overlaps(&self, index: u32, address: u64, bytes: u64) -> bool {
        let enabled = (self.dr7 >> (index * 2)) & 3 != 0;
        let length = match (self.dr7 >> (18 + index * 4)) & 3 {
            0 => 1,
            1 => 2,
            2 => 8,
            _ => 4,
        };
        let start = self.dr[index as usize] & !(length - 1);
        enabled && address < start.wrapping_add(length) && start < address.wrapping_add(bytes)
    }

    /// Execution breakpoints that match an instruction at `address`, as DR6 bits.
    pub fn execution_breakpoints(&self, address: u64) -> u16 {
        let matches = |index: &u32| {
            (self.dr7 >> (16 + index * 4)) & 3 == 0
                && (self.dr7 >> (index * 2)) & 3 != 0
                && self.dr[*index as usize] == address
        };
        (0..4).filter(matches).map(|index| 1 << index).sum()
    }
}
