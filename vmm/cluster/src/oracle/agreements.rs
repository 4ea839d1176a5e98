// SPDX-License-Identifier: AGPL-3.0-or-later
//! `assert_agree!`: the first value that any node reports for a key binds all nodes of the timeline.

use std::collections::BTreeMap;
use std::fmt::Write;

use chaoscontrol_protocol::digest::Digest;
use chaoscontrol_protocol::layout::{AGREE_BYTES_MAX, AGREE_KEYS_MAX};
use serde::{Deserialize, Serialize};

use super::OracleLimit;
use crate::violation::ViolationKind;

/// A bound key as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    namespace: String,
    key: Vec<u8>,
    bound: Bound,
}

/// What a key is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bound {
    digest: Digest,
    value: Vec<u8>,
    vm: u16,
}

/// All bound keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Entry>", into = "Vec<Entry>")]
pub(super) struct Agreements {
    bound: BTreeMap<(String, Vec<u8>), Bound>,
    bytes: usize,
}

impl Agreements {
    /// Binds the key, or compares: a different value is a disagreement, which is returned.
    pub fn agree(
        &mut self,
        vm: u16,
        namespace: &str,
        key: &[u8],
        digest: Digest,
        value: &[u8],
    ) -> Result<Option<ViolationKind>, OracleLimit> {
        let name = (namespace.to_owned(), key.to_vec());
        if let Some(bound) = self.bound.get(&name) {
            let disagreement = || ViolationKind::Disagreement {
                namespace: namespace.to_owned(),
                key: hex(key),
                first_vm: bound.vm,
                first_value: hex(&bound.value),
                value: hex(value),
            };
            return Ok((bound.digest != digest).then(disagreement));
        }
        let bytes = self.bytes + held_bytes(namespace, key, value);
        if self.bound.len() >= AGREE_KEYS_MAX {
            return Err(OracleLimit::AgreeKeys(AGREE_KEYS_MAX as u64));
        }
        if bytes > AGREE_BYTES_MAX {
            return Err(OracleLimit::AgreeBytes(AGREE_BYTES_MAX as u64));
        }
        self.bytes = bytes;
        self.bound.insert(name, Bound { digest, value: value.to_vec(), vm });
        Ok(None)
    }
}

fn held_bytes(namespace: &str, key: &[u8], value: &[u8]) -> usize {
    namespace.len() + key.len() + value.len() + size_of::<Digest>()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl From<Vec<Entry>> for Agreements {
    fn from(entries: Vec<Entry>) -> Self {
        let bytes = |entry: &Entry| held_bytes(&entry.namespace, &entry.key, &entry.bound.value);
        let bytes = entries.iter().map(bytes).sum();
        let bound = entries.into_iter().map(|entry| ((entry.namespace, entry.key), entry.bound)).collect();
        Self { bound, bytes }
    }
}

impl From<Agreements> for Vec<Entry> {
    fn from(agreements: Agreements) -> Self {
        let entry = |((namespace, key), bound)| Entry { namespace, key, bound };
        agreements.bound.into_iter().map(entry).collect()
    }
}
