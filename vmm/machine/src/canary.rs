// SPDX-License-Identifier: AGPL-3.0-or-later
//! A planted leak into the guest's TSC, to prove that the checks of determinism can see one. What leaks comes from outside.
//!
//! The feature `canary` alone makes a leak possible. No tool and no check but the one that proves it turns the feature on.

#[cfg(feature = "canary")]
static SOURCE: std::sync::OnceLock<fn() -> u64> = std::sync::OnceLock::new();

/// Lets what `source` gives, in ns, into the TSC of every machine from now on.
#[cfg(feature = "canary")]
pub fn leak(source: fn() -> u64) {
    SOURCE.get_or_init(|| source);
}

/// Nanoseconds that leak into the guest's TSC now.
#[cfg(feature = "canary")]
pub(crate) fn leaked_ns() -> u64 {
    SOURCE.get().map_or(0, |source| source())
}

/// Nothing leaks.
#[cfg(not(feature = "canary"))]
pub(crate) fn leaked_ns() -> u64 {
    0
}
