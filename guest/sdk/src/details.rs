// SPDX-License-Identifier: Apache-2.0
//! Details of a report: a JSON text, made without an allocation.

use core::fmt::{self, Display, Write};

/// A value that can stand in [`details!`](crate::details).
pub trait ToJson {
    /// Writes the value as JSON.
    fn write_json(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result;
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl ToJson for $t {
            fn write_json(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{self}")
            }
        }
    )*};
}
plain!(bool, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

macro_rules! float {
    ($($t:ty),*) => {$(
        impl ToJson for $t {
            fn write_json(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                // JSON has no infinities and no NaN.
                if self.is_finite() { write!(out, "{self:?}") } else { out.write_str("null") }
            }
        }
    )*};
}
float!(f32, f64);

impl ToJson for str {
    fn write_json(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", JsonText(self))
    }
}

impl<T: ToJson + ?Sized> ToJson for &T {
    fn write_json(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).write_json(out)
    }
}

impl<T: ToJson> ToJson for Option<T> {
    fn write_json(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Some(value) => value.write_json(out),
            None => out.write_str("null"),
        }
    }
}

impl<T: ToJson> ToJson for [T] {
    fn write_json(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_char('[')?;
        for (i, value) in self.iter().enumerate() {
            if i > 0 {
                out.write_char(',')?;
            }
            value.write_json(out)?;
        }
        out.write_char(']')
    }
}

impl<T: ToJson, const N: usize> ToJson for [T; N] {
    fn write_json(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().write_json(out)
    }
}

#[cfg(feature = "std")]
impl ToJson for String {
    fn write_json(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().write_json(out)
    }
}

#[cfg(feature = "std")]
impl<T: ToJson> ToJson for Vec<T> {
    fn write_json(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().write_json(out)
    }
}

/// A JSON object with the given fields; [`details!`](crate::details) makes one. Anything else that displays as JSON, for
/// instance a `serde_json::Value`, is as good.
pub struct Details<'a>(pub &'a [(&'a str, &'a dyn ToJson)]);

impl Display for Details<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('{')?;
        for (i, (name, value)) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_char(',')?;
            }
            write!(f, "{}:", JsonText(name))?;
            value.write_json(f)?;
        }
        f.write_char('}')
    }
}

/// A text as a JSON string, with quotes.
pub(crate) struct JsonText<'a>(pub(crate) &'a str);

impl Display for JsonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if (c as u32) < 0x20 => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// A text of at most `N` bytes that remembers how long it would have been.
pub(crate) struct BoundedText<const N: usize> {
    bytes: [u8; N],
    filled: usize,
    wanted: usize,
}

impl<const N: usize> BoundedText<N> {
    pub(crate) fn new(value: &dyn Display) -> Self {
        let mut text = Self { bytes: [0; N], filled: 0, wanted: 0 };
        // A `Display` that fails leaves what it wrote so far, which is all there is to report.
        let _ = write!(text, "{value}");
        text
    }

    /// The text, or how many bytes it would have had.
    pub(crate) fn get(&self) -> Result<&str, usize> {
        if self.wanted > self.filled {
            return Err(self.wanted);
        }
        Ok(core::str::from_utf8(&self.bytes[..self.filled]).expect("only whole strings are copied"))
    }
}

impl<const N: usize> Write for BoundedText<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.wanted += s.len();
        if self.wanted <= N {
            self.bytes[self.filled..self.wanted].copy_from_slice(s.as_bytes());
            self.filled = self.wanted;
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::details;

    #[test]
    fn details_are_json() {
        let text = details! { term: 3u64, name: "a\"b\\\u{1}\n", ok: true, none: None::<u32>, list: [1, 2], x: 0.5, nan: f64::NAN }
            .to_string();
        let expected = r#"{"term":3,"name":"a\"b\\\u0001\n","ok":true,"none":null,"list":[1,2],"x":0.5,"nan":null}"#;
        assert_eq!(text, expected);
        assert_eq!(details! {}.to_string(), "{}");
    }

    #[test]
    fn a_bounded_text_is_whole_or_tells_its_length() {
        assert_eq!(BoundedText::<4>::new(&"four").get(), Ok("four"));
        assert_eq!(BoundedText::<4>::new(&"fiver").get(), Err(5));
        assert_eq!(BoundedText::<4>::new(&format_args!("{}{}{}", "abc", "def", "g")).get(), Err(7));
    }
}
