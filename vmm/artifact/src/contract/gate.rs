// SPDX-License-Identifier: AGPL-3.0-or-later
//! The gate of a stage: what it reads and writes, collected so that few calls check all of it.
//!
//! A document that was written is held back until it was checked; readers of this store see it all the same. A document that
//! was read and is not among those checked when the stage began is checked with what the stage writes, so that nothing is
//! published that rests on an unchecked document.

use std::collections::{BTreeMap, BTreeSet};

use super::wire::Item;
use super::{Breach, Checker, ContractError, view};
use crate::Digest;
use crate::document::Encoding;
use crate::schema::ObjectRef;

/// Documents held back at most before a call is made.
const HELD_MAX: usize = 1024;
/// Bytes held back at most before a call is made.
const HELD_BYTES_MAX: usize = 32 << 20;
/// Breaches that one message shows.
const SHOWN_MAX: usize = 4;

/// Where a document came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This stage read it.
    Read,
    /// This stage wrote it.
    Written,
}

/// A document that waits for its check.
#[derive(Debug)]
struct Waiting {
    origin: Origin,
    item: Item,
}

/// The documents of one stage.
#[derive(Debug)]
pub struct Gate {
    checker: Checker,
    /// This stage's name.
    stage: String,
    checked: BTreeSet<Digest>,
    /// Who wrote what, as far as descriptors that were seen say so.
    writers: BTreeMap<Digest, String>,
    waiting: BTreeMap<Digest, Waiting>,
    /// Objects held back, in the order of writing.
    held: Vec<(ObjectRef, Vec<u8>)>,
    /// Environment documents held back, by the descriptor that each belongs to.
    environments: Vec<(Digest, Vec<u8>)>,
    /// Bytes of all that waits or is held back.
    bytes: usize,
}

/// What may be stored once it was checked.
#[derive(Debug, Default)]
pub(crate) struct Released {
    pub(crate) objects: Vec<(ObjectRef, Vec<u8>)>,
    pub(crate) environments: Vec<(Digest, Vec<u8>)>,
}

impl Gate {
    /// A gate for this stage.
    pub fn new(checker: Checker, stage: &str) -> Self {
        Self {
            checker,
            stage: stage.to_owned(),
            checked: BTreeSet::new(),
            writers: BTreeMap::new(),
            waiting: BTreeMap::new(),
            held: Vec::new(),
            environments: Vec::new(),
            bytes: 0,
        }
    }

    /// Remembers which stage wrote an object, for messages; the first word counts.
    pub(crate) fn written_by(&mut self, object: Digest, stage: &str) {
        self.writers.entry(object).or_insert_with(|| stage.to_owned());
    }

    /// A document that was read, under the name by which messages call it.
    pub(crate) fn read(&mut self, reference: &ObjectRef, name: Option<&str>, bytes: &[u8]) {
        if self.is_known(&reference.digest) {
            return;
        }
        let stage = self.writers.get(&reference.digest).map_or("an earlier stage", String::as_str).to_owned();
        self.wait(Origin::Read, reference, name, stage, bytes);
    }

    /// A document that was written: held back.
    pub(crate) fn write(&mut self, reference: ObjectRef, bytes: &[u8]) {
        if self.held(&reference.digest).is_some() {
            return;
        }
        if !self.is_known(&reference.digest) {
            let stage = self.stage.clone();
            self.wait(Origin::Written, &reference, None, stage, bytes);
        }
        self.bytes += bytes.len();
        self.held.push((reference, bytes.to_vec()));
    }

    /// The environment of the descriptor `of`: held back.
    pub(crate) fn write_environment(&mut self, of: Digest, reference: &ObjectRef, bytes: &[u8]) {
        let stage = self.stage.clone();
        self.wait(Origin::Written, reference, None, stage, bytes);
        self.environments.push((of, bytes.to_vec()));
    }

    /// The bytes of an object that is held back.
    pub(crate) fn held(&self, digest: &Digest) -> Option<&(ObjectRef, Vec<u8>)> {
        self.held.iter().find(|(reference, _)| reference.digest == *digest)
    }

    /// Whether so much waits that it should be checked now.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() > HELD_MAX || self.bytes > HELD_BYTES_MAX
    }

    /// Checks all that waits, and gives what may be stored. What fails is dropped with all that was held back beside it, so that nothing
    /// unchecked is left to store.
    pub(crate) fn release(&mut self) -> Result<Released, ContractError> {
        let waiting = std::mem::take(&mut self.waiting);
        let released =
            Released { objects: std::mem::take(&mut self.held), environments: std::mem::take(&mut self.environments) };
        self.bytes = 0;
        let (origins, items): (Vec<(Digest, Origin)>, Vec<Item>) =
            waiting.into_iter().map(|(digest, Waiting { origin, item })| ((digest, origin), item)).unzip();
        let breaches = self.checker.check(&items)?;
        for origin in [Origin::Read, Origin::Written] {
            let of_origin: Vec<&Breach> = breaches.iter().filter(|b| origins[b.index].1 == origin).collect();
            if of_origin.is_empty() {
                continue;
            }
            let text = message(&of_origin);
            return Err(if origin == Origin::Read { ContractError::Input(text) } else { ContractError::Output(text) });
        }
        self.checked.extend(origins.into_iter().map(|(digest, _)| digest));
        Ok(released)
    }

    /// Checks one document that the Rust types refuse, apart from all others, for a better message.
    pub(crate) fn explain(&self, reference: &ObjectRef, name: &str, bytes: &[u8]) -> Result<(), ContractError> {
        // A descriptor says itself who wrote it, even a broken one.
        let value: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
        let own = value.get("stage").and_then(|stage| stage.as_str()).unwrap_or_default();
        let stage = self.writers.get(&reference.digest).map_or(own, String::as_str).to_owned();
        // What has no view has no better message either.
        let Ok(Some(item)) = item(reference, Some(name), stage, bytes) else { return Ok(()) };
        let breaches = self.checker.check(&[item])?;
        if breaches.is_empty() {
            Ok(())
        } else {
            Err(ContractError::Input(message(&breaches.iter().collect::<Vec<_>>())))
        }
    }

    fn is_known(&self, digest: &Digest) -> bool {
        self.checked.contains(digest) || self.waiting.contains_key(digest)
    }

    fn wait(&mut self, origin: Origin, reference: &ObjectRef, name: Option<&str>, stage: String, bytes: &[u8]) {
        let item = match item(reference, name, stage, bytes) {
            Ok(Some(item)) => item,
            Ok(None) => return,
            // Without a view it cannot be checked, so it must not pass: no contract accepts this.
            Err(item) => Item { bytes: b"null".to_vec(), ..*item },
        };
        self.bytes += item.bytes.len();
        self.waiting.insert(reference.digest, Waiting { origin, item });
    }
}

/// A document on its way; none for bytes of someone else's format. `Err` has no bytes: the document is CBOR that has no view.
fn item(reference: &ObjectRef, name: Option<&str>, stage: String, bytes: &[u8]) -> Result<Option<Item>, Box<Item>> {
    let kind = reference.media_type.schema().to_owned();
    let name = name.map_or_else(|| format!("{kind} {}", reference.digest.short()), str::to_owned);
    let digest = reference.digest.to_string();
    let item = |is_view, bytes| Item { kind, name, stage, digest, is_view, bytes };
    match reference.media_type.encoding() {
        Encoding::Json => Ok(Some(item(false, bytes.to_vec()))),
        Encoding::Cbor => match view(bytes) {
            Ok(view) => Ok(Some(item(true, view))),
            Err(_) => Err(Box::new(item(true, Vec::new()))),
        },
        Encoding::Raw => Ok(None),
    }
}

/// One message for several breaches.
fn message(breaches: &[&Breach]) -> String {
    let shown = breaches.iter().take(SHOWN_MAX).map(|breach| breach.text.as_str());
    let mut text = shown.collect::<Vec<&str>>().join("\n");
    if breaches.len() > SHOWN_MAX {
        text.push_str(&format!("\n... and {} more", breaches.len() - SHOWN_MAX));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::U64;
    use crate::document::MediaType;

    fn reference(media_type: MediaType, bytes: &[u8]) -> ObjectRef {
        ObjectRef { digest: Digest::of(bytes), size_bytes: U64(bytes.len() as u64), media_type }
    }

    #[test]
    fn what_failed_its_check_is_never_released() {
        let mut gate = Gate::new(Checker::at("/nonexistent/chaos-contract".into()), "boot");
        gate.write(reference(MediaType::Bug, b"{}"), b"{}");
        gate.write_environment(Digest::of(b"x"), &reference(MediaType::Environment, b"[]"), b"[]");
        assert!(gate.release().is_err(), "there is nobody to check it");
        let later = gate.release().expect("nothing waits any more");
        assert!(later.objects.is_empty() && later.environments.is_empty());
    }

    #[test]
    fn a_document_without_a_view_waits_as_what_no_contract_accepts() {
        let mut gate = Gate::new(Checker::at("/nonexistent/chaos-contract".into()), "boot");
        let bytes = b"\xff no CBOR";
        gate.read(&reference(MediaType::Snapshot, bytes), None, bytes);
        let waiting: Vec<&[u8]> = gate.waiting.values().map(|waiting| &waiting.item.bytes[..]).collect();
        assert_eq!(waiting, [b"null"]);
    }
}
