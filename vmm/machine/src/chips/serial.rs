// SPDX-License-Identifier: AGPL-3.0-or-later
//! The 16550 serial port COM1 over `vm-superio`, with capture and typed input.
//!
//! Offsets are 0 to 7 from port 0x3F8. The UART sends at once: a guest never waits for a character. What the guest wrote is
//! kept until the host takes it, bounded by [`CAPTURE_BYTES_MAX`] (the oldest bytes go first and are counted). A console
//! line that announces a kernel panic is remembered, as a hint for why a guest ended.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, SerialState as UartState};
use vm_superio::{Serial as Uart, Trigger};

use crate::device::{Context, Device, StateError, fill};

/// Captured output that nobody took: a console flood must not grow without bound.
pub const CAPTURE_BYTES_MAX: usize = 4 << 20;
/// Typed input that the guest has not read.
pub const INPUT_BYTES_MAX: usize = 64 << 10;
/// Longest console line that is looked at; the rest of a longer one is not.
const LINE_BYTES_MAX: usize = 512;
/// What the kernel prints when it gives up.
const PANIC_TEXT: &str = "Kernel panic - not syncing";

/// Saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SerialState {
    /// Divisor latch.
    pub divisor: [u8; 2],
    /// IER.
    pub interrupt_enable: u8,
    /// IIR, without the FIFO bits.
    pub interrupt_identification: u8,
    /// LCR.
    pub line_control: u8,
    /// LSR.
    pub line_status: u8,
    /// MCR.
    pub modem_control: u8,
    /// MSR.
    pub modem_status: u8,
    /// SCR.
    pub scratch: u8,
    /// Receive FIFO.
    pub fifo: Vec<u8>,
    /// Typed input that waits for the FIFO.
    pub input: Vec<u8>,
    /// What the guest wrote and what is known about it.
    pub capture: Capture,
}

/// The guest's output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// Not yet taken.
    pub bytes: Vec<u8>,
    /// Bytes written since power-on.
    pub written: u64,
    /// Bytes lost because nobody took them.
    pub lost: u64,
    /// The unfinished line.
    pub line: Vec<u8>,
    /// The first line that announced a kernel panic.
    pub panic_line: Option<String>,
}

impl Capture {
    fn push(&mut self, byte: u8) {
        self.written += 1;
        if self.bytes.len() >= CAPTURE_BYTES_MAX {
            // Half at a time, so that a flood costs no more than twice its bytes.
            let dropped = self.bytes.len() / 2;
            self.bytes.drain(..dropped);
            self.lost += dropped as u64;
        }
        self.bytes.push(byte);
        if byte == b'\n' {
            self.end_line();
        } else if self.line.len() < LINE_BYTES_MAX {
            self.line.push(byte);
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        if self.panic_line.is_none() && line.contains(PANIC_TEXT) {
            self.panic_line = Some(line.trim_end().to_owned());
        }
        self.line.clear();
    }
}

impl io::Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        bytes.iter().for_each(|byte| self.push(*byte));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Notes that the UART asked for an interrupt.
#[derive(Clone, Debug, Default)]
pub struct Asked(Arc<AtomicBool>);

impl Asked {
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Trigger for Asked {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The port.
pub struct Serial {
    uart: Uart<Asked, NoEvents, Capture>,
    asked: Asked,
    input: VecDeque<u8>,
}

impl Default for Serial {
    fn default() -> Self {
        let asked = Asked::default();
        Self { uart: Uart::new(asked.clone(), Capture::default()), asked, input: VecDeque::new() }
    }
}

impl Serial {
    /// What the guest wrote.
    pub fn capture(&self) -> &Capture {
        self.uart.writer()
    }

    /// Takes what the guest wrote since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.uart.writer_mut().bytes)
    }

    /// Types `input`; returns how many bytes were accepted.
    pub fn type_input(&mut self, input: &[u8], context: &mut Context<'_>) -> usize {
        let accepted = input.len().min(INPUT_BYTES_MAX - self.input.len());
        self.input.extend(&input[..accepted]);
        self.feed(context);
        accepted
    }

    /// Moves input into the FIFO, and the UART's wish onto the line.
    fn feed(&mut self, context: &mut Context<'_>) {
        let room = self.uart.fifo_capacity().min(self.input.len());
        if room > 0 {
            let bytes: Vec<u8> = self.input.iter().take(room).copied().collect();
            // Neither a full FIFO (there is room) nor a failing trigger (ours cannot fail) is possible; in loopback mode
            // nothing is taken.
            let taken = self.uart.enqueue_raw_bytes(&bytes).unwrap_or(0);
            self.input.drain(..taken);
        }
        if self.asked.take() {
            context.line.pulse();
        }
    }
}

impl Device for Serial {
    type State = SerialState;

    fn read(&mut self, offset: u64, data: &mut [u8], context: &mut Context<'_>) {
        fill(data, u64::MAX);
        data[0] = self.uart.read(offset as u8);
        self.feed(context);
    }

    fn write(&mut self, offset: u64, data: &[u8], context: &mut Context<'_>) {
        // The capture cannot fail and neither can the trigger.
        let written = self.uart.write(offset as u8, data[0]);
        debug_assert!(written.is_ok());
        self.feed(context);
    }

    fn save(&self) -> SerialState {
        let uart = self.uart.state();
        SerialState {
            divisor: [uart.baud_divisor_low, uart.baud_divisor_high],
            interrupt_enable: uart.interrupt_enable,
            interrupt_identification: uart.interrupt_identification,
            line_control: uart.line_control,
            line_status: uart.line_status,
            modem_control: uart.modem_control,
            modem_status: uart.modem_status,
            scratch: uart.scratch,
            fifo: uart.in_buffer,
            input: self.input.iter().copied().collect(),
            capture: self.uart.writer().clone(),
        }
    }

    fn restore(&mut self, state: &SerialState) -> Result<(), StateError> {
        if state.input.len() > INPUT_BYTES_MAX || state.capture.bytes.len() > CAPTURE_BYTES_MAX {
            return Err(StateError::new("serial", "more input or output than is ever kept"));
        }
        let uart = UartState {
            baud_divisor_low: state.divisor[0],
            baud_divisor_high: state.divisor[1],
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            in_buffer: state.fifo.clone(),
        };
        let asked = Asked::default();
        self.uart = Uart::from_state(&uart, asked.clone(), NoEvents, state.capture.clone())
            .map_err(|error| StateError::new("serial", error.to_string()))?;
        // The UART repeats the interrupt it had asked for; the line already carried that edge.
        asked.take();
        self.asked = asked;
        self.input = state.input.iter().copied().collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, device_contract};

    fn type_in(bench: &mut Bench<Serial>, input: &[u8]) -> usize {
        let Bench { device, memory, now, line, request, .. } = bench;
        device.type_input(input, &mut Context { memory, now: *now, line, request })
    }

    fn print(bench: &mut Bench<Serial>, text: &str) {
        text.bytes().for_each(|byte| bench.write8(0, byte));
    }

    #[test]
    fn output_is_captured_and_taken_once() {
        let mut bench = Bench::new(Serial::default());
        print(&mut bench, "hello\n");
        assert_eq!(bench.device.take_output(), b"hello\n");
        assert_eq!(bench.device.take_output(), b"");
        assert_eq!(bench.device.capture().written, 6);
    }

    #[test]
    fn typed_input_interrupts_and_waits_for_the_fifo() {
        let mut bench = Bench::new(Serial::default());
        bench.write8(1, 1);
        bench.line.take_edge();
        let text: Vec<u8> = (0..200).collect();
        assert_eq!(type_in(&mut bench, &text), 200);
        assert!(bench.line.take_edge());
        let mut read = Vec::new();
        while bench.read8(5) & 1 == 1 {
            read.push(bench.read8(0));
        }
        assert_eq!(read, text);
    }

    #[test]
    fn a_flood_keeps_the_newest_output_and_counts_the_rest() {
        let mut bench = Bench::new(Serial::default());
        for _ in 0..CAPTURE_BYTES_MAX + 10 {
            bench.device.uart.writer_mut().push(b'x');
        }
        let capture = bench.device.capture();
        assert_eq!(capture.bytes.len() as u64 + capture.lost, capture.written);
        assert!(capture.bytes.len() <= CAPTURE_BYTES_MAX);
        assert_eq!(type_in(&mut bench, &vec![0; INPUT_BYTES_MAX * 2]), INPUT_BYTES_MAX);
    }

    #[test]
    fn a_panic_line_is_remembered() {
        let mut bench = Bench::new(Serial::default());
        print(&mut bench, "fine\n[    1.0] Kernel panic - not syncing: No working init found.\r\nmore\n");
        let line = bench.device.capture().panic_line.clone();
        assert_eq!(line.as_deref(), Some("[    1.0] Kernel panic - not syncing: No working init found."));
    }

    device_contract!(
        serial_state_is_complete,
        || {
            let mut bench = Bench::new(Serial::default());
            bench.write8(3, 0x83);
            bench.write8(0, 0x0c);
            bench.write8(3, 3);
            bench.write8(1, 3);
            type_in(&mut bench, &[7; 100]);
            print(&mut bench, "half a li");
            bench
        },
        |bench: &mut Bench<Serial>| {
            bench.read8(2);
            print(bench, "ne\n");
            for _ in 0..110 {
                bench.read8(0);
                bench.read8(2);
                bench.read8(5);
            }
            bench.write8(1, 0);
            bench.write8(1, 2);
        }
    );
}
