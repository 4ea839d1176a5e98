// SPDX-License-Identifier: AGPL-3.0-or-later
//! The network device (virtio 1.2, section 5.1): one receive and one transmit queue.
//!
//! No checksum or segmentation offload is offered, in either direction: the guest computes and checks every checksum itself, so
//! that a frame corrupted on the way meets them (semantics, point 12). Frames out wait, bounded, with their guest time and
//! sequence number until the barrier takes them; frames in go straight into the driver's buffers or are dropped, counted.

use serde::{Deserialize, Serialize};

use super::{Io, QueueError, VirtioDevice, VirtioMmio, read_config_bytes};
use crate::device::{Context, StateError};
use crate::time::GuestNs;

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const FEATURE_MTU: u64 = 1 << 3;
const FEATURE_MAC: u64 = 1 << 5;
const FEATURE_STATUS: u64 = 1 << 16;
/// `struct virtio_net_hdr` of a modern device: flags, GSO type, lengths and `num_buffers`.
const HEADER_BYTES: usize = 12;
/// Payload bytes of a frame at most.
const MTU: u16 = 1500;
/// An Ethernet frame without its checksum: two addresses, a VLAN tag, a type and the payload.
pub const FRAME_BYTES_MAX: usize = 18 + MTU as usize;
/// Shortest frame that has both addresses and a type.
pub const FRAME_BYTES_MIN: usize = 14;
/// Frames kept until they are taken. A round of 1 ms at 1 Gbit/s holds about 80 full frames and 1,500 of the smallest.
pub const TRANSMITTED_FRAMES_MAX: usize = 4096;

/// A frame that the guest sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Guest time at which it was sent.
    pub sent: GuestNs,
    /// Frames that this device sent before it.
    pub sequence: u64,
    /// Ethernet frame without its checksum.
    #[serde(with = "crate::byte_string")]
    pub bytes: Vec<u8>,
}

/// What happened to frames so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetCounters {
    /// Frames that the guest sent and the switch got or will get.
    pub transmitted: u64,
    /// Frames of an impossible length that the guest tried to send.
    pub transmit_malformed: u64,
    /// Frames lost because too many waited for the barrier, or because the link was down.
    pub transmit_overflow: u64,
    /// Frames given to the guest.
    pub received: u64,
    /// Frames dropped because the guest offered no buffer, one that was too small, or does not run the device.
    pub receive_dropped: u64,
}

/// The network device.
#[derive(Debug)]
pub struct Net {
    state: NetState,
}

/// Saved state of the network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetState {
    mac: [u8; 6],
    link_up: bool,
    transmitted: Vec<Frame>,
    /// What happened so far.
    pub counters: NetCounters,
}

impl Net {
    /// A device with this Ethernet address and the link up.
    pub fn new(mac: [u8; 6]) -> Self {
        Net { state: NetState { mac, link_up: true, transmitted: Vec::new(), counters: NetCounters::default() } }
    }

    /// Takes the frames that the guest sent since the last call, in order.
    pub fn take_transmitted(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.state.transmitted)
    }

    /// Frames that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.state.transmitted.len()
    }

    /// What happened to frames so far.
    pub fn counters(&self) -> NetCounters {
        self.state.counters
    }

    /// The Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.state.mac
    }

    fn receive(&mut self, frame: &[u8], io: &mut Io<'_>) -> Result<bool, QueueError> {
        if !self.state.link_up || !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&frame.len()) {
            return Ok(false);
        }
        let Some(chain) = io.pop(RECEIVE)? else { return Ok(false) };
        let mut buffer = [0; HEADER_BYTES + FRAME_BYTES_MAX];
        let bytes = HEADER_BYTES + frame.len();
        // num_buffers is 1 where buffers are not merged (section 5.1.6.4.1); all else is zero: nothing was offloaded.
        buffer[10] = 1;
        buffer[HEADER_BYTES..bytes].copy_from_slice(frame);
        if chain.writable_bytes() < bytes as u64 {
            io.complete(RECEIVE, chain.head, 0)?;
            return Ok(false);
        }
        chain.write(io.memory, 0, &buffer[..bytes])?;
        io.complete(RECEIVE, chain.head, bytes as u32)?;
        Ok(true)
    }

    fn transmit(&mut self, io: &mut Io<'_>) -> Result<(), QueueError> {
        for _ in 0..io.available(TRANSMIT)? {
            let Some(chain) = io.pop(TRANSMIT)? else { break };
            let bytes = chain.readable_bytes().saturating_sub(HEADER_BYTES as u64);
            let counters = &mut self.state.counters;
            if !(FRAME_BYTES_MIN as u64..=FRAME_BYTES_MAX as u64).contains(&bytes) {
                counters.transmit_malformed += 1;
            } else if !self.state.link_up || self.state.transmitted.len() >= TRANSMITTED_FRAMES_MAX {
                counters.transmit_overflow += 1;
            } else {
                let mut frame = vec![0; bytes as usize];
                chain.read(io.memory, HEADER_BYTES as u64, &mut frame)?;
                self.state.transmitted.push(Frame { sent: io.now, sequence: counters.transmitted, bytes: frame });
                counters.transmitted += 1;
            }
            io.complete(TRANSMIT, chain.head, 0)?;
        }
        Ok(())
    }
}

impl VirtioMmio<Net> {
    /// A frame arrives: it goes into the driver's next buffer, or is dropped and counted. True when the guest got it.
    pub fn deliver(&mut self, frame: &[u8], context: &mut Context<'_>) -> bool {
        let taken = self.run(context, |net, io| net.receive(frame, io)).unwrap_or(false);
        let counters = &mut self.device_mut().state.counters;
        if taken {
            counters.received += 1;
        } else {
            counters.receive_dropped += 1;
        }
        taken
    }

    /// Takes the link down or up and tells the driver.
    pub fn set_link(&mut self, up: bool, context: &mut Context<'_>) {
        if self.device().state.link_up != up {
            self.device_mut().state.link_up = up;
            self.configuration_changed(context);
        }
    }
}

impl VirtioDevice for Net {
    type State = NetState;
    const NAME: &'static str = "virtio-net";
    const DEVICE_ID: u32 = 1;
    const QUEUE_SIZES: &'static [u16] = &[256, 256];

    fn features(&self) -> u64 {
        FEATURE_MAC | FEATURE_STATUS | FEATURE_MTU
    }

    fn read_config(&self, offset: u64, out: &mut [u8]) {
        // mac [u8; 6], status u16, max_virtqueue_pairs u16, mtu u16.
        let mut space = [0; 12];
        space[..6].copy_from_slice(&self.state.mac);
        space[6] = self.state.link_up.into();
        space[8] = 1;
        space[10..].copy_from_slice(&MTU.to_le_bytes());
        read_config_bytes(&space, offset, out);
    }

    fn activate(&mut self, _features: u64) {}

    fn notify(&mut self, queue: usize, io: &mut Io<'_>) -> Result<(), QueueError> {
        // Receive buffers wait in their ring until a frame arrives.
        if queue == TRANSMIT { self.transmit(io) } else { Ok(()) }
    }

    fn queue_stopped(&mut self, _queue: usize) {}

    fn reset(&mut self) {}

    fn save(&self) -> NetState {
        self.state.clone()
    }

    fn restore(&mut self, state: &NetState) -> Result<(), StateError> {
        let frames = &state.transmitted;
        if frames.len() > TRANSMITTED_FRAMES_MAX || frames.iter().any(|frame| frame.bytes.len() > FRAME_BYTES_MAX) {
            return Err(StateError::new(Self::NAME, "more or longer frames are waiting than the bounds allow"));
        }
        self.state = state.clone();
        Ok(())
    }
}
