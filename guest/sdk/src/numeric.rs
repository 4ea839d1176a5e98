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
}

macro_rules! signed {
    ($($t:ty),*) => {$(
        impl Numeric for $t {
            fn number(self) -> Number {
                Number::Signed(self as i64)
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
    let (left, right, maximize) = (left.number(), right.number(), closest.maximize);
    if left.distance(right).is_some_and(|distance| closest.improves(distance)) {
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
