// SPDX-License-Identifier: Apache-2.0
//! How a Linux process finds its transport, and what a fork does to it.

use crate::error::SdkError;
use crate::lines::Lines;
use crate::runtime::{RUNTIME, Sink};
use crate::window::Window;
use chaoscontrol_protocol::layout::PROCESS_NAME_BYTES_MAX;
use chaoscontrol_protocol::{DOORBELL_BYTES, REGION_ADDRESS, WINDOW_BYTES};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// The device that `chaos-init` makes of the region.
const DEVICE: &str = "/dev/chaos";
/// Physical memory, for root where there is no device.
const MEMORY: &str = "/dev/mem";
/// Where the kernel lists the region's ACPI device.
const ACPI_DEVICE: &str = "/sys/bus/acpi/devices/CHAO0001:00";
const REGION_BYTES: usize = (DOORBELL_BYTES + WINDOW_BYTES) as usize;

pub(crate) struct Connection {
    pub(crate) sink: Sink,
    pub(crate) trouble: Option<SdkError>,
    /// Seeds the local random stream.
    pub(crate) seed: u64,
}

/// Finds a sink: the host's window, else a file of lines, else nothing.
pub(crate) fn connect() -> Connection {
    follow_forks();
    let window = open_window().and_then(|window| match window {
        Some(window) => {
            // Also where no slot is free: counting needs none.
            crate::coverage::move_to(window.coverage());
            window.claim(std::process::id(), is_alive).map(Some)
        }
        None => Ok(None),
    });
    let (slot, trouble) = match window {
        Ok(slot) => (slot, None),
        Err(error) => (None, Some(error)),
    };
    let sink = match slot {
        Some(slot) => Sink::Window(slot),
        None => Lines::from_environment().map_or(Sink::Nowhere, Sink::Lines),
    };
    Connection { sink, trouble, seed: local_seed() }
}

/// Maps the region, if this is a ChaosControl guest.
pub fn open_window() -> Result<Option<Window>, SdkError> {
    let device = map(DEVICE, 0);
    let region = match device {
        Some(region) => Some(region),
        // On any other machine something else may be at that address, so the kernel must have said that this is a guest.
        None if is_guest() => map(MEMORY, REGION_ADDRESS),
        None => None,
    };
    // SAFETY: the mapping covers the whole region and is never unmapped.
    region.map(|region| unsafe { Window::from_raw(region) }).transpose()
}

fn is_guest() -> bool {
    std::path::Path::new(ACPI_DEVICE).exists() || crate::guest::parameter("chaos.vm").is_some()
}

fn map(path: &str, offset: u64) -> Option<*mut u8> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).ok()?;
    // SAFETY: a fresh shared mapping at an address the kernel chooses touches no memory of ours.
    let region = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            REGION_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    (region != libc::MAP_FAILED).then(|| region.cast())
}

/// Whether a process exists. One that we may not signal does.
fn is_alive(pid: u32) -> bool {
    // SAFETY: signal 0 checks and sends nothing.
    let sent = unsafe { libc::kill(pid as libc::pid_t, 0) } == 0;
    sent || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// The last component of the program's first argument, cut to what the protocol allows.
pub(crate) fn name() -> String {
    let argument = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&argument).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let fits = |c: &(usize, char)| c.0 + c.1.len_utf8() <= PROCESS_NAME_BYTES_MAX;
    name.char_indices().take_while(fits).map(|(_, c)| c).collect()
}

/// `CHAOS_SDK_SEED`, else randomness of the operating system: only used where no host answers.
fn local_seed() -> u64 {
    if let Some(seed) = std::env::var("CHAOS_SDK_SEED").ok().and_then(|text| text.parse().ok()) {
        return seed;
    }
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is as long as stated.
    let read = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if read == 8 { u64::from_le_bytes(bytes) } else { 0 }
}

/// Holds the lock over a fork, so that the child gets it free, and makes the child claim its own slot.
fn follow_forks() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // SAFETY: the handlers are functions of this program that touch only the runtime, under its lock.
        let _ =
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
    });
}

extern "C" fn before_fork() {
    RUNTIME.acquire();
}

extern "C" fn after_fork_in_parent() {
    RUNTIME.release();
}

extern "C" fn after_fork_in_child() {
    // SAFETY: `before_fork` took the lock, and this is the only thread of the child.
    unsafe { &mut *RUNTIME.held_value() }.restart_in_child();
    RUNTIME.release();
}
