// SPDX-License-Identifier: AGPL-3.0-or-later
//! An MC146818 real-time clock with 128 bytes of CMOS memory.
//!
//! Offsets are port numbers: 0x70 selects, 0x71 is the data. Source: Motorola MC146818A data sheet (ADI-1026). The clock is
//! `wall clock at guest time zero + guest time`: a wall-clock jump changes the first term only. Periodic, alarm and update
//! interrupts share the line, which stays high until register C is read.

use serde::{Deserialize, Serialize};

use crate::device::{Context, Device, StateError, fill, value_of};
use crate::time::GuestNs;

const SECOND_NS: u64 = 1_000_000_000;
/// Update in progress is shown for this long before a second begins (data sheet: 244 us).
const UPDATE_NS: u64 = 244_000;
const DAY_SECONDS: u64 = 86_400;
const REGISTER_A: u8 = 0x0a;
const REGISTER_B: u8 = 0x0b;
const REGISTER_C: u8 = 0x0c;
const REGISTER_D: u8 = 0x0d;
const CENTURY: u8 = 0x32;

/// Register B bits.
mod b {
    pub const SET: u8 = 0x80;
    pub const PERIODIC: u8 = 0x40;
    pub const ALARM: u8 = 0x20;
    pub const UPDATE: u8 = 0x10;
    pub const BINARY: u8 = 0x04;
    pub const HOURS_24: u8 = 0x02;
}
/// Register C: any enabled flag is set.
const IRQF: u8 = 0x80;

/// A broken-down UTC time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Calendar {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
    /// 1 is Sunday.
    weekday: u64,
}

/// Days since 1970-01-01 of a date of the proleptic Gregorian calendar, for years from 1970. Out-of-range days run over.
fn days_of(year: u64, month: u64, day: u64) -> u64 {
    // Years start in March, so that the leap day is the last (Fliegel and Van Flandern 1968, restated).
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    days.saturating_sub(719_469)
}

impl Calendar {
    fn of(seconds: u64) -> Self {
        let days = seconds / DAY_SECONDS;
        let in_day = seconds % DAY_SECONDS;
        let mut year = 1970 + days / 366;
        while days_of(year + 1, 1, 1) <= days {
            year += 1;
        }
        let mut month = 1;
        while month < 12 && days_of(year, month + 1, 1) <= days {
            month += 1;
        }
        Self {
            year,
            month,
            day: days - days_of(year, month, 1) + 1,
            hour: in_day / 3600,
            minute: in_day / 60 % 60,
            second: in_day % 60,
            weekday: (days + 4) % 7 + 1,
        }
    }

    fn seconds(self) -> u64 {
        days_of(self.year, self.month, self.day) * DAY_SECONDS + self.hour * 3600 + self.minute * 60 + self.second
    }
}

/// Saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RtcState {
    /// Selected register.
    pub index: u8,
    /// The wall clock at guest time zero, nanoseconds since 1970; wraps below zero after a backward jump early on.
    pub wall_at_zero_ns: i128,
    /// Time registers as the guest set them, while register B's SET bit holds updates: ten, plus the century.
    pub held: Option<[u8; 11]>,
    /// CMOS memory; only bytes without a function of their own are used.
    pub memory: Vec<u8>,
    /// Register A without the update bit.
    pub a: u8,
    /// Register B.
    pub b: u8,
    /// Register C.
    pub c: u8,
    /// Flags are complete up to this time.
    pub seen: GuestNs,
}

/// The chip.
#[derive(Debug)]
pub struct Rtc {
    state: RtcState,
}

impl Rtc {
    /// A clock that shows `wall_ns` (nanoseconds since 1970) at guest time zero.
    pub fn new(wall_ns: u64) -> Self {
        let mut memory = vec![0; 128];
        memory[usize::from(CENTURY)] = 0x20;
        let state = RtcState {
            index: 0,
            wall_at_zero_ns: i128::from(wall_ns),
            held: None,
            memory,
            a: 0x26,
            b: b::HOURS_24,
            c: 0,
            seen: GuestNs(0),
        };
        Self { state }
    }

    /// The wall clock, nanoseconds since 1970.
    pub fn wall_ns(&self, now: GuestNs) -> u64 {
        u64::try_from((self.state.wall_at_zero_ns + i128::from(now.0)).max(0)).unwrap_or(u64::MAX)
    }

    /// Steps the wall clock to `wall_ns` at `now`.
    pub fn set_wall_ns(&mut self, wall_ns: u64, now: GuestNs) {
        self.collect(now);
        self.state.wall_at_zero_ns = i128::from(wall_ns) - i128::from(now.0);
    }

    fn encode(&self, value: u64) -> u8 {
        let value = (value % 100) as u8;
        if self.state.b & b::BINARY != 0 { value } else { ((value / 10) << 4) | (value % 10) }
    }

    fn decode(&self, value: u8) -> u64 {
        u64::from(if self.state.b & b::BINARY != 0 { value } else { (value >> 4) * 10 + (value & 0xf) })
    }

    fn encode_hour(&self, hour: u64) -> u8 {
        if self.state.b & b::HOURS_24 != 0 {
            return self.encode(hour);
        }
        let twelve = if hour.is_multiple_of(12) { 12 } else { hour % 12 };
        self.encode(twelve) | if hour >= 12 { 0x80 } else { 0 }
    }

    fn decode_hour(&self, value: u8) -> u64 {
        if self.state.b & b::HOURS_24 != 0 {
            return self.decode(value);
        }
        self.decode(value & 0x7f) % 12 + if value & 0x80 != 0 { 12 } else { 0 }
    }

    /// Registers 0..=9 and the century at `now`; alarm registers come from memory.
    fn time_registers(&self, now: GuestNs) -> [u8; 11] {
        if let Some(held) = self.state.held {
            return held;
        }
        let time = Calendar::of(self.wall_ns(now) / SECOND_NS);
        let alarm = |register: usize| self.state.memory[register];
        [
            self.encode(time.second),
            alarm(1),
            self.encode(time.minute),
            alarm(3),
            self.encode_hour(time.hour),
            alarm(5),
            self.encode(time.weekday),
            self.encode(time.day),
            self.encode(time.month),
            self.encode(time.year),
            self.encode(time.year / 100),
        ]
    }

    /// The clock goes on from what `registers` say; nonsense is brought into range.
    fn set_from(&mut self, registers: &[u8; 11], now: GuestNs) {
        let year = (self.decode(registers[10]) * 100 + self.decode(registers[9])).clamp(1970, 2261);
        let time = Calendar {
            year,
            month: self.decode(registers[8]).clamp(1, 12),
            day: self.decode(registers[7]).clamp(1, 31),
            hour: self.decode_hour(registers[4]).min(23),
            minute: self.decode(registers[2]).min(59),
            second: self.decode(registers[0]).min(59),
            weekday: 0,
        };
        let wall_ns = time.seconds() * SECOND_NS;
        self.state.wall_at_zero_ns = i128::from(wall_ns) - i128::from(now.0);
    }

    /// Periodic interval, if the rate selection gives one.
    fn period(&self) -> Option<u64> {
        // Rates 1 and 2 repeat 8 and 9 with the usual 32,768 Hz time base.
        let rate = match u32::from(self.state.a & 0xf) {
            0 => return None,
            rate @ (1 | 2) => rate + 7,
            rate => rate,
        };
        // 2^(rate-1) cycles of 32,768 Hz; in nanoseconds this is not whole, so intervals are counted in cycles.
        Some(1 << (rate - 1))
    }

    fn cycles(now: GuestNs) -> u64 {
        (u128::from(now.0) * 32_768 / u128::from(SECOND_NS)) as u64
    }

    fn time_of_cycle(cycle: u64) -> GuestNs {
        GuestNs((u128::from(cycle) * u128::from(SECOND_NS)).div_ceil(32_768) as u64)
    }

    /// The first wall-clock second after `after` (seconds since 1970) at which the alarm matches, within a day.
    fn next_alarm(&self, after: u64) -> Option<u64> {
        let is = |register: usize, now: u64, decoded: u64| {
            // The two highest bits set mean any value (data sheet, "Time, Calendar, and Alarm Locations").
            self.state.memory[register] & 0xc0 == 0xc0 || decoded == now
        };
        let [second, minute] = [1, 3].map(|register| self.decode(self.state.memory[register]));
        let hour = self.decode_hour(self.state.memory[5]);
        let mut at = after + 1;
        while at <= after + DAY_SECONDS {
            let in_day = at % DAY_SECONDS;
            if !is(5, in_day / 3600, hour) {
                at += 3600 - in_day % 3600;
            } else if !is(3, in_day / 60 % 60, minute) {
                at += 60 - in_day % 60;
            } else if !is(1, in_day % 60, second) {
                at += 1;
            } else {
                return Some(at);
            }
        }
        None
    }

    /// Sets the flags of everything that happened since the last call.
    fn collect(&mut self, now: GuestNs) {
        let before = self.state.seen;
        self.state.seen = now.max(before);
        if now <= before {
            return;
        }
        if let Some(period) = self.period()
            && Self::cycles(now) / period > Self::cycles(before) / period
        {
            self.state.c |= b::PERIODIC;
        }
        let (from, to) = (self.wall_ns(before) / SECOND_NS, self.wall_ns(now) / SECOND_NS);
        if self.state.b & b::SET == 0 && to > from {
            self.state.c |= b::UPDATE;
            if self.state.c & b::ALARM == 0 && self.next_alarm(from).is_some_and(|second| second <= to) {
                self.state.c |= b::ALARM;
            }
        }
        self.update_irqf();
    }

    fn update_irqf(&mut self) {
        let enabled = self.state.b & (b::PERIODIC | b::ALARM | b::UPDATE);
        self.state.c = self.state.c & !IRQF | if self.state.c & enabled != 0 { IRQF } else { 0 };
    }

    fn guest_time_of(&self, wall_second: u64) -> GuestNs {
        let ns = i128::from(wall_second) * i128::from(SECOND_NS) - self.state.wall_at_zero_ns;
        GuestNs(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
    }

    fn read_register(&mut self, now: GuestNs) -> u8 {
        match self.state.index {
            register @ 0..=9 => self.time_registers(now)[usize::from(register)],
            CENTURY => self.time_registers(now)[10],
            REGISTER_A => {
                let to_update = SECOND_NS - self.wall_ns(now) % SECOND_NS;
                let updating = self.state.b & b::SET == 0 && to_update <= UPDATE_NS;
                self.state.a | u8::from(updating) << 7
            }
            REGISTER_B => self.state.b,
            REGISTER_C => std::mem::take(&mut self.state.c),
            REGISTER_D => 0x80,
            register => self.state.memory[usize::from(register)],
        }
    }

    fn write_register(&mut self, value: u8, now: GuestNs) {
        match self.state.index {
            register @ (1 | 3 | 5) => {
                self.state.memory[usize::from(register)] = value;
                if let Some(held) = &mut self.state.held {
                    held[usize::from(register)] = value;
                }
            }
            register @ (0..=9 | CENTURY) => {
                let slot = if register == CENTURY { 10 } else { usize::from(register) };
                let mut registers = self.time_registers(now);
                registers[slot] = value;
                if self.state.held.is_some() {
                    self.state.held = Some(registers);
                } else {
                    self.set_from(&registers, now);
                }
            }
            REGISTER_A => self.state.a = value & 0x7f,
            REGISTER_B => self.write_b(value, now),
            REGISTER_C | REGISTER_D => {}
            register => self.state.memory[usize::from(register)] = value,
        }
    }

    fn write_b(&mut self, value: u8, now: GuestNs) {
        let held = self.state.b & b::SET != 0;
        let holds = value & b::SET != 0;
        if holds && !held {
            self.state.held = Some(self.time_registers(now));
        }
        // SET clears the update interrupt's enable (data sheet, register B).
        self.state.b = if holds { value & !b::UPDATE } else { value };
        if held
            && !holds
            && let Some(registers) = self.state.held.take()
        {
            self.set_from(&registers, now);
        }
        self.update_irqf();
    }
}

impl Device for Rtc {
    type State = RtcState;

    fn read(&mut self, offset: u64, data: &mut [u8], context: &mut Context<'_>) {
        self.collect(context.now);
        let value = if offset == 0x71 { self.read_register(context.now) } else { 0xff };
        context.line.set(self.state.c & IRQF != 0);
        fill(data, u64::from(value));
    }

    fn write(&mut self, offset: u64, data: &[u8], context: &mut Context<'_>) {
        self.collect(context.now);
        let value = value_of(data) as u8;
        if offset == 0x70 {
            self.state.index = value & 0x7f;
        } else if offset == 0x71 {
            self.write_register(value, context.now);
        }
        context.line.set(self.state.c & IRQF != 0);
    }

    fn next_event(&self) -> Option<GuestNs> {
        if self.state.c & IRQF != 0 {
            return None;
        }
        let seen = self.state.seen;
        let second = self.wall_ns(seen) / SECOND_NS;
        let runs = self.state.b & b::SET == 0;
        let periodic = self.period().filter(|_| self.state.b & b::PERIODIC != 0);
        let periodic = periodic.map(|period| Self::time_of_cycle((Self::cycles(seen) / period + 1) * period));
        let update = (runs && self.state.b & b::UPDATE != 0).then(|| self.guest_time_of(second + 1));
        let alarm = if runs && self.state.b & b::ALARM != 0 { self.next_alarm(second) } else { None };
        let alarm = alarm.map(|second| self.guest_time_of(second));
        // A wall clock at the end of time stands still; its next second must not be due for ever.
        periodic.into_iter().chain(update).chain(alarm).filter(|at| *at > seen).min()
    }

    fn advance(&mut self, context: &mut Context<'_>) {
        // Flags that interrupt nobody are collected when someone looks; collecting them here would cost every event.
        if self.state.b & (b::PERIODIC | b::ALARM | b::UPDATE) != 0 {
            self.collect(context.now);
            context.line.set(self.state.c & IRQF != 0);
        }
    }

    fn save(&self) -> RtcState {
        self.state.clone()
    }

    fn restore(&mut self, state: &RtcState) -> Result<(), StateError> {
        if state.memory.len() != 128 || state.index >= 128 || state.a & 0x80 != 0 {
            return Err(StateError::new("rtc", "memory is not 128 bytes or an index is out of range"));
        }
        if state.held.is_some() != (state.b & b::SET != 0) {
            return Err(StateError::new("rtc", "held time registers and register B disagree"));
        }
        let bound = i128::from(u64::MAX);
        if !(-bound..=bound).contains(&state.wall_at_zero_ns) {
            return Err(StateError::new("rtc", "wall clock out of range"));
        }
        self.state = state.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WALL_CLOCK_START_NS;
    use crate::testing::{Bench, device_contract};

    fn bench() -> Bench<Rtc> {
        Bench::new(Rtc::new(WALL_CLOCK_START_NS))
    }

    fn get(bench: &mut Bench<Rtc>, register: u8) -> u8 {
        bench.write8(0x70, register);
        bench.read8(0x71)
    }

    fn put(bench: &mut Bench<Rtc>, register: u8, value: u8) {
        bench.write8(0x70, register);
        bench.write8(0x71, value);
    }

    #[test]
    fn calendar_and_seconds_invert_each_other() {
        // 2000-02-29, 2024-12-31, 2100-03-01 (no leap year), 1970-01-01.
        for (seconds, year, month, day, weekday) in [
            (951_782_400, 2000, 2, 29, 3),
            (1_735_603_200, 2024, 12, 31, 3),
            (4_107_542_400, 2100, 3, 1, 2),
            (0, 1970, 1, 1, 5),
        ] {
            let time = Calendar::of(seconds + 3_661);
            assert_eq!((time.year, time.month, time.day, time.weekday), (year, month, day, weekday));
            assert_eq!((time.hour, time.minute, time.second), (1, 1, 1));
            assert_eq!(time.seconds(), seconds + 3_661);
        }
    }

    #[test]
    fn the_clock_follows_guest_time_and_steps() {
        let mut bench = bench();
        assert_eq!(
            [get(&mut bench, 9), get(&mut bench, 8), get(&mut bench, 7), get(&mut bench, CENTURY)],
            [0x25, 1, 1, 0x20]
        );
        bench.run_to(3_725 * SECOND_NS);
        assert_eq!([get(&mut bench, 4), get(&mut bench, 2), get(&mut bench, 0)], [0x01, 0x02, 0x05]);
        let now = bench.now;
        bench.device.set_wall_ns(WALL_CLOCK_START_NS, now);
        assert_eq!([get(&mut bench, 4), get(&mut bench, 2), get(&mut bench, 0)], [0, 0, 0]);
    }

    #[test]
    fn a_guest_sets_the_time_behind_the_set_bit() {
        let mut bench = bench();
        put(&mut bench, REGISTER_B, b::SET | b::HOURS_24);
        for (register, value) in [(0, 0x30), (2, 0x59), (4, 0x23), (7, 0x31), (8, 0x12), (9, 0x99), (CENTURY, 0x20)] {
            put(&mut bench, register, value);
        }
        bench.run_to(5 * SECOND_NS);
        assert_eq!(get(&mut bench, 0), 0x30, "held");
        put(&mut bench, REGISTER_B, b::HOURS_24);
        bench.run_to(35 * SECOND_NS);
        let date = [CENTURY, 9, 8, 7, 4, 2, 0].map(|register| get(&mut bench, register));
        assert_eq!(date, [0x21, 0, 1, 1, 0, 0, 0]);
    }

    #[test]
    fn twelve_hour_and_binary_forms() {
        let mut bench = bench();
        bench.run_to(13 * 3600 * SECOND_NS);
        put(&mut bench, REGISTER_B, 0);
        assert_eq!(get(&mut bench, 4), 0x81);
        put(&mut bench, REGISTER_B, b::BINARY | b::HOURS_24);
        assert_eq!([get(&mut bench, 4), get(&mut bench, 9)], [13, 25]);
    }

    #[test]
    fn periodic_interrupts_come_at_the_selected_rate() {
        let mut bench = bench();
        put(&mut bench, REGISTER_A, 0x26);
        put(&mut bench, REGISTER_B, b::PERIODIC | b::HOURS_24);
        let mut edges = 0;
        for _ in 0..1_024 {
            let next = bench.device.next_event().unwrap().0;
            edges += bench.run_to(next);
            assert_eq!(get(&mut bench, REGISTER_C), IRQF | b::PERIODIC | if next == SECOND_NS { b::UPDATE } else { 0 });
        }
        assert_eq!((edges, bench.now.0), (1_024, SECOND_NS));
    }

    #[test]
    fn the_line_stays_high_until_register_c_is_read() {
        let mut bench = bench();
        put(&mut bench, REGISTER_B, b::UPDATE | b::HOURS_24);
        assert_eq!(bench.run_to(3 * SECOND_NS), 1);
        assert!(bench.line.level());
        assert_eq!(get(&mut bench, REGISTER_C) & b::UPDATE, b::UPDATE);
        assert!(!bench.line.level());
        assert_eq!(bench.run_to(4 * SECOND_NS), 1);
    }

    #[test]
    fn an_alarm_fires_at_its_second_of_the_day() {
        let mut bench = bench();
        for (register, value) in [(1, 0x15), (3, 0x02), (5, 0xff)] {
            put(&mut bench, register, value);
        }
        put(&mut bench, REGISTER_B, b::ALARM | b::HOURS_24);
        assert_eq!(bench.device.next_event(), Some(GuestNs(135 * SECOND_NS)));
        assert_eq!(bench.run_to(134 * SECOND_NS), 0);
        assert_eq!(bench.run_to(135 * SECOND_NS), 1);
        get(&mut bench, REGISTER_C);
        assert_eq!(bench.device.next_event(), Some(GuestNs((3600 + 135) * SECOND_NS)));
    }

    #[test]
    fn update_in_progress_shows_before_the_second() {
        let mut bench = bench();
        bench.run_to(SECOND_NS - UPDATE_NS - 1);
        assert_eq!(get(&mut bench, REGISTER_A) & 0x80, 0);
        bench.run_to(SECOND_NS - UPDATE_NS);
        assert_eq!(get(&mut bench, REGISTER_A) & 0x80, 0x80);
        bench.run_to(SECOND_NS);
        assert_eq!(get(&mut bench, REGISTER_A) & 0x80, 0);
    }

    #[test]
    fn the_end_of_time_holds_nobody_up() {
        let mut bench = bench();
        put(&mut bench, REGISTER_B, b::UPDATE | b::ALARM | b::HOURS_24);
        bench.device.set_wall_ns(u64::MAX, GuestNs(0));
        assert_eq!(bench.run_to(10 * SECOND_NS), 0);
        bench.device.set_wall_ns(0, GuestNs(10 * SECOND_NS));
        assert!(bench.run_to(11 * SECOND_NS) > 0);
    }

    device_contract!(
        rtc_state_is_complete,
        || {
            let mut bench = bench();
            put(&mut bench, REGISTER_A, 0x2a);
            put(&mut bench, REGISTER_B, b::PERIODIC | b::ALARM | b::HOURS_24);
            bench.run_to(SECOND_NS / 3);
            put(&mut bench, REGISTER_B, b::SET | b::PERIODIC | b::HOURS_24);
            put(&mut bench, 4, 0x17);
            bench
        },
        |bench: &mut Bench<Rtc>| {
            put(bench, 2, 0x44);
            put(bench, REGISTER_B, b::PERIODIC | b::UPDATE | b::HOURS_24);
            for step in 1..20 {
                bench.run_to(SECOND_NS / 3 + step * SECOND_NS / 7);
                for register in [0, 2, 4, REGISTER_A, REGISTER_C, 0x40] {
                    get(bench, register);
                }
            }
        }
    );
}
