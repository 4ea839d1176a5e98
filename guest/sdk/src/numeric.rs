// SPDX-License-Identifier: Apache-2.0
//! Numeric assertions tell the explorer how close they came to their limit.

use crate::runtime::{self, report};
use crate::site::Site;
use chaoscontrol_protocol::{Number, Record};
use core::fmt::{self, Display};
use core::sync::atomic::{AtomicI64, Ordering};

/// A number that can be compared and reported.
pub trait Numeric: Copy + PartialOrd {
    /// As it travels.
    fn number(self) -> Number;
    /// `self - other`, saturated, in an order that integers and floats share with themselves.
    fn distance(self, other: Self) -> i64;
}

macro_rules! signed {
    ($($t:ty),*) => {$(
        impl Numeric for $t {
            fn number(self) -> Number {
                Number::Signed(self as i64)
            }
            fn distance(self, other: Self) -> i64 {
                (self as i64).saturating_sub(other as i64)
            }
        }
    )*};
}
signed!(i8, i16, i32, i64, isize);

macro_rules! unsigned {
    ($($t:ty),*) => {$(
        impl Numeric for $t {
            fn number(self) -> Number {
                Number::Unsigned(self as u64)
            }
            fn distance(self, other: Self) -> i64 {
                let wide = self as i128 - other as i128;
                wide.clamp(i64::MIN as i128, i64::MAX as i128) as i64
            }
        }
    )*};
}
unsigned!(u8, u16, u32, u64, usize);

macro_rules! float {
    ($($t:ty),*) => {$(
        impl Numeric for $t {
            fn number(self) -> Number {
                Number::Float(f64::from(self).to_bits())
            }
            fn distance(self, other: Self) -> i64 {
                // IEEE 754 orders like sign and magnitude; flipping the magnitude of negatives makes it two's complement.
                let bits = (f64::from(self) - f64::from(other)).to_bits() as i64;
                bits ^ (((bits >> 63) as u64) >> 1) as i64
            }
        }
    )*};
}
float!(f32, f64);

/// The closest that a numeric site came in this process.
pub struct Closest {
    maximize: bool,
    best: AtomicI64,
}

impl Closest {
    /// Nothing was seen yet.
    pub const fn new(maximize: bool) -> Self {
        Self { maximize, best: AtomicI64::new(if maximize { i64::MIN } else { i64::MAX }) }
    }

    /// Whether `distance` is closer than all before; if so it is remembered.
    fn improves(&self, distance: i64) -> bool {
        let closer = |best: i64| if self.maximize { distance > best } else { distance < best };
        // The plain load keeps the usual case free of a locked operation.
        closer(self.best.load(Ordering::Relaxed))
            && self
                .best
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |best| closer(best).then_some(distance))
                .is_ok()
    }
}

/// Reports a new closest approach.
#[inline]
pub fn guide<T: Numeric>(site: &'static Site, closest: &Closest, left: T, right: T) {
    if closest.improves(left.distance(right)) {
        let (left, right, maximize) = (left.number(), right.number(), closest.maximize);
        runtime::send_for_site(site, |index| Record::Guidance { site: index, maximize, left, right });
    }
}

/// Reports an evaluation with both sides; details of the caller follow them.
pub fn report_numeric<T: Numeric>(site: &'static Site, pass: bool, left: T, right: T, details: &dyn Display) {
    report(site, pass, &Sides { left: left.number(), right: right.number(), details });
}

struct Sides<'a> {
    left: Number,
    right: Number,
    details: &'a dyn Display,
}

impl Display for Sides<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{\"left\":{},\"right\":{}", JsonNumber(self.left), JsonNumber(self.right))?;
        let mut more = IsEmpty(true);
        fmt::write(&mut more, format_args!("{}", self.details))?;
        if !more.0 {
            write!(f, ",\"details\":{}", self.details)?;
        }
        f.write_str("}")
    }
}

struct IsEmpty(bool);

impl fmt::Write for IsEmpty {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0 &= s.is_empty();
        Ok(())
    }
}

/// A number as JSON.
pub(crate) struct JsonNumber(pub(crate) Number);

impl Display for JsonNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Number::Signed(value) => write!(f, "{value}"),
            Number::Unsigned(value) => write!(f, "{value}"),
            Number::Float(bits) => match f64::from_bits(bits) {
                value if value.is_finite() => write!(f, "{value:?}"),
                _ => f.write_str("null"),
            },
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn distances_order_like_the_differences() {
        assert!(1.5f64.distance(0.0) > 0.25f64.distance(0.0));
        assert!((-2.0f64).distance(0.0) < (-1.0f64).distance(0.0));
        assert!((-1.0f64).distance(0.0) < 1.0f64.distance(0.0));
        assert_eq!(u64::MAX.distance(0), i64::MAX);
        assert_eq!(0u64.distance(u64::MAX), i64::MIN);
        assert_eq!(i64::MIN.distance(1), i64::MIN);
        assert_eq!(3u32.distance(5), -2);
    }

    #[test]
    fn only_a_closer_value_improves() {
        let up = Closest::new(true);
        assert_eq!([1, 1, 0, 2].map(|d| up.improves(d)), [true, false, false, true]);
        let down = Closest::new(false);
        assert_eq!([1, 1, 2, -5].map(|d| down.improves(d)), [true, false, false, true]);
    }

    #[test]
    fn sides_carry_the_details_of_the_caller() {
        let sides = |details: &dyn Display| {
            Sides { left: Number::Signed(-1), right: Number::Float(0.5f64.to_bits()), details }.to_string()
        };
        assert_eq!(sides(&""), r#"{"left":-1,"right":0.5}"#);
        assert_eq!(sides(&r#"{"a":1}"#), r#"{"left":-1,"right":0.5,"details":{"a":1}}"#);
    }
}
