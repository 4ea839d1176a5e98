// SPDX-License-Identifier: AGPL-3.0-or-later
//! Split virtqueues (virtio 1.2, section 2.7), walked strictly.
//!
//! The three parts of a queue of size `n`: the descriptor table (16 bytes an entry: address u64, length u32, flags u16,
//! next u16), the driver area (flags u16, index u16, `n` heads u16) and the device area (flags u16, index u16, `n` used
//! elements of 8 bytes: head u32, written u32). All little-endian.
//!
//! The guest owns that memory and may write anything there at any time. A chain is therefore read once, checked as a whole
//! (indices, loops, order, lengths, every buffer inside guest memory) and kept as a list of checked segments; nothing reads the
//! table twice. Bounds: a chain has at most `n` descriptors, also with an indirect table; one notification takes at most `n`
//! chains. What breaks a rule is a [`QueueError`]; the transport then stops the device and asks for a reset.

use crate::memory::{GuestMemory, MemoryError};

const DESCRIPTOR_BYTES: u64 = 16;
const FLAG_NEXT: u16 = 1;
const FLAG_WRITE: u16 = 2;
const FLAG_INDIRECT: u16 = 4;
/// In the driver area's flags: the driver wants no interrupt.
const AVAIL_NO_INTERRUPT: u16 = 1;

/// How the guest's ring broke the rules.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The ring or a buffer is outside guest memory.
    #[error("virtqueue: {0}")]
    Memory(#[from] MemoryError),
    /// The size is no power of two between one and the maximum.
    #[error("virtqueue: size {0} is not a power of two within the device's maximum")]
    Size(u16),
    /// A part of the ring is not aligned.
    #[error("virtqueue: ring part at {0:#x} is not aligned")]
    Alignment(u64),
    /// The driver's index is further ahead than the queue is long.
    #[error("virtqueue: {0} chains available in a shorter queue")]
    AvailableIndex(u16),
    /// A descriptor index is past the table.
    #[error("virtqueue: descriptor {0} is past the end of the table")]
    DescriptorIndex(u16),
    /// A chain is longer than the queue, so it loops.
    #[error("virtqueue: chain {0} is longer than the queue")]
    Loop(u16),
    /// A readable buffer follows a writable one.
    #[error("virtqueue: chain {0} has a readable buffer after a writable one")]
    Order(u16),
    /// An indirect descriptor where none may be, or a table of an impossible length.
    #[error("virtqueue: chain {0} has a malformed indirect table")]
    Indirect(u16),
    /// The buffers of a chain are 4 GiB long together, or more.
    #[error("virtqueue: chain {0} is 4 GiB or longer")]
    Length(u16),
}

/// One buffer of a chain; lies in guest memory as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Segment {
    /// Guest-physical address.
    pub address: u64,
    /// Bytes.
    pub bytes: u32,
}

/// A checked descriptor chain that the device has taken.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Chain {
    /// Index of the first descriptor: the chain's name in the used ring.
    pub head: u16,
    /// Buffers that the device reads.
    pub readable: Vec<Segment>,
    /// Buffers that the device writes.
    pub writable: Vec<Segment>,
}

/// Total bytes of a list of segments.
#[must_use]
pub fn total_bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.bytes)).sum()
}

/// Calls `visit` with each (address, range of `0..bytes`) piece of the segments from `skip` on.
fn pieces(
    segments: &[Segment],
    mut skip: u64,
    bytes: usize,
    mut visit: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), MemoryError>,
) -> Result<usize, MemoryError> {
    let mut done = 0;
    for segment in segments {
        let length = u64::from(segment.bytes);
        if skip >= length {
            skip -= length;
            continue;
        }
        let piece = usize::try_from(length - skip).unwrap_or(usize::MAX).min(bytes - done);
        if piece > 0 {
            visit(segment.address + skip, done..done + piece)?;
        }
        done += piece;
        skip = 0;
        if done == bytes {
            break;
        }
    }
    Ok(done)
}

impl Chain {
    /// Copies from the readable buffers, `skip` bytes in; returns how many bytes there were, at most `out.len()`.
    pub fn read(&self, memory: &GuestMemory, skip: u64, out: &mut [u8]) -> Result<usize, QueueError> {
        Ok(pieces(&self.readable, skip, out.len(), |address, range| memory.read(address, &mut out[range]))?)
    }

    /// Copies into the writable buffers, `skip` bytes in; returns how many bytes fitted, at most `data.len()`.
    pub fn write(&self, memory: &GuestMemory, skip: u64, data: &[u8]) -> Result<usize, QueueError> {
        Ok(pieces(&self.writable, skip, data.len(), |address, range| memory.write(address, &data[range]))?)
    }

    /// Total bytes of the readable buffers.
    #[must_use]
    pub fn readable_bytes(&self) -> u64 {
        total_bytes(&self.readable)
    }

    /// Total bytes of the writable buffers.
    #[must_use]
    pub fn writable_bytes(&self) -> u64 {
        total_bytes(&self.writable)
    }
}

/// Where the three parts of a queue are, and how far the device is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Queue {
    /// The largest size the device takes.
    pub max_size: u16,
    /// Size that the driver chose.
    pub size: u16,
    /// The driver enabled the queue and it passed the checks.
    pub ready: bool,
    /// Descriptor table.
    pub descriptors: u64,
    /// Driver area ("available ring").
    pub driver: u64,
    /// Device area ("used ring").
    pub device: u64,
    next_available: u16,
    next_used: u16,
}

impl Queue {
    /// A queue after reset.
    #[must_use]
    pub fn new(max_size: u16) -> Self {
        Queue {
            max_size,
            size: max_size,
            ready: false,
            descriptors: 0,
            driver: 0,
            device: 0,
            next_available: 0,
            next_used: 0,
        }
    }

    /// Back to the state after reset.
    pub fn reset(&mut self) {
        *self = Queue::new(self.max_size);
    }

    /// Whether a saved queue can be one of a device whose largest size is `max_size`.
    pub fn is_consistent(&self, max_size: u16) -> bool {
        let addresses = [self.descriptors, self.driver, self.device];
        self.max_size == max_size
            && (!self.ready || (self.size.is_power_of_two() && self.size <= max_size))
            && addresses.iter().all(|address| !self.ready || *address < 1 << 52)
    }

    /// Checks what the driver configured and enables the queue from index zero on.
    pub fn enable(&mut self, memory: &GuestMemory) -> Result<(), QueueError> {
        if !self.size.is_power_of_two() || self.size > self.max_size {
            return Err(QueueError::Size(self.size));
        }
        let entries = u64::from(self.size);
        let parts = [
            (self.descriptors, 16, entries * DESCRIPTOR_BYTES),
            (self.driver, 2, 6 + entries * 2),
            (self.device, 4, 6 + entries * 8),
        ];
        for (address, alignment, bytes) in parts {
            if address % alignment != 0 {
                return Err(QueueError::Alignment(address));
            }
            if !memory.contains(address, bytes) {
                return Err(MemoryError::Range { address, bytes }.into());
            }
        }
        self.next_available = 0;
        self.next_used = 0;
        self.ready = true;
        Ok(())
    }

    /// Chains that the driver made available and the device has not taken; zero for a queue that is not enabled.
    pub fn available(&self, memory: &GuestMemory) -> Result<u16, QueueError> {
        if !self.ready {
            return Ok(0);
        }
        let waiting = read_u16(memory, self.driver + 2)?.wrapping_sub(self.next_available);
        if waiting > self.size { Err(QueueError::AvailableIndex(waiting)) } else { Ok(waiting) }
    }

    /// Takes the next available chain, if there is one.
    pub fn pop(&mut self, memory: &GuestMemory) -> Result<Option<Chain>, QueueError> {
        if self.available(memory)? == 0 {
            return Ok(None);
        }
        let slot = u64::from(self.next_available % self.size);
        let head = read_u16(memory, self.driver + 4 + 2 * slot)?;
        let chain = self.walk(memory, head)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(chain))
    }

    /// Puts a chain into the used ring; true where the driver wants an interrupt for it.
    pub fn complete(&mut self, memory: &GuestMemory, head: u16, written: u32) -> Result<bool, QueueError> {
        let mut element = [0; 8];
        element[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        element[4..].copy_from_slice(&written.to_le_bytes());
        memory.write(self.device + 4 + 8 * u64::from(self.next_used % self.size), &element)?;
        self.next_used = self.next_used.wrapping_add(1);
        memory.write(self.device + 2, &self.next_used.to_le_bytes())?;
        Ok(read_u16(memory, self.driver)? & AVAIL_NO_INTERRUPT == 0)
    }

    fn walk(&self, memory: &GuestMemory, head: u16) -> Result<Chain, QueueError> {
        let mut chain = Chain { head, readable: Vec::new(), writable: Vec::new() };
        let (mut table, mut entries, mut index, mut indirect) = (self.descriptors, self.size, head, false);
        for _ in 0..self.size {
            if index >= entries {
                return Err(QueueError::DescriptorIndex(index));
            }
            let descriptor = Descriptor::read(memory, table + DESCRIPTOR_BYTES * u64::from(index))?;
            if descriptor.flags & FLAG_INDIRECT != 0 {
                if indirect || descriptor.flags & FLAG_NEXT != 0 {
                    return Err(QueueError::Indirect(head));
                }
                (table, entries, index) = (descriptor.address, descriptor.indirect_entries(head, self.size)?, 0);
                if !memory.contains(table, u64::from(descriptor.bytes)) {
                    return Err(MemoryError::Range { address: table, bytes: descriptor.bytes.into() }.into());
                }
                indirect = true;
                continue;
            }
            descriptor.add_to(&mut chain, memory)?;
            if descriptor.flags & FLAG_NEXT == 0 {
                return match chain.readable_bytes() + chain.writable_bytes() {
                    total if total > u64::from(u32::MAX) => Err(QueueError::Length(head)),
                    _ => Ok(chain),
                };
            }
            index = descriptor.next;
        }
        Err(QueueError::Loop(head))
    }
}

struct Descriptor {
    address: u64,
    bytes: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn read(memory: &GuestMemory, address: u64) -> Result<Self, QueueError> {
        let mut raw = [0; 16];
        memory.read(address, &mut raw)?;
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = raw;
        Ok(Descriptor {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            bytes: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        })
    }

    /// Entries of the indirect table that this descriptor points to; at most the queue's size (section 2.7.5.3.1).
    fn indirect_entries(&self, head: u16, size: u16) -> Result<u16, QueueError> {
        let entries = u64::from(self.bytes) / DESCRIPTOR_BYTES;
        if u64::from(self.bytes) % DESCRIPTOR_BYTES != 0 || entries == 0 || entries > u64::from(size) {
            return Err(QueueError::Indirect(head));
        }
        Ok(entries as u16)
    }

    fn add_to(&self, chain: &mut Chain, memory: &GuestMemory) -> Result<(), QueueError> {
        if self.bytes == 0 {
            // Nothing to read or write, wherever it points.
            return Ok(());
        }
        if !memory.contains(self.address, self.bytes.into()) {
            return Err(MemoryError::Range { address: self.address, bytes: self.bytes.into() }.into());
        }
        let segment = Segment { address: self.address, bytes: self.bytes };
        if self.flags & FLAG_WRITE != 0 {
            chain.writable.push(segment);
        } else if chain.writable.is_empty() {
            chain.readable.push(segment);
        } else {
            return Err(QueueError::Order(chain.head));
        }
        Ok(())
    }
}

fn read_u16(memory: &GuestMemory, address: u64) -> Result<u16, QueueError> {
    let mut bytes = [0; 2];
    memory.read(address, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}
