// SPDX-License-Identifier: AGPL-3.0-or-later
//! Reports of whole campaigns: gathered once, shown as a page, as text, or as JSON.
//!
//! The same objects give the same bytes. The page loads nothing and runs no script, which its own policy says to the browser; all
//! text that came from a guest is escaped.

mod bug_html;
mod chart;
mod frame;
mod gather;
mod html;
mod lanes;
mod markup;
pub mod model;
mod moments;
mod overview;
mod sequence;
mod text;
pub(crate) mod words;

pub use gather::{Replays, gather};
pub use html::html;
pub use model::Report;
pub use text::text;

use crate::error::EvidenceError;

/// The report as JSON, pure ASCII: no text of a guest can steer a terminal that shows it.
pub fn json(report: &Report) -> Result<String, EvidenceError> {
    let pretty = serde_json::to_string_pretty(report).map_err(|error| EvidenceError::Input(error.to_string()))?;
    let mut out = String::with_capacity(pretty.len() + 1);
    for c in pretty.chars() {
        // The delete character too: it is ASCII, and moves the cursor of some terminals.
        if c.is_ascii() && c != '\x7f' {
            out.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out.push('\n');
    Ok(out)
}
