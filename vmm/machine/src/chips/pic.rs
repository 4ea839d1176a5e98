// SPDX-License-Identifier: AGPL-3.0-or-later
//! Two cascaded 8259A interrupt controllers with edge/level control registers.
//!
//! Offsets are port numbers: 0x20, 0x21 (master), 0xA0, 0xA1 (slave), 0x4D0, 0x4D1 (ELCR). Source: Intel 8259A data sheet
//! (231468-003). MCS-80 mode is not offered: every vector is `base | level`.

use serde::{Deserialize, Serialize};

use crate::device::{Context, Device, Line, StateError, fill, value_of};

/// Master's input that the slave drives.
const CASCADE: u8 = 2;
/// Inputs that are edge-triggered whatever ELCR says: timer, keyboard, cascade (master), RTC and FPU (slave).
const ELCR_MASKS: [u8; 2] = [0xf8, 0xde];

/// One 8259A.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chip {
    /// Interrupt requests: latched edges, and the lines of level inputs.
    pub irr: u8,
    /// Interrupts in service.
    pub isr: u8,
    /// Masked inputs.
    pub imr: u8,
    /// Input levels.
    pub lines: u8,
    /// Level-triggered inputs.
    pub elcr: u8,
    /// First vector (ICW2).
    pub vector_base: u8,
    /// Which initialization word the data port expects next: 0 (none), 2, 3 or 4.
    pub expects_icw: u8,
    /// ICW1 said that ICW4 follows.
    pub icw4_follows: bool,
    /// Automatic end of interrupt (ICW4).
    pub auto_eoi: bool,
    /// Rotate on automatic end of interrupt.
    pub rotate_on_auto_eoi: bool,
    /// Special mask mode (OCW3).
    pub special_mask: bool,
    /// Special fully nested mode (ICW4).
    pub fully_nested: bool,
    /// The command port reads ISR, else IRR.
    pub read_isr: bool,
    /// The next read polls.
    pub poll: bool,
    /// Input of the highest priority.
    pub first: u8,
}

impl Chip {
    fn set_input(&mut self, input: u8, line: Line, edge: bool) {
        let bit = 1 << input;
        if self.elcr & bit != 0 {
            self.irr = if line.level() { self.irr | bit } else { self.irr & !bit };
        } else if edge {
            // Latched until acknowledged. The discrete chip drops an edge whose line falls early; the outputs that pulse
            // here (the timer's) are only sampled when something looks, so that rule would lose ticks.
            self.irr |= bit;
        }
        self.lines = if line.level() { self.lines | bit } else { self.lines & !bit };
    }

    /// Priority of an input, 0 the highest.
    fn rank(&self, input: u8) -> u8 {
        input.wrapping_sub(self.first) & 7
    }

    fn highest(&self, set: u8) -> Option<u8> {
        (0..8).map(|rank| (self.first + rank) & 7).find(|input| set >> input & 1 == 1)
    }

    /// The input to be served next, if the chip asks for service.
    fn pending(&self, cascaded: bool) -> Option<u8> {
        let input = self.highest(self.irr & !self.imr)?;
        let mut serving = self.isr;
        if self.special_mask {
            serving &= !self.imr;
        }
        if self.fully_nested && cascaded {
            serving &= !(1 << CASCADE);
        }
        match self.highest(serving) {
            Some(served) if self.rank(served) <= self.rank(input) => None,
            _ => Some(input),
        }
    }

    fn acknowledge(&mut self, input: u8) {
        let bit = 1 << input;
        if self.elcr & bit == 0 {
            self.irr &= !bit;
        }
        if !self.auto_eoi {
            self.isr |= bit;
        } else if self.rotate_on_auto_eoi {
            self.first = (input + 1) & 7;
        }
    }

    fn write_command(&mut self, value: u8) {
        if value & 0x10 != 0 {
            // ICW1 clears everything but the line state, the level control and the vector base (data sheet, ICW1 a to f).
            *self = Self { lines: self.lines, elcr: self.elcr, vector_base: self.vector_base, ..Self::default() };
            self.irr = self.lines & self.elcr;
            self.expects_icw = 2;
            self.icw4_follows = value & 1 != 0;
        } else if value & 0x08 != 0 {
            match value & 3 {
                2 => self.read_isr = false,
                3 => self.read_isr = true,
                _ => {}
            }
            self.poll = value & 4 != 0;
            match value >> 5 & 3 {
                2 => self.special_mask = false,
                3 => self.special_mask = true,
                _ => {}
            }
        } else {
            self.end_of_interrupt(value >> 5, value & 7);
        }
    }

    fn end_of_interrupt(&mut self, operation: u8, input: u8) {
        let serving = if self.special_mask { self.isr & !self.imr } else { self.isr };
        match operation {
            0 => self.rotate_on_auto_eoi = false,
            4 => self.rotate_on_auto_eoi = true,
            1 | 5 => {
                if let Some(served) = self.highest(serving) {
                    self.isr &= !(1 << served);
                    if operation == 5 {
                        self.first = (served + 1) & 7;
                    }
                }
            }
            3 => self.isr &= !(1 << input),
            7 => {
                self.isr &= !(1 << input);
                self.first = (input + 1) & 7;
            }
            6 => self.first = (input + 1) & 7,
            _ => {}
        }
    }

    fn write_data(&mut self, value: u8) {
        match self.expects_icw {
            2 => {
                self.vector_base = value & 0xf8;
                self.expects_icw = 3;
            }
            3 => self.expects_icw = if self.icw4_follows { 4 } else { 0 },
            4 => {
                self.auto_eoi = value & 2 != 0;
                self.fully_nested = value & 0x10 != 0;
                self.expects_icw = 0;
            }
            _ => self.imr = value,
        }
    }

    fn read_command(&self) -> u8 {
        if self.read_isr { self.isr } else { self.irr }
    }
}

/// Both chips' state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PicState {
    /// Master, inputs 0 to 7.
    pub master: Chip,
    /// Slave, inputs 8 to 15.
    pub slave: Chip,
}

/// The pair.
#[derive(Debug, Default)]
pub struct Pic {
    state: PicState,
}

impl Pic {
    /// Inputs 0..16; `edge` says that the line rose since the last call.
    pub fn set_input(&mut self, input: u8, line: Line, edge: bool) {
        if input < 8 {
            self.state.master.set_input(input, line, edge);
        } else {
            self.state.slave.set_input(input & 7, line, edge);
        }
        self.cascade();
    }

    /// Whether INTR is high.
    pub fn interrupts(&self) -> bool {
        self.master_pending().is_some()
    }

    /// The interrupt acknowledge cycle: the vector, spurious (input 7) if the request is gone.
    pub fn acknowledge(&mut self) -> u8 {
        let vector = match self.master_pending() {
            None => self.state.master.vector_base | 7,
            Some(CASCADE) => {
                self.state.master.acknowledge(CASCADE);
                let slave = &mut self.state.slave;
                match slave.pending(false) {
                    None => slave.vector_base | 7,
                    Some(input) => {
                        slave.acknowledge(input);
                        slave.vector_base | input
                    }
                }
            }
            Some(input) => {
                self.state.master.acknowledge(input);
                self.state.master.vector_base | input
            }
        };
        self.cascade();
        vector
    }

    fn master_pending(&self) -> Option<u8> {
        self.state.master.pending(self.state.slave.pending(false).is_some())
    }

    /// The slave's output is the master's input 2. It behaves as a level here: a second slave request after an
    /// acknowledge must reach the master though the wire did not fall in between.
    fn cascade(&mut self) {
        let bit = 1 << CASCADE;
        let master = &mut self.state.master;
        if self.state.slave.pending(false).is_some() {
            master.irr |= bit;
            master.lines |= bit;
        } else {
            master.irr &= !bit;
            master.lines &= !bit;
        }
    }

    fn poll(&mut self, slave: bool) -> u8 {
        let cascaded = self.state.slave.pending(false).is_some();
        let chip = if slave { &mut self.state.slave } else { &mut self.state.master };
        chip.poll = false;
        let pending = chip.pending(!slave && cascaded);
        if let Some(input) = pending {
            chip.acknowledge(input);
        }
        pending.map_or(0, |input| 0x80 | input)
    }
}

impl Device for Pic {
    type State = PicState;

    fn read(&mut self, offset: u64, data: &mut [u8], _context: &mut Context<'_>) {
        let slave = offset & 0x80 != 0;
        let chip = if slave { &self.state.slave } else { &self.state.master };
        let value = match offset {
            0x20 | 0x21 | 0xa0 | 0xa1 if chip.poll => self.poll(slave),
            0x20 | 0xa0 => chip.read_command(),
            0x21 | 0xa1 => chip.imr,
            0x4d0 => self.state.master.elcr,
            0x4d1 => self.state.slave.elcr,
            _ => 0xff,
        };
        fill(data, u64::from(value));
        self.cascade();
    }

    fn write(&mut self, offset: u64, data: &[u8], _context: &mut Context<'_>) {
        let value = value_of(data) as u8;
        let PicState { master, slave } = &mut self.state;
        match offset {
            0x20 => master.write_command(value),
            0x21 => master.write_data(value),
            0xa0 => slave.write_command(value),
            0xa1 => slave.write_data(value),
            0x4d0 => master.elcr = value & ELCR_MASKS[0],
            0x4d1 => slave.elcr = value & ELCR_MASKS[1],
            _ => {}
        }
        self.cascade();
    }

    fn save(&self) -> PicState {
        self.state
    }

    fn restore(&mut self, state: &PicState) -> Result<(), StateError> {
        for chip in [&state.master, &state.slave] {
            if chip.first > 7 || !matches!(chip.expects_icw, 0 | 2 | 3 | 4) || chip.vector_base & 7 != 0 {
                return Err(StateError::new("pic", "priority, initialization step or vector base out of range"));
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

    fn ready() -> Bench<Pic> {
        let mut bench = Bench::new(Pic::default());
        for (port, value) in [
            (0x20, 0x11),
            (0x21, 0x30),
            (0x21, 4),
            (0x21, 1),
            (0xa0, 0x11),
            (0xa1, 0x38),
            (0xa1, 2),
            (0xa1, 1),
            (0x21, 0),
            (0xa1, 0),
        ] {
            bench.write8(port, value);
        }
        bench
    }

    fn raise(bench: &mut Bench<Pic>, input: u8) {
        let mut line = Line::default();
        line.set(true);
        bench.device.set_input(input, line, true);
    }

    fn lower(bench: &mut Bench<Pic>, input: u8) {
        bench.device.set_input(input, Line::default(), false);
    }

    #[test]
    fn a_lower_input_wins_and_holds_higher_ones_until_eoi() {
        let mut bench = ready();
        raise(&mut bench, 4);
        raise(&mut bench, 1);
        assert_eq!(bench.device.acknowledge(), 0x31);
        assert!(!bench.device.interrupts());
        bench.write8(0x20, 0x20);
        assert_eq!(bench.device.acknowledge(), 0x34);
        bench.write8(0x20, 0x20);
        assert!(!bench.device.interrupts());
    }

    #[test]
    fn the_slave_comes_through_input_two() {
        let mut bench = ready();
        raise(&mut bench, 8);
        raise(&mut bench, 12);
        assert_eq!(bench.device.acknowledge(), 0x38);
        assert!(!bench.device.interrupts());
        bench.write8(0xa0, 0x20);
        bench.write8(0x20, 0x20);
        assert_eq!(bench.device.acknowledge(), 0x3c);
    }

    #[test]
    fn a_withdrawn_request_is_spurious() {
        let mut bench = ready();
        bench.write8(0x4d0, 0x20);
        raise(&mut bench, 5);
        assert!(bench.device.interrupts());
        lower(&mut bench, 5);
        assert_eq!(bench.device.acknowledge(), 0x37);
        bench.write8(0x20, 0x0b);
        assert_eq!(bench.read8(0x20), 0, "a spurious interrupt is not in service");
    }

    #[test]
    fn a_level_input_asks_again_until_it_falls() {
        let mut bench = ready();
        bench.write8(0x4d1, 0x02);
        raise(&mut bench, 9);
        assert_eq!(bench.device.acknowledge(), 0x39);
        bench.write8(0xa0, 0x20);
        bench.write8(0x20, 0x20);
        assert_eq!(bench.device.acknowledge(), 0x39);
        lower(&mut bench, 9);
        bench.write8(0xa0, 0x20);
        bench.write8(0x20, 0x20);
        assert!(!bench.device.interrupts());
    }

    #[test]
    fn a_masked_input_waits() {
        let mut bench = ready();
        bench.write8(0x21, 0x10);
        raise(&mut bench, 4);
        assert!(!bench.device.interrupts());
        bench.write8(0x21, 0);
        assert_eq!(bench.device.acknowledge(), 0x34);
    }

    #[test]
    fn polling_acknowledges() {
        let mut bench = ready();
        raise(&mut bench, 3);
        bench.write8(0x20, 0x0c);
        assert_eq!(bench.read8(0x20), 0x83);
        bench.write8(0x20, 0x0b);
        assert_eq!(bench.read8(0x20), 0x08);
    }

    device_contract!(
        pic_state_is_complete,
        || {
            let mut bench = ready();
            raise(&mut bench, 4);
            raise(&mut bench, 10);
            bench.device.acknowledge();
            bench.write8(0xa0, 0x11);
            bench
        },
        |bench: &mut Bench<Pic>| {
            bench.write8(0xa1, 0x70);
            bench.write8(0xa1, 2);
            bench.write8(0xa1, 1);
            bench.write8(0x20, 0x20);
            raise(bench, 15);
            bench.device.acknowledge();
        }
    );
}
