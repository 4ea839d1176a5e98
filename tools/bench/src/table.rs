// SPDX-License-Identifier: AGPL-3.0-or-later
//! Measurements by row and column, as text or JSON. The only place of the product where fractions are written.

use std::fmt::Write;

/// Rows of named numbers.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<(String, Vec<(&'static str, f64)>)>,
}

impl Table {
    /// Adds a row.
    pub fn push(&mut self, name: &str, cells: Vec<(&'static str, f64)>) {
        self.rows.push((name.to_owned(), cells));
    }

    /// `{"engine": {"boot": {"mips": …}, …}}`.
    pub fn to_json(&self, what: &str) -> String {
        let row = |cells: &[(&'static str, f64)]| {
            cells.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect::<serde_json::Map<_, _>>()
        };
        let rows: serde_json::Map<_, _> =
            self.rows.iter().map(|(name, cells)| (name.clone(), row(cells).into())).collect();
        format!("{}\n", serde_json::json!({ what: rows }))
    }

    /// Aligned columns, a row a line.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for (name, cells) in &self.rows {
            let _ = write!(out, "{name:12}");
            for (name, value) in cells {
                let _ = write!(out, "  {name} {value:.3}");
            }
            out.push('\n');
        }
        out
    }
}

/// CPU seconds of this thread.
pub fn thread_cpu_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
