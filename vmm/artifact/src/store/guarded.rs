// SPDX-License-Identifier: AGPL-3.0-or-later
//! Stores behind a gate: every document under its contract before it is used further or published.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Store, StoreError};
use crate::contract::{ContractError, Gate};
use crate::document::{self, Encoding, MediaType};
use crate::schema::{Descriptor, ObjectRef};
use crate::{Digest, U64};

/// Documents of a chain that are checked when a stage begins. What lies further back is checked when it is read.
const CHAIN_MAX: usize = 512;
/// Bytes of them.
const CHAIN_BYTES_MAX: u64 = 16 << 20;

impl Store {
    /// Puts a gate before everything that is read from and written to this store.
    pub fn guarded(self, gate: Gate) -> Self {
        Self { gate: Some(Mutex::new(gate)), ..self }
    }

    pub(super) fn gate(&self) -> Option<MutexGuard<'_, Gate>> {
        // The gate only grows between calls: whatever panicked left it whole.
        self.gate.as_ref().map(|gate| gate.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers what a stage was given: `bytes`, under `name`, and the documents of the chain behind it. [`Self::release`] checks
    /// all of it in one call.
    pub fn admit(&self, name: &str, descriptor: &Descriptor, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(mut gate) = self.gate() else { return Ok(()) };
        let canonical = document::encode(descriptor).map_err(StoreError::Encode)?;
        let reference = reference(MediaType::Descriptor, &canonical);
        gate.written_by(reference.digest, &descriptor.stage);
        gate.read(&reference, Some(name), bytes);
        let mut seen = std::collections::BTreeSet::from([reference.digest]);
        let mut waiting: VecDeque<ObjectRef> = VecDeque::new();
        follow(&mut gate, MediaType::Descriptor, &canonical, &mut waiting);
        let (mut documents, mut left) = (0, CHAIN_BYTES_MAX);
        while let Some(next) = waiting.pop_front() {
            let is_document = next.media_type.encoding() != Encoding::Raw;
            if !is_document || !seen.insert(next.digest) || documents == CHAIN_MAX || next.size_bytes.0 > left {
                continue;
            }
            // What is missing or damaged may be nothing to this stage: it says so when it reads it.
            let Ok(bytes) = self.read_stored(&next) else { continue };
            documents += 1;
            left -= next.size_bytes.0;
            gate.read(&next, None, &bytes);
            follow(&mut gate, next.media_type, &bytes, &mut waiting);
        }
        Ok(())
    }

    /// Reads an object and holds it against every rule of its kind, whatever that is.
    pub fn audit(&self, reference: &ObjectRef) -> Result<Vec<u8>, StoreError> {
        let bytes = self.read(reference)?;
        let digest = reference.digest;
        document::check(reference.media_type, &bytes).map_err(|source| StoreError::Document { digest, source })?;
        self.passed(reference, &bytes)?;
        Ok(bytes)
    }

    /// Registers a document that was read from elsewhere than the store; [`Self::release`] checks it.
    pub fn admit_file(&self, media: MediaType, name: &str, canonical: &[u8], bytes: &[u8]) {
        if let Some(mut gate) = self.gate() {
            gate.read(&reference(media, canonical), Some(name), bytes);
        }
    }

    /// What the contract says of bytes that the Rust types refuse: it underlines the field. Nothing where it has no objection.
    pub fn explain(&self, media: MediaType, name: &str, bytes: &[u8]) -> Option<ContractError> {
        self.gate()?.explain(&reference(media, bytes), name, bytes).err()
    }

    /// Checks everything read and written since the last time, and stores what was held back.
    pub fn release(&self) -> Result<(), StoreError> {
        let Some(mut gate) = self.gate() else { return Ok(()) };
        let released = gate.release()?;
        drop(gate);
        for (reference, bytes) in &released.objects {
            self.write_object(reference, bytes)?;
        }
        released.environments.iter().try_for_each(|(of, bytes)| self.write_environment(of, bytes))
    }

    /// Holds a document back, or stores it where there is no gate.
    pub(super) fn hold_or_write(&self, reference: ObjectRef, bytes: &[u8]) -> Result<(), StoreError> {
        match self.gate().filter(|_| reference.media_type.encoding() != Encoding::Raw) {
            None => self.write_object(&reference, bytes),
            Some(mut gate) => {
                gate.write(reference, bytes);
                let is_full = gate.is_full();
                drop(gate);
                if is_full { self.release() } else { Ok(()) }
            }
        }
    }

    /// The bytes of an object that is held back.
    pub(super) fn held(&self, digest: &Digest) -> Option<(ObjectRef, Vec<u8>)> {
        self.gate()?.held(digest).cloned()
    }

    /// Tells the gate of a document that was read and decoded.
    pub(super) fn passed(&self, reference: &ObjectRef, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(mut gate) = self.gate() else { return Ok(()) };
        if reference.media_type == MediaType::Descriptor {
            follow(&mut gate, reference.media_type, bytes, &mut VecDeque::new());
        }
        gate.read(reference, None, bytes);
        let is_full = gate.is_full();
        drop(gate);
        if is_full { self.release() } else { Ok(()) }
    }
}

pub(super) fn reference(media_type: MediaType, bytes: &[u8]) -> ObjectRef {
    ObjectRef { digest: Digest::of(bytes), size_bytes: U64::from(bytes.len()), media_type }
}

/// Adds all that a document refers to, and remembers who wrote what a descriptor lists.
fn follow(gate: &mut Gate, media: MediaType, bytes: &[u8], waiting: &mut VecDeque<ObjectRef>) {
    if media == MediaType::Descriptor
        && let Ok(descriptor) = document::decode_loose::<Descriptor>(bytes)
    {
        for link in &descriptor.outputs {
            gate.written_by(link.object.digest, &descriptor.stage);
        }
    }
    waiting.extend(document::references(media, bytes));
}
