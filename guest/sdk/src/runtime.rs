// SPDX-License-Identifier: Apache-2.0
//! The process-wide state: where reports go, and the paths that lead there.

use crate::details::BoundedText;
use crate::error::SdkError;
use crate::lock::{Guard, Lock};
use crate::site::{Catalog, SITES, Site};
use crate::window::{Buffer, Slot, Window};
use chaoscontrol_protocol::digest::Digest;
use chaoscontrol_protocol::layout::{COUNTER_BYTES, DETAILS_BYTES_MAX, LOG_BYTES_MAX, SITES_MAX};
use chaoscontrol_protocol::{LogLevel, Outcome, Record};
use core::fmt::Display;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Where reports go.
pub(crate) enum Sink {
    /// Not decided yet.
    Unattached,
    /// Nowhere.
    #[cfg(feature = "std")]
    Nowhere,
    /// To the host.
    Window(Slot),
    /// To a file.
    #[cfg(feature = "std")]
    Lines(crate::lines::Lines),
}

pub(crate) struct Runtime {
    catalog: Catalog,
    sink: Sink,
    buffer: Buffer,
    /// Why there is no window although there should be, for `init`.
    trouble: Option<SdkError>,
    /// State of the stream that answers when no host does.
    local_random: u64,
}

pub(crate) static RUNTIME: Lock<Runtime> = Lock::new(Runtime {
    catalog: Catalog::new(),
    sink: Sink::Unattached,
    buffer: Buffer::new(),
    trouble: None,
    local_random: 0,
});

/// The first counter pair of this process's slot, or null.
static COUNTERS: AtomicPtr<u8> = AtomicPtr::new(null_mut());

impl Runtime {
    /// Decides where reports go, if that is still open, and sends the catalog there.
    fn ensure(&mut self) {
        #[cfg(feature = "std")]
        if matches!(self.sink, Sink::Unattached) {
            self.catalog.register();
            let connection = crate::process::connect();
            self.trouble = connection.trouble;
            self.local_random = connection.seed;
            self.sink = connection.sink;
            self.introduce(std::process::id(), &crate::process::name());
            if let Some(trouble) = self.trouble {
                eprintln!("chaoscontrol-sdk: {trouble}");
            }
        }
    }

    /// Sends the catalog. A sink that refuses it is given up.
    fn introduce(&mut self, pid: u32, name: &str) {
        let started = match &mut self.sink {
            Sink::Window(slot) => {
                let started = slot.start(pid, name, &self.catalog, &mut self.buffer);
                if started.is_ok() {
                    COUNTERS.store(slot.counters(), Ordering::Release);
                }
                started
            }
            #[cfg(feature = "std")]
            Sink::Lines(lines) => {
                lines.start(&self.catalog);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = started {
            self.trouble = Some(error);
            self.sink = self.given_up();
        }
        if SITES.len() > SITES_MAX {
            self.trouble = Some(SdkError::TooManySites { sites: SITES.len(), sites_max: SITES_MAX });
            // The host learns it too; if it does not take this record, it takes none.
            let text = "the program has more assertion sites than are watched";
            let _ = self.send(&Record::Log { level: LogLevel::Error, text });
        }
    }

    #[cfg(feature = "std")]
    fn given_up(&self) -> Sink {
        Sink::Nowhere
    }

    #[cfg(not(feature = "std"))]
    fn given_up(&self) -> Sink {
        Sink::Unattached
    }

    fn send(&mut self, record: &Record<'_>) -> Result<(), SdkError> {
        match &mut self.sink {
            Sink::Window(slot) => slot.push(record, &mut self.buffer),
            #[cfg(feature = "std")]
            Sink::Lines(lines) => {
                // The encoder checks the bounds, so that a report is refused here as it would be in a VM.
                self.buffer.check(record)?;
                lines.write(record, &self.catalog);
                Ok(())
            }
            #[cfg(feature = "std")]
            Sink::Nowhere => self.buffer.check(record),
            Sink::Unattached => Ok(()),
        }
    }

    fn ring(&self) {
        if let Sink::Window(slot) = &self.sink {
            slot.ring();
        }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): good enough where nothing is explored.
    fn next_local(&mut self) -> u64 {
        self.local_random = self.local_random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.local_random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Takes over what the kernel executed for the calling thread, where it says so and a host would see it.
    #[cfg(feature = "std")]
    fn collect_kernel_coverage(&mut self) {
        if matches!(self.sink, Sink::Window(_))
            && let Some(times) = crate::kcov::collect()
        {
            let text = BoundedText::<LOG_BYTES_MAX>::new(&format_args!(
                "a buffer of kernel coverage (KCOV) was full, {times} times so far in this process: what came then is not \
                 counted; call collect_coverage() more often"
            ));
            // The host may take no record any more; then it sees no report either.
            let _ = self.send(&Record::Log { level: LogLevel::Info, text: text.get().unwrap_or_default() });
        }
    }

    fn is_attached(&self) -> bool {
        !matches!(self.sink, Sink::Unattached)
    }

    /// In a forked child: the slot is the parent's, so everything is open again.
    #[cfg(feature = "std")]
    pub(crate) fn restart_in_child(&mut self) {
        COUNTERS.store(null_mut(), Ordering::Release);
        crate::kcov::forget_in_child();
        self.sink = Sink::Unattached;
        for site in SITES {
            site.forget();
        }
    }
}

fn ready() -> Guard<'static, Runtime> {
    let mut runtime = RUNTIME.lock();
    runtime.ensure();
    #[cfg(feature = "std")]
    runtime.collect_kernel_coverage();
    runtime
}

/// Connects to the host and reports the catalog. Everything else here does so by itself when it is first used; calling this
/// first makes sites known that are never reached.
///
/// # Errors
/// Why a window that is there cannot be used, or that some sites are not watched. Reports may be made all the same.
pub fn init() -> Result<(), SdkError> {
    let runtime = ready();
    if !runtime.is_attached() && runtime.trouble.is_none() {
        return Err(SdkError::NotAWindow);
    }
    runtime.trouble.map_or(Ok(()), Err)
}

/// Takes over what the kernel executed for the calling thread since its last report, where the kernel says so (KCOV); the first call of
/// a thread makes the kernel begin. Every report does the same. A thread that reports seldom calls this in its loop.
#[cfg(feature = "std")]
pub fn collect_coverage() {
    drop(ready());
}

/// Claims a slot of a window that the program mapped itself. `alive` says whether a process exists.
pub fn attach(window: Window, pid: u32, name: &str, alive: fn(u32) -> bool) -> Result<(), SdkError> {
    #[cfg(any(feature = "std", feature = "sancov"))]
    crate::coverage::move_to(window.coverage());
    let slot = window.claim(pid, alive)?;
    let mut runtime = RUNTIME.lock();
    runtime.catalog.register();
    runtime.trouble = None;
    runtime.sink = Sink::Window(slot);
    runtime.introduce(pid, name);
    runtime.trouble.map_or(Ok(()), Err)
}

/// Counts an evaluation whose outcome was reported before, or says that it still has to be.
#[inline]
pub fn needs_report(site: &'static Site, pass: bool) -> bool {
    match site.reported(pass) {
        Some(index) => {
            count(index, pass);
            false
        }
        None => true,
    }
}

fn count(index: u16, pass: bool) {
    let counters = COUNTERS.load(Ordering::Acquire);
    if counters.is_null() || usize::from(index) >= SITES_MAX {
        return;
    }
    let offset = usize::from(index) * COUNTER_BYTES as usize + if pass { 0 } else { 8 };
    // SAFETY: `counters` is the table of a mapped slot, and the index is inside it.
    unsafe { AtomicU64::from_ptr(counters.add(offset).cast()) }.fetch_add(1, Ordering::Relaxed);
}

/// Reports the first evaluation with this outcome.
#[cold]
pub fn report(site: &'static Site, pass: bool, details: &dyn Display) {
    // The details are made before the lock is taken: they are the caller's code and may report something themselves.
    let details = shortened(details);
    let text = details.get().unwrap_or_default();
    let mut runtime = ready();
    if !runtime.is_attached() {
        return;
    }
    if !needs_report(site, pass) {
        return;
    }
    site.mark_reported(pass);
    let Some(index) = site.index() else { return };
    count(index, pass);
    let outcome = if pass { Outcome::Pass } else { Outcome::Fail };
    // A record that the sink refuses is lost, but the evaluation was counted.
    let _ = runtime.send(&Record::Assertion { site: index, outcome, details: text });
    if !pass && site.kind.failure_is_violation() {
        runtime.ring();
    }
}

/// The details, or why they are missing.
fn shortened(details: &dyn Display) -> BoundedText<DETAILS_BYTES_MAX> {
    let text = BoundedText::new(details);
    match text.get() {
        Ok(_) => text,
        Err(bytes) => BoundedText::new(&format_args!(
            "{{\"sdk_error\":\"the details have {bytes} bytes, at most {DETAILS_BYTES_MAX} are allowed\"}}"
        )),
    }
}

/// Sends a record that names a site, if the site is watched.
#[cold]
pub(crate) fn send_for_site<'a>(site: &'static Site, record: impl FnOnce(u16) -> Record<'a>) {
    let mut runtime = ready();
    if let Some(index) = site.index() {
        // Guidance helps the explorer; a run goes on without it.
        let _ = runtime.send(&record(index));
    }
}

/// Sends an agreement record and lets the host judge it at once.
pub(crate) fn send_agreement(site: &'static Site, key: &[u8], digest: &Digest, value: &[u8]) -> Result<(), SdkError> {
    let mut runtime = ready();
    let Some(index) = site.index() else {
        return Err(SdkError::TooManySites { sites: SITES.len(), sites_max: SITES_MAX });
    };
    count(index, true);
    site.mark_reported(true);
    runtime.send(&Record::Agree { site: index, namespace: site.message, key, digest: *digest, value })?;
    runtime.ring();
    Ok(())
}

/// Tells the host that the workload is ready: faults may begin. The host acts at once. Call it in one process of each VM.
pub fn setup_complete(details: impl Display) -> Result<(), SdkError> {
    with_details(&details, |runtime, details| {
        runtime.send(&Record::SetupComplete { details })?;
        runtime.ring();
        Ok(())
    })
}

/// Reports that something happened.
pub fn send_event(name: &str, details: impl Display) -> Result<(), SdkError> {
    with_details(&details, |runtime, details| runtime.send(&Record::Event { name, details }))
}

/// Reports that something happened, and lets the host read it before this returns: its time is then exact, for one exit to the host.
/// Other events carry the time at which the host read them, at the latest the end of the round.
pub fn send_event_at_once(name: &str, details: impl Display) -> Result<(), SdkError> {
    with_details(&details, |runtime, details| {
        runtime.send(&Record::Event { name, details })?;
        runtime.ring();
        Ok(())
    })
}

fn with_details(
    details: &dyn Display,
    send: impl FnOnce(&mut Runtime, &str) -> Result<(), SdkError>,
) -> Result<(), SdkError> {
    let text = BoundedText::<DETAILS_BYTES_MAX>::new(details);
    let details =
        text.get().map_err(|bytes| SdkError::TooLong { field: "details", bytes, bytes_max: DETAILS_BYTES_MAX })?;
    send(&mut ready(), details)
}

/// A line for the report.
pub fn log(level: LogLevel, text: impl Display) -> Result<(), SdkError> {
    let text = BoundedText::<LOG_BYTES_MAX>::new(&text);
    let text = text.get().map_err(|bytes| SdkError::TooLong { field: "log text", bytes, bytes_max: LOG_BYTES_MAX })?;
    ready().send(&Record::Log { level, text })
}

/// Asks the host for a time without faults, for instance to check that the system recovers: what is in effect ends, what is
/// down starts, and no fault begins before this much time has passed. At most a minute a call.
pub fn quiet(lasts: core::time::Duration) -> Result<(), SdkError> {
    let lasts_ns = u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX);
    let mut runtime = ready();
    runtime.send(&Record::Quiet { lasts_ns })?;
    runtime.ring();
    Ok(())
}

/// Ends a quiet period: faults may begin again.
pub fn end_quiet() -> Result<(), SdkError> {
    quiet(core::time::Duration::ZERO)
}

/// Reports how a child process ended.
pub fn process_exit(pid: u32, signalled: bool, code: u8) -> Result<(), SdkError> {
    ready().send(&Record::ProcessExit { pid, signalled, code })
}

/// A number below `below` (0: any), from the host or else from the local stream.
pub(crate) fn random(below: u64) -> u64 {
    let mut runtime = ready();
    let Runtime { sink, buffer, .. } = &mut *runtime;
    if let Sink::Window(slot) = sink
        && let Ok(value) = slot.ask_random(below, buffer)
    {
        return value;
    }
    runtime.next_local()
}
