// SPDX-License-Identifier: AGPL-3.0-or-later
//! What the cluster needs of one VM.

use std::borrow::Cow;
use std::collections::BTreeMap;

use chaoscontrol_machine::smp::journal::SliceRecord;
use chaoscontrol_protocol::host::Counts;
use chaoscontrol_sim::{AgentAction, Clock, Digest, DiskCounts, DiskFaults, PowerCut, SentFrame};

/// Why a node stopped running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeStop {
    /// Guest time reached the deadline.
    Deadline,
    /// Halted, and nothing is due before the deadline. Guest time stands where the halt was.
    Idle {
        /// Guest ns of the next timer event.
        next_event_guest_ns: Option<u64>,
    },
    /// The guest rang the doorbell: messages wait that cannot wait for the barrier.
    Doorbell,
    /// The guest is about to start its workload.
    RestartPoint,
    /// The kernel panicked; the text is the console line that says so, or empty.
    Panic(String),
    /// The guest powered itself off.
    PowerOff,
    /// The guest ended otherwise (reset, triple fault, undefined behaviour); the text says how.
    Ended(String),
}

/// Something that the guest told the host through its SDK window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Guest ns at which the host read it.
    pub at_guest_ns: u64,
    /// What was said.
    pub body: MessageBody,
}

/// What a [`Message`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageBody {
    /// A well-formed record, encoded.
    Record {
        /// Slot it came through.
        slot: u32,
        /// Its encoding.
        bytes: Vec<u8>,
    },
    /// A record that broke the protocol.
    Refused {
        /// Slot it came through.
        slot: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// A random request and its answer.
    Random {
        /// Slot it came through.
        slot: u32,
        /// The answer lies below this; 0 is any 64 bits.
        below: u64,
        /// The answer.
        value: u64,
    },
    /// Init could not start the workload.
    InitFailed,
    /// The workload exited with this code.
    WorkloadExited(u8),
    /// A signal ended the workload.
    WorkloadKilled(u8),
    /// The guest's agent answers a request.
    AgentAnswer {
        /// The request's number, as [`Node::ask_agent`] returned it.
        number: u16,
        /// 0 when it was carried out, else the system's error number.
        code: u8,
    },
}

/// One VM. All times are its guest time in ns.
pub trait Node: Sized {
    /// Everything of it, cheap to clone.
    type Snapshot: Clone;
    /// A failure of the machine, not of the guest.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Runs to the first boundary at or after the deadline, or to an earlier stop.
    fn run_until(&mut self, deadline_guest_ns: u64) -> Result<NodeStop, Self::Error>;
    /// Lets guest time pass without running.
    fn skip_to(&mut self, guest_ns: u64);
    /// Guest time.
    fn now_guest_ns(&self) -> u64;
    /// Instructions since power-on.
    fn instructions(&self) -> u64;
    /// How guest time follows cluster time from here on.
    fn set_clock(&mut self, clock: Clock);
    /// The wall clock: ns since 1970.
    fn wall_clock_ns(&self) -> u64;
    /// Steps the wall clock.
    fn set_wall_clock_ns(&mut self, wall_ns: u64);
    /// Restarts every random stream of the VM (entropy device, SDK answers, disk faults) and gives the guest a new VM Generation
    /// ID.
    fn reseed(&mut self, entropy: [u8; 32], generation: [u8; 16]);

    /// From here on one CPU runs and no other, for so much guest time or until it has nothing to do.
    fn switch_cpu(&mut self, _cpu: u16, _hold_guest_ns: u64) {}
    /// Starts the journal of turns anew.
    fn begin_turns(&mut self) {}
    /// Takes the turns of CPUs that ended since the last call, if a journal of them is kept.
    fn take_turns(&mut self) -> Vec<SliceRecord> {
        Vec::new()
    }
    /// Ends the record of the turn that is not over, and takes it as well.
    fn close_turns(&mut self) -> Result<Vec<SliceRecord>, Self::Error> {
        Ok(Vec::new())
    }
    /// Holds the VM to these turns from here on.
    fn replay_turns(&mut self, _turns: Vec<SliceRecord>) -> Result<(), Self::Error> {
        Ok(())
    }
    /// Whether all turns that the VM was held to have come about.
    fn replay_is_complete(&self) -> bool {
        true
    }

    /// Choices that the guest made since power-on.
    fn choices_made(&self) -> u64;
    /// Answers coming choices of the guest: from how many it makes before, since power-on, to the answer. Replaces what was set
    /// before.
    fn answer_choices(&mut self, answers: BTreeMap<u64, u64>);
    /// Numbers that the guest got from `get_random` since the branch started.
    fn randoms_made(&self) -> u64;
    /// Answers coming `get_random`s of the branch, which got `made` so far, likewise: from how many it gets before.
    fn answer_randoms(&mut self, made: u64, answers: BTreeMap<u64, u64>);
    /// Takes the frames sent since the last call, in order.
    fn take_frames(&mut self) -> Vec<SentFrame>;
    /// Hands a frame to the network card; false when it is lost.
    fn deliver_frame(&mut self, frame: &[u8]) -> bool;
    /// An interrupt line rises and falls although its device asked for nothing.
    fn pulse_irq(&mut self, irq: u8);
    /// The first CPU gets a non-maskable interrupt.
    fn raise_nmi(&mut self);
    /// Asks the guest's agent for something; returns the number that its answer names.
    fn ask_agent(&mut self, action: AgentAction) -> u16;
    /// Takes what the guest wrote to the console since the last call.
    fn take_serial(&mut self) -> Vec<u8>;
    /// Reads every SDK slot.
    fn drain_sdk(&mut self);
    /// Takes what the guest said since the last call, in order.
    fn take_messages(&mut self) -> Vec<Message>;
    /// Hands the counts of each assertion site in use by the slot to `visit`.
    fn assertion_counts(&self, slot: u32, visit: &mut dyn FnMut(u16, Counts));

    /// Switches edge coverage on or off, and zeroes the counts.
    fn set_coverage(&mut self, on: bool);
    /// Edge hit counts since they were zeroed, if coverage is on.
    fn coverage(&self) -> Option<Cow<'_, [u8]>>;
    /// Hit counts that the guest keeps itself, if there are any. They are in its memory: snapshots have them, and `set_coverage`
    /// leaves them alone.
    fn guest_coverage(&self) -> Option<Vec<u8>>;
    /// Zeroes the hit counts that the guest keeps.
    fn clear_guest_coverage(&mut self);

    /// Hash of the CPU's registers.
    fn register_hash(&self) -> Digest;
    /// Hash of memory.
    fn memory_hash(&mut self) -> Digest;
    /// Hash of all disks, caches and what is durable.
    fn disk_hash(&mut self) -> Digest;

    /// Replaces the faults in effect on a disk.
    fn set_disk_faults(&mut self, disk: u16, faults: DiskFaults) -> Result<(), Self::Error>;
    /// Cumulative fault counts of each disk.
    fn disk_counts(&self) -> Vec<DiskCounts>;
    /// Flushes that its disks completed since power-on.
    fn flushes(&self) -> u64;
    /// The whole VM.
    fn snapshot(&mut self) -> Self::Snapshot;
    /// Becomes the VM of the snapshot.
    fn restore(&mut self, snapshot: &Self::Snapshot) -> Result<(), Self::Error>;
    /// Power cut: of what is not durable on the disks, only the survivors remain. The VM does not run until it is started.
    fn power_cut(&mut self, cut: PowerCut) -> Result<(), Self::Error>;
    /// Starts with the disks as they are now: from `point`, where what the guest had read by then still stands on them, else
    /// from power-on. Returns whether it was from `point`; guest time is then that of the point, or zero.
    fn start(&mut self, point: Option<&Self::Snapshot>) -> Result<bool, Self::Error>;
}
