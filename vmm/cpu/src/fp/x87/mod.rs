// SPDX-License-Identifier: AGPL-3.0-or-later
//! The x87 unit on [`X87`] alone: stack, control and status words, and every operation as the manuals define it.

use crate::state::X87;

/// Bits of the status word.
pub mod status {
    /// Stack fault; always together with IE.
    pub const SF: u16 = 1 << 6;
    /// An unmasked exception is pending.
    pub const ES: u16 = 1 << 7;
    /// Condition code 0.
    pub const C0: u16 = 1 << 8;
    /// Condition code 1: rounded up, or stack overflow.
    pub const C1: u16 = 1 << 9;
    /// Condition code 2.
    pub const C2: u16 = 1 << 10;
    /// Condition code 3.
    pub const C3: u16 = 1 << 14;
    /// Busy, a copy of ES.
    pub const B: u16 = 1 << 15;
}

impl X87 {
    /// Sets the control word. Bits 6 (always one), 7 and 13 to 15 (zero) do not exist; bit 12 (infinity control) is kept.
    pub(crate) fn set_control(&mut self, control: u16) {
        self.control = (control & 0x1f7f) | 0x40;
        self.update_summary();
    }

    /// Sets the status word; ES and B follow from the flags and masks.
    pub(crate) fn load_status(&mut self, status: u16) {
        self.status = status;
        self.update_summary();
    }

    /// ES and B say whether an unmasked exception flag is set.
    pub(crate) fn update_summary(&mut self) {
        let pending = self.status & !self.control & 0x3f != 0;
        self.status &= !(status::ES | status::B);
        if pending {
            self.status |= status::ES | status::B;
        }
    }
}
