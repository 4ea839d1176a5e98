// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a build with the feature `canary` leaks into its guests.

/// The host's clock below 4,096 ns: another value at each call.
#[must_use]
pub fn host_ns() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.map_or(0, |time| u64::from(time.subsec_nanos()) & 0xfff)
}
