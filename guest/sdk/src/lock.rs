// SPDX-License-Identifier: Apache-2.0
//! A spin lock. Unlike the standard library's it works without `std` and can be held across a fork.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, of which there is at most one.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard { lock: self }
    }

    /// Takes the lock without a guard; [`Lock::release`] gives it back. For fork handlers.
    pub(crate) fn acquire(&self) {
        while self.held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            wait();
        }
    }

    /// Gives back what [`Lock::acquire`] took.
    pub(crate) fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// The value, for whoever holds the lock through [`Lock::acquire`].
    #[cfg(feature = "std")]
    pub(crate) fn held_value(&self) -> *mut T {
        self.value.get()
    }
}

/// On one CPU the holder cannot go on while we spin.
fn wait() {
    #[cfg(feature = "std")]
    std::thread::yield_now();
    #[cfg(not(feature = "std"))]
    core::hint::spin_loop();
}

pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard proves that the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard proves that the lock is held, and it is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.release();
    }
}
