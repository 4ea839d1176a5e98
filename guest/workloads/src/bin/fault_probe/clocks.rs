// SPDX-License-Identifier: Apache-2.0
//! What the guest's clocks and its kernel's counters show.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Smaller moves of the wall clock against the monotonic one are reading noise.
const STEP_US_MIN: i64 = 500;

/// Steps of the fixed piece of work.
const WORK_ROUNDS: u64 = 20_000;

/// What happened in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Longest time between two turns.
    pub gap_us: u64,
    /// How far the wall clock moved against the monotonic one.
    pub wall_step_us: i64,
    /// Longest time that a fixed piece of work took.
    pub work_max_us: u64,
    /// Packets that the kernel dropped for a wrong checksum or header.
    pub checksum_errors: u64,
}

/// The clocks.
pub struct Clocks {
    window: Window,
    last_turn: Instant,
    offset_us: i64,
    start: Instant,
    errors: u64,
}

impl Clocks {
    /// Starts from now.
    pub fn new() -> Self {
        let start = Instant::now();
        Self {
            window: Window::default(),
            last_turn: start,
            offset_us: offset_us(start),
            start,
            errors: checksum_errors(),
        }
    }

    /// A turn is over.
    pub fn turn(&mut self) {
        let now = Instant::now();
        self.window.gap_us = self.window.gap_us.max((now - self.last_turn).as_micros() as u64);
        self.last_turn = now;
        let offset = offset_us(self.start);
        let moved = offset.wrapping_sub(self.offset_us);
        if moved.abs() >= STEP_US_MIN {
            self.window.wall_step_us += moved;
            self.offset_us = offset;
        }
    }

    /// Does a fixed piece of work, about a millisecond of an undisturbed CPU, and takes the time.
    pub fn work(&mut self) {
        let start = Instant::now();
        let mut mixed = 1u64;
        for round in 0..WORK_ROUNDS {
            mixed = std::hint::black_box(mixed.rotate_left(7) ^ round);
        }
        self.window.work_max_us = self.window.work_max_us.max(start.elapsed().as_micros() as u64);
        // The work is no part of the next turn.
        self.last_turn = Instant::now();
    }

    /// What happened since the last call.
    pub fn take_window(&mut self) -> Window {
        let errors = checksum_errors();
        self.window.checksum_errors = errors.wrapping_sub(self.errors);
        self.errors = errors;
        std::mem::take(&mut self.window)
    }
}

/// Wall clock minus the monotonic time since `start`.
fn offset_us(start: Instant) -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    wall.as_micros() as i64 - start.elapsed().as_micros() as i64
}

/// Counters of wrong checksums and headers, of all protocols (RFC 1213 names, /proc/net/snmp).
fn checksum_errors() -> u64 {
    sum_errors(&std::fs::read_to_string("/proc/net/snmp").unwrap_or_default())
}

fn sum_errors(text: &str) -> u64 {
    let mut sum = 0;
    let mut lines = text.lines();
    // Each protocol has a line of names and a line of values.
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        for (name, value) in names.split_ascii_whitespace().zip(values.split_ascii_whitespace()) {
            if matches!(name, "InCsumErrors" | "InHdrErrors") {
                sum += value.parse::<u64>().unwrap_or(0);
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::sum_errors;

    #[test]
    fn errors_of_all_protocols_are_added() {
        let text = "Ip: Forwarding InHdrErrors\nIp: 1 2\nUdp: InDatagrams InCsumErrors\nUdp: 9 3\n";
        assert_eq!(sum_errors(text), 5);
        assert_eq!(sum_errors(""), 0);
    }
}
