// SPDX-License-Identifier: AGPL-3.0-or-later
//! Assertions: the sites of all processes of all VMs, each once by its identity.
//!
//! A site's identity is the namespace and key it states, or else its package, version, file, line and column. What a catalog says
//! of a site is its descriptor. Two different descriptors for one identity cannot both be judged: that ends the run. The
//! fingerprint of a descriptor is the BLAKE3, in a key-derivation context of its own, of its fields in the order of
//! [`AssertionRow::descriptor_bytes`].

use chaoscontrol_protocol::digest::Sha256;
use chaoscontrol_protocol::layout::PAYLOAD_BYTES_MAX;
use chaoscontrol_protocol::{AssertionKind, CatalogEntry};
use chaoscontrol_sim::Digest;
use serde::{Deserialize, Serialize};

use super::{Moment, OracleLimit};

/// Assertions of all catalogs together: four times what one process may have.
const ASSERTIONS_MAX: usize = 4_096;

/// Domain of fingerprints; a change of what they cover changes this text.
const FINGERPRINT_CONTEXT: &str = "chaoscontrol 2026 assertion descriptor v1";

/// When an assertion passed or failed for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FirstTime {
    /// Which VM.
    pub vm: u16,
    /// When, in cluster ns.
    pub cluster_ns: u64,
}

/// An assertion with its counts over all VMs since power-on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AssertionRow {
    /// The message, which names the property.
    pub message: String,
    /// `always`, `always_or_unreachable`, `sometimes`, `reachable`, `unreachable` or `agree`.
    pub kind: String,
    /// Whether never passing is a gap.
    pub must_hit: bool,
    /// Package of the site.
    pub package: String,
    /// Version of the package.
    pub version: String,
    /// The site's file, relative to the package.
    pub file: String,
    /// Its line, from 1.
    pub line: u32,
    /// Its column, from 1.
    pub column: u32,
    /// Its module path.
    pub module: String,
    /// Namespace of an explicit identity, or empty.
    pub namespace: String,
    /// Key of an explicit identity, or empty.
    pub key: String,
    /// Evaluations that passed.
    pub passes: u64,
    /// Evaluations that failed.
    pub failures: u64,
    /// When it passed first.
    pub first_pass: Option<FirstTime>,
    /// When it failed first.
    pub first_failure: Option<FirstTime>,
}

impl AssertionRow {
    fn of(entry: &CatalogEntry<'_>) -> Self {
        Self {
            message: entry.message.to_owned(),
            kind: kind_name(entry.kind).to_owned(),
            must_hit: entry.must_hit,
            package: entry.package.to_owned(),
            version: entry.version.to_owned(),
            file: entry.file.to_owned(),
            line: entry.line,
            column: entry.column,
            module: entry.module.to_owned(),
            namespace: entry.namespace.to_owned(),
            key: entry.key.to_owned(),
            passes: 0,
            failures: 0,
            first_pass: None,
            first_failure: None,
        }
    }

    /// The entry of a catalog in which it has the index `site`; none for a kind that does not exist.
    fn entry(&self, site: u16) -> Option<CatalogEntry<'_>> {
        Some(CatalogEntry {
            site,
            kind: AssertionKind::ALL.into_iter().find(|kind| kind_name(*kind) == self.kind)?,
            must_hit: self.must_hit,
            line: self.line,
            column: self.column,
            message: &self.message,
            package: &self.package,
            version: &self.version,
            file: &self.file,
            module: &self.module,
            namespace: &self.namespace,
            key: &self.key,
        })
    }

    fn has_identity_of(&self, entry: &CatalogEntry<'_>) -> bool {
        if entry.namespace.is_empty() {
            let place = (self.package.as_str(), self.version.as_str(), self.file.as_str(), self.line, self.column);
            self.namespace.is_empty() && place == (entry.package, entry.version, entry.file, entry.line, entry.column)
        } else {
            self.namespace == entry.namespace && self.key == entry.key
        }
    }

    /// The identity as people read it.
    #[must_use]
    pub fn identity(&self) -> String {
        if self.namespace.is_empty() {
            format!("{} {} {}:{}:{}", self.package, self.version, self.file, self.line, self.column)
        } else {
            format!("{}/{}", self.namespace, self.key)
        }
    }

    /// What the fingerprint covers: kind, message, package, version, file, module, namespace and key as texts with a
    /// little-endian u32 length before each, then line and column as little-endian u32, then one byte for `must_hit`.
    #[must_use]
    pub fn descriptor_bytes(&self) -> Vec<u8> {
        let texts = [
            &self.kind,
            &self.message,
            &self.package,
            &self.version,
            &self.file,
            &self.module,
            &self.namespace,
            &self.key,
        ];
        let mut bytes = Vec::new();
        for text in texts {
            bytes.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        for number in [self.line, self.column] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.push(u8::from(self.must_hit));
        bytes
    }

    /// The fingerprint of the descriptor.
    #[must_use]
    pub fn fingerprint(&self) -> Digest {
        blake3::derive_key(FINGERPRINT_CONTEXT, &self.descriptor_bytes())
    }
}

/// Why a site cannot be announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// The bound or rule that ends the run.
    pub limit: OracleLimit,
    /// What to report.
    pub text: String,
}

/// All assertions in the order in which they were first announced; sites hold indices into it.
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
    /// The assertion's index. Catalogs are sent once a process, and are short: a linear search is enough.
    pub fn find_or_add(&mut self, entry: &CatalogEntry<'_>) -> Result<u32, Refused> {
        let index = match self.list.iter().position(|row| row.has_identity_of(entry)) {
            Some(index) => {
                let row = &self.list[index];
                if row.entry(entry.site).as_ref() != Some(entry) {
                    let limit = OracleLimit::CatalogConflict;
                    let (identity, new) = (row.identity(), AssertionRow::of(entry));
                    let say =
                        |row: &AssertionRow| format!("{} {:?} at {}:{}", row.kind, row.message, row.file, row.line);
                    let text = format!("two assertions are {identity:?}: {} and {}", say(row), say(&new));
                    return Err(Refused { limit, text });
                }
                index
            }
            None if self.list.len() >= ASSERTIONS_MAX => {
                let limit = OracleLimit::Properties(ASSERTIONS_MAX as u64);
                return Err(Refused { limit, text: limit.to_string() });
            }
            None => {
                self.list.push(AssertionRow::of(entry));
                self.list.len() - 1
            }
        };
        Ok(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The digest of a catalog as its process computes it: SHA-256 over the payloads of its entries.
    pub fn catalog_digest(&self, sites: &[Option<u32>]) -> Option<Digest> {
        let mut hash = Sha256::new();
        for (site, property) in (0..).zip(sites) {
            let Some(property) = property else { continue };
            let entry = self.list.get(*property as usize)?.entry(site)?;
            let mut payload = [0; PAYLOAD_BYTES_MAX];
            let bytes = entry.encode_payload(&mut payload).ok()?;
            hash.update(&payload[..bytes]);
        }
        Some(hash.finish())
    }

    pub fn add(&mut self, property: u32, passes: u64, failures: u64) {
        if let Some(row) = self.list.get_mut(property as usize) {
            row.passes = row.passes.saturating_add(passes);
            row.failures = row.failures.saturating_add(failures);
        }
    }

    /// Notes the first pass or failure.
    pub fn mark(&mut self, property: u32, passed: bool, moment: &Moment) {
        if let Some(row) = self.list.get_mut(property as usize) {
            let first = if passed { &mut row.first_pass } else { &mut row.first_failure };
            first.get_or_insert(FirstTime { vm: moment.vm, cluster_ns: moment.cluster_ns });
        }
    }

    /// Whether the index names an assertion of this kind.
    pub fn is_of(&self, property: u32, kind: AssertionKind) -> bool {
        self.list.get(property as usize).is_some_and(|row| row.kind == kind_name(kind))
    }

    /// Message and site of an assertion that one failure violates.
    pub fn violated_by_failure(&self, property: u32) -> Option<(String, String)> {
        let row = self.list.get(property as usize)?;
        let violates =
            AssertionKind::ALL.into_iter().any(|kind| kind.failure_is_violation() && kind_name(kind) == row.kind);
        violates.then(|| (row.message.clone(), format!("{}/{}:{}", row.package, row.file, row.line)))
    }

    /// The message of an assertion.
    pub fn message(&self, property: u32) -> Option<&str> {
        self.list.get(property as usize).map(|row| row.message.as_str())
    }

    /// The rows ordered by message, kind and place, so that the order in which VMs announced them does not show.
    pub fn rows(&self) -> Vec<AssertionRow> {
        let mut rows = self.list.clone();
        rows.sort_unstable();
        rows
    }
}
