// SPDX-License-Identifier: Apache-2.0
//! Follows the host's steps of the wall clock. The kernel reads the RTC only when it boots, so a step of the RTC alone would not
//! reach programs.

use chaoscontrol_sdk::Window;

const SECOND_NS: i64 = 1_000_000_000;

/// Adds every change of the host's step to `CLOCK_REALTIME`.
pub struct Follower<'a> {
    window: &'a Window,
    applied_ns: i64,
}

impl<'a> Follower<'a> {
    /// How often the step is looked at: an idle guest pays a few thousand instructions for it.
    pub const PERIOD_MS: i32 = 100;

    /// Starts from the clock that the kernel read a moment ago.
    pub fn new(window: &'a Window) -> Self {
        Self { window, applied_ns: window.wall_step_ns() }
    }

    /// Applies what changed.
    pub fn follow(&mut self) {
        let step_ns = self.window.wall_step_ns();
        let change_ns = step_ns.wrapping_sub(self.applied_ns);
        if change_ns == 0 {
            return;
        }
        self.applied_ns = step_ns;
        if let Err(error) = step_clock(change_ns) {
            println!("chaos-init: cannot step the wall clock by {change_ns} ns: {error}");
        }
    }
}

fn step_clock(change_ns: i64) -> std::io::Result<()> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives over the call.
    if unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let stepped = added(now, change_ns);
    // SAFETY: as above.
    if unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const stepped) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// `now + change_ns`, not before 1970.
fn added(now: libc::timespec, change_ns: i64) -> libc::timespec {
    let total_ns = i128::from(now.tv_sec) * i128::from(SECOND_NS) + i128::from(now.tv_nsec) + i128::from(change_ns);
    let total_ns = total_ns.max(0);
    libc::timespec {
        tv_sec: (total_ns / i128::from(SECOND_NS)) as i64,
        tv_nsec: (total_ns % i128::from(SECOND_NS)) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_carry_between_seconds_and_stop_at_1970() {
        let now = libc::timespec { tv_sec: 10, tv_nsec: 999_999_999 };
        let both = |t: libc::timespec| (t.tv_sec, t.tv_nsec);
        assert_eq!(both(added(now, 1)), (11, 0));
        assert_eq!(both(added(now, -SECOND_NS)), (9, 999_999_999));
        assert_eq!(both(added(now, -11 * SECOND_NS)), (0, 0));
    }
}
