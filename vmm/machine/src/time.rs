// SPDX-License-Identifier: AGPL-3.0-or-later
//! Guest time, cluster time and the exact map between them (semantics, point 4).
//!
//! Guest time is what every timer, the TSC (1 tick = 1 ns) and the RTC read: `instructions * ns_per_instruction + idle
//! skipped`. Cluster time is what barriers, schedules and faults are stated in. Each VM's guest time is an offset and an exact
//! rational rate over cluster time; a clock skew changes the rate from now on, so guest time is continuous and never goes back.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Nanoseconds of one VM's guest time since its power-on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GuestNs(pub u64);

/// Nanoseconds of cluster time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterNs(pub u64);

impl GuestNs {
    /// This time plus `ns`, held at the end of time (584 years).
    pub fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to this time, zero where `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl ClusterNs {
    /// This time plus `ns`, held at the end of time.
    pub fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl fmt::Display for GuestNs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

impl fmt::Display for ClusterNs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

/// Largest numerator and denominator of a [`Rate`]: keeps every product below 2^128 and every conversion exact.
pub const RATE_TERM_MAX: u64 = 1_000_000_000;

/// Guest nanoseconds per cluster nanosecond, as an exact ratio. Both terms are 1..=[`RATE_TERM_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Guest nanoseconds ...
    pub numerator: u64,
    /// ... in this many cluster nanoseconds.
    pub denominator: u64,
}

impl Rate {
    /// No skew.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// A rate of `1 + ppm / 1,000,000`; `ppm` lies within -999,999..=999,000,000.
    pub fn from_ppm(ppm: i64) -> Option<Self> {
        let numerator = u64::try_from(1_000_000i64.checked_add(ppm)?).ok()?;
        let rate = Self { numerator, denominator: 1_000_000 };
        rate.is_valid().then_some(rate)
    }

    /// Whether both terms are in range.
    pub fn is_valid(self) -> bool {
        (1..=RATE_TERM_MAX).contains(&self.numerator) && (1..=RATE_TERM_MAX).contains(&self.denominator)
    }
}

/// The map from cluster time to one VM's guest time: both origins name the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeMap {
    /// Cluster time of the origin.
    pub cluster_origin: ClusterNs,
    /// Guest time at the origin.
    pub guest_origin: GuestNs,
    /// Guest time per cluster time since the origin.
    pub rate: Rate,
}

impl Default for TimeMap {
    fn default() -> Self {
        Self { cluster_origin: ClusterNs(0), guest_origin: GuestNs(0), rate: Rate::ONE }
    }
}

impl TimeMap {
    /// The first guest nanosecond that is not before `at`: a boundary at or after it is at or after `at`.
    pub fn to_guest(&self, at: ClusterNs) -> GuestNs {
        let elapsed = u128::from(at.0.saturating_sub(self.cluster_origin.0));
        let scaled = (elapsed * u128::from(self.rate.numerator)).div_ceil(u128::from(self.rate.denominator));
        GuestNs(clamp(u128::from(self.guest_origin.0) + scaled))
    }

    /// The cluster time of a guest time, rounded down. Times before the origin map to the origin.
    pub fn to_cluster(&self, at: GuestNs) -> ClusterNs {
        let elapsed = u128::from(at.since(self.guest_origin));
        let scaled = elapsed * u128::from(self.rate.denominator) / u128::from(self.rate.numerator);
        ClusterNs(clamp(u128::from(self.cluster_origin.0) + scaled))
    }
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_deadline_is_never_before_its_cluster_time() {
        for (numerator, denominator) in [(1, 1), (3, 2), (2, 3), (1_000_050, 1_000_000), (999_999_999, 1_000_000_000)] {
            let map = TimeMap {
                cluster_origin: ClusterNs(1_000),
                guest_origin: GuestNs(77),
                rate: Rate { numerator, denominator },
            };
            for at in [1_000u64, 1_001, 1_003, 50_000, 123_456_789, 10_000_000_000_000] {
                let guest = map.to_guest(ClusterNs(at));
                assert!(map.to_cluster(guest) >= ClusterNs(at), "{at} at {numerator}/{denominator}");
                if guest > map.guest_origin {
                    assert!(map.to_cluster(GuestNs(guest.0 - 1)) <= ClusterNs(at));
                }
            }
        }
    }

    #[test]
    fn rates_out_of_range_are_refused() {
        assert_eq!(Rate::from_ppm(-1_000_000), None);
        assert_eq!(Rate::from_ppm(i64::MAX), None);
        assert_eq!(Rate::from_ppm(500), Some(Rate { numerator: 1_000_500, denominator: 1_000_000 }));
    }
}
