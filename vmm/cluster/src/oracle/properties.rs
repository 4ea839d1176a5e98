// SPDX-License-Identifier: AGPL-3.0-or-later
//! Properties: assertion sites of all processes of all VMs, merged by message and kind.

use chaoscontrol_protocol::{AssertionKind, CatalogEntry};
use serde::{Deserialize, Serialize};

use super::OracleLimit;

/// Properties of all catalogs together: four times what one process may have.
const PROPERTIES_MAX: usize = 4_096;

/// A property with its counts over all VMs since power-on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AssertionRow {
    /// The message, which names the property.
    pub message: String,
    /// `always`, `always_or_unreachable`, `sometimes`, `reachable`, `unreachable` or `agree`.
    pub kind: String,
    /// Whether never passing is a gap.
    pub must_hit: bool,
    /// Package of the site that was announced first.
    pub package: String,
    /// Its file, relative to the package.
    pub file: String,
    /// Its line, from 1.
    pub line: u32,
    /// Its column, from 1.
    pub column: u32,
    /// Its module path.
    pub module: String,
    /// Evaluations that passed.
    pub passes: u64,
    /// Evaluations that failed.
    pub failures: u64,
}

/// All properties in the order in which they were first announced; sites hold indices into it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Properties {
    list: Vec<AssertionRow>,
}

/// The kind's name in reports.
pub(super) const fn kind_name(kind: AssertionKind) -> &'static str {
    match kind {
        AssertionKind::Always => "always",
        AssertionKind::AlwaysOrUnreachable => "always_or_unreachable",
        AssertionKind::Sometimes => "sometimes",
        AssertionKind::Reachable => "reachable",
        AssertionKind::Unreachable => "unreachable",
        AssertionKind::Agree => "agree",
    }
}

impl Properties {
    /// The property's index. Catalogs are sent once a process, and are short: a linear search is enough.
    pub fn find_or_add(&mut self, entry: &CatalogEntry<'_>) -> Result<u32, OracleLimit> {
        let kind = kind_name(entry.kind);
        let same = |row: &AssertionRow| row.message == entry.message && row.kind == kind;
        let index = match self.list.iter().position(same) {
            Some(index) => index,
            None if self.list.len() >= PROPERTIES_MAX => return Err(OracleLimit::Properties(PROPERTIES_MAX as u64)),
            None => {
                self.list.push(AssertionRow {
                    message: entry.message.to_owned(),
                    kind: kind.to_owned(),
                    must_hit: entry.must_hit,
                    package: entry.package.to_owned(),
                    file: entry.file.to_owned(),
                    line: entry.line,
                    column: entry.column,
                    module: entry.module.to_owned(),
                    passes: 0,
                    failures: 0,
                });
                self.list.len() - 1
            }
        };
        Ok(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub fn add(&mut self, property: u32, passes: u64, failures: u64) {
        if let Some(row) = self.list.get_mut(property as usize) {
            row.passes = row.passes.saturating_add(passes);
            row.failures = row.failures.saturating_add(failures);
        }
    }

    /// Message and site of a property that one failure violates.
    pub fn violated_by_failure(&self, property: u32) -> Option<(String, String)> {
        let row = self.list.get(property as usize)?;
        let violates =
            AssertionKind::ALL.into_iter().any(|kind| kind.failure_is_violation() && kind_name(kind) == row.kind);
        violates.then(|| (row.message.clone(), format!("{}/{}:{}", row.package, row.file, row.line)))
    }

    /// The message of a property.
    pub fn message(&self, property: u32) -> Option<&str> {
        self.list.get(property as usize).map(|row| row.message.as_str())
    }

    /// The rows ordered by message and kind, so that the order in which VMs announced them does not show.
    pub fn rows(&self) -> Vec<AssertionRow> {
        let mut rows = self.list.clone();
        rows.sort_unstable();
        rows
    }
}
