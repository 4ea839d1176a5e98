// SPDX-License-Identifier: AGPL-3.0-or-later
//! The entropy device (virtio 1.2, section 5.4): fills the driver's buffers from the machine's seeded stream at once.

use serde::{Deserialize, Serialize};

use super::{Io, QueueError, VirtioDevice};
use crate::device::StateError;
use crate::entropy::{Purpose, Stream};

/// Bytes given for one request at most. Linux asks for 64 or fewer; a request for more gets a short answer, which the
/// specification allows.
const REQUEST_BYTES_MAX: usize = 4096;

/// The entropy device.
#[derive(Debug)]
pub struct Rng {
    state: RngState,
}

/// Saved state of the entropy device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RngState {
    /// Where the bytes come from.
    pub stream: Stream,
    /// Bytes given so far.
    pub bytes: u64,
}

impl Rng {
    /// The entropy device of the machine with this root seed.
    pub fn new(root: &[u8; 32]) -> Self {
        Rng { state: RngState { stream: Stream::new(root, Purpose::VirtioRng), bytes: 0 } }
    }

    /// Starts the stream over under another root seed.
    pub fn reseed(&mut self, root: &[u8; 32]) {
        self.state.stream.reseed(root);
    }

    /// Bytes given to the guest so far.
    pub fn bytes(&self) -> u64 {
        self.state.bytes
    }
}

impl VirtioDevice for Rng {
    type State = RngState;
    const NAME: &'static str = "virtio-rng";
    const DEVICE_ID: u32 = 4;
    const QUEUE_SIZES: &'static [u16] = &[16];

    fn features(&self) -> u64 {
        0
    }

    fn read_config(&self, _offset: u64, out: &mut [u8]) {
        out.fill(0);
    }

    fn activate(&mut self, _features: u64) {}

    fn notify(&mut self, queue: usize, io: &mut Io<'_>) -> Result<(), QueueError> {
        for _ in 0..io.available(queue)? {
            let Some(chain) = io.pop(queue)? else { break };
            let bytes = usize::try_from(chain.writable_bytes()).unwrap_or(usize::MAX).min(REQUEST_BYTES_MAX);
            let mut buffer = [0; REQUEST_BYTES_MAX];
            self.state.stream.fill(&mut buffer[..bytes]);
            chain.write(io.memory, 0, &buffer[..bytes])?;
            self.state.bytes += bytes as u64;
            io.complete(queue, chain.head, bytes as u32)?;
        }
        Ok(())
    }

    fn queue_stopped(&mut self, _queue: usize) {}

    fn reset(&mut self) {}

    fn save(&self) -> RngState {
        self.state.clone()
    }

    fn restore(&mut self, state: &RngState) -> Result<(), StateError> {
        self.state = state.clone();
        Ok(())
    }
}
