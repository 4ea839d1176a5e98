// SPDX-License-Identifier: AGPL-3.0-or-later
//! One VM's guest time over cluster time: an offset and an exact rate (semantics, point 4).

use serde::{Deserialize, Serialize};

/// Both origins name the same instant; from there on guest time advances `numerator` ns in each `denominator` cluster ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Cluster ns of the origin.
    pub cluster_origin_ns: u64,
    /// Guest ns of the origin.
    pub guest_origin_ns: u64,
    /// Guest ns ...
    pub numerator: u32,
    /// ... in so many cluster ns. Never zero, nor is the numerator.
    pub denominator: u32,
}

impl Clock {
    /// Guest time that starts at `guest_ns` at cluster time `cluster_ns` and goes at its pace.
    #[must_use]
    pub fn starting(cluster_ns: u64, guest_ns: u64) -> Self {
        Self { cluster_origin_ns: cluster_ns, guest_origin_ns: guest_ns, numerator: 1, denominator: 1 }
    }

    /// The same clock at another pace from `cluster_ns` on: continuous, never going back.
    #[must_use]
    pub fn at_pace(&self, cluster_ns: u64, numerator: u32, denominator: u32) -> Self {
        Self {
            cluster_origin_ns: cluster_ns,
            guest_origin_ns: self.to_guest_ns(cluster_ns),
            numerator: numerator.max(1),
            denominator: denominator.max(1),
        }
    }

    /// The same pace from `guest_ns` at `cluster_ns` on: what passed between was not lived through.
    #[must_use]
    pub fn resumed(&self, cluster_ns: u64, guest_ns: u64) -> Self {
        Self { cluster_origin_ns: cluster_ns, guest_origin_ns: guest_ns, ..*self }
    }

    /// The first guest ns that is not before `cluster_ns`.
    #[must_use]
    pub fn to_guest_ns(&self, cluster_ns: u64) -> u64 {
        let elapsed = u128::from(cluster_ns.saturating_sub(self.cluster_origin_ns));
        let scaled = (elapsed * u128::from(self.numerator)).div_ceil(u128::from(self.denominator));
        clamp(u128::from(self.guest_origin_ns) + scaled)
    }

    /// Cluster time of a guest time, rounded down; the origin for times before it.
    #[must_use]
    pub fn to_cluster_ns(&self, guest_ns: u64) -> u64 {
        let elapsed = u128::from(guest_ns.saturating_sub(self.guest_origin_ns));
        clamp(u128::from(self.cluster_origin_ns) + elapsed * u128::from(self.denominator) / u128::from(self.numerator))
    }

    /// The first cluster ns whose guest time is at or after `guest_ns`.
    #[must_use]
    pub fn reaches_ns(&self, guest_ns: u64) -> u64 {
        // ceil(c * n / d) >= g exactly when c > (g - 1) * d / n.
        match guest_ns.checked_sub(self.guest_origin_ns) {
            None | Some(0) => self.cluster_origin_ns,
            Some(elapsed) => {
                let before = u128::from(elapsed - 1) * u128::from(self.denominator) / u128::from(self.numerator);
                clamp(u128::from(self.cluster_origin_ns) + before + 1)
            }
        }
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
        for (numerator, denominator) in [(1, 1), (3, 2), (2, 3), (999_999, 1_000_000), (1, 10), (10, 1)] {
            let clock = Clock { cluster_origin_ns: 500, guest_origin_ns: 77, numerator, denominator };
            for at in [500, 501, 1_000, 123_456_789, 1 << 50] {
                let guest = clock.to_guest_ns(at);
                assert!(clock.to_cluster_ns(guest) >= at, "{at} at {numerator}/{denominator}");
                let reached = clock.reaches_ns(guest + 3);
                assert!(clock.to_guest_ns(reached) >= guest + 3, "{at} at {numerator}/{denominator}");
                assert!(clock.to_guest_ns(reached - 1) < guest + 3, "{at} at {numerator}/{denominator}");
            }
        }
    }

    #[test]
    fn a_change_of_pace_is_continuous() {
        let clock = Clock::starting(1_000, 50);
        let fast = clock.at_pace(2_000, 3, 2);
        assert_eq!(fast.to_guest_ns(2_000), 1_050);
        assert_eq!(fast.to_guest_ns(4_000), 4_050);
        let again = fast.at_pace(4_000, 1, 1);
        assert_eq!(again.to_guest_ns(4_100), 4_150);
    }
}
