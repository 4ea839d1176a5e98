// SPDX-License-Identifier: AGPL-3.0-or-later
//! The console device (virtio 1.2, section 5.3) with one port: queue 0 receives, queue 1 transmits.
//!
//! A whole buffer goes out with one notification, so a line costs one exit where the 16550 takes one a byte. Output waits,
//! bounded, until the machine's owner takes it; input waits, bounded, until the driver offers a buffer.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Io, QueueError, VirtioDevice, read_config_bytes};
use crate::device::StateError;

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// Feature: `cols` and `rows` of the configuration space are valid.
const FEATURE_SIZE: u64 = 1;
const COLUMNS: u16 = 80;
const ROWS: u16 = 25;
/// Output kept until it is taken. A guest that floods the console between two barriers loses what is beyond, counted.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Input kept until the guest reads it.
pub const INPUT_BYTES_MAX: usize = 1 << 16;
/// Bytes copied at a time.
const COPY_BYTES: usize = 4096;

/// The console device.
#[derive(Debug, Default)]
pub struct Console {
    state: ConsoleState,
}

/// Saved state of the console.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleState {
    #[serde(with = "crate::byte_string")]
    output: Vec<u8>,
    input: VecDeque<u8>,
    /// Output bytes lost because nobody took them.
    pub output_dropped: u64,
    /// Input bytes refused because the guest did not read.
    pub input_dropped: u64,
}

impl Console {
    /// A console with nothing on it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what the guest wrote since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.state.output)
    }

    /// Output bytes that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.state.output.len()
    }

    /// Output bytes lost so far because nobody took them.
    pub fn output_dropped(&self) -> u64 {
        self.state.output_dropped
    }

    /// Types `bytes`. Call through [`super::VirtioMmio::run`], so that waiting buffers are filled at once.
    pub fn input(&mut self, bytes: &[u8], io: &mut Io<'_>) -> Result<(), QueueError> {
        let room = INPUT_BYTES_MAX - self.state.input.len().min(INPUT_BYTES_MAX);
        let taken = bytes.len().min(room);
        self.state.input.extend(&bytes[..taken]);
        self.state.input_dropped += (bytes.len() - taken) as u64;
        self.fill_receive_buffers(io)
    }

    fn fill_receive_buffers(&mut self, io: &mut Io<'_>) -> Result<(), QueueError> {
        for _ in 0..io.available(RECEIVE)? {
            if self.state.input.is_empty() {
                break;
            }
            let Some(chain) = io.pop(RECEIVE)? else { break };
            let written = chain.write(io.memory, 0, self.state.input.make_contiguous())?;
            self.state.input.drain(..written);
            io.complete(RECEIVE, chain.head, written as u32)?;
        }
        Ok(())
    }

    fn transmit(&mut self, io: &mut Io<'_>) -> Result<(), QueueError> {
        let mut buffer = [0; COPY_BYTES];
        for _ in 0..io.available(TRANSMIT)? {
            let Some(chain) = io.pop(TRANSMIT)? else { break };
            let total = chain.readable_bytes();
            let room = (OUTPUT_BYTES_MAX - self.state.output.len().min(OUTPUT_BYTES_MAX)) as u64;
            let taken = total.min(room);
            let mut done = 0;
            while done < taken {
                let part = (taken - done).min(COPY_BYTES as u64) as usize;
                chain.read(io.memory, done, &mut buffer[..part])?;
                self.state.output.extend_from_slice(&buffer[..part]);
                done += part as u64;
            }
            self.state.output_dropped += total - taken;
            io.complete(TRANSMIT, chain.head, 0)?;
        }
        Ok(())
    }
}

impl VirtioDevice for Console {
    type State = ConsoleState;
    const NAME: &'static str = "virtio-console";
    const DEVICE_ID: u32 = 3;
    const QUEUE_SIZES: &'static [u16] = &[64, 64];

    fn features(&self) -> u64 {
        FEATURE_SIZE
    }

    fn read_config(&self, offset: u64, out: &mut [u8]) {
        // cols u16, rows u16, max_nr_ports u32, emerg_wr u32.
        let mut space = [0; 12];
        space[..2].copy_from_slice(&COLUMNS.to_le_bytes());
        space[2..4].copy_from_slice(&ROWS.to_le_bytes());
        space[4] = 1;
        read_config_bytes(&space, offset, out);
    }

    fn activate(&mut self, _features: u64) {}

    fn notify(&mut self, queue: usize, io: &mut Io<'_>) -> Result<(), QueueError> {
        if queue == TRANSMIT { self.transmit(io) } else { self.fill_receive_buffers(io) }
    }

    fn queue_stopped(&mut self, _queue: usize) {}

    fn reset(&mut self) {
        self.state.input.clear();
    }

    fn save(&self) -> ConsoleState {
        self.state.clone()
    }

    fn restore(&mut self, state: &ConsoleState) -> Result<(), StateError> {
        if state.output.len() > OUTPUT_BYTES_MAX || state.input.len() > INPUT_BYTES_MAX {
            return Err(StateError::new(Self::NAME, "more bytes are waiting than the bounds allow"));
        }
        self.state = state.clone();
        Ok(())
    }
}
