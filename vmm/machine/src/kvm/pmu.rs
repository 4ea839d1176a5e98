// SPDX-License-Identifier: AGPL-3.0-or-later
//! Progress by instructions at nearly full speed: the host counts what the guest retires, and the last stretch before a limit is
//! single-stepped.
//!
//! The counter's overflow arrives late, so it is set [`MARGIN`] instructions early. Its signal goes to the very thread that runs
//! the guest. There is no timer to fall back to: a host without such a counter refuses the mode. An overflow that came too late
//! is an error, never a wrong count.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::engine::Kvm;
use super::error::KvmError;
use super::exits::{Limits, Next};
use super::vcpu::Event;

/// Instructions by which an overflow may be late: an order of magnitude above what is seen on processors that keep to a bound.
const MARGIN: u64 = 2_000;

const TYPE_HARDWARE: u32 = 0;
const HARDWARE_INSTRUCTIONS: u64 = 1;
/// Attribute flags: disabled at first, pinned, no hypervisor, no host.
const FLAGS: u64 = 1 | 1 << 2 | 1 << 6 | 1 << 19;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_RESET: libc::c_ulong = 0x2403;
const IOC_PERIOD: libc::c_ulong = 0x4008_2404;
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// `struct perf_event_attr`, first published size.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_address: u64,
}

#[repr(C)]
struct Owner {
    kind: libc::c_int,
    thread: libc::pid_t,
}

/// Counts the instructions that the guest retires on one thread.
pub(super) struct GuestCounter {
    fd: OwnedFd,
    thread: i32,
}

fn lacks(what: &str) -> KvmError {
    KvmError::HostLacks(format!("no counter of guest instructions: {what}: {}", std::io::Error::last_os_error()))
}

impl GuestCounter {
    /// A counter for the calling thread, or why there is none.
    pub fn new() -> Result<Self, KvmError> {
        let attributes = Attributes {
            kind: TYPE_HARDWARE,
            size: size_of::<Attributes>() as u32,
            config: HARDWARE_INSTRUCTIONS,
            sample_period: u64::MAX >> 1,
            sample_type: 0,
            read_format: 0,
            flags: FLAGS,
            wakeup_events: 1,
            bp_type: 0,
            bp_address: 0,
        };
        // SAFETY: the kernel reads `size` bytes of the attributes; the other arguments are plain numbers.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, 8) };
        if fd < 0 {
            return Err(lacks("perf_event_open"));
        }
        // SAFETY: the descriptor is new and ours. The call takes nothing.
        let (fd, thread) = unsafe { (OwnedFd::from_raw_fd(fd as i32), libc::gettid()) };
        let counter = Self { fd, thread };
        counter.send_signals_here()?;
        Ok(counter)
    }

    fn send_signals_here(&self) -> Result<(), KvmError> {
        let (fd, owner) = (self.fd.as_raw_fd(), Owner { kind: F_OWNER_TID, thread: self.thread });
        // SAFETY: the kernel reads one owner; the other arguments are plain numbers.
        let failed = unsafe {
            libc::fcntl(fd, F_SETOWN_EX, &raw const owner) != 0
                || libc::fcntl(fd, F_SETSIG, libc::SIGURG) != 0
                || libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK) != 0
        };
        if failed { Err(lacks("overflow signals to the executing thread")) } else { Ok(()) }
    }

    /// Counts from zero and interrupts after `period` instructions.
    fn arm(&mut self, period: u64) -> Result<(), KvmError> {
        // SAFETY: the call takes nothing.
        if self.thread != unsafe { libc::gettid() } {
            *self = Self::new()?;
        }
        let fd = self.fd.as_raw_fd();
        // SAFETY: the kernel reads one number; the descriptor is open.
        let failed = unsafe {
            libc::ioctl(fd, IOC_PERIOD, &raw const period) != 0
                || libc::ioctl(fd, IOC_RESET, 0) != 0
                || libc::ioctl(fd, IOC_ENABLE, 0) != 0
        };
        if failed { Err(lacks("arming")) } else { Ok(()) }
    }

    /// Stops counting and says how far it got.
    fn stop(&mut self) -> Result<u64, KvmError> {
        let mut count = 0u64;
        let fd = self.fd.as_raw_fd();
        // SAFETY: the kernel writes at most the stated eight bytes; the descriptor is open.
        let read = unsafe {
            libc::ioctl(fd, IOC_DISABLE, 0);
            libc::read(fd, (&raw mut count).cast(), size_of_val(&count))
        };
        if read == 8 { Ok(count) } else { Err(lacks("reading; a pinned counter lost its place")) }
    }
}

impl Kvm {
    /// The limit is too near for the counter.
    pub(super) fn nearly_there(&self, limits: Limits) -> bool {
        self.counter.is_some() && limits.progress - self.progress <= MARGIN
    }

    /// One instruction on its own, from a boundary.
    pub(super) fn small_step(&mut self) -> Result<Next, KvmError> {
        self.refresh_soft();
        let mut state = self.soft.state();
        let Some(step) = self.stepper.plan(&state, &self.memory) else { return self.run_soft(1) };
        self.vcpu.set_single_step(true)?;
        let stepped = self.step(&mut state, &step);
        self.vcpu.set_single_step(false)?;
        // KVM's registers moved on, or were set: whatever it had is no longer known.
        self.known = None;
        if !stepped? {
            return self.run_soft(1);
        }
        self.adopt(&state, &step)?;
        self.progress += 1;
        Ok(Next::Boundary)
    }

    /// Enters the guest; in PMU mode it counts, and comes back before the limit.
    pub(super) fn enter_counting(&mut self, limits: Limits) -> Result<Event, KvmError> {
        let room = limits.progress.saturating_sub(self.progress);
        let Some(counter) = &mut self.counter else { return self.enter_freely() };
        counter.arm(room.saturating_sub(MARGIN).clamp(1, u64::MAX >> 1))?;
        let event = self.enter_freely();
        if let Some(counter) = &mut self.counter {
            self.progress += counter.stop()?;
        }
        if self.progress > limits.progress {
            let why = format!("the counter's overflow was more than {MARGIN} instructions late");
            return Err(KvmError::Inexact { rip: self.vcpu.regs().rip, why });
        }
        event
    }
}
