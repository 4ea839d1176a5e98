// SPDX-License-Identifier: Apache-2.0
//! Agreement: the first value that any node reports for a key binds all nodes of a timeline.

use crate::error::SdkError;
use crate::runtime;
use crate::site::Site;
use chaoscontrol_protocol::digest::Sha256;
use chaoscontrol_protocol::layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX, VALUE_SHOWN_BYTES_MAX};
use core::fmt::{self, Write};

/// What can be a key or a value of an agreement: integers and texts as they are written, bytes as they are.
pub trait AgreeValue {
    /// Hands the bytes to `out`, in as many pieces as convenient.
    fn feed(&self, out: &mut dyn FnMut(&[u8]));
}

macro_rules! displayed {
    ($($t:ty),*) => {$(
        impl AgreeValue for $t {
            fn feed(&self, out: &mut dyn FnMut(&[u8])) {
                // The adapter below never fails.
                let _ = write!(Feed(out), "{self}");
            }
        }
    )*};
}
displayed!(bool, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, fmt::Arguments<'_>);

struct Feed<'a>(&'a mut dyn FnMut(&[u8]));

impl Write for Feed<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        (self.0)(s.as_bytes());
        Ok(())
    }
}

impl AgreeValue for str {
    fn feed(&self, out: &mut dyn FnMut(&[u8])) {
        out(self.as_bytes());
    }
}

impl AgreeValue for [u8] {
    fn feed(&self, out: &mut dyn FnMut(&[u8])) {
        out(self);
    }
}

impl<const N: usize> AgreeValue for [u8; N] {
    fn feed(&self, out: &mut dyn FnMut(&[u8])) {
        out(self);
    }
}

impl<T: AgreeValue + ?Sized> AgreeValue for &T {
    fn feed(&self, out: &mut dyn FnMut(&[u8])) {
        (**self).feed(out);
    }
}

#[cfg(feature = "std")]
impl AgreeValue for String {
    fn feed(&self, out: &mut dyn FnMut(&[u8])) {
        out(self.as_bytes());
    }
}

#[cfg(feature = "std")]
impl AgreeValue for Vec<u8> {
    fn feed(&self, out: &mut dyn FnMut(&[u8])) {
        out(self);
    }
}

/// The beginning of a value, and how long it is.
struct Beginning<const N: usize> {
    bytes: [u8; N],
    filled: usize,
    total: usize,
}

impl<const N: usize> Beginning<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], filled: 0, total: 0 }
    }

    fn push(&mut self, piece: &[u8]) {
        let take = piece.len().min(N - self.filled);
        self.bytes[self.filled..self.filled + take].copy_from_slice(&piece[..take]);
        self.filled += take;
        self.total += piece.len();
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

/// Reports one value of one key.
pub fn agree(site: &'static Site, key: &dyn AgreeValue, value: &dyn AgreeValue) -> Result<(), SdkError> {
    let mut key_bytes = Beginning::<KEY_BYTES_MAX>::new();
    key.feed(&mut |piece| key_bytes.push(piece));
    if key_bytes.total > KEY_BYTES_MAX {
        return Err(SdkError::TooLong { field: "key", bytes: key_bytes.total, bytes_max: KEY_BYTES_MAX });
    }
    let mut shown = Beginning::<VALUE_SHOWN_BYTES_MAX>::new();
    let mut hash = Sha256::new();
    value.feed(&mut |piece| {
        shown.push(piece);
        hash.update(piece);
    });
    if shown.total > VALUE_BYTES_MAX {
        return Err(SdkError::TooLong { field: "value", bytes: shown.total, bytes_max: VALUE_BYTES_MAX });
    }
    runtime::send_agreement(site, key_bytes.get(), &hash.finish(), shown.get())
}
