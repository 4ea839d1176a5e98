// SPDX-License-Identifier: AGPL-3.0-or-later
//! Gets a thread out of KVM when a guest that is run by exits makes none.
//!
//! The only thing here that follows the host's time, and nothing of it reaches a guest: it ends a run with an error. One thread
//! of the process looks once a second at every run that goes on; a run that it saw too often gets a signal, which makes KVM
//! return. A signal that comes too late interrupts nothing.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::error::KvmError;

/// How often the watchdog looks.
const TICK: Duration = Duration::from_secs(1);

/// One engine as the watchdog sees it.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// The thread inside KVM, or 0.
    thread: AtomicI32,
    /// Looks at the present run so far.
    seen: AtomicU32,
    /// Looks after which it ends.
    limit: u32,
    expired: AtomicBool,
}

static ALL: Mutex<Vec<Weak<Watched>>> = Mutex::new(Vec::new());
/// Whether its thread could be started.
static STARTED: OnceLock<Result<(), String>> = OnceLock::new();

impl Watched {
    /// Watches runs that end after `limit_s` seconds without an exit, give or take one.
    pub fn new(limit_s: u32) -> Result<Arc<Self>, KvmError> {
        let started = STARTED.get_or_init(|| {
            receive_signals();
            let spawned = std::thread::Builder::new().name("kvm watchdog".into()).spawn(watch);
            spawned.map(drop).map_err(|error| error.to_string())
        });
        // Without it a busy guest would never come back.
        started.clone().map_err(|why| KvmError::HostLacks(format!("a thread for the watchdog of kvm: {why}")))?;
        let watched = Arc::new(Self { limit: limit_s.max(1), ..Self::default() });
        ALL.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&watched));
        Ok(watched)
    }

    /// A run begins on this thread, and waits for its first exit.
    pub fn begin(&self) {
        self.seen.store(0, Ordering::Relaxed);
        self.expired.store(false, Ordering::Relaxed);
        // SAFETY: the call takes nothing and cannot fail.
        self.thread.store(unsafe { libc::gettid() }, Ordering::Release);
    }

    /// It came back.
    pub fn end(&self) {
        self.thread.store(0, Ordering::Release);
    }

    /// Whether the watchdog, and not someone else, ended the run.
    pub fn expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }

    /// Seconds after which it ends a run.
    pub fn limit_s(&self) -> u64 {
        u64::from(self.limit)
    }

    fn look(&self) {
        let thread = self.thread.load(Ordering::Acquire);
        if thread == 0 || self.seen.fetch_add(1, Ordering::Relaxed) < self.limit {
            return;
        }
        self.expired.store(true, Ordering::Release);
        // SAFETY: plain numbers. The thread may have left KVM since: then the signal interrupts nothing that matters.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGURG) };
    }
}

fn watch() {
    loop {
        std::thread::sleep(TICK);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|watched| watched.upgrade().inspect(|watched| watched.look()).is_some());
    }
}

/// SIGURG is ignored unless someone listens; a handler that does nothing makes it interrupt a call.
fn receive_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing, and the structure is all zeros but for it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut());
    }
}
