// SPDX-License-Identifier: AGPL-3.0-or-later
//! ACPI fixed hardware: power management events and control, PM timer, general-purpose events, reset register.
//!
//! Offsets are port numbers: PM1a event block 0x600 (status, enable), PM1a control 0x604, PM timer 0x608, GPE0 block 0x620
//! (status, enable), reset control 0xCF9. Source: ACPI specification 6.5, chapter 4.8. The line is SCI.

use serde::{Deserialize, Serialize};

use crate::device::{Context, Device, Request, StateError, fill};
use crate::time::GuestNs;

/// PM1a status and enable.
pub const PM1_EVENT_PORT: u16 = 0x600;
/// PM1a control.
pub const PM1_CONTROL_PORT: u16 = 0x604;
/// PM timer, 32 bits.
pub const PM_TIMER_PORT: u16 = 0x608;
/// GPE0 status, then enable, one byte each.
pub const GPE0_PORT: u16 = 0x620;
/// Reset control.
pub const RESET_PORT: u16 = 0xcf9;
/// What to write to the reset control.
pub const RESET_VALUE: u8 = 0x06;
/// PM timer clock.
pub const PM_TIMER_HZ: u64 = 3_579_545;
/// Sleep type of S5.
pub const SLEEP_TYPE_S5: u16 = 5;
/// General-purpose event of a VM Generation ID change.
pub const GPE_GENERATION_ID: u8 = 0;

const TIMER_STATUS: u16 = 1;
/// Events that can be enabled: timer, global lock, power button, sleep button, RTC.
const PM1_EVENTS: u16 = 0x0721;
const SCI_ENABLED: u16 = 1;
const SLEEP_ENABLE: u16 = 1 << 13;

/// Saved state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerState {
    /// PM1 status.
    pub pm1_status: u16,
    /// PM1 enable.
    pub pm1_enable: u16,
    /// PM1 control; SCI_EN always set: there is no legacy mode.
    pub pm1_control: u16,
    /// GPE0 status.
    pub gpe_status: u8,
    /// GPE0 enable.
    pub gpe_enable: u8,
    /// Bit 31 of the PM timer was last seen at this half-period.
    pub timer_half: u64,
}

/// The chip.
#[derive(Debug, Default)]
pub struct Power {
    state: PowerState,
}

fn timer_at(now: GuestNs) -> u64 {
    (u128::from(now.0) * u128::from(PM_TIMER_HZ) / 1_000_000_000) as u64
}

impl Power {
    /// Raises a general-purpose event.
    pub fn raise_gpe(&mut self, event: u8, context: &mut Context<'_>) {
        self.state.gpe_status |= 1 << event;
        self.drive(context);
    }

    /// The timer's status bit is set whenever the highest bit changes.
    fn collect(&mut self, now: GuestNs) {
        let half = timer_at(now) >> 31;
        if half > self.state.timer_half {
            self.state.timer_half = half;
            self.state.pm1_status |= TIMER_STATUS;
        }
    }

    fn drive(&self, context: &mut Context<'_>) {
        let PowerState { pm1_status, pm1_enable, gpe_status, gpe_enable, .. } = self.state;
        context.line.set(pm1_status & pm1_enable != 0 || gpe_status & gpe_enable != 0);
    }

    fn read_byte(&self, port: u16, now: GuestNs) -> u8 {
        let byte = |value: u64, base: u16| (value >> ((port - base) * 8)) as u8;
        match port {
            0x600..=0x603 => {
                let block = u64::from(self.state.pm1_status) | u64::from(self.state.pm1_enable) << 16;
                byte(block, PM1_EVENT_PORT)
            }
            0x604..=0x605 => byte(u64::from(self.state.pm1_control | SCI_ENABLED), PM1_CONTROL_PORT),
            0x608..=0x60b => byte(timer_at(now), PM_TIMER_PORT),
            0x620 => self.state.gpe_status,
            0x621 => self.state.gpe_enable,
            _ => 0,
        }
    }

    fn write_byte(&mut self, port: u16, value: u8, context: &mut Context<'_>) {
        let replace = |old: u16, high: bool| {
            if high { old & 0xff | u16::from(value) << 8 } else { old & 0xff00 | u16::from(value) }
        };
        match port {
            0x600 => self.state.pm1_status &= !u16::from(value),
            0x601 => self.state.pm1_status &= !(u16::from(value) << 8),
            0x602 | 0x603 => self.state.pm1_enable = replace(self.state.pm1_enable, port == 0x603) & PM1_EVENTS,
            0x604 | 0x605 => {
                let control = replace(self.state.pm1_control, port == 0x605);
                self.state.pm1_control = control & !SLEEP_ENABLE;
                if control & SLEEP_ENABLE != 0 && control >> 10 & 7 == SLEEP_TYPE_S5 {
                    *context.request = Some(Request::PowerOff);
                }
            }
            0x620 => self.state.gpe_status &= !value,
            0x621 => self.state.gpe_enable = value,
            // Bit 2 starts the reset that bit 1 selects (hard) or not (soft): both end the guest.
            RESET_PORT if value & 4 != 0 => *context.request = Some(Request::Reset),
            _ => {}
        }
    }
}

impl Device for Power {
    type State = PowerState;

    fn read(&mut self, offset: u64, data: &mut [u8], context: &mut Context<'_>) {
        self.collect(context.now);
        fill(data, 0);
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = self.read_byte((offset as u16).saturating_add(index as u16), context.now);
        }
        self.drive(context);
    }

    fn write(&mut self, offset: u64, data: &[u8], context: &mut Context<'_>) {
        self.collect(context.now);
        for (index, byte) in data.iter().enumerate() {
            self.write_byte((offset as u16).saturating_add(index as u16), *byte, context);
        }
        self.drive(context);
    }

    fn next_event(&self) -> Option<GuestNs> {
        let wanted = self.state.pm1_enable & TIMER_STATUS != 0 && self.state.pm1_status & TIMER_STATUS == 0;
        wanted.then(|| {
            let ticks = u128::from(self.state.timer_half + 1) << 31;
            let ns = (ticks * 1_000_000_000).div_ceil(u128::from(PM_TIMER_HZ));
            GuestNs(u64::try_from(ns).unwrap_or(u64::MAX))
        })
    }

    fn advance(&mut self, context: &mut Context<'_>) {
        self.collect(context.now);
        self.drive(context);
    }

    fn save(&self) -> PowerState {
        self.state
    }

    fn restore(&mut self, state: &PowerState) -> Result<(), StateError> {
        if state.pm1_enable & !PM1_EVENTS != 0 || state.timer_half > 1 << 32 {
            return Err(StateError::new("power", "an event or the timer's half-period is out of range"));
        }
        self.state = *state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, device_contract};

    const HALF_NS: u64 = 599_931_779_000; // about 2^31 ticks

    #[test]
    fn the_timer_counts_guest_time() {
        let mut bench = Bench::new(Power::default());
        bench.run_to(1_000_000_000);
        assert_eq!(u64::from(bench.read32(0x608)), PM_TIMER_HZ);
    }

    #[test]
    fn the_timer_interrupts_when_its_top_bit_changes() {
        let mut bench = Bench::new(Power::default());
        bench.write(0x602, 2, 1);
        assert_eq!(bench.run_to(HALF_NS * 9 / 10), 0);
        assert_eq!(bench.run_to(HALF_NS * 11 / 10), 1);
        assert!(bench.line.level());
        bench.write(0x600, 2, 1);
        assert!(!bench.line.level());
        assert_eq!(bench.run_to(HALF_NS * 21 / 10), 1);
    }

    #[test]
    fn a_general_purpose_event_holds_sci_until_cleared() {
        let mut bench = Bench::new(Power::default());
        bench.write8(0x621, 1);
        let Bench { device, memory, now, line, request, .. } = &mut bench;
        device.raise_gpe(0, &mut Context { memory, now: *now, line, request });
        assert!(bench.line.level());
        bench.write8(0x620, 1);
        assert!(!bench.line.level());
    }

    #[test]
    fn s5_powers_off_and_the_reset_register_resets() {
        let mut bench = Bench::new(Power::default());
        bench.write(0x604, 2, u64::from(SLEEP_ENABLE | 1 << 10));
        assert_eq!(bench.request, None);
        bench.write(0x604, 2, u64::from(SLEEP_ENABLE | SLEEP_TYPE_S5 << 10));
        assert_eq!(bench.request, Some(Request::PowerOff));
        bench.write8(u64::from(RESET_PORT), RESET_VALUE);
        assert_eq!(bench.request, Some(Request::Reset));
        assert_eq!(bench.read(0x604, 2) & 1, 1, "SCI is always enabled");
    }

    device_contract!(
        power_state_is_complete,
        || {
            let mut bench = Bench::new(Power::default());
            bench.write(0x602, 2, 0x101);
            bench.write8(0x621, 3);
            bench.run_to(HALF_NS / 2);
            bench
        },
        |bench: &mut Bench<Power>| {
            for step in 1..5 {
                bench.run_to(HALF_NS / 2 + step * HALF_NS);
                bench.read32(0x600);
                bench.read32(0x608);
                bench.write8(0x600, 1);
            }
        }
    );
}
