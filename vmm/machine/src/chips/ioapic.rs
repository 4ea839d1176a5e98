// SPDX-License-Identifier: AGPL-3.0-or-later
//! An I/O APIC with 24 inputs.
//!
//! Memory-mapped: 0x00 selects a register, 0x10 is its window, 0x40 is the EOI register of version 0x20. Source: Intel
//! 82093AA data sheet (290566-001). Messages to the local APIC are taken with [`IoApic::next_message`].

use serde::{Deserialize, Serialize};

use crate::device::{Context, Device, Line, StateError, fill, value_of};

/// Inputs.
pub const INPUTS: usize = 24;
/// Version 0x20 (with an EOI register), highest entry in bits 23..16.
const VERSION: u32 = 0x20 | ((INPUTS as u32 - 1) << 16);
const MASKED: u64 = 1 << 16;
const LEVEL: u64 = 1 << 15;
const REMOTE_IRR: u64 = 1 << 14;
/// Bits the guest may write: vector, delivery and destination mode, polarity, trigger, mask, destination.
const WRITABLE: u64 = 0xff00_0000_0001_afff;

/// How a message is delivered (redirection entry bits 10..8, interrupt command bits 10..8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// To every CPU of the destination.
    Fixed,
    /// To one CPU of the destination.
    LowestPriority,
    /// Non-maskable.
    Nmi,
    /// The vector comes from the PIC.
    ExtInt,
    /// Resets a CPU, which then waits for a start-up message.
    Init,
    /// Starts a CPU that INIT left waiting, at the page that the vector names.
    StartUp,
    /// SMI and reserved modes: no effect on this machine.
    Other,
}

impl Delivery {
    /// From the three mode bits.
    pub fn from_bits(bits: u64) -> Self {
        match bits & 7 {
            0 => Self::Fixed,
            1 => Self::LowestPriority,
            4 => Self::Nmi,
            5 => Self::Init,
            6 => Self::StartUp,
            7 => Self::ExtInt,
            _ => Self::Other,
        }
    }
}

/// An interrupt on its way to the local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// How.
    pub delivery: Delivery,
    /// Vector of a fixed interrupt.
    pub vector: u8,
    /// Level-triggered: its EOI must come back.
    pub level: bool,
    /// Destination field.
    pub destination: u8,
    /// Whether the destination is logical.
    pub logical: bool,
}

/// Saved state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoApicState {
    /// Selected register.
    pub select: u8,
    /// Identity, bits 27..24.
    pub id: u32,
    /// Redirection entries with remote IRR; bit 12 (delivery status) always zero.
    pub entries: [u64; INPUTS],
    /// Latched edges, one bit an input.
    pub edges: u32,
    /// Input levels.
    pub lines: u32,
}

/// The chip.
#[derive(Debug)]
pub struct IoApic {
    state: IoApicState,
}

impl Default for IoApic {
    fn default() -> Self {
        Self { state: IoApicState { entries: [MASKED; INPUTS], ..IoApicState::default() } }
    }
}

impl IoApic {
    /// Inputs 0..24; `edge` says that the line rose since the last call.
    pub fn set_input(&mut self, input: usize, line: Line, edge: bool) {
        let bit = 1 << input;
        self.state.lines = if line.level() { self.state.lines | bit } else { self.state.lines & !bit };
        // An edge on a masked input is lost, as on the real chip.
        if edge && self.state.entries[input] & (LEVEL | MASKED) == 0 {
            self.state.edges |= bit;
        }
    }

    /// Takes the next message that an input asks for, lowest input first.
    pub fn next_message(&mut self) -> Option<Message> {
        let state = &mut self.state;
        if state.edges == 0 && state.lines == 0 {
            return None;
        }
        for (input, entry) in state.entries.iter_mut().enumerate() {
            let bit = 1 << input;
            if *entry & MASKED != 0 {
                continue;
            }
            let level = *entry & LEVEL != 0;
            if level && state.lines & bit != 0 && *entry & REMOTE_IRR == 0 {
                *entry |= REMOTE_IRR;
            } else if !level && state.edges & bit != 0 {
                state.edges &= !bit;
            } else {
                continue;
            }
            return Some(Message {
                delivery: Delivery::from_bits(*entry >> 8),
                vector: *entry as u8,
                level,
                destination: (*entry >> 56) as u8,
                logical: *entry & 1 << 11 != 0,
            });
        }
        None
    }

    /// A level-triggered message that no CPU accepted is not in service anywhere.
    pub fn reject(&mut self, vector: u8) {
        self.end_of_interrupt(vector);
    }

    /// The end of a level-triggered interrupt.
    pub fn end_of_interrupt(&mut self, vector: u8) {
        for entry in &mut self.state.entries {
            if *entry as u8 == vector && *entry & LEVEL != 0 {
                *entry &= !REMOTE_IRR;
            }
        }
    }

    fn register(&self) -> u32 {
        match self.state.select {
            0 | 2 => self.state.id,
            1 => VERSION,
            select @ 0x10..0x40 => {
                let entry = self.state.entries[usize::from(select - 0x10) / 2];
                if select & 1 == 0 { entry as u32 } else { (entry >> 32) as u32 }
            }
            _ => 0,
        }
    }

    fn set_register(&mut self, value: u32) {
        match self.state.select {
            0 => self.state.id = value & 0x0f00_0000,
            select @ 0x10..0x40 => {
                let input = usize::from(select - 0x10) / 2;
                let entry = &mut self.state.entries[input];
                let (shift, half) = if select & 1 == 0 { (0, 0xffff_ffff) } else { (32, 0xffff_ffff << 32) };
                let writable = WRITABLE & half;
                *entry = *entry & !writable | u64::from(value) << shift & writable;
                if *entry & LEVEL == 0 {
                    // Switching to edge and back is how software clears a stuck remote IRR on chips without an EOI register.
                    *entry &= !REMOTE_IRR;
                } else {
                    self.state.edges &= !(1 << input);
                }
            }
            _ => {}
        }
    }
}

impl Device for IoApic {
    type State = IoApicState;

    fn read(&mut self, offset: u64, data: &mut [u8], _context: &mut Context<'_>) {
        let value = match offset {
            0 => u32::from(self.state.select),
            0x10 => self.register(),
            _ => 0,
        };
        fill(data, u64::from(value));
    }

    fn write(&mut self, offset: u64, data: &[u8], _context: &mut Context<'_>) {
        let value = value_of(data) as u32;
        match offset {
            0 => self.state.select = value as u8,
            0x10 => self.set_register(value),
            0x40 => self.end_of_interrupt(value as u8),
            _ => {}
        }
    }

    fn save(&self) -> IoApicState {
        self.state.clone()
    }

    fn restore(&mut self, state: &IoApicState) -> Result<(), StateError> {
        if state.entries.iter().any(|entry| entry & !(WRITABLE | REMOTE_IRR) != 0)
            || state.edges | state.lines >= 1 << INPUTS
        {
            return Err(StateError::new("ioapic", "an entry or input has undefined bits set"));
        }
        self.state = state.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, device_contract};

    fn program(bench: &mut Bench<IoApic>, input: u32, low: u32) {
        bench.write32(0, 0x11 + input * 2);
        bench.write32(0x10, 0);
        bench.write32(0, 0x10 + input * 2);
        bench.write32(0x10, low);
    }

    fn high() -> Line {
        let mut line = Line::default();
        line.set(true);
        line
    }

    #[test]
    fn an_edge_makes_one_message() {
        let mut bench = Bench::new(IoApic::default());
        program(&mut bench, 4, 0x34);
        bench.device.set_input(4, high(), true);
        let message = bench.device.next_message().unwrap();
        assert_eq!((message.vector, message.level, message.delivery), (0x34, false, Delivery::Fixed));
        assert_eq!(bench.device.next_message(), None);
        bench.device.set_input(4, high(), false);
        assert_eq!(bench.device.next_message(), None);
    }

    #[test]
    fn a_level_makes_a_message_after_each_eoi_while_high() {
        let mut bench = Bench::new(IoApic::default());
        program(&mut bench, 9, 0x8041);
        bench.device.set_input(9, high(), true);
        assert!(bench.device.next_message().unwrap().level);
        assert_eq!(bench.device.next_message(), None);
        bench.write32(0, 0x10 + 18);
        assert_eq!(bench.read32(0x10), 0xc041, "remote IRR is visible");
        bench.device.end_of_interrupt(0x41);
        assert!(bench.device.next_message().is_some());
        bench.device.set_input(9, Line::default(), false);
        bench.device.end_of_interrupt(0x41);
        assert_eq!(bench.device.next_message(), None);
    }

    #[test]
    fn masked_inputs_are_silent_and_lose_edges() {
        let mut bench = Bench::new(IoApic::default());
        program(&mut bench, 4, 0x1_0034);
        bench.device.set_input(4, high(), true);
        assert_eq!(bench.device.next_message(), None);
        program(&mut bench, 4, 0x34);
        assert_eq!(bench.device.next_message(), None);
    }

    #[test]
    fn the_version_names_24_inputs() {
        let mut bench = Bench::new(IoApic::default());
        bench.write32(0, 1);
        assert_eq!(bench.read32(0x10), 0x17_0020);
    }

    device_contract!(
        ioapic_state_is_complete,
        || {
            let mut bench = Bench::new(IoApic::default());
            program(&mut bench, 9, 0x8041);
            program(&mut bench, 4, 0x34);
            bench.device.set_input(9, high(), true);
            bench.device.next_message();
            bench.device.set_input(4, high(), true);
            bench
        },
        |bench: &mut Bench<IoApic>| {
            bench.read32(0x10);
            bench.device.end_of_interrupt(0x41);
            while let Some(message) = bench.device.next_message() {
                bench.log.push(u64::from(message.vector));
            }
        }
    );
}
