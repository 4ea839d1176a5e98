// SPDX-License-Identifier: AGPL-3.0-or-later
//! A planted leak of host time, to prove that the checks of determinism can see one.
//!
//! Built only with the feature `canary`, which no tool and no check but that one turns on.

/// Nanoseconds of host time that leak into the guest's TSC.
#[cfg(feature = "canary")]
pub(crate) fn leaked_ns() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.map_or(0, |time| u64::from(time.subsec_nanos()) & 0xfff)
}

/// Nothing leaks.
#[cfg(not(feature = "canary"))]
pub(crate) fn leaked_ns() -> u64 {
    0
}
