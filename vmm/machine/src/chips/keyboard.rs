// SPDX-License-Identifier: AGPL-3.0-or-later
//! The keyboard controller as far as resets go: ports 0x60 and 0x64, no keyboard.
//!
//! Its status reads 0 (nothing to read, ready for a command), so that a guest's reset path does not wait. It has no state.

use crate::device::{Context, Device, Request, StateError, fill, value_of};

/// Pulse output line 0: reset the CPU.
const PULSE_RESET: u64 = 0xfe;

/// The chip.
#[derive(Debug, Default)]
pub struct Keyboard;

impl Device for Keyboard {
    type State = ();

    fn read(&mut self, _offset: u64, data: &mut [u8], _context: &mut Context<'_>) {
        fill(data, 0);
    }

    fn write(&mut self, offset: u64, data: &[u8], context: &mut Context<'_>) {
        if offset == 0x64 && value_of(data) & 0xff == PULSE_RESET {
            *context.request = Some(Request::Reset);
        }
    }

    fn save(&self) {}

    fn restore(&mut self, _state: &()) -> Result<(), StateError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, device_contract};

    #[test]
    fn the_reset_pulse_resets() {
        let mut bench = Bench::new(Keyboard);
        bench.write8(0x60, 0xfe);
        assert_eq!(bench.request, None);
        bench.write8(0x64, 0xfe);
        assert_eq!(bench.request, Some(Request::Reset));
    }

    device_contract!(keyboard_has_no_state, || Bench::new(Keyboard), |bench: &mut Bench<Keyboard>| {
        bench.read8(0x64);
    });
}
