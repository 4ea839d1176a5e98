// SPDX-License-Identifier: AGPL-3.0-or-later
//! The turns that the CPUs took in a branch, as an object of its own beside the branch's record.

use chaoscontrol_artifact::{MediaType, ObjectRef, Store};
use chaoscontrol_cluster::TurnRecording;

use crate::error::ExploreError;

/// Stores them; nothing where no VM keeps a schedule journal.
pub fn publish(store: &Store, turns: &TurnRecording) -> Result<Option<ObjectRef>, ExploreError> {
    let kept = (!turns.is_empty()).then(|| store.put(MediaType::Turns, &turns.encode()));
    Ok(kept.transpose()?)
}

/// Reads them.
pub fn load(store: &Store, reference: &ObjectRef) -> Result<TurnRecording, ExploreError> {
    let decoded = TurnRecording::decode(&store.read(reference)?);
    decoded.map_err(|what| ExploreError::Input(format!("turns {}: {what}", reference.digest)))
}
