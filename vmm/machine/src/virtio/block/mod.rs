// SPDX-License-Identifier: AGPL-3.0-or-later
//! The block device (virtio 1.2, section 5.2): requests that take guest time over a [`Disk`] with a write cache.
//!
//! A request is taken from the queue when the driver notifies, and completes a latency later, in guest time: it is in flight
//! in between, and a power cut finds it so. What a write writes is captured when it is taken; what a read reads, and which
//! fault a request meets, is decided when it completes. Requests are independent: a short one may overtake a long one.
//!
//! FLUSH covers the writes that completed before it was taken, and takes effect when it completes (semantics, point 11).
//! Without FLUSH negotiated a write is durable when it completes.

mod disk;
mod fault;

pub use disk::{
    CACHE_BYTES_DEFAULT, CachedWrite, Disk, DiskState, Kept, PendingWrite, PowerCut, SECTOR_BYTES, Survivors,
};
pub use fault::{ActiveFault, CERTAIN_PPM, DiskFault, Effect, EffectKind, FAULTS_MAX, FaultCount, Faults};

use serde::{Deserialize, Serialize};

use self::fault::{ReadOutcome, WriteOutcome};
use super::{Chain, Io, QueueError, VirtioDevice, VirtioMmio, read_config_bytes};
use crate::device::StateError;
use crate::entropy::{Purpose, Stream};
use crate::pages::{Digest, PageMap};
use crate::time::GuestNs;

const FEATURE_SIZE_MAX: u64 = 1 << 1;
const FEATURE_SEG_MAX: u64 = 1 << 2;
const FEATURE_READ_ONLY: u64 = 1 << 5;
const FEATURE_BLOCK_SIZE: u64 = 1 << 6;
const FEATURE_FLUSH: u64 = 1 << 9;

const TYPE_IN: u32 = 0;
const TYPE_OUT: u32 = 1;
const TYPE_FLUSH: u32 = 4;
const TYPE_GET_ID: u32 = 8;
const STATUS_OK: u8 = 0;
const STATUS_IO_ERROR: u8 = 1;
const STATUS_UNSUPPORTED: u8 = 2;
/// `struct virtio_blk_req`: type u32, reserved u32, sector u64.
const HEADER_BYTES: usize = 16;
const ID_BYTES: usize = 20;

const QUEUE_SIZE: u16 = 128;
/// Bytes of one buffer and buffers of one request, as the configuration space announces; together [`REQUEST_BYTES_MAX`].
const SEGMENT_BYTES_MAX: u32 = 0x8000;
const SEGMENTS_MAX: u32 = 64;
/// Data of one request; more is answered with an error.
pub const REQUEST_BYTES_MAX: u64 = SEGMENT_BYTES_MAX as u64 * SEGMENTS_MAX as u64;
/// Data of the writes in flight: past it the device takes no request until one completes. Bounds what a snapshot may hold.
const IN_FLIGHT_BYTES_MAX: u64 = 4 * REQUEST_BYTES_MAX;

/// How long requests take, in guest time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// A read, beside its data.
    pub read_ns: u64,
    /// A write, beside its data.
    pub write_ns: u64,
    /// A FLUSH.
    pub flush_ns: u64,
    /// Each 4,096 bytes of data, or part of them.
    pub page_ns: u64,
}

impl Default for Latency {
    /// About a flash disk with a volatile cache: 60 us to read, 20 us into the cache, 250 us to flush, 2 GB/s.
    fn default() -> Self {
        Latency { read_ns: 60_000, write_ns: 20_000, flush_ns: 250_000, page_ns: 2_000 }
    }
}

/// How a block device is made.
#[derive(Clone, Debug)]
pub struct BlockConfig {
    /// Contents at power-on.
    pub image: PageMap,
    /// Size; what is past the last whole sector is cut off.
    pub size_bytes: u64,
    /// Which of the machine's disks this is: its name in GET_ID, and of its random streams.
    pub index: u32,
    /// Whether FLUSH is offered.
    pub flush: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// How long requests take.
    pub latency: Latency,
    /// Completed bytes that may wait in the cache.
    pub cache_bytes_max: u64,
}

impl BlockConfig {
    /// A writable disk with FLUSH, default latencies and cache.
    pub fn new(image: PageMap, size_bytes: u64, index: u32) -> Self {
        BlockConfig {
            image,
            size_bytes,
            index,
            flush: true,
            read_only: false,
            latency: Latency::default(),
            cache_bytes_max: CACHE_BYTES_DEFAULT,
        }
    }
}

/// What a request in flight does when it completes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Operation {
    Read {
        sector: u64,
        bytes: u64,
    },
    Write {
        sector: u64,
        #[serde(with = "crate::byte_string")]
        data: Vec<u8>,
    },
    Flush {
        before: u64,
    },
    GetId,
    Refuse {
        status: u8,
    },
}

/// A request that was taken and has not completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct InFlight {
    due: GuestNs,
    sequence: u64,
    chain: Chain,
    operation: Operation,
}

impl InFlight {
    fn data_bytes(&self) -> u64 {
        match &self.operation {
            Operation::Write { data, .. } => data.len() as u64,
            _ => 0,
        }
    }
}

/// What requests did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCounters {
    /// Reads that completed well.
    pub reads: u64,
    /// Writes that completed well.
    pub writes: u64,
    /// FLUSHes that completed.
    pub flushes: u64,
    /// Requests that completed with an error, for whatever reason.
    pub errors: u64,
    /// Requests without room for a status, or with a header that is too short.
    pub malformed: u64,
}

/// Saved state of a block device, all but the pages of its medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockState {
    size_bytes: u64,
    write_through: bool,
    in_flight: Vec<InFlight>,
    next_sequence: u64,
    disk: DiskState,
    faults: Faults,
    /// What requests did so far.
    pub counters: BlockCounters,
}

/// A block device.
#[derive(Debug)]
pub struct Block {
    size_bytes: u64,
    index: u32,
    flush: bool,
    read_only: bool,
    latency: Latency,
    write_through: bool,
    /// In the order they were taken.
    in_flight: Vec<InFlight>,
    next_sequence: u64,
    disk: Disk,
    faults: Faults,
    counters: BlockCounters,
}

impl Block {
    /// A device after power-on; `root` is the machine's root seed.
    pub fn new(config: BlockConfig, root: &[u8; 32]) -> Self {
        let size_bytes = config.size_bytes - config.size_bytes % SECTOR_BYTES;
        let write_back = Stream::new(root, Purpose::DiskWriteBack(config.index));
        Block {
            size_bytes,
            index: config.index,
            flush: config.flush,
            read_only: config.read_only,
            latency: config.latency,
            write_through: !config.flush,
            in_flight: Vec::new(),
            next_sequence: 0,
            disk: Disk::new(config.image, size_bytes, config.cache_bytes_max, write_back),
            faults: Faults::new(Stream::new(root, Purpose::DiskFault(config.index))),
            counters: BlockCounters::default(),
        }
    }

    /// The disk.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The active faults and what faults did.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// For adding and removing faults.
    pub fn faults_mut(&mut self) -> &mut Faults {
        &mut self.faults
    }

    /// What requests did so far.
    pub fn counters(&self) -> BlockCounters {
        self.counters
    }

    /// Whether the guest ever had a request taken.
    pub fn touched(&self) -> bool {
        self.next_sequence > 0
    }

    /// Starts the disk's random streams over under another root seed.
    pub fn reseed(&mut self, root: &[u8; 32]) {
        self.disk.reseed(root);
        self.faults.reseed(root);
    }

    /// The writes that a power cut may lose: completed ones in the order of completion, then those in flight in the order of
    /// submission. [`Survivors`] count in this list.
    pub fn pending_writes(&self) -> Vec<PendingWrite> {
        let pending = |sector, bytes: usize, in_flight| PendingWrite { sector, bytes: bytes as u32, in_flight };
        let cached = self.disk.cache().iter().map(|write| pending(write.sector, write.data.len(), false));
        let in_flight = self.in_flight.iter().filter_map(|request| match &request.operation {
            Operation::Write { sector, data } => Some(pending(*sector, data.len(), true)),
            _ => None,
        });
        cached.chain(in_flight).collect()
    }

    /// Cuts the power: of [`Block::pending_writes`] only `survivors` reach the medium, and nothing is in flight or cached.
    /// The medium that is left is [`Disk::medium`]; the guest's view of the device is over.
    pub fn power_cut(&mut self, survivors: &Survivors) -> PowerCut {
        let in_flight = std::mem::take(&mut self.in_flight).into_iter().filter_map(|request| match request.operation {
            Operation::Write { sector, data } => Some((sector, data)),
            _ => None,
        });
        self.disk.power_cut(in_flight.collect(), survivors)
    }

    /// Whether the guest, going on from here, cannot tell `medium` from its own disk: it has nothing in flight, and whatever it
    /// has read so far stands on `medium` too. That is when a restart may resume an earlier snapshot (semantics, point 10).
    pub fn can_resume_on(&self, medium: &PageMap) -> bool {
        self.in_flight.is_empty() && self.disk.reads_agree_with(medium)
    }

    /// BLAKE3 over what the disk holds and may come to hold: the medium's hash, then each pending write's sector, length
    /// (8 bytes each, little-endian) and data.
    pub fn hash(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.disk.medium().hash());
        let cached = self.disk.cache().iter().map(|write| (write.sector, &write.data));
        let in_flight = self.in_flight.iter().filter_map(|request| match &request.operation {
            Operation::Write { sector, data } => Some((*sector, data)),
            _ => None,
        });
        for (sector, data) in cached.chain(in_flight) {
            hasher.update(&sector.to_le_bytes());
            hasher.update(&(data.len() as u64).to_le_bytes());
            hasher.update(data);
        }
        hasher.finalize().into()
    }

    /// Puts another medium in, under an empty cache: a machine that restarts with the disk that a power cut left.
    pub fn replace_medium(&mut self, medium: PageMap) {
        self.disk.replace(medium);
    }

    /// After [`super::VirtioDevice::restore`]: the medium that belongs to the restored state.
    pub fn restore_medium(&mut self, medium: PageMap) {
        let state = self.disk.save();
        self.disk.restore(&state, medium);
    }

    fn take_requests(&mut self, io: &mut Io<'_>) -> Result<(), QueueError> {
        let mut bytes: u64 = self.in_flight.iter().map(InFlight::data_bytes).sum();
        for _ in 0..io.available(0)? {
            if bytes >= IN_FLIGHT_BYTES_MAX || self.in_flight.len() >= usize::from(QUEUE_SIZE) {
                break;
            }
            let Some(chain) = io.pop(0)? else { break };
            if chain.writable_bytes() == 0 {
                // There is no room for a status, so that the driver learns of it by the used length only.
                self.counters.malformed += 1;
                io.complete(0, chain.head, 0)?;
                continue;
            }
            let operation = self.parse(&chain, io)?;
            let due = io.now.after(self.latency_ns(&operation).saturating_add(self.faults.on_submit()));
            let request = InFlight { due, sequence: self.next_sequence, chain, operation };
            self.next_sequence += 1;
            bytes += request.data_bytes();
            self.in_flight.push(request);
        }
        Ok(())
    }

    fn parse(&mut self, chain: &Chain, io: &Io<'_>) -> Result<Operation, QueueError> {
        let mut header = [0; HEADER_BYTES];
        if chain.read(io.memory, 0, &mut header)? < HEADER_BYTES {
            self.counters.malformed += 1;
            return Ok(Operation::Refuse { status: STATUS_IO_ERROR });
        }
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let sector = u64::from_le_bytes(sector);
        let data_out = chain.readable_bytes() - HEADER_BYTES as u64;
        let data_in = chain.writable_bytes() - 1;
        let refused = Operation::Refuse { status: STATUS_IO_ERROR };
        Ok(match u32::from_le_bytes([t0, t1, t2, t3]) {
            TYPE_IN if self.fits(sector, data_in) => Operation::Read { sector, bytes: data_in },
            TYPE_OUT if self.fits(sector, data_out) && !self.read_only => {
                let mut data = vec![0; data_out as usize];
                chain.read(io.memory, HEADER_BYTES as u64, &mut data)?;
                Operation::Write { sector, data }
            }
            TYPE_IN | TYPE_OUT => refused,
            TYPE_FLUSH if self.flush => Operation::Flush { before: self.disk.next_order() },
            TYPE_GET_ID if data_in >= ID_BYTES as u64 => Operation::GetId,
            TYPE_GET_ID => refused,
            _ => Operation::Refuse { status: STATUS_UNSUPPORTED },
        })
    }

    /// Whether a request has a possible length and lies on the disk.
    fn fits(&self, sector: u64, bytes: u64) -> bool {
        bytes > 0
            && bytes <= REQUEST_BYTES_MAX
            && bytes.is_multiple_of(SECTOR_BYTES)
            && self.disk.contains(sector, bytes)
    }

    fn latency_ns(&self, operation: &Operation) -> u64 {
        let data = |bytes: u64| self.latency.page_ns.saturating_mul(bytes.div_ceil(4096));
        match operation {
            Operation::Read { bytes, .. } => self.latency.read_ns.saturating_add(data(*bytes)),
            Operation::Write { data: written, .. } => self.latency.write_ns.saturating_add(data(written.len() as u64)),
            Operation::Flush { .. } => self.latency.flush_ns,
            Operation::GetId | Operation::Refuse { .. } => self.latency.write_ns,
        }
    }

    fn complete(&mut self, request: InFlight, io: &mut Io<'_>) -> Result<(), QueueError> {
        let InFlight { chain, operation, .. } = request;
        let data_room = chain.writable_bytes() - 1;
        let (status, written) = match operation {
            Operation::Read { sector, bytes } => self.complete_read(&chain, sector, bytes, io)?,
            Operation::Write { sector, data } => (self.complete_write(sector, data), 0),
            Operation::Flush { before } => {
                self.disk.flush(before);
                self.counters.flushes += 1;
                (STATUS_OK, 0)
            }
            Operation::GetId => {
                let mut id = [0; ID_BYTES];
                let name = format!("chaos-disk-{}", self.index);
                let shown = name.len().min(ID_BYTES);
                id[..shown].copy_from_slice(&name.as_bytes()[..shown]);
                (STATUS_OK, chain.write(io.memory, 0, &id)? as u32)
            }
            Operation::Refuse { status } => (status, 0),
        };
        if status != STATUS_OK {
            self.counters.errors += 1;
        }
        chain.write(io.memory, data_room, &[status])?;
        // The used length covers the status byte only where the data before it was written too (section 2.7.8).
        let used = if u64::from(written) == data_room { written + 1 } else { written };
        io.complete(0, chain.head, used)
    }

    fn complete_read(&mut self, chain: &Chain, sector: u64, bytes: u64, io: &Io<'_>) -> Result<(u8, u32), QueueError> {
        let outcome = self.faults.on_read(sector, bytes);
        if outcome == ReadOutcome::Error {
            return Ok((STATUS_IO_ERROR, 0));
        }
        let mut data = vec![0; bytes as usize];
        self.disk.read(sector, &mut data);
        if let ReadOutcome::Flipped(bit) = outcome {
            flip(&mut data, bit);
        }
        chain.write(io.memory, 0, &data)?;
        self.counters.reads += 1;
        Ok((STATUS_OK, bytes as u32))
    }

    fn complete_write(&mut self, sector: u64, mut data: Vec<u8>) -> u8 {
        match self.faults.on_write(sector, data.len() as u64) {
            WriteOutcome::Good => {}
            WriteOutcome::Flipped(bit) => flip(&mut data, bit),
            WriteOutcome::Error(kept) => {
                data.truncate(kept);
                if !data.is_empty() {
                    self.disk.write(sector, data, self.write_through);
                }
                return STATUS_IO_ERROR;
            }
        }
        self.disk.write(sector, data, self.write_through);
        self.counters.writes += 1;
        STATUS_OK
    }

    /// The driver went away: what it submitted is done on the disk, as a device would finish what it has, but its memory is
    /// not touched again.
    fn abandon_in_flight(&mut self) {
        let mut requests = std::mem::take(&mut self.in_flight);
        requests.sort_by_key(|request| (request.due, request.sequence));
        for request in requests {
            match request.operation {
                Operation::Write { sector, data } => {
                    self.complete_write(sector, data);
                }
                Operation::Flush { before } => self.disk.flush(before),
                Operation::Read { .. } | Operation::GetId | Operation::Refuse { .. } => {}
            }
        }
    }
}

fn flip(data: &mut [u8], bit: u64) {
    data[(bit / 8) as usize] ^= 1 << (bit % 8);
}

impl VirtioMmio<Block> {
    /// The medium's pages, to be saved beside the device's state.
    pub fn medium(&self) -> &PageMap {
        self.device().disk().medium()
    }

    /// Restores state and medium together.
    pub fn restore_with_medium(
        &mut self,
        state: &super::mmio::MmioState<BlockState>,
        medium: PageMap,
    ) -> Result<(), StateError> {
        crate::device::Device::restore(self, state)?;
        self.device_mut().restore_medium(medium);
        Ok(())
    }

    /// When the next request completes, for tests and reports; the board asks the device itself.
    pub fn next_completion(&self) -> Option<GuestNs> {
        self.device().next_event()
    }
}

impl VirtioDevice for Block {
    type State = BlockState;
    const NAME: &'static str = "virtio-block";
    const DEVICE_ID: u32 = 2;
    const QUEUE_SIZES: &'static [u16] = &[QUEUE_SIZE];

    fn features(&self) -> u64 {
        let optional = |wanted: bool, feature: u64| if wanted { feature } else { 0 };
        FEATURE_SIZE_MAX
            | FEATURE_SEG_MAX
            | FEATURE_BLOCK_SIZE
            | optional(self.flush, FEATURE_FLUSH)
            | optional(self.read_only, FEATURE_READ_ONLY)
    }

    fn read_config(&self, offset: u64, out: &mut [u8]) {
        // capacity u64, size_max u32, seg_max u32, geometry (4 bytes, not offered), blk_size u32.
        let mut space = [0; 24];
        space[..8].copy_from_slice(&self.disk.sectors().to_le_bytes());
        space[8..12].copy_from_slice(&SEGMENT_BYTES_MAX.to_le_bytes());
        space[12..16].copy_from_slice(&SEGMENTS_MAX.to_le_bytes());
        space[20..].copy_from_slice(&(SECTOR_BYTES as u32).to_le_bytes());
        read_config_bytes(&space, offset, out);
    }

    fn activate(&mut self, features: u64) {
        self.write_through = features & FEATURE_FLUSH == 0;
        if self.write_through {
            self.disk.flush(u64::MAX);
        }
    }

    fn notify(&mut self, _queue: usize, io: &mut Io<'_>) -> Result<(), QueueError> {
        self.take_requests(io)
    }

    fn next_event(&self) -> Option<GuestNs> {
        self.in_flight.iter().map(|request| request.due).min()
    }

    fn advance(&mut self, io: &mut Io<'_>) -> Result<(), QueueError> {
        let (mut due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.in_flight).into_iter().partition(|request| request.due <= io.now);
        self.in_flight = rest;
        if due.is_empty() {
            return Ok(());
        }
        due.sort_by_key(|request| (request.due, request.sequence));
        for request in due {
            // Rings and buffers were checked when they were taken, and memory does not go away.
            self.complete(request, io)?;
        }
        // Room in flight may let requests in that had to wait.
        self.take_requests(io)
    }

    fn queue_stopped(&mut self, _queue: usize) {
        self.abandon_in_flight();
    }

    fn reset(&mut self) {
        self.abandon_in_flight();
    }

    fn save(&self) -> BlockState {
        BlockState {
            size_bytes: self.size_bytes,
            write_through: self.write_through,
            in_flight: self.in_flight.clone(),
            next_sequence: self.next_sequence,
            disk: self.disk.save(),
            faults: self.faults.clone(),
            counters: self.counters,
        }
    }

    /// Keeps the medium that is in; [`Block::restore_medium`] puts in the one that belongs to the state.
    fn restore(&mut self, state: &BlockState) -> Result<(), StateError> {
        let refuse = |what: String| Err(StateError::new(Self::NAME, what));
        if state.size_bytes != self.size_bytes {
            return refuse(format!("the disk has {} bytes, this one {}", state.size_bytes, self.size_bytes));
        }
        if state.in_flight.len() > usize::from(QUEUE_SIZE) {
            return refuse(format!("{} requests in flight in a queue of {QUEUE_SIZE}", state.in_flight.len()));
        }
        for request in &state.in_flight {
            let good = match &request.operation {
                Operation::Read { sector, bytes } => {
                    self.fits(*sector, *bytes) && request.chain.writable_bytes() > *bytes
                }
                Operation::Write { sector, data } => self.fits(*sector, data.len() as u64),
                Operation::Flush { .. } | Operation::GetId | Operation::Refuse { .. } => true,
            };
            if !good || request.chain.writable_bytes() == 0 || request.sequence >= state.next_sequence {
                return refuse(format!("request {} in flight is malformed", request.sequence));
            }
        }
        self.disk.check(&state.disk).or_else(refuse)?;
        self.write_through = state.write_through;
        self.in_flight = state.in_flight.clone();
        self.next_sequence = state.next_sequence;
        let medium = self.disk.medium().clone();
        self.disk.restore(&state.disk, medium);
        self.faults = state.faults.clone();
        self.counters = state.counters;
        Ok(())
    }
}
