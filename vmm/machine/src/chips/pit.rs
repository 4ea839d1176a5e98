// SPDX-License-Identifier: AGPL-3.0-or-later
//! An 8254 interval timer and system control port B (0x61).
//!
//! Offsets are port numbers: 0x40 to 0x42 (counters), 0x43 (control), 0x61. Source: Intel 8254 data sheet (231164-005).
//! Nothing runs between accesses: a counter remembers the tick at which it was loaded, and its count and output are
//! functions of the present tick. Ticks are 1,193,182 a second of guest time. BCD counting is not offered (it counts binary).

use serde::{Deserialize, Serialize};

use crate::device::{Context, Device, StateError, fill, value_of};
use crate::time::GuestNs;

/// Input clock.
pub const TICKS_PER_SECOND: u64 = 1_193_182;

/// Completed ticks at a guest time.
fn tick_at(now: GuestNs) -> u64 {
    (u128::from(now.0) * u128::from(TICKS_PER_SECOND) / 1_000_000_000) as u64
}

/// First nanosecond at which a tick is complete.
fn time_of(tick: u64) -> GuestNs {
    let ns = (u128::from(tick) * 1_000_000_000).div_ceil(u128::from(TICKS_PER_SECOND));
    GuestNs(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// One counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Counting mode 0..=5.
    pub mode: u8,
    /// Access mode: 1 low byte, 2 high byte, 3 low then high.
    pub access: u8,
    /// Reload value, 1..=65,536; zero before the first load.
    pub reload: u32,
    /// Tick at which counting began from `reload`; none while it does not count.
    pub started: Option<u64>,
    /// Count that holds while the gate stops counting.
    pub frozen: u32,
    /// The low byte of a two-byte load that is half written.
    pub low_written: Option<u8>,
    /// The next read of a two-byte count gives the high byte.
    pub high_next: bool,
    /// Latched count.
    pub latch: Option<u16>,
    /// Latched status.
    pub status: Option<u8>,
    /// The control word was written after the last load: OUT stands at its initial level.
    pub waiting: bool,
    /// Gate input.
    pub gate: bool,
    /// Rising edges of OUT were delivered up to and including this tick.
    pub seen: u64,
}

impl Counter {
    fn period(&self) -> u64 {
        u64::from(self.reload.max(1))
    }

    /// The value a read sees at `tick`.
    fn count(&self, tick: u64) -> u16 {
        let Some(started) = self.started else { return self.frozen as u16 };
        let elapsed = tick.saturating_sub(started);
        let count = match self.mode {
            2 => self.period() - elapsed % self.period(),
            // Counts by two, twice a period.
            3 => (self.period() - elapsed * 2 % self.period()) & !1,
            _ => self.period().wrapping_sub(elapsed),
        };
        count as u16
    }

    /// OUT at `tick`.
    fn out(&self, tick: u64) -> bool {
        let Some(started) = self.started.filter(|_| !self.waiting) else {
            return self.mode != 0 || (!self.waiting && self.started.is_none() && self.frozen == 0 && self.reload != 0);
        };
        let elapsed = tick.saturating_sub(started);
        match self.mode {
            0 | 1 => elapsed >= self.period(),
            2 => elapsed % self.period() != self.period() - 1,
            3 => elapsed % self.period() < self.period().div_ceil(2),
            _ => elapsed != self.period(),
        }
    }

    /// The first tick after `after` at which OUT rises.
    fn next_rise(&self, after: u64) -> Option<u64> {
        let started = self.started.filter(|_| !self.waiting)?;
        let first = started + self.period();
        match self.mode {
            0 | 1 => (first > after).then_some(first),
            2 | 3 if self.period() == 1 => None,
            2 | 3 => Some(started + ((after.max(started) - started) / self.period() + 1) * self.period()),
            // The strobe falls at terminal count and rises one tick later.
            _ => (first + 1 > after).then_some(first + 1),
        }
    }

    fn load(&mut self, value: u16, tick: u64) {
        self.reload = if value == 0 { 0x1_0000 } else { u32::from(value) };
        self.waiting = false;
        // The count is transferred at the next tick (data sheet, "Mode Definitions").
        let begins = tick + 1;
        self.seen = tick;
        match self.mode {
            1 | 5 => self.started = None,
            _ if self.gate => self.started = Some(begins),
            _ => {
                self.started = None;
                self.frozen = self.reload;
            }
        }
    }

    fn set_gate(&mut self, gate: bool, tick: u64) {
        let rises = gate && !self.gate;
        let falls = !gate && self.gate;
        self.gate = gate;
        if self.reload == 0 || self.waiting {
            return;
        }
        match self.mode {
            1 | 2 | 3 | 5 if rises => {
                self.started = Some(tick + 1);
                self.seen = tick;
            }
            0 | 4 if rises => {
                // Counting goes on from where the gate stopped it.
                let done = u64::from(self.reload.wrapping_sub(self.frozen) & 0xffff);
                self.started = Some((tick + 1).saturating_sub(done));
            }
            2 | 3 if falls => {
                self.frozen = u32::from(self.count(tick));
                self.started = None;
            }
            0 | 4 if falls => {
                let ended = self.started.is_some_and(|started| tick.saturating_sub(started) >= self.period());
                self.frozen = if ended { 0 } else { u32::from(self.count(tick)) };
                self.started = None;
            }
            _ => {}
        }
    }

    fn write(&mut self, value: u8, tick: u64) {
        match (self.access, self.low_written) {
            (1, _) => self.load(u16::from(value), tick),
            (2, _) => self.load(u16::from(value) << 8, tick),
            (_, None) => {
                self.low_written = Some(value);
                if self.mode == 0 {
                    // Writing the first byte stops counting and sets OUT low (data sheet, mode 0).
                    self.frozen = u32::from(self.count(tick));
                    self.started = None;
                    self.waiting = true;
                }
            }
            (_, Some(low)) => {
                self.low_written = None;
                self.load(u16::from_le_bytes([low, value]), tick);
            }
        }
    }

    fn read(&mut self, tick: u64) -> u8 {
        if let Some(status) = self.status.take() {
            return status;
        }
        let [low, high] = self.latch.unwrap_or_else(|| self.count(tick)).to_le_bytes();
        match self.access {
            1 => {
                self.latch = None;
                low
            }
            2 => {
                self.latch = None;
                high
            }
            _ if self.high_next => {
                self.high_next = false;
                self.latch = None;
                high
            }
            _ => {
                self.high_next = true;
                low
            }
        }
    }

    fn control(&mut self, value: u8, tick: u64) {
        let access = value >> 4 & 3;
        if access == 0 {
            self.latch_count(tick);
            return;
        }
        let mode = match value >> 1 & 7 {
            6 => 2,
            7 => 3,
            mode => mode,
        };
        *self = Self { mode, access, gate: self.gate, waiting: true, ..Self::default() };
    }

    fn latch_count(&mut self, tick: u64) {
        if self.latch.is_none() {
            self.latch = Some(self.count(tick));
        }
    }

    fn latch_status(&mut self, tick: u64) {
        if self.status.is_none() {
            let null = u8::from(self.waiting || self.low_written.is_some());
            self.status = Some(u8::from(self.out(tick)) << 7 | null << 6 | self.access << 4 | self.mode << 1);
        }
    }
}

/// Saved state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PitState {
    /// Timer interrupt, refresh, speaker.
    pub counters: [Counter; 3],
    /// Bit 1 of port 0x61.
    pub speaker: bool,
}

/// The chip. Its line is counter 0's OUT.
#[derive(Debug)]
pub struct Pit {
    state: PitState,
}

impl Default for Pit {
    fn default() -> Self {
        let counter = Counter { access: 3, gate: true, waiting: true, ..Counter::default() };
        Self { state: PitState { counters: [counter, counter, Counter { gate: false, ..counter }], speaker: false } }
    }
}

impl Pit {
    fn read_back(&mut self, value: u8, tick: u64) {
        for (index, counter) in self.state.counters.iter_mut().enumerate() {
            if value >> (index + 1) & 1 == 1 {
                if value & 0x20 == 0 {
                    counter.latch_count(tick);
                }
                if value & 0x10 == 0 {
                    counter.latch_status(tick);
                }
            }
        }
    }

    /// Port 0x61: gate 2, speaker, refresh toggle (every 18 ticks), OUT 2.
    fn system_control(&self, tick: u64) -> u8 {
        let counter = &self.state.counters[2];
        u8::from(counter.gate)
            | u8::from(self.state.speaker) << 1
            | u8::from((tick / 18) & 1 == 1) << 4
            | u8::from(counter.out(tick)) << 5
    }

    fn deliver(&mut self, context: &mut Context<'_>) {
        let tick = tick_at(context.now);
        let counter = &mut self.state.counters[0];
        if counter.next_rise(counter.seen).is_some_and(|rise| rise <= tick) {
            // Rises missed while nobody ran coalesce, as they would in the interrupt controller.
            counter.seen = tick;
            context.line.pulse();
        }
        context.line.set_quietly(counter.out(tick));
    }
}

impl Device for Pit {
    type State = PitState;

    fn read(&mut self, offset: u64, data: &mut [u8], context: &mut Context<'_>) {
        let tick = tick_at(context.now);
        let value = match offset {
            0x40..=0x42 => self.state.counters[offset as usize - 0x40].read(tick),
            0x61 => self.system_control(tick),
            _ => 0xff,
        };
        fill(data, u64::from(value));
    }

    fn write(&mut self, offset: u64, data: &[u8], context: &mut Context<'_>) {
        self.deliver(context);
        let tick = tick_at(context.now);
        let value = value_of(data) as u8;
        match offset {
            0x40..=0x42 => self.state.counters[offset as usize - 0x40].write(value, tick),
            0x43 if value >> 6 == 3 => self.read_back(value, tick),
            0x43 => self.state.counters[usize::from(value >> 6)].control(value, tick),
            0x61 => {
                self.state.speaker = value & 2 != 0;
                self.state.counters[2].set_gate(value & 1 != 0, tick);
            }
            _ => {}
        }
        context.line.set_quietly(self.state.counters[0].out(tick));
    }

    fn next_event(&self) -> Option<GuestNs> {
        let counter = &self.state.counters[0];
        counter.next_rise(counter.seen).map(time_of)
    }

    fn advance(&mut self, context: &mut Context<'_>) {
        self.deliver(context);
    }

    fn save(&self) -> PitState {
        self.state
    }

    fn restore(&mut self, state: &PitState) -> Result<(), StateError> {
        for counter in &state.counters {
            if counter.mode > 5 || !(1..=3).contains(&counter.access) || counter.reload > 0x1_0000 {
                return Err(StateError::new("pit", "counter mode, access or reload value out of range"));
            }
            if counter.started.is_some() && counter.reload == 0 {
                return Err(StateError::new("pit", "a counter counts without a reload value"));
            }
            if counter.started.is_some_and(|started| started > 1 << 60) || counter.seen > 1 << 60 {
                return Err(StateError::new("pit", "a counter starts beyond the end of time"));
            }
        }
        self.state = *state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, device_contract};

    fn at_tick(bench: &mut Bench<Pit>, tick: u64) -> u32 {
        bench.run_to(time_of(tick).0)
    }

    fn program(bench: &mut Bench<Pit>, control: u8, port: u64, count: u16) {
        let [low, high] = count.to_le_bytes();
        bench.write8(0x43, control);
        bench.write8(port, low);
        bench.write8(port, high);
    }

    fn latched(bench: &mut Bench<Pit>, counter: u8) -> u16 {
        bench.write8(0x43, counter << 6);
        let port = 0x40 + u64::from(counter);
        u16::from_le_bytes([bench.read8(port), bench.read8(port)])
    }

    #[test]
    fn ticks_and_times_invert_each_other() {
        for tick in [0, 1, 2, 11_931, 1_193_182, 10_000_000_019] {
            assert_eq!(tick_at(time_of(tick)), tick);
            assert!(tick == 0 || tick_at(GuestNs(time_of(tick).0 - 1)) == tick - 1);
        }
    }

    #[test]
    fn rate_generator_interrupts_every_period() {
        let mut bench = Bench::new(Pit::default());
        program(&mut bench, 0x34, 0x40, 11_932);
        assert_eq!(bench.device.next_event(), Some(time_of(1 + 11_932)));
        assert_eq!(at_tick(&mut bench, 11_932), 0);
        assert_eq!(at_tick(&mut bench, 1 + 11_932), 1);
        assert_eq!(at_tick(&mut bench, 1 + 11_932 * 11), 10);
    }

    #[test]
    fn square_wave_interrupts_every_period_and_counts_by_two() {
        let mut bench = Bench::new(Pit::default());
        program(&mut bench, 0x36, 0x40, 1_000);
        at_tick(&mut bench, 1 + 100);
        assert_eq!(latched(&mut bench, 0), 800);
        assert_eq!(at_tick(&mut bench, 1 + 5_000), 5);
    }

    #[test]
    fn terminal_count_interrupts_once() {
        let mut bench = Bench::new(Pit::default());
        program(&mut bench, 0x30, 0x40, 500);
        assert!(!bench.line.level());
        assert_eq!(at_tick(&mut bench, 10_000), 1);
        assert!(bench.line.level());
        assert_eq!(bench.device.next_event(), None);
    }

    #[test]
    fn software_strobe_interrupts_once_after_its_pulse() {
        let mut bench = Bench::new(Pit::default());
        program(&mut bench, 0x38, 0x40, 500);
        assert_eq!(at_tick(&mut bench, 1 + 500), 0);
        assert_eq!(at_tick(&mut bench, 1 + 501), 1);
        assert_eq!(at_tick(&mut bench, 100_000), 0);
    }

    #[test]
    fn counter_two_counts_down_behind_its_gate_and_shows_its_output() {
        let mut bench = Bench::new(Pit::default());
        program(&mut bench, 0xb0, 0x42, 0xffff);
        at_tick(&mut bench, 1_000);
        assert_eq!(latched(&mut bench, 2), 0xffff, "the gate is closed");
        bench.write8(0x61, 1);
        at_tick(&mut bench, 1_001 + 300);
        assert_eq!(latched(&mut bench, 2), 0xffff - 300);
        assert_eq!(bench.read8(0x61) & 0x20, 0);
        at_tick(&mut bench, 1_001 + 0xffff);
        assert_eq!(bench.read8(0x61) & 0x20, 0x20);
    }

    #[test]
    fn read_back_gives_status_then_count() {
        let mut bench = Bench::new(Pit::default());
        program(&mut bench, 0x34, 0x40, 0x1234);
        bench.write8(0x43, 0xc2);
        assert_eq!(bench.read8(0x40), 0xb4);
        assert_eq!(bench.read8(0x40), 0x34);
        assert_eq!(bench.read8(0x40), 0x12);
    }

    #[test]
    fn missed_periods_make_one_edge() {
        let mut bench = Bench::new(Pit::default());
        program(&mut bench, 0x34, 0x40, 1_000);
        bench.now = time_of(50_500);
        assert_eq!(bench.run_to(time_of(50_500).0), 1);
        assert_eq!(at_tick(&mut bench, 51_001), 1);
    }

    device_contract!(
        pit_state_is_complete,
        || {
            let mut bench = Bench::new(Pit::default());
            program(&mut bench, 0x34, 0x40, 11_932);
            program(&mut bench, 0xb0, 0x42, 0xfff0);
            bench.write8(0x61, 3);
            at_tick(&mut bench, 20_000);
            bench.write8(0x43, 0x80);
            bench.read8(0x42);
            bench.write8(0x43, 0x74);
            bench.write8(0x41, 0x21);
            bench
        },
        |bench: &mut Bench<Pit>| {
            bench.read8(0x42);
            bench.write8(0x41, 0x43);
            for tick in [30_000, 70_000, 90_000] {
                at_tick(bench, tick);
                bench.read8(0x61);
                for counter in 0..3 {
                    latched(bench, counter);
                }
            }
        }
    );
}
