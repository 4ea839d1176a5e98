// SPDX-License-Identifier: AGPL-3.0-or-later
//! The chain of stages behind a descriptor.

use std::collections::BTreeSet;

use chaoscontrol_artifact::schema::Descriptor;
use chaoscontrol_artifact::{ObjectRef, Store};

use crate::error::EvidenceError;

/// Stages in a chain: a bound against chains that someone forged.
const STEPS_MAX: usize = 4096;

/// One stage of a chain.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it read and wrote.
    pub descriptor: Descriptor,
    /// Its descriptor's object.
    pub reference: ObjectRef,
}

/// The chain that ends with this stage, first stage first. Behind a merge stand all of its shards, each with what it began from
/// before it; a stage that several go back to stands once.
pub fn walk(store: &Store, last: Step) -> Result<Vec<Step>, EvidenceError> {
    let mut steps: Vec<Step> = Vec::new();
    let mut seen = BTreeSet::from([last.reference.digest]);
    // A stage waits here until all that it goes back to is in `steps`.
    let mut waiting = vec![(last, false)];
    while let Some((step, is_ready)) = waiting.pop() {
        if is_ready {
            steps.push(step);
            continue;
        }
        let before: Vec<ObjectRef> = step.descriptor.before().collect();
        waiting.push((step, true));
        for reference in before.into_iter().rev() {
            if seen.insert(reference.digest) {
                if seen.len() > STEPS_MAX {
                    return Err(EvidenceError::Input(format!("the chain has more than {STEPS_MAX} stages")));
                }
                waiting.push((Step { descriptor: store.load(&reference)?, reference }, false));
            }
        }
    }
    Ok(steps)
}
